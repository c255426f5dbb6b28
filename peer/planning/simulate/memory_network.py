"""The board and the streams in memory, on a virtual clock: the network of tests and simulators.

`Scheduler` is a discrete-event clock. `MemoryNetwork` carries frames between logical peers with the requested delays,
losses and faults, deterministically for a seed; `MemoryBoard` keeps records. Nothing here awaits or uses threads: a
frame costs a few microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dht.streams.base import MAX_FRAME_BYTES, MakeFrame, OnFrame

DropsFrame = Callable[[str, str, bytes], bool]
"""Called with (sender, receiver, frame) when a frame is sent; True loses it."""


DelaysFrame = Callable[[str, str, bytes], float]
"""Called with the same arguments; returns the extra seconds by which the frame is delayed. Other frames may overtake
it."""


NOTICED_S = 4.0
"""Seconds from a peer's end until the others have tried in vain to reach it again, as in
`dht.streams.connection_watch`."""


class Scheduler:
    """A virtual clock that runs calls in order of time; calls of the same time run in the order of `call_at`."""

    __slots__ = ("_calls", "_count", "now")

    def __init__(self, now_s: float = 0.0) -> None:
        self.now = now_s
        self._calls: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def __len__(self) -> int:
        """The number of waiting calls."""
        return len(self._calls)

    def call_at(self, when_s: float, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` at `when_s`, or as soon as possible if that time has passed."""
        self._count += 1
        heapq.heappush(self._calls, (max(when_s, self.now), self._count, call, args))

    def call_in(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        self.call_at(self.now + delay_s, call, *args)

    def run_until(self, until_s: float) -> None:
        """Run every call due up to and including `until_s`, and set the clock to it."""
        calls, pop = self._calls, heapq.heappop
        while calls and calls[0][0] <= until_s:
            self.now, _, call, args = pop(calls)
            call(*args)
        self.now = max(self.now, until_s)


class Departures:
    """The peers that have disconnected. After NOTICED_S the others know that they cannot be reached."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left_at: dict[str, float] = {}

    def left(self, peer_id: str) -> None:
        self._left_at.setdefault(peer_id, self._scheduler.now)

    def returned(self, peer_id: str) -> None:
        self._left_at.pop(peer_id, None)

    @property
    def noticed(self) -> frozenset[str]:
        """The peers that left at least NOTICED_S ago."""
        if not self._left_at:
            return frozenset()
        before = self._scheduler.now - NOTICED_S
        return frozenset(peer for peer, at in self._left_at.items() if at <= before)


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """How frames travel without faults. Frames from one sender to one receiver keep their order, except for
    duplicates and old frames."""

    delay_s: tuple[float, float] = (0.01, 0.05)
    """Smallest and largest one-way delay, uniform."""
    loss: float = 0.0
    """Probability that a frame is lost."""
    duplication: float = 0.0
    """Probability that a frame arrives a second time, up to `old_s` later."""
    old: float = 0.0
    """Probability that a frame is delayed by up to `old_s` more."""
    old_s: float = 30.0


class MemoryStreams:
    """One peer's end of a `MemoryNetwork`: the contract of `dht.streams.base.Streams`."""

    __slots__ = ("_network", "bytes_received", "bytes_sent", "on_frame", "peer_id")

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self.peer_id = peer_id
        self.on_frame: OnFrame | None = None
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, to: str, frame: bytes) -> None:
        """Queue a frame. A peer that has been disconnected sends nothing."""
        assert to != self.peer_id, "a peer does not send to itself"
        assert len(frame) <= MAX_FRAME_BYTES, len(frame)
        self._network.carry(self, to, frame)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Make the frame and send it at once."""
        frame = make_frame()
        if frame is not None:
            assert len(frame) <= MAX_FRAME_BYTES, len(frame)
            self._network.carry(self, to, frame)

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Frames that arrive earlier are dropped."""
        self.on_frame = on_frame

    @property
    def unreachable(self) -> frozenset[str]:
        """The peers that have disconnected."""
        return self._network.departures.noticed


class MemoryNetwork:
    """Connects logical peers on a `Scheduler`; faults can be switched on and off at any time.

    Partitions, cuts and `drops` act when a frame is sent: frames already on their way still arrive.
    """

    def __init__(self, scheduler: Scheduler, rng: Random, link: LinkModel | None = None) -> None:
        self.scheduler = scheduler
        self.link = link or LinkModel()
        self.drops: DropsFrame | None = None
        self.delays: DelaysFrame | None = None
        """Both model a targeted adversary."""
        self.frames_sent = 0
        self.frames_lost = 0
        self.departures = Departures(scheduler)
        self._random = rng.random
        self._ends: dict[str, MemoryStreams] = {}
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._side: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._stalled_until: dict[str, float] = {}

    def connect(self, peer_id: str) -> MemoryStreams:
        """Returns the peer's end. Connecting again (a restart) replaces the earlier end."""
        self.departures.returned(peer_id)
        self._ends[peer_id] = end = MemoryStreams(self, peer_id)
        return end

    def disconnect(self, peer_id: str) -> None:
        """A crash or a leave: frames to and from the peer are lost until it connects again."""
        self._ends.pop(peer_id, None)
        self.departures.left(peer_id)

    def partition(self, *sides: Collection[str]) -> None:
        """Frames pass only within a side. Peers that are not named form one more side. Replaces the last partition."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}

    def cut(self, sender: str, receiver: str, *, both_ways: bool = True) -> None:
        """Nothing passes from `sender` to `receiver`, nor back if `both_ways`."""
        self._cuts.add((sender, receiver))
        if both_ways:
            self._cuts.add((receiver, sender))

    def mend(self, sender: str, receiver: str) -> None:
        """Undo `cut` in both directions."""
        self._cuts -= {(sender, receiver), (receiver, sender)}

    def stall(self, peer_id: str, until_s: float) -> None:
        """The peer reads nothing until `until_s`; frames that arrive earlier are delivered then."""
        self._stalled_until[peer_id] = until_s

    def heal(self) -> None:
        """Undo partitions, cuts and the adversary. Stalls end by themselves."""
        self._side.clear()
        self._cuts.clear()
        self.drops = self.delays = None

    def carry(self, sender: MemoryStreams, to: str, frame: bytes) -> None:
        """Called by `MemoryStreams`: lose the frame, or schedule its arrival."""
        source, link, random = sender.peer_id, self.link, self._random
        if self._ends.get(source) is not sender:
            return
        self.frames_sent += 1
        sender.bytes_sent += len(frame)
        blocked = self.is_parted(source, to) or (self.drops is not None and self.drops(source, to, frame))
        if blocked or (link.loss and random() < link.loss):
            self.frames_lost += 1
            return
        low, high = link.delay_s
        arrival = self.scheduler.now + low + (high - low) * random()
        if self.delays is not None and (late_s := self.delays(source, to, frame)):
            self.scheduler.call_at(arrival + late_s, self._arrive, source, to, frame)
            return
        if link.duplication and random() < link.duplication:
            self.scheduler.call_at(arrival + link.old_s * random(), self._arrive, source, to, frame)
        if link.old and random() < link.old:
            self.scheduler.call_at(arrival + link.old_s * random(), self._arrive, source, to, frame)
            return
        pair = (source, to)
        arrival = max(arrival, self._last_arrival.get(pair, 0.0))
        self._last_arrival[pair] = arrival
        self.scheduler.call_at(arrival, self._arrive, source, to, frame)

    def is_parted(self, source: str, to: str) -> bool:
        """Whether a partition or a cut blocks frames from `source` to `to`."""
        side = self._side
        if side and side.get(source) != side.get(to):
            return True
        return bool(self._cuts) and (source, to) in self._cuts

    def _arrive(self, source: str, to: str, frame: bytes) -> None:
        if self._stalled_until:
            awake = self._stalled_until.get(to, 0.0)
            if awake > self.scheduler.now:
                self.scheduler.call_at(awake, self._arrive, source, to, frame)
                return
        end = self._ends.get(to)
        if end is None or end.on_frame is None:
            self.frames_lost += 1
            return
        end.bytes_received += len(frame)
        end.on_frame(source, frame)
