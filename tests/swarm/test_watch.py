"""`python -m peer watch INVITE`: who takes no part sees every round, and is seen by nobody."""

from __future__ import annotations

import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dht.errors import Unreachable
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import (
    DeviceMeasured,
    EventLine,
    NetworkMeasured,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    parse_line,
)  # fmt: skip
from peer.testing.child_process import BUSY, HANG_S, Child, Printed, assert_no_orphans
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

QUICK = (*LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2")
SEEN_S = 6.0 * BUSY
"""A watcher has seen a round after this long."""


class Watching:
    """One `python -m peer watch` and its lines."""

    def __init__(self, directory: Path, invite: str) -> None:
        self.directory, self.lines, self._queue = directory, list[EventLine](), queue.SimpleQueue[Printed]()
        argv = [sys.executable, "-m", "peer", "watch", invite]
        directory.mkdir()
        self.child = Child(argv, directory / "stderr.txt", {"TMPDIR": str(directory)}, self._queue.put)

    def wait_for(self, wanted: Callable[[Any], bool]) -> EventLine:
        """The first line with an event that is `wanted`, of those not read yet."""
        deadline = time.monotonic() + HANG_S
        while (text := self._queue.get(timeout=max(0.1, deadline - time.monotonic())).text) is not None:
            line = parse_line(text)
            assert line is not None, text
            self.lines.append(line)
            if wanted(line.event):
                return line
        pytest.fail(f"ended without it: {self.child.err[-800:]}")

    def events(self, kind: type) -> list[Any]:
        return [line.event for line in self.lines if isinstance(line.event, kind)]

    def id(self) -> str:
        """Of the key that it made for its connections."""
        (key,) = self.directory.glob("hf-*/identity.key")
        return Identity.load_or_create(key).peer_id


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[[str], Watching]]:
    """Start a watcher; whatever is left of it is killed afterwards."""
    started: list[Watching] = []

    def start(invite: str) -> Watching:
        started.append(Watching(tmp_path / f"watch-{len(started)}", invite))
        return started[-1]

    yield start
    for one in started:
        one.child.signal(signal.SIGKILL)
        one.child.end()


def committed(round: int) -> Callable[[object], bool]:
    """An event that says this round, or a later one, is committed."""
    return lambda event: isinstance(event, RoundCommitted) and event.round >= round


def test_a_watcher_sees_every_round_and_nobody_sees_it(swarm: StartSwarm, watch: Callable[[str], Watching]) -> None:
    """It comes late and sees the first round too, then each within seconds; a killed peer's penalty; everybody's name.

    No peer hears of it, and its end harms nobody. Meanwhile the peers tell what their network and machine are at.
    """
    run = swarm(peers=3, real=True, sets=QUICK, settings=RESTING)
    run.until_round(1)
    watcher = watch(run.invite)
    watcher.wait_for(committed(1))
    run.kill(2)
    absent = watcher.wait_for(lambda event: isinstance(event, PenaltyImposed) and event.code == "ABSENT").event
    newest = run.committed(0)[-1].round
    run.until_round(newest + 1)
    seen_t = watcher.wait_for(committed(newest + 1)).t
    assert isinstance(absent, PenaltyImposed)
    assert (absent.about, absent.factor) == (run.id_of(2), 0.0)

    commits = watcher.events(RoundCommitted)
    made = {commit.round: commit for commit in run.committed(0)}
    assert [commit.round for commit in commits] == list(range(1, newest + 2))
    assert [commit.digest for commit in commits] == [made[commit.round].digest for commit in commits]
    assert {commit.state for commit in commits} <= {"", *(commit.state for commit in made.values())}
    assert any(commit.state for commit in commits)
    weights = [line.event.weights for line in run.lines(0) if isinstance(line.event, RoundCommitted)]
    assert [commit.weights for commit in commits] == weights[: len(commits)]
    assert seen_t - run.began_at - made[newest + 1].at_s < SEEN_S
    reports = watcher.events(ReportReceived)
    assert {(report.about, report.name) for report in reports} == {(run.id_of(n), f"peer-{n}") for n in range(3)}
    assert any(report.loss and report.tokens_per_s for report in reports)
    assert any(report.evaluated is not None for report in reports)

    me = watcher.id()
    watcher.child.signal(signal.SIGTERM)
    watcher.wait_for(lambda event: isinstance(event, PeerStopped))
    watcher.child.end()
    assert watcher.child.process.returncode == 0
    assert_no_orphans(watcher.directory)
    run.until_round(newest + 2)
    run.assert_agreement()
    for line in run.lines(0) + run.lines(1):
        assert me not in str(line.event) or isinstance(line.event, NetworkMeasured), line
    assert_measured(run, 0, other=1)


def assert_measured(run: RealSwarm, peer: int, other: int) -> None:
    """A peer tells its traffic and round trip with another, the room that the chain takes, and what training takes."""

    def tells_all(line: EventLine) -> bool:
        """What is told so early that no round was committed lacks something."""
        event = line.event
        return isinstance(event, NetworkMeasured) and event.disk_bytes > 0 and any(row["rtt_s"] for row in event.peers)

    network = run.wait_for(peer, tells_all).event
    assert isinstance(network, NetworkMeasured)
    device = [line.event for line in run.lines(peer) if isinstance(line.event, DeviceMeasured)][-1]
    assert (network.reach, network.disk_quota_bytes) == ("direct", 4 * 10**9)
    assert all(address.endswith(run.id_of(peer)) for address in network.addresses)
    (row,) = [row for row in network.peers if row["peer"] == run.id_of(other)]
    assert row["address"].startswith("/ip4/127.0.0.1/tcp/")
    assert 0 < row["rtt_s"] < 2.0 * BUSY
    assert min(row["bytes_sent"], row["bytes_received"]) > 10_000
    assert network.bytes_sent >= row["bytes_sent"]
    assert not row["relayed"]
    assert device.cpu_percent is not None
    assert device.memory_bytes is not None
    assert device.memory_bytes > 100 << 20, "the link and the daemon are counted too"


def test_a_node_that_does_not_answer(watch: Callable[[str], Watching]) -> None:
    """One line that names the address, and the exit code of what cannot be reached."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{organiser.peer_id}"
    watcher = watch(issue(organiser, run="nobody", spec_hash=b"h" * 32, addrs=(address,)))
    event = watcher.wait_for(lambda event: isinstance(event, PeerStopped)).event
    watcher.child.end()
    assert isinstance(event, PeerStopped)
    assert address in event.why
    assert event.exit_code == watcher.child.process.returncode == Unreachable.exit_code
    said = [text for text in watcher.child.err.splitlines() if text.startswith("homefires:")]
    assert said == [f"homefires: {event.why}"]
