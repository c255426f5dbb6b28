"""What is noted of a card that is none (`tests/fake_cuda.py`): what lies there, who waits for whom, and who races.

A race is what is read or written by two streams, or by one and the host, with nothing between them that says which
comes first: vector clocks over ranges of bytes. Of the host's threads all count as one: races between them are not
seen.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import peer

HOST = "host"
PRODUCT = str(Path(peer.__file__).parent)
Clock = dict[str, int]
"""By stream or host, up to which of its operations all have ended."""


class Wait(NamedTuple):
    """The host stood still until the device had come so far."""

    kind: str
    function: str
    thread: str


class Access(NamedTuple):
    """Bytes from `first` to before `last` of a storage, by a stream or the host."""

    first: int
    last: int
    by: str
    when: int
    writes: bool
    function: str


@dataclass(eq=False)
class Memory:
    """A storage on the card, or one of main memory that is pinned."""

    storage: StorageWeakRef
    size_bytes: int
    is_pinned: bool
    streams: set[str]
    """Those of which the allocator knows, before it gives the memory out again."""
    accesses: list[Access] = field(default_factory=list)


class NotedCard:
    """What lies there, who waited for it, and what went wrong. Everything is done under `lock`."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.mixed: list[str] = []
        """Operations whose operands lie on two devices."""
        self.waits: list[Wait] = []
        self.races: set[str] = set()
        self.lock = threading.RLock()
        self._memory: dict[int, Memory] = {}
        self._clocks: defaultdict[str, Clock] = defaultdict(lambda: defaultdict(int))
        self._now = self._streams = 0
        self._own = threading.local()

    # ---- where things lie ----

    def memory_of(self, tensor: Tensor) -> Memory | None:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            return None
        key = tensor.untyped_storage()._cdata
        memory = self._memory.get(key)
        if memory is not None and memory.storage.expired():
            self._freed(self._memory.pop(key))
            return None
        return memory

    def lies_there(self, tensor: Tensor) -> bool:
        memory = self.memory_of(tensor)
        return memory is not None and not memory.is_pinned

    def mark(self, tensor: Tensor, *, is_pinned: bool = False) -> None:
        """Have it on the card, or pinned."""
        storage = tensor.untyped_storage()
        if self.memory_of(tensor) is None:
            self._memory[storage._cdata] = Memory(StorageWeakRef(storage), storage.nbytes(), is_pinned, {self.stream})

    def unmark(self, tensor: Tensor) -> None:
        self._memory.pop(tensor.untyped_storage()._cdata, None)

    def sweep(self) -> None:
        for key in [key for key, memory in self._memory.items() if memory.storage.expired()]:
            self._freed(self._memory.pop(key))

    def allocated_bytes(self) -> int:
        with self.lock:
            self.sweep()
            return sum(memory.size_bytes for memory in self._memory.values() if not memory.is_pinned)

    def _freed(self, memory: Memory) -> None:
        """The next who asks gets it, in the order of the streams that the allocator knows; pinned memory waits."""
        for access in () if memory.is_pinned else memory.accesses:
            if access.by not in {HOST, *memory.streams} and not self._is_over(access, memory.streams):
                self.races.add(f"freed while in use by {access.by}: {access.function}")

    def _is_over(self, access: Access, by: set[str]) -> bool:
        return any(self._clocks[each][access.by] >= access.when for each in (HOST, *by))

    # ---- streams ----

    @property
    def stream(self) -> str:
        """The present one of this thread."""
        return str(getattr(self._own, "stream", "default"))

    @stream.setter
    def stream(self, name: str) -> None:
        self._own.stream = name

    def new_stream(self) -> str:
        self._streams += 1
        return f"stream {self._streams}"

    def follows(self, who: str, clock: Clock) -> None:
        """What `who` does next comes after all that `clock` has."""
        mine = self._clocks[who]
        for name, when in list(clock.items()):
            mine[name] = max(mine[name], when)

    def clock_of(self, stream: str) -> Clock:
        with self.lock:
            self.follows(stream, self._clocks[HOST])
            return dict(self._clocks[stream])

    def wait(self, kind: str, clock: Clock | None = None) -> None:
        """The host waits for all of the present stream, or for what `clock` says."""
        with self.lock:
            self.waits.append(Wait(kind, function_at_work(), threading.current_thread().name.partition("_")[0]))
            self.follows(HOST, self._clocks[self.stream] if clock is None else clock)

    def wait_for_all(self) -> None:
        self.wait("synchronize", {})
        for stream in list(self._clocks):
            self.follows(HOST, self._clocks[stream])

    def access(self, by: str, tensors: Sequence[Tensor], *, writes: bool) -> None:
        """Told before a thing is done; whatever else touches these bytes must be over, unless both read."""
        if by != HOST:
            self.follows(by, self._clocks[HOST])
        self._now += 1
        self._clocks[by][by] = self._now
        for tensor in tensors:
            memory = self.memory_of(tensor)
            if memory is not None and tensor.numel():
                self._note(memory, Access(*_range(tensor), by, self._now, writes, function_at_work()))

    def _note(self, memory: Memory, new: Access) -> None:
        kept: list[Access] = []
        for old in memory.accesses:
            meets = old.first < new.last and new.first < old.last
            if meets and (old.writes or new.writes) and not self._is_over(old, {new.by}):
                self.races.add(f"{old.by} in {old.function}, {new.by} in {new.function}")
            within = new.first <= old.first and old.last <= new.last
            if not (within and (new.writes or (old.by == new.by and not old.writes))):
                kept.append(old)
        memory.accesses = [*kept, new]

    def copied(self, into: Tensor, source: Tensor, *, waits: bool) -> None:
        """From one side to the other: nobody waits for pinned memory, if he says so."""
        there = self.lies_there(into)
        if there == self.lies_there(source):
            return
        on_host = self.memory_of(source if there else into)
        if waits or on_host is None:
            kind = "pinned" if on_host is not None else "pageable"
            self.wait(f"{kind} {'to' if there else 'from'} the card")


def _range(tensor: Tensor) -> tuple[int, int]:
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return first * tensor.element_size(), last * tensor.element_size()


def function_at_work() -> str:
    """The innermost of the product that is at work."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PRODUCT) and not frame.f_code.co_name.startswith("<"):
            return frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return "-"
