"""`python -m peer.testing.faulty_link`: the link of a peer, on streams that can be broken from outside."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from dht.identity import RunKeys
from dht.invite import Invite
from dht.node import Node
from dht.streams.base import Answer
from peer.network.link.channel import LinkEnd
from peer.network.link.cluster_role import MakeRole
from peer.network.link.discovery import Announcer
from peer.network.link.link import main, story
from peer.network.sync.blob_server import CHUNK
from peer.schema.events import Event, PhaseEntered
from peer.schema.live_settings import LiveSettings
from peer.testing.fault_channel import Orders, Striker, open_thrown, read_thrown
from peer.testing.faults import Cut, Fault, Partition
from peer.testing.faulty_streams import DELAY, FaultyStreams
from peer.testing.lying_link import Liar
from peer.testing.short_waits import hurry


class WatchedPipe(LinkEnd):
    """The pipe to the trainer; `on_phase` hears of a phase before anything else happens in it."""

    def __init__(self, inner: LinkEnd, on_phase: Callable[[str, int], None]) -> None:
        super().__init__(inner._reader, inner._writer)
        self.on_limits = inner.on_limits
        self._on_phase = on_phase

    def report(self, event: Event) -> None:
        """Send it, then look at it: what a peer does in a phase comes after the report of it."""
        super().report(event)
        if isinstance(event, PhaseEntered):
            self._on_phase(event.phase, event.round)


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
            case Cut(other=other):
                self._streams.throw(fault, [Orders.read(self._directory).ids[other]])
            case Partition(peers=peers):
                self._streams.throw(fault, Orders.read(self._directory).beyond(peers))
            case _:
                self._streams.throw(fault)


LIES = "lies"
"""A peer in whose directory there is a file of this name gives wrong chunks of its snapshots."""


def let_lie(node: Node, directory: Path) -> None:
    """Have what this node answers to newcomers pass through here."""
    listen = node.answer

    def listen_to_liar(name: str, give: Answer) -> None:
        async def give_wrong(peer: str, request: bytes) -> bytes | None:
            payload = await give(peer, request)
            lies = name == CHUNK and payload and (directory / LIES).exists()
            return bytes([payload[0] ^ 1]) + payload[1:] if lies and payload else payload

        listen(name, give_wrong)

    vars(node)["answer"] = listen_to_liar


CLOCK = "clock_ahead_s"
"""A link in whose directory there is a file of this name reads it to know how wrong its clock is, in seconds."""


def let_clock_go_wrong(node: Node, directory: Path) -> None:
    """Have this node's clock be as wrong as the file says, from now on and whenever it is changed."""

    def clock() -> float:
        path = directory / CLOCK
        return time.time() + (float(path.read_text()) if path.exists() else 0.0)

    node._config = replace(node._config, clock=clock)


def lengthen(node: Node, streams: FaultyStreams, delay_s: float) -> None:
    """Have all that this node hears come so much later, and answers after the way there and back."""
    streams.delay(delay_s)
    ask = node.ask

    async def ask_far(*args: Any, **more: Any) -> bytes | None:
        await asyncio.sleep(2 * delay_s)
        return await ask(*args, **more)

    vars(node)["ask"] = ask_far


async def faulty_story(
    node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, chosen: LiveSettings,
    make_role: MakeRole | None,
) -> None:  # fmt: skip
    """`story` with the node's streams and the pipe wrapped."""
    hurry(directory)
    loop = asyncio.get_running_loop()
    streams = node.streams = FaultyStreams(node.streams, time.monotonic, loop.call_later, Random(node.peer_id))
    let_lie(node, directory)
    let_clock_go_wrong(node, directory)
    Liar(directory, node.peer_id, RunKeys(notices.identity, notices.run)).stand_in()
    if (directory / DELAY).exists():
        lengthen(node, streams, float((directory / DELAY).read_text()))
    breaker = Breaker(directory, streams)
    thrown = open_thrown(directory)

    def on_thrown() -> None:
        for fault in read_thrown(thrown):
            breaker.throw(fault)

    loop.add_reader(thrown, on_thrown)
    try:
        await story(node, WatchedPipe(pipe, breaker.enter), directory, invite, notices, chosen, make_role)
    finally:
        loop.remove_reader(thrown)


if __name__ == "__main__":
    sys.exit(main(faulty_story))
