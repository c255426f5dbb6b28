"""The examination beside a real node on loopback, as a bootstrap node answers."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import peer.tools.doctor.network
from dht.addresses import LOOPBACK
from dht.errors import ClockOff, Unreachable
from dht.identity import Identity
from dht.invite import issue, parse
from dht.node import NetworkConfig, open_node
from dht.reach.bandwidth_probe import serve_probes
from dht.reach.dial_back import DialBack, serve_dial_back, speaks_libp2p
from peer.consensus.protocol.messages import Heartbeat
from peer.network.link.discovery import Announcer
from peer.schema.spec import dump, load
from peer.tools.doctor.check import Check, Status
from peer.tools.doctor.network import Dialled, check_bootstrap, check_reach, examine_network
from peer.tools.watch.preview import facts_of, fetch

pytestmark = pytest.mark.swarm

HEAD_SENT = Heartbeat(b"", -1, 0, b"s" * 32, True, 0, 0, False)
"""Of a peer that waits for the run to begin."""


async def test_a_run_that_is_there_is_examined_and_introduced(tmp_path: Path, closed_port: int) -> None:
    """One of its two addresses is silent; its clock is ten seconds ahead. The spec is that of the invite."""
    spec = load("micro")
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    config = NetworkConfig(
        run=spec.digest(), identity_path=tmp_path / "identity.key", socket_folder=tmp_path / "run", listen=LOOPBACK
    )
    async with open_node(config) as node:
        node.serve("spec", dump(spec).encode)
        node.serve("time", lambda: struct.pack(">d", time.time() + 10))
        serve_probes(node)
        knocked_at: list[str] = []

        async def knock(host: str, port: int) -> bool:
            knocked_at.append(host)
            return await speaks_libp2p(host, port)

        serve_dial_back(node, knock)
        other = Identity.generate()
        await Announcer(node.board, other, spec.digest(), "peer").publish(HEAD_SENT)
        silent = f"/ip4/127.0.0.1/tcp/{closed_port}/p2p/{organiser.peer_id}"
        addresses = (*await node.addresses(), silent)
        invite = parse(issue(organiser, run="micro", spec_hash=spec.digest(), addrs=addresses), time.time())
        found: dict[str, Check] = {}
        met = await examine_network(invite, LOOPBACK, lambda check: found.update({check.name: check}))
        (tmp_path / "newcomer").mkdir()
        with pytest.raises(ClockOff):
            await fetch(invite, (), tmp_path / "newcomer")
        node.serve("time", lambda: struct.pack(">d", time.time()))
        text = await fetch(invite, (), tmp_path / "newcomer")
        assert text == dump(spec)
    assert met is not None
    assert met.spec == dump(spec).encode()
    assert met.peers == 1
    assert list(found) == ["daemon", "bootstrap", "clock", "line", "reach"]
    assert found["bootstrap"].status is Status.WARN
    assert silent in found["bootstrap"].found
    assert found["clock"].status is Status.FAIL
    assert found["clock"].figures["skew_s"] == pytest.approx(-10, abs=2)
    assert found["line"].status is Status.PASS
    assert knocked_at == ["127.0.0.1"]
    assert found["reach"].status is Status.UNKNOWN
    assert set(found["line"].figures) == {"upload_mbps", "download_mbps"}
    assert facts_of(invite.run, invite.organiser, text, None)["parameters"] > 0


async def test_a_network_that_goes_away_is_no_broken_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told to install hivemind anew for that; what was found by then counts."""

    class Lost:
        async def addresses(self) -> list[str]:
            raise Unreachable("the daemon is gone")

    @asynccontextmanager
    async def opened(config: NetworkConfig) -> AsyncIterator[Lost]:
        yield Lost()

    monkeypatch.setattr(peer.tools.doctor.network, "open_node", opened)
    found: list[Check] = []
    assert await examine_network(None, LOOPBACK, found.append) is not None
    assert [(check.name, check.status) for check in found] == [("daemon", Status.PASS), ("network", Status.UNKNOWN)]
    assert "the daemon is gone" in found[1].found


def test_every_address_is_told() -> None:
    there = Dialled(address="/ip4/192.0.2.1/tcp/1", round_trip_s=0.025)
    silent = Dialled(address="/ip4/192.0.2.2/tcp/1", round_trip_s=None, why="no answer")
    assert check_bootstrap([there]).status is Status.PASS
    assert "25 ms" in check_bootstrap([there]).found
    assert check_bootstrap([silent, there]).status is Status.WARN
    assert check_bootstrap([silent, silent]).status is Status.FAIL


@pytest.mark.parametrize(
    ("addresses", "status"),
    [
        (["/ip4/8.8.8.8/tcp/4001"], Status.PASS),
        (["/ip4/192.168.1.7/tcp/4001", "/ip4/8.8.8.8/tcp/1/p2p/12D3/p2p-circuit"], Status.WARN),
        (["/ip4/192.168.1.7/tcp/4001"], Status.UNKNOWN),
        (["/ip4/127.0.0.1/tcp/4001"], Status.UNKNOWN),
        ([], Status.UNKNOWN),
    ],
)
def test_who_was_not_dialled_is_not_said_to_be_reached(addresses: list[str], status: Status) -> None:
    assert check_reach(addresses).status is status


@pytest.mark.parametrize(
    ("knocked", "status", "words"),
    [
        ([("8.8.8.8", True)], Status.PASS, "8.8.8.8 port 4001"),
        ([("8.8.8.8", False), ("8.8.8.8", True)], Status.PASS, "connected"),
        ([("8.8.8.8", False)], Status.WARN, "could not connect to 8.8.8.8 port 4001"),
        ([("192.168.1.7", True)], Status.UNKNOWN, "of the same network"),
        ([("192.168.1.7", False)], Status.UNKNOWN, "nobody has dialled back"),
    ],
)
def test_who_tried_from_outside_knows(knocked: list[tuple[str, bool]], status: Status, words: str) -> None:
    """One who got through is enough: another may stand behind a firewall of its own."""
    found = [DialBack(host=host, port=4001, answered=answered) for host, answered in knocked]
    check = check_reach(["/ip4/192.168.1.7/tcp/4001"], found)
    assert check.status is status
    assert words in check.found
