"""Incoming streams of a node: one per lane and sender, and a limit on all of them.

Peer ids cost nothing, so an attacker could open streams under many of them to keep others out. When there is no room,
a stream on which nothing was ever said is closed, the oldest first; otherwise the one that was silent longest: of
strangers while there are any. A peer whose stream was closed opens another one with its next frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dht.streams.shaper import Lane

Door = tuple[Lane, str]
"""Lane and sender."""

log = logging.getLogger(__name__)


class InboundStreams:
    """At most `most` tasks, each of which reads a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.is_known: Callable[[str], bool] = lambda peer: False
        """Who is no stranger."""
        self._silent: dict[Door, asyncio.Task[None]] = {}
        """Streams on which nothing has come yet; the oldest first."""
        self._heard: dict[Door, asyncio.Task[None]] = {}
        """The other streams; the one that was silent longest first."""

    def __len__(self) -> int:
        return len(self._silent) + len(self._heard)

    @property
    def is_closed(self) -> bool:
        """Whether no further stream fits."""
        return self._most == 0

    def add(self, door: Door, task: asyncio.Task[None]) -> None:
        """A new stream: it replaces the last one of its sender; if there is no room another one is closed."""
        last = self._pop(door)
        if last is not None:
            last.cancel()
        elif len(self) >= self._most:
            self._give_way()
        self._silent[door] = task

    def heard(self, door: Door) -> None:
        """Something has arrived, even a part of a frame; no effect if the stream was replaced meanwhile."""
        task = self._pop(door)
        if task is not None:
            self._heard[door] = task

    def end(self, door: Door, task: asyncio.Task[None]) -> None:
        """The stream has ended; no effect if another has taken its place."""
        for streams in (self._silent, self._heard):
            if streams.get(door) is task:
                del streams[door]

    def cut(self, sender: str) -> None:
        for (_, who), task in [*self._silent.items(), *self._heard.items()]:
            if who == sender:
                task.cancel()

    def close_all(self) -> None:
        for task in [*self._silent.values(), *self._heard.values()]:
            task.cancel()

    def _give_way(self) -> None:
        strange = (door for door in (*self._silent, *self._heard) if not self.is_known(door[1]))
        door = next(strange, None) or next(iter(self._silent or self._heard))
        log.warning("cut off %s: %d streams are open", door[1], len(self))
        task = self._pop(door)
        if task is not None:
            task.cancel()

    def _pop(self, door: Door) -> asyncio.Task[None] | None:
        return self._silent.pop(door, None) or self._heard.pop(door, None)
