"""The fault kit on real peers: each fault does what it says, and the run goes on with equal bits."""

from __future__ import annotations

from typing import Any

import pytest

from peer.schema.events import EventLine, PhaseEntered, RoundCommitted, RoundStarted
from peer.testing.faults import Corrupt, Cut, Duplicate, Fault, Loss, Partition, Reorder, Slow
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.gather_s=4.0", "round.exchange_s=4.0", "round.ack_s=2.0",
    "round.stagger_s=1.0",
)  # fmt: skip
HELD_S, CUT_S, NOISY_S = 2.0, 10.0, 4.0
PRINTED_S = 1.0
"""What the link reports is printed by the trainer, a little later."""
CORRUPT_FRAMES = 24
"""What one of three peers sends until nobody waits for it: 7 of 10 parts, its norms and its HEAD again and again."""


def test_every_fault_of_the_network(swarm: StartSwarm) -> None:
    """One after the other in one run of three peers."""
    run = swarm(peers=3, real=True, sets=SETS, settings=RESTING)
    run.until_round(2)

    # Nothing leaves it for a while: the others wait for its parts.
    round, victim = next_round(run)
    began_s, ends_s = strike(run, Slow(peer=victim, phase="submit", round=round, seconds=HELD_S, bytes_per_s=0))
    assert min(ends_s.values()) - began_s >= HELD_S

    # The others are cut off from it: it learns of their commit when the cut is over.
    round, victim = next_round(run)
    others = tuple({0, 1, 2} - {victim})
    began_s, ends_s = strike(run, Partition(peers=others, phase="exchange", round=round, seconds=CUT_S))
    assert ends_s[victim] - began_s >= CUT_S - PRINTED_S
    assert ends_s[victim] > max(ends_s[peer] for peer in others)

    # Frames to and from it are lost, come twice and in another order; and it cannot reach one of the others at all.
    round, victim = next_round(run)
    when: Any = {"peer": victim, "phase": "prepare", "round": round, "seconds": NOISY_S}
    strike(run, Loss(**when, rate=0.2), Duplicate(**when, rate=0.5, late_s=0.5), Reorder(**when, late_s=0.2))
    round, victim = next_round(run)
    strike(run, Cut(peer=victim, phase="submit", round=round, other=(victim + 1) % 3, seconds=NOISY_S))

    # What it sends is damaged: nobody takes it, and what it should have averaged is averaged by others.
    round, victim = next_round(run)
    strike(run, Corrupt(peer=victim, phase="exchange", round=round, frames=CORRUPT_FRAMES))
    commit = commit_of(run, (victim + 1) % 3, round + 1)
    assert (run.id_of(victim), "LATE") in [(penalty["about"], penalty["code"]) for penalty in commit.penalties]
    assert commit.void == 0

    run.until_round(run.committed(0)[-1].round + 1)
    run.assert_agreement()
    assert [type(fault) for fault in run.struck] == [Slow, Partition, Loss, Duplicate, Reorder, Cut, Corrupt]


def next_round(run: RealSwarm) -> tuple[int, int]:
    """An anchor from which everybody sets out now, and a peer that will not lead the round from there."""
    newest = max(run.committed(peer)[-1].round for peer in range(run.size))
    run.until_first(newest + 1)
    return newest + 1, (run.coordinator(newest + 1) + 1) % run.size


def strike(run: RealSwarm, *faults: Fault) -> tuple[float, dict[int, float]]:
    """Let them strike in one phase and everybody commit that round: when the first victim entered it, and when each
    committed."""
    first = faults[0]
    run.inject(*faults)
    run.until_round(first.round + 1)
    assert set(faults) <= set(run.struck)
    entered = [run.wait_for(victim, lambda line: enters(line, first.phase, first.round)) for victim in first.victims]
    ends_s = {
        peer: commit.at_s for peer in range(3) for commit in run.committed(peer) if commit.round == first.round + 1
    }
    return min(line.t for line in entered) - run.began_at, ends_s


def enters(line: EventLine, phase: str, round: int) -> bool:
    match line.event:
        case RoundStarted():
            return (phase, round) == ("train", line.event.round)
        case PhaseEntered():
            return (phase, round) == (line.event.phase, line.event.round)
    return False


def commit_of(run: RealSwarm, peer: int, round: int) -> RoundCommitted:
    """What this peer said of the commit that made this anchor."""
    (commit,) = [
        line.event for line in run.lines(peer) if isinstance(line.event, RoundCommitted) and line.event.round == round
    ]
    return commit
