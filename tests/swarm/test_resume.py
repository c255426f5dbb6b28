"""A real peer that stops, is killed, or finds its disk full goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.schema.events import AlertRaised, CheckpointWritten, EventLine, PeerStateChanged, RoundCommitted, RoundStarted
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING
from tests.talks import mixed_sets

pytestmark = pytest.mark.swarm

SETS = (*LIGHT, "round.ramp_rounds=0", "round.max_train_s=3600", "data.eval_every=100")
"""Rounds in whose middle a test can act, and which no clock cuts short."""


def begins_after(run: RealSwarm, round: int) -> EventLine:
    """The start of a round after anchor `round` that follows a checkpoint of this life."""
    written: list[int] = []

    def wanted(line: EventLine) -> bool:
        if isinstance(line.event, CheckpointWritten):
            written.append(line.event.round)
        return isinstance(line.event, RoundStarted) and line.event.round > round and line.event.round - 1 in written

    return run.wait_for(0, wanted)


def newest(run: RealSwarm) -> int:
    return run.committed(0)[-1].round


def is_state(state: str) -> Callable[[EventLine], bool]:
    return lambda line: isinstance(line.event, PeerStateChanged) and line.event.state == state


def test_a_resumed_peer_reproduces_the_uninterrupted_run_bit_for_bit(swarm: StartSwarm, tmp_path: Path) -> None:
    """On a mix of text and conversations. One peer is killed in a round, stopped politely in another, finds its disk
    full in a third, and loses its link in a fourth. A second one, with another key, runs through beside it. Every
    anchor has the same state.

    Then the newest checkpoint is damaged: the peer says so in one line, takes the one before, and goes on.
    """
    sets = (*SETS, *mixed_sets(tmp_path / "data"))
    through = swarm(peers=1, real=True, sets=sets, settings=RESTING)
    run = swarm(peers=1, real=True, sets=sets, settings=RESTING)
    run.until_round(1)

    begins_after(run, 1)
    run.kill(0)
    run.restart(0)

    begins_after(run, newest(run))
    assert run.stop(0) == 0
    run.restart(0)

    begins_after(run, newest(run))
    full = run.directory_of(0) / "chain" / "acceptors.new"
    full.symlink_to("/dev/full")
    run.wait_for(0, is_state("PAUSED"))
    before = newest(run)
    full.unlink(missing_ok=True)  # the peer removes what it could not write
    run.until_round(before + 2)

    run.kill_link(0)
    assert alert(run, "LINK")
    last = newest(run) + 2
    run.until_round(last)

    through.until_round(last)
    through.close()
    expected = states(through, last)
    assert states(run, last) == expected
    assert len(set(expected.values())) == last

    assert run.stop(0) == 0
    damaged, *others = sorted((run.directory_of(0) / "checkpoints").iterdir(), reverse=True)
    assert others
    (damaged / "000.safetensors").write_bytes((damaged / "000.safetensors").read_bytes()[:-1])
    stopped_at = newest(run)
    run.restart(0)
    assert str(damaged) in alert(run, "CHECKPOINT")
    run.wait_for(0, lambda line: isinstance(line.event, RoundCommitted) and line.event.round > stopped_at)


def states(run: RealSwarm, last: int) -> dict[int, str]:
    """State by round, up to `last`."""
    return {commit.round: commit.state for commit in run.committed(0) if commit.round <= last}


def alert(run: RealSwarm, code: str) -> str:
    """The text of the alert of this code in this life of the peer."""
    line = run.wait_for(0, lambda line: isinstance(line.event, AlertRaised) and line.event.code == code)
    assert isinstance(line.event, AlertRaised)
    return line.event.text
