"""Peers that accept no incoming connections take part through the bootstrap node's relay."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from peer.events import Line, NetworkMeasured, RoundCommitted
from peer.testing.children import assert_no_orphans
from tests.swarm.conftest import Homefires
from tests.swarm.test_join import ENDLESS, Run, committed

pytestmark = pytest.mark.swarm


def test_two_that_only_dial_out_make_rounds_together(homefires: Callable[..., Homefires], tmp_path: Path) -> None:
    """With `bootstrap` and `join` alone. Nobody can dial either of them, so all that they exchange is relayed."""
    run = Run(homefires, tmp_path, 2, *ENDLESS)
    peers = [run.join(name, "--listen", "none") for name in ("a", "c")]
    ids = set()
    for peer in peers:
        event = peer.wait_for(committed(2)).event
        assert isinstance(event, RoundCommitted)
        ids.add(peer.lines[-1].peer)
    both = [
        line.event for line in peers[0].lines if isinstance(line.event, RoundCommitted) and set(line.event.group) == ids
    ]
    assert both
    assert all(set(event.weights) == ids for event in both)
    for peer, name in zip(peers, ("a", "c"), strict=True):
        assert not [port for process in peer.processes(tmp_path / name) for port in listened_on(process)]
        event = peer.wait_for(is_measured_with(ids - {peer.lines[-1].peer})).event
        assert isinstance(event, NetworkMeasured)
        (row,) = [row for row in event.peers if row["peer"] in ids]
        assert row["relayed"]
        assert min(row["bytes_sent"], row["bytes_received"]) > 10_000
    for command in (*peers, run.bootstrap):
        command.signal(signal.SIGTERM)
    for command in (*peers, run.bootstrap):
        assert command.finish() in (0, 130)
    assert_no_orphans(tmp_path)


def listened_on(process: psutil.Process) -> list[int]:
    """Ports of the network at which others could connect."""
    return [port.laddr.port for port in process.net_connections("inet") if port.status == psutil.CONN_LISTEN]


def is_measured_with(others: set[str]) -> Callable[[Line], bool]:
    """An event that tells of the connection to these peers."""
    return lambda line: (
        isinstance(line.event, NetworkMeasured)
        and any(row["peer"] in others and row["address"] for row in line.event.peers)
    )
