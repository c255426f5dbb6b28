"""`python -m peer.testing.faulty_link`: the link of a peer, on streams that can be broken from outside."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from dht.invite import Invite
from dht.node import Node
from peer.averaging.link import main, story
from peer.averaging.notices import Notices
from peer.averaging.pipe import LinkPipe
from peer.testing.faults import Corrupt, Fault, Partition, Slow
from peer.testing.faulty_streams import FaultyStreams
from peer.testing.strikes import Orders, Striker, open_thrown, read_thrown


class WatchedPipe(LinkPipe):
    """The pipe to the trainer; `on_phase` hears of a phase before anything else happens in it."""

    def __init__(self, inner: LinkPipe, on_phase: Callable[[str, int], None]) -> None:
        super().__init__(inner._reader, inner._writer)
        self._on_phase = on_phase

    def send(self, kind: str, *fields: Any) -> None:
        """Send it, then look at it: what a peer does in a phase comes after the report of it."""
        super().send(kind, *fields)
        if kind == "report" and fields[0] == "PhaseEntered":
            self._on_phase(fields[1]["phase"], fields[1]["round"])


class Breaker:
    """Throws the switches of one peer's streams."""

    def __init__(self, directory: Path, streams: FaultyStreams) -> None:
        self._directory, self._streams = directory, streams
        self._striker = Striker(directory, by_link=True)

    def enter(self, phase: str, round: int) -> None:
        """What is due when this peer enters a phase."""
        for fault in self._striker.enter(phase, round):
            self.throw(fault)

    def throw(self, fault: Fault) -> None:
        """Break the network as the fault says."""
        match fault:
            case Slow(bytes_per_s=bytes_per_s, seconds=seconds):
                self._streams.throttle(bytes_per_s, seconds)
            case Corrupt(frames=frames):
                self._streams.corrupt(frames)
            case Partition(peers=peers, seconds=seconds):
                self._streams.cut(Orders.read(self._directory).beyond(peers), seconds)
            case _:
                raise AssertionError(f"not a fault of the network: {fault}")


async def faulty_story(node: Node, pipe: LinkPipe, directory: Path, invite: Invite, notices: Notices) -> None:
    """`story` with the node's streams and the pipe wrapped."""
    loop = asyncio.get_running_loop()
    streams = node.streams = FaultyStreams(node.streams, time.monotonic, loop.call_later, Random(node.peer_id))
    breaker = Breaker(directory, streams)
    thrown = open_thrown(directory)

    def on_thrown() -> None:
        for fault in read_thrown(thrown):
            breaker.throw(fault)

    loop.add_reader(thrown, on_thrown)
    try:
        await story(node, WatchedPipe(pipe, breaker.enter), directory, invite, notices)
    finally:
        loop.remove_reader(thrown)


if __name__ == "__main__":
    sys.exit(main(faulty_story))
