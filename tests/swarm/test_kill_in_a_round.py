"""`kill -9` in the middle of a round: the others commit it in time, and the killed peer comes back."""

from __future__ import annotations

import time

import pytest

from peer.events import Line, PeerStarted, PhaseEntered, RoundCommitted
from peer.spec import RoundTable
from peer.testing.faults import Crash, Slow
from peer.testing.plugin import StartSwarm
from peer.testing.processes import RealSwarm

pytestmark = pytest.mark.swarm

SETS = (
    "round.steps=80", "round.gather_s=4.0", "round.exchange_s=4.0", "round.ack_s=2.0", "round.patience_s=8.0",
    "round.stagger_s=1.0", "codec.part_elements=4096",
)  # fmt: skip
BEGIN_S = 150.0
"""Four peers load torch on two busy cores, and make two rounds of a few steps."""
RETURN_S = 150.0
"""The killed peer loads torch while the others train, and catches up."""


@pytest.mark.timeout(600)
def test_a_peer_is_killed_while_it_sends_and_a_coordinator_while_it_commits(swarm: StartSwarm) -> None:
    """Four peers. Each time the other three commit that very round within the deadline of the spec, with equal bits;
    the victim has not committed it, resumes from its disk, catches up, and its work counts again."""
    run = swarm(peers=4, real=True, sets=SETS)
    run.until_round(1, within_s=BEGIN_S)
    round = next_round(run)
    victim = (run.coordinator(round) + 1) % 4
    run.inject(Slow(peer=victim, phase="send", round=round, seconds=30, bytes_per_s=40_000))
    run.wait_for(victim, lambda line: enters(line, "send", round), within_s=60)
    run.kill(victim)
    assert_others_commit(run, victim, round, after_losing_a_member_s(run.spec.round))
    seen = run.lines(victim)
    run.restart(victim)
    assert_returns(run, victim, seen)

    round = next_round(run)
    victim = run.coordinator(round)
    limit_s = after_losing_the_coordinator_s(run.spec.round)
    crash = Crash(peer=victim, phase="commit", round=round, back_after_s=limit_s)
    run.inject(crash)
    run.until_struck(crash, within_s=60)
    assert_others_commit(run, victim, round, limit_s)
    assert_returns(run, victim, run.lines(victim))
    run.assert_agreement()
    assert all("Traceback" not in run.log(peer) for peer in range(4))


def next_round(run: RealSwarm) -> int:
    """The anchor that somebody has just committed: nobody has made the inner steps of the round from there."""
    newest = max(run.committed(peer)[-1].round for peer in range(run.size))
    run.until_first(newest + 1, within_s=60)
    return newest + 1


def after_losing_a_member_s(table: RoundTable) -> float:
    """Norms are awaited for `exchange_s + ack_s`, then means and what is asked for again."""
    return 2 * (table.exchange_s + table.ack_s)


def after_losing_the_coordinator_s(table: RoundTable) -> float:
    """Somebody notices the silence, asks in vain for the victim's promise, and the three exchange."""
    return table.patience_s + 2 * table.stagger_s + table.ack_s + table.exchange_s + table.ack_s


def assert_others_commit(run: RealSwarm, victim: int, round: int, limit_s: float) -> None:
    """All others commit what follows anchor `round` within `limit_s`; on the victim's disk it is not."""
    died_at_s = time.time() - run.began_at
    pointer = (run.directory_of(victim) / "HEAD").read_text()
    assert pointer.split()[0] == str(round)
    run.until_round(round + 1, within_s=limit_s)
    ends_s = [commit.at_s for peer in range(4) for commit in run.committed(peer) if commit.round == round + 1]
    assert len(ends_s) == 3
    assert max(ends_s) - died_at_s < limit_s
    run.assert_agreement()


def assert_returns(run: RealSwarm, victim: int, seen: list[Line]) -> None:
    """The same peer, from its disk, whose lines follow those `seen` before its death. It catches up and is counted
    in a round that nobody had begun when it came."""
    started = run.wait_for(victim, lambda line: isinstance(line.event, PeerStarted), within_s=RETURN_S)
    assert started.peer == run.id_of(victim)
    assert started.seq > seen[-1].seq
    newest = max(run.committed(peer)[-1].round for peer in range(4))
    back = run.wait_for(
        victim, lambda line: counts(line, run.id_of(victim)) and line.event.round > newest, within_s=RETURN_S
    )
    assert isinstance(back.event, RoundCommitted)
    run.until_round(back.event.round, within_s=60)
    run.assert_agreement()


def enters(line: Line, phase: str, round: int) -> bool:
    return isinstance(line.event, PhaseEntered) and (line.event.phase, line.event.round) == (phase, round)


def counts(line: Line, peer: str) -> bool:
    return isinstance(line.event, RoundCommitted) and line.event.weights.get(peer, 0) > 0
