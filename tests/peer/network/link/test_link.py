"""What a link knows of itself while it runs."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from dht.addresses import LOOPBACK
from dht.errors import BadInvite, ClockOff
from dht.identity import Identity
from dht.invite import Invite, issue
from dht.node import NetworkConfig, Node, open_node
from peer.network.link.channel import LinkEnd
from peer.network.link.discovery import Announcer
from peer.network.link.handle import LinkProcess, limits_of
from peer.network.link.link import Story, _join
from peer.network.link.link import story as real_story
from peer.schema import spec as specs
from peer.schema.ipc import OpenLink
from peer.schema.settings import PeerSettings
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.swarm

SPEC = specs.load("micro")
OUTSIDE = "/ip4/203.0.113.5/tcp/4001"


async def test_what_it_publishes_follows_what_its_daemon_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine alone, until the daemon knows one of the internet: a node looks every few seconds."""
    said: list[tuple[str, ...]] = []

    async def story(node: Node, pipe: LinkEnd, directory: Path, invite: Invite, notices: Announcer, *_: Any) -> None:
        said.append(notices.addrs())
        outside = f"{OUTSIDE}/p2p/{node.peer_id}"

        async def addresses() -> tuple[str, ...]:
            return *said[0], outside

        monkeypatch.setattr(node._daemon, "addresses", addresses)
        await node.look_where()
        said.append(notices.addrs())
        assert said[1] == (outside,)

    await joined(tmp_path, story)
    assert [len(addresses) for addresses in said] == [1, 1]


async def test_a_clock_that_goes_wrong_later_ends_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its trainer when its machine wakes up a minute and a half ahead of the node of its invite."""
    wall = [0.0]
    monkeypatch.setattr("dht.clock.LOOK_S", 0.01)
    monkeypatch.setattr(
        "peer.network.link.link.NetworkConfig", partial(NetworkConfig, clock=lambda: time.time() + wall[0])
    )
    waiting = asyncio.Event()

    async def tell(node: Node, pipe: LinkEnd, *more: Any) -> None:
        monkeypatch.setattr(pipe, "send", lambda message: waiting.set())
        await real_story(node, pipe, *more)

    async def sleep_and_wake() -> None:
        await waiting.wait()
        wall[0] = 90.0

    waking = asyncio.create_task(sleep_and_wake())
    wrong = pytest.RaisesExc(ClockOff, match="90 s ahead of that of the node asked")
    with pytest.RaisesGroup(wrong, allow_unwrapped=True, flatten_subgroups=True):
        async with asyncio.timeout(HANG_S):
            await joined(tmp_path, tell)
    await waking


def test_a_link_of_its_own_process_says_why_it_cannot_join(tmp_path: Path) -> None:
    """All it needs is in the first message."""
    ended: Queue[Exception] = Queue()
    (tmp_path / "invite").write_text("no invite")
    with LinkProcess(str(tmp_path / "invite"), tmp_path, PeerSettings(), lambda message: None, ended.put):
        assert isinstance(ended.get(timeout=HANG_S), BadInvite)
    assert ended.empty()


async def joined(folder: Path, tell: Story) -> None:
    """A link beside the bootstrap node of its run, which tells this story."""
    place = folder / "b"
    organiser = Identity.load_or_create(place / "identity.key")
    config = NetworkConfig(
        run=SPEC.digest(), identity_path=place / "identity.key", socket_folder=place / "run", listen=LOOPBACK
    )
    (folder / "p").mkdir()
    ours, theirs = socket.socketpair()
    with theirs:
        pipe = await LinkEnd.open(ours)
        try:
            async with open_node(config) as bootstrap:
                bootstrap.serve("spec", specs.dump(SPEC).encode)
                addrs = await bootstrap.addresses()
                invite = issue(organiser, run=SPEC.run.name, spec_hash=SPEC.digest(), addrs=addrs)
                opening = OpenLink(invite, "me", LOOPBACK, limits_of(PeerSettings()), 1, "")
                await _join(opening, folder / "p", pipe, tell)
        finally:
            await pipe.close(HANG_S)
