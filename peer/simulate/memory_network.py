"""The board and the streams in memory, on a virtual clock: the network of tests and simulators.

`Scheduler` is a discrete-event clock. `MemoryNetwork` carries frames between logical peers with
the delays, losses and faults one asks for, deterministically for a seed; `MemoryBoard` keeps
records. Nothing here awaits or threads: a frame costs a few microseconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from dht.streams.base import MAX_FRAME_BYTES, MakeFrame, OnFrame
from dht.streams.token_bucket import CHUNK_BYTES, CHUNK_S, SMALLEST_CHUNK_BYTES, Lane, WeightedTurns

DropsFrame = Callable[[str, str, bytes], bool]
"""Called with (sender, receiver, frame) when a frame is sent; True loses it."""


DelaysFrame = Callable[[str, str, bytes], float]
"""Called likewise; the seconds by which the frame arrives later than others do, which may overtake it."""


class Scheduler:
    """A virtual clock that runs calls in order of time, ties in order of `call_at`."""

    __slots__ = ("_calls", "_count", "now")

    def __init__(self, now_s: float = 0.0) -> None:
        self.now = now_s
        self._calls: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def __len__(self) -> int:
        """Calls that still wait."""
        return len(self._calls)

    @property
    def next_at(self) -> float:
        """When the next call is due; infinity if none waits."""
        return self._calls[0][0] if self._calls else float("inf")

    def call_at(self, when_s: float, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` at `when_s`, or as soon as possible if that has passed."""
        self._count += 1
        heapq.heappush(self._calls, (max(when_s, self.now), self._count, call, args))

    def call_in(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` after `delay_s`."""
        self.call_at(self.now + delay_s, call, *args)

    def run_until(self, until_s: float) -> None:
        """Run every call due up to and including `until_s`; then it is `until_s`."""
        calls, pop = self._calls, heapq.heappop
        while calls and calls[0][0] <= until_s:
            self.now, _, call, args = pop(calls)
            call(*args)
        self.now = max(self.now, until_s)


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """How frames travel when nothing is broken. Frames of one sender to one receiver keep their
    order, except duplicates and old ones, and small ones that overtake large ones on a capped line."""

    delay_s: tuple[float, float] = (0.01, 0.05)
    """Smallest and largest one-way delay, uniform."""
    loss: float = 0.0
    """Probability that a frame is lost."""
    duplication: float = 0.0
    """Probability that a frame arrives a second time, up to `old_s` later."""
    old: float = 0.0
    """Probability that a frame is delayed by up to `old_s` more."""
    old_s: float = 30.0
    upload_bps: Mapping[str, float] = field(default_factory=dict)
    """Bits per second that leave a peer, by peer id; a peer that is not named has no limit."""
    download_bps: Mapping[str, float] = field(default_factory=dict)
    """Likewise that reach a peer."""


class MemoryLine:
    """One direction of a peer's line on the virtual clock: what `dht.streams.shaper.Shaper` is to real streams.

    Frames pass piece by piece, at most `bps` bits per second in all, in the turns of `dht.streams.token_bucket`.
    """

    def __init__(self, scheduler: Scheduler, bps: float) -> None:
        self._scheduler, self._bytes_per_s = scheduler, bps / 8
        self._chunk_bytes = min(CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, round(bps / 8 * CHUNK_S)))
        self._turns: WeightedTurns[tuple[Lane, str, int]] = WeightedTurns()
        self._waiting: dict[tuple[Lane, str], deque[tuple[MakeFrame, OnFrame]]] = {}
        self._passing: dict[tuple[Lane, str], tuple[bytes, OnFrame]] = {}
        self._busy = False

    def put(self, lane: Lane, peer: str, make_frame: MakeFrame, passed: OnFrame) -> None:
        """The frame to or from `peer` is made when those before it have passed; `passed(peer, frame)` when it has."""
        self._waiting.setdefault((lane, peer), deque()).append((make_frame, passed))
        if (lane, peer) not in self._passing:
            self._begin(lane, peer)
            self._serve()

    def _begin(self, lane: Lane, peer: str) -> None:
        """Have the next frame that is still wanted wait for its turn."""
        waiting = self._waiting[lane, peer]
        while waiting:
            make_frame, passed = waiting.popleft()
            frame = make_frame()
            if frame is not None:
                self._passing[lane, peer] = frame, passed
                return self._offer(lane, peer, len(frame))
        del self._waiting[lane, peer]

    def _offer(self, lane: Lane, peer: str, left: int) -> None:
        self._turns.put(lane, peer, min(left, self._chunk_bytes), (lane, peer, left))

    def _serve(self) -> None:
        first = self._turns.first()
        if self._busy or first is None:
            return
        size, _ = first
        self._busy = True
        self._scheduler.call_in(size / self._bytes_per_s, self._served, size, *self._turns.pop())

    def _served(self, size: int, lane: Lane, peer: str, left: int) -> None:
        self._busy = False
        if left > size:
            self._offer(lane, peer, left - size)
        else:
            frame, passed = self._passing.pop((lane, peer))
            passed(peer, frame)
            self._begin(lane, peer)
        self._serve()


class MemoryStreams:
    """One peer's end of a `MemoryNetwork`: the contract of `dht.streams.base.Streams`."""

    __slots__ = ("_network", "bytes_received", "bytes_sent", "download", "on_frame", "peer_id", "upload")

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self.upload, self.download = (network.line(caps, peer_id) for caps in network.caps)
        self.peer_id = peer_id
        self.on_frame: OnFrame | None = None
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, to: str, frame: bytes) -> None:
        """Queue a frame; a peer that has been disconnected sends nothing."""
        assert to != self.peer_id, "a peer does not send to itself"
        assert len(frame) <= MAX_FRAME_BYTES, len(frame)
        if self.upload is None:
            self._network.carry(self, to, frame)
        else:
            self.upload.put(Lane.CONTROL, to, lambda: frame, partial(self._network.carry, self))

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Make the frame and send it; with a capped upload when those before it have left."""
        if self.upload is not None:
            self.upload.put(Lane.BULK, to, make_frame, partial(self._network.carry, self, lane=Lane.BULK))
            return
        frame = make_frame()
        if frame is not None:
            assert len(frame) <= MAX_FRAME_BYTES, len(frame)
            self._network.carry(self, to, frame, lane=Lane.BULK)

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Frames that arrive before are dropped."""
        self.on_frame = on_frame


class MemoryNetwork:
    """Connects logical peers on a `Scheduler`; faults can be switched on and off at any time.

    Partitions, cuts and `drops` act when a frame is sent: what is under way still arrives.
    """

    def __init__(self, scheduler: Scheduler, rng: Random, link: LinkModel | None = None) -> None:
        self.scheduler = scheduler
        self.link = link or LinkModel()
        self.drops: DropsFrame | None = None
        self.delays: DelaysFrame | None = None
        """A targeted adversary, both."""
        self.frames_sent = 0
        self.frames_lost = 0
        self._random = rng.random
        self._ends: dict[str, MemoryStreams] = {}
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._side: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._stalled_until: dict[str, float] = {}

    @property
    def caps(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Bits per second by peer id: upload, download."""
        return self.link.upload_bps, self.link.download_bps

    def line(self, caps: Mapping[str, float], peer_id: str) -> MemoryLine | None:
        """A new line for a peer; None if it has no cap."""
        return MemoryLine(self.scheduler, caps[peer_id]) if peer_id in caps else None

    def connect(self, peer_id: str) -> MemoryStreams:
        """The peer's end. Connecting again (a restart) replaces the earlier end."""
        self._ends[peer_id] = end = MemoryStreams(self, peer_id)
        return end

    def disconnect(self, peer_id: str) -> None:
        """A crash or a leave: frames to and from the peer are lost until it connects again."""
        self._ends.pop(peer_id, None)

    def partition(self, *sides: Collection[str]) -> None:
        """Frames pass within a side only; the peers not named form one more side. Replaces the last partition."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}

    def cut(self, sender: str, receiver: str, *, both_ways: bool = True) -> None:
        """Nothing passes from `sender` to `receiver`, nor back unless it is one-way."""
        self._cuts.add((sender, receiver))
        if both_ways:
            self._cuts.add((receiver, sender))

    def mend(self, sender: str, receiver: str) -> None:
        """Undo `cut` in both directions."""
        self._cuts -= {(sender, receiver), (receiver, sender)}

    def stall(self, peer_id: str, until_s: float) -> None:
        """The peer reads nothing until then; what arrives meanwhile is delivered at that moment."""
        self._stalled_until[peer_id] = until_s

    def heal(self) -> None:
        """Undo partitions, cuts and the adversary. Stalls end by themselves."""
        self._side.clear()
        self._cuts.clear()
        self.drops = self.delays = None

    def carry(self, sender: MemoryStreams, to: str, frame: bytes, lane: Lane = Lane.CONTROL) -> None:
        """Lose the frame, or schedule its arrival (called by `MemoryStreams` when its last bit has left)."""
        source, link, random = sender.peer_id, self.link, self._random
        if self._ends.get(source) is not sender:
            return
        self.frames_sent += 1
        sender.bytes_sent += len(frame)
        if self._is_blocked(source, to, frame) or (link.loss and random() < link.loss):
            self.frames_lost += 1
            return
        low, high = link.delay_s
        arrival = self.scheduler.now + low + (high - low) * random()
        if self.delays is not None and (late_s := self.delays(source, to, frame)):
            self.scheduler.call_at(arrival + late_s, self._arrive, source, to, frame, lane)
            return
        if link.duplication and random() < link.duplication:
            self.scheduler.call_at(arrival + link.old_s * random(), self._arrive, source, to, frame, lane)
        if link.old and random() < link.old:
            self.scheduler.call_at(arrival + link.old_s * random(), self._arrive, source, to, frame, lane)
            return
        pair = (source, to)
        arrival = max(arrival, self._last_arrival.get(pair, 0.0))
        self._last_arrival[pair] = arrival
        self.scheduler.call_at(arrival, self._arrive, source, to, frame, lane)

    def is_parted(self, source: str, to: str) -> bool:
        """Whether a partition or a cut lets nothing pass from `source` to `to`."""
        side = self._side
        if side and side.get(source) != side.get(to):
            return True
        return bool(self._cuts) and (source, to) in self._cuts

    def _is_blocked(self, source: str, to: str, frame: bytes) -> bool:
        if self.is_parted(source, to):
            return True
        return self.drops is not None and self.drops(source, to, frame)

    def _arrive(self, source: str, to: str, frame: bytes, lane: Lane) -> None:
        if self._stalled_until:
            awake = self._stalled_until.get(to, 0.0)
            if awake > self.scheduler.now:
                self.scheduler.call_at(awake, self._arrive, source, to, frame, lane)
                return
        end = self._ends.get(to)
        if end is not None and end.download is not None:
            end.download.put(lane, source, lambda: frame, partial(self._deliver, end))
        else:
            self._deliver(end, source, frame)

    def _deliver(self, end: MemoryStreams | None, source: str, frame: bytes) -> None:
        if end is None or end.on_frame is None or self._ends.get(end.peer_id) is not end:
            self.frames_lost += 1
            return
        end.bytes_received += len(frame)
        end.on_frame(source, frame)
