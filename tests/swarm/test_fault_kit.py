"""The fault kit on real peers: each fault does what it says, and the run goes on with equal bits."""

from __future__ import annotations

import pytest

from peer.events import Line, PhaseEntered, RoundCommitted, RoundStarted
from peer.testing.faults import Corrupt, Fault, Partition, Slow, Stall
from peer.testing.plugin import StartSwarm
from peer.testing.processes import RealSwarm

pytestmark = pytest.mark.swarm

SETS = (
    "round.steps=60", "round.gather_s=4.0", "round.exchange_s=4.0", "round.ack_s=2.0", "round.patience_s=8.0",
    "round.stagger_s=1.0",
)  # fmt: skip
HELD_S, CUT_S, STALLED_S = 2.0, 10.0, 3.0
PRINTED_S = 1.0
"""What the link reports is printed by the trainer, a little later."""
CORRUPT_FRAMES = 24
"""What one of three peers sends until nobody waits for it: 7 of 10 parts, its norms and its HEAD again and again."""


@pytest.mark.timeout(400)
def test_every_fault_of_the_network_and_a_stall(swarm: StartSwarm) -> None:
    """One after the other in one run of three peers."""
    run = swarm(peers=3, real=True, sets=SETS)
    run.until_round(2, within_s=150)

    # Nothing leaves it for a while: the others wait for its parts.
    round, victim = next_round(run)
    began_s, ends_s = strike(run, Slow(peer=victim, phase="freeze", round=round, seconds=HELD_S, bytes_per_s=0))
    assert min(ends_s.values()) - began_s >= HELD_S

    # The others are cut off from it: it learns of their commit when the cut is over.
    round, victim = next_round(run)
    others = tuple({0, 1, 2} - {victim})
    began_s, ends_s = strike(run, Partition(peers=others, phase="send", round=round, seconds=CUT_S))
    assert ends_s[victim] - began_s >= CUT_S - PRINTED_S
    assert ends_s[victim] > max(ends_s[peer] for peer in others)

    # It stands still in the middle of training, and goes on as if nothing had been.
    round, victim = next_round(run)
    began_s, _ = strike(run, Stall(peer=victim, phase="train", round=round + 1, seconds=STALLED_S))
    next_said_s = min(line.t - run.began_at for line in run.lines(victim) if line.t - run.began_at > began_s)
    assert next_said_s - began_s >= STALLED_S

    # What it sends is damaged: nobody takes it, so the parts that it should have averaged are void.
    round, victim = next_round(run)
    strike(run, Corrupt(peer=victim, phase="send", round=round, frames=CORRUPT_FRAMES))
    assert voids(run, round + 1) > 0

    run.until_round(run.committed(0)[-1].round + 1, within_s=60)
    run.assert_agreement()
    assert [type(fault) for fault in run.struck] == [Slow, Partition, Stall, Corrupt]


def next_round(run: RealSwarm) -> tuple[int, int]:
    """An anchor from which everybody sets out now, and a peer that will not lead the round from there."""
    newest = max(run.committed(peer)[-1].round for peer in range(run.size))
    run.until_first(newest + 1, within_s=60)
    return newest + 1, (run.coordinator(newest + 1) + 1) % run.size


def strike(run: RealSwarm, fault: Fault) -> tuple[float, dict[int, float]]:
    """Let it strike and everybody commit that round: when the first victim entered it, and when each committed."""
    run.inject(fault)
    run.until_round(fault.round + 1, within_s=60)
    assert fault in run.struck
    entered = [
        run.wait_for(victim, lambda line: enters(line, fault.phase, fault.round), within_s=1)
        for victim in fault.victims
    ]
    ends_s = {
        peer: commit.at_s for peer in range(3) for commit in run.committed(peer) if commit.round == fault.round + 1
    }
    return min(line.t for line in entered) - run.began_at, ends_s


def enters(line: Line, phase: str, round: int) -> bool:
    match line.event:
        case RoundStarted():
            return (phase, round) == ("train", line.event.round)
        case PhaseEntered():
            return (phase, round) == (line.event.phase, line.event.round)
    return False


def voids(run: RealSwarm, round: int) -> int:
    """How many parts of the update that made this anchor are void."""
    (commit,) = [
        line.event for line in run.lines(0) if isinstance(line.event, RoundCommitted) and line.event.round == round
    ]
    return commit.void
