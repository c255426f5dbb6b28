"""Faults that could never strike are refused when they are written down."""

from __future__ import annotations

import pytest

from dht.errors import BadInput
from peer.testing.faults import PHASES, Corrupt, Crash, Cut, Fault, Loss, Odd, Partition, Slow, Stall
from peer.testing.memory_swarm import LogicalSwarm


def test_every_phase_is_one_that_peers_report() -> None:
    """A peer that makes a round enters all of them, in this order."""
    run = LogicalSwarm(peers=1, seed=1)
    entered: list[str] = []
    run.world.on_phase = lambda peer, phase, round: entered.append(phase)
    run.until_round(1, within_s=30)
    assert tuple(entered[: len(PHASES)]) == PHASES


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Crash(peer=0, phase="sending", round=1), "no such phase; choose one of train, submit"),
        (lambda: Crash(peer=0, phase="exchange", round=1, back_after_s=-1), "negative back_after_s"),
        (lambda: Stall(peer=-1, phase="exchange", round=1, seconds=1), "negative peer"),
        (lambda: Slow(peer=0, phase="exchange", round=-1, seconds=1, bytes_per_s=1), "negative round"),
        (lambda: Loss(peer=0, phase="exchange", round=1, seconds=1, rate=1.5), "a rate above 1; it is a share"),
        (lambda: Cut(peer=2, other=2, phase="exchange", round=1, seconds=1), "cuts a peer off from itself"),
        (lambda: Partition(peers=(), phase="exchange", round=1, seconds=1), "about nobody"),
        (lambda: Odd(peer=0, phase="exchange", round=1, factor=2), "fixed as it submits; leave the phase out"),
        (lambda: Odd(peer=0, round=1, factor=-2), "negative factor"),
        (lambda: LogicalSwarm(peers=0, seed=1), "at least 1"),
    ],
)
def test_an_impossible_fault_is_refused(make: object, says: str) -> None:
    """The line names the value and what to do."""
    assert callable(make)
    with pytest.raises(BadInput, match=says):
        make()


@pytest.mark.parametrize(
    "fault",
    [
        Corrupt(peer=3, phase="exchange", round=1, frames=1),
        Partition(peers=(0, 3), phase="exchange", round=1, seconds=1),
        Cut(peer=0, other=3, phase="exchange", round=1, seconds=1),
    ],
)
def test_a_fault_of_a_peer_that_does_not_exist_is_refused(fault: Fault) -> None:
    """Peers are counted from 0."""
    run = LogicalSwarm(peers=3, seed=1)
    with pytest.raises(BadInput, match="no peer 3; they are 0 to 2"):
        run.inject(fault)
    assert run.waiting == ()
