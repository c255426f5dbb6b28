"""Streams with switches: the same wrapper breaks the network of a logical peer and of a real one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from dht.streams.base import MAX_FRAME_BYTES, MakeFrame, OnFrame, Streams
from peer.testing.faults import Corrupt, Cut, Duplicate, Fault, Loss, Partition, Reorder, Slow

DELAY = "delay_s"
"""A peer in whose directory a file of this name holds a number of seconds hears everything so much later."""
FLIPS = 3
"""Bytes that are flipped in a corrupt frame, at random places."""

CallLater = Callable[[float, Callable[[], None]], object]
"""Called with (delay in seconds, call)."""


class FaultyStreams:
    """The contract of `dht.streams.base.Streams` over `inner`; does nothing of its own until a switch is thrown.

    `clock` gives seconds and never goes back; `call_later` runs a call after a delay on the thread
    of `send`. Switches wear off by that clock; thrown again while they act, they act as thrown last.
    """

    def __init__(self, inner: Streams, clock: Callable[[], float], call_later: CallLater, rng: Random) -> None:
        self.frames_corrupted = 0
        self.frames_cut = 0
        self.frames_lost = 0
        self.frames_doubled = 0
        self.frames_delayed = 0
        self._inner, self._clock, self._call_later, self._rng = inner, clock, call_later, rng
        self._slow_until, self._bytes_per_s = 0.0, 0.0
        self._corrupt_left = 0
        self._loss, self._loss_until = 0.0, 0.0
        self._doubles, self._doubles_late_s, self._doubles_until = 0.0, 0.0, 0.0
        self._late_s, self._late_until = 0.0, 0.0
        self._cut: dict[str, float] = {}
        self._delay_s = 0.0
        self._on_frame: OnFrame = lambda sender, frame: None
        self._flying: deque[tuple[str, bytes]] = deque()
        self._small: deque[tuple[str, bytes]] = deque()
        self._large: deque[tuple[str, MakeFrame]] = deque()
        self._busy = False

    # ---- switches ----

    def throw(self, fault: Fault, others: Iterable[str] = ()) -> None:
        """Break the network as the fault says; `others` are the peers from whom it parts this one."""
        match fault:
            case Slow():
                self.throttle(fault.bytes_per_s, fault.seconds)
            case Corrupt():
                self.corrupt(fault.frames)
            case Loss():
                self.lose(fault.rate, fault.seconds)
            case Duplicate():
                self.duplicate(fault.rate, fault.late_s, fault.seconds)
            case Reorder():
                self.reorder(fault.late_s, fault.seconds)
            case Cut() | Partition():
                self.cut(others, fault.seconds)
            case _:
                raise AssertionError(f"not a fault of the network: {fault}")

    def throttle(self, bytes_per_s: float, seconds: float) -> None:
        """For `seconds` frames leave one after the other at this rate; 0 holds all of them back until then."""
        self._bytes_per_s, self._slow_until = bytes_per_s, self._clock() + seconds

    def corrupt(self, frames: int) -> None:
        """Flip bytes in this many of the frames that leave next, whoever they are for."""
        self._corrupt_left = frames

    def lose(self, rate: float, seconds: float) -> None:
        """For `seconds` lose this share of the frames that leave, and of those that arrive."""
        self._loss, self._loss_until = rate, self._clock() + seconds

    def duplicate(self, rate: float, late_s: float, seconds: float) -> None:
        """For `seconds` send this share of the frames again, up to `late_s` later."""
        self._doubles, self._doubles_late_s, self._doubles_until = rate, late_s, self._clock() + seconds

    def reorder(self, late_s: float, seconds: float) -> None:
        """For `seconds` hold every frame that leaves back for a time of its own, at most `late_s`."""
        self._late_s, self._late_until = late_s, self._clock() + seconds

    def cut(self, peers: Iterable[str], seconds: float) -> None:
        """For `seconds` nothing passes to or from these peers. What is under way to them still arrives."""
        until = self._clock() + seconds
        self._cut.update(dict.fromkeys(peers, until))

    def delay(self, seconds: float) -> None:
        """From now on every frame that arrives is heard so much later, in the same order: a line of that length."""
        self._delay_s = seconds

    def is_cut(self, peer: str) -> bool:
        """Whether nothing passes to or from this peer now."""
        return bool(self._cut) and self._clock() < self._cut.get(peer, 0.0)

    # ---- the contract ----

    def send(self, to: str, frame: bytes) -> None:
        assert len(frame) <= MAX_FRAME_BYTES, len(frame)
        if self._is_slow():
            self._small.append((to, frame))
            self._pump()
        else:
            self._pass_on(to, frame, self._inner.send)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a frame that is made when its turn comes, behind everything given to `send`."""
        if self._is_slow():
            self._large.append((to, make_frame))
            self._pump()
        else:
            self._inner.send_bulk(to, partial(self._made, to, make_frame))

    def listen(self, on_frame: OnFrame) -> None:
        self._on_frame = on_frame
        self._inner.listen(self._arrive)

    @property
    def unreachable(self) -> frozenset[str]:
        """Also those from whom a switch parts this peer: no new connection would come about."""
        return self._inner.unreachable.union(filter(self.is_cut, self._cut))

    def reconnect(self, inner: Streams) -> None:
        """The peer restarted with new streams: what waited is gone, the switches stay as they are."""
        self._inner, self._busy = inner, False
        self._small.clear()
        self._large.clear()
        self._flying.clear()

    # ---- how frames arrive ----

    def _arrive(self, sender: str, frame: bytes) -> None:
        if self._is_lost(sender):
            return
        if not self._delay_s:
            self._on_frame(sender, frame)
            return
        self._flying.append((sender, frame))
        self._call_later(self._delay_s, partial(self._land, self._inner))

    def _land(self, inner: Streams) -> None:
        """The next frame is heard. Those whose times are equal to the clock's last digit keep their order."""
        if inner is self._inner:
            self._on_frame(*self._flying.popleft())

    # ---- how frames leave ----

    def _is_slow(self) -> bool:
        return self._busy or self._clock() < self._slow_until

    def _pump(self) -> None:
        """Send what waits, each frame when its last byte has left."""
        if self._busy:
            return
        inner = self._inner
        while (frame := self._next()) is not None:
            left_s = self._slow_until - self._clock()
            if left_s > 0:
                needs_s = len(frame[1]) / self._bytes_per_s if self._bytes_per_s else left_s
                self._busy = True
                self._call_later(min(needs_s, left_s), partial(self._sent, inner, *frame))
                return
            self._pass_on(*frame)

    def _sent(self, inner: Streams, to: str, frame: bytes, send: Callable[[str, bytes], None]) -> None:
        if inner is self._inner:
            self._busy = False
            self._pass_on(to, frame, send)
            self._pump()

    def _next(self) -> tuple[str, bytes, Callable[[str, bytes], None]] | None:
        if self._small:
            return (*self._small.popleft(), self._inner.send)
        while self._large:
            to, make_frame = self._large.popleft()
            frame = make_frame()
            if frame is not None:
                return to, frame, self._send_large
        return None

    def _send_large(self, to: str, frame: bytes) -> None:
        self._inner.send_bulk(to, lambda: frame)

    def _made(self, to: str, make_frame: MakeFrame) -> bytes | None:
        """A large frame whose turn has come; None if it is lost or no longer wanted."""
        frame = make_frame()
        if frame is None or self._is_lost(to):
            return None
        frame = self._perhaps_corrupt(frame)
        return None if self._is_scattered(to, frame, self._inner.send) else frame

    def _pass_on(self, to: str, frame: bytes, send: Callable[[str, bytes], None]) -> None:
        if self._is_lost(to):
            return
        frame = self._perhaps_corrupt(frame)
        if not self._is_scattered(to, frame, send):
            send(to, frame)

    def _is_lost(self, peer: str) -> bool:
        """Whether a frame to or from this peer gets lost now."""
        if self.is_cut(peer):
            self.frames_cut += 1
            return True
        if self._loss and self._clock() < self._loss_until and self._rng.random() < self._loss:
            self.frames_lost += 1
            return True
        return False

    def _is_scattered(self, to: str, frame: bytes, send: Callable[[str, bytes], None]) -> bool:
        """Whether the frame leaves later than now; a second copy of it may leave later in any case."""
        if self._doubles and self._clock() < self._doubles_until and self._rng.random() < self._doubles:
            self.frames_doubled += 1
            self._send_within(self._doubles_late_s, to, frame, send)
        if self._late_s and self._clock() < self._late_until:
            self.frames_delayed += 1
            self._send_within(self._late_s, to, frame, send)
            return True
        return False

    def _send_within(self, late_s: float, to: str, frame: bytes, send: Callable[[str, bytes], None]) -> None:
        inner = self._inner

        def leave() -> None:
            if inner is self._inner:
                send(to, frame)

        self._call_later(self._rng.uniform(0.0, late_s), leave)

    def _perhaps_corrupt(self, frame: bytes) -> bytes:
        if not self._corrupt_left or not frame:
            return frame
        self._corrupt_left -= 1
        self.frames_corrupted += 1
        flipped = bytearray(frame)
        for place in self._rng.sample(range(len(frame)), min(FLIPS, len(frame))):
            flipped[place] ^= self._rng.randrange(1, 256)
        return bytes(flipped)
