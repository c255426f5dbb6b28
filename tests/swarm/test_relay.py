"""Peers that accept no incoming connections take part through the bootstrap node's relay."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from peer.schema.events import EventLine, InviteIssued, NetworkMeasured, RoundCommitted
from peer.testing.child_process import assert_no_orphans
from tests.namespaces import Homes
from tests.swarm.conftest import Homefires
from tests.swarm.test_join import ENDLESS, SLOWLY, Run, committed

pytestmark = pytest.mark.swarm
NAMES = ("a", "c")


def test_two_that_only_dial_out_make_rounds_together(homefires: Callable[..., Homefires], tmp_path: Path) -> None:
    """With `bootstrap` and `join` alone. Nobody can dial either of them, so all that they exchange is relayed."""
    run = Run(homefires, tmp_path, 2, *ENDLESS)
    peers = [run.join(name, "--listen", "none") for name in NAMES]
    assert_rounds_are_relayed(peers)
    for peer, name in zip(peers, NAMES, strict=True):
        assert not [port for process in peer.processes(tmp_path / name) for port in listened_on(process)]
    stop(*peers, run.bootstrap)
    assert_no_orphans(tmp_path)


@pytest.mark.namespaces
def test_two_homes_that_reach_the_bootstrap_node_alone(
    homefires: Callable[..., Homefires], tmp_path: Path, homes: Homes
) -> None:
    """As typed by who knows nothing of it: both listen, and says addresses that the other's packets never reach."""
    words = ["bootstrap", "micro", "--dir", str(tmp_path / "b"), "--ui", "json", *ENDLESS, "--set", "run.founders=2"]
    bootstrap = homefires(*words, directory=tmp_path / "b-out", before=homes.middle.words)
    event = bootstrap.wait_for(lambda line: isinstance(line.event, InviteIssued)).event
    assert isinstance(event, InviteIssued)
    peers = []
    for name, home in zip(NAMES, homes.homes, strict=True):
        words = ["join", event.invite, "--dir", str(tmp_path / name), "--yes", "--ui", "json", *SLOWLY]
        peers.append(homefires(*words, directory=tmp_path / f"{name}-out", before=home.words))
    assert_rounds_are_relayed(peers)
    stop(*peers, bootstrap)
    assert_no_orphans(tmp_path)


def assert_rounds_are_relayed(peers: list[Homefires]) -> None:
    """The parts of both count in rounds of both, and what they exchanged went through a relay."""
    commits = []
    for peer in peers:
        event = peer.wait_for(committed(2)).event
        assert isinstance(event, RoundCommitted)
        commits.append(event)
    ids = {peer.lines[-1].peer for peer in peers}
    assert len(ids) == 2
    for event in commits:
        assert set(event.group) == ids
        assert set(event.weights) == ids
    for peer in peers:
        event = peer.wait_for(tells_of(ids - {peer.lines[-1].peer})).event
        assert isinstance(event, NetworkMeasured)
        (row,) = [row for row in event.peers if row["peer"] in ids]
        assert row["relayed"]
        assert min(row["bytes_sent"], row["bytes_received"]) > 10_000


def stop(*commands: Homefires) -> None:
    """Ask politely; each ends well."""
    for command in commands:
        command.signal(signal.SIGTERM)
    for command in commands:
        assert command.finish() in (0, 130)


def listened_on(process: psutil.Process) -> list[int]:
    """Ports of the network at which others could connect."""
    return [port.laddr.port for port in process.net_connections("inet") if port.status == psutil.CONN_LISTEN]


def tells_of(others: set[str]) -> Callable[[EventLine], bool]:
    """An event that tells of the connection to these peers."""
    return lambda line: (
        isinstance(line.event, NetworkMeasured)
        and any(row["peer"] in others and row["address"] for row in line.event.peers)
    )
