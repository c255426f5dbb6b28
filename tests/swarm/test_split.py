"""A swarm is cut in halves, neither of which is a majority: both train, meet, and nothing that anybody did is lost."""

from __future__ import annotations

import time

import pytest

from peer.schema.events import AlertRaised, RoundCommitted
from peer.testing.faults import Partition
from peer.testing.ledger_check import audit_books
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=3.0", "round.exchange_s=4.0",
    "round.ack_s=1.0", "round.stagger_s=1.0", "round.restart_s=8.0", "round.keep_rounds=64",
    "round.snapshot_rounds=64", "round.max_staleness=64", "data.eval_every=1000",
)  # fmt: skip
HALVES = ((0, 1), (2, 3))
CUT = Partition(phase="train", round=1, peers=HALVES[1], seconds=26.0)
"""Long enough for both to take over and to make a round."""
ROUNDING = 1e-6
"""Of the largest element that a peer produced: what single precision may lose of it in so many rounds."""


def test_both_halves_train_and_nothing_is_lost_when_they_meet(swarm: StartSwarm) -> None:
    """Two rounds later at most everybody is on one branch. What each peer produced is then counted on it, still owed,
    or discounted with its age: also what the branch had counted that was left, read from the files of each peer."""
    run = swarm(peers=4, real=True, sets=SETS, settings=["min_step_s=0.4"], books=True)
    run.inject(CUT)
    run.until_struck(CUT)
    met_at_s = time.time() - run.began_at + CUT.seconds
    run.until(lambda: len(changed_over(run)) >= 2, "no half has changed over to the other's branch")
    newest = max(event.round for event, at_s in reported(run) if at_s < met_at_s)
    for half in HALVES:
        assert made_alone(run, half), f"peers {half} have made no round while they were apart"
    run.until_round(newest + 3)
    for round in range(newest + 2, newest + 4):
        assert len({event.digest for event, _ in reported(run) if event.round == round}) == 1
    run.assert_agreement()
    losers = changed_over(run)
    assert tuple(losers) in HALVES
    for peer in range(4):
        assert run.stop(peer) == 0
    for peer in range(4):
        books = audit_books(run.directory_of(peer), run.spec, run.id_of(peer))
        assert books.missing < ROUNDING * books.produced, f"peer {peer}: {books}"
        assert bool(books.undone) == (peer in losers)
        assert all(size > 100 * books.missing for size in books.undone), "else nobody would have missed it"


def reported(run: RealSwarm) -> list[tuple[RoundCommitted, float]]:
    """All that any peer has ever committed, also what it has undone since; and when, in seconds since the start."""
    lines = [line for peer in range(run.size) for line in run.lines(peer)]
    return [(line.event, line.t - run.began_at) for line in lines if isinstance(line.event, RoundCommitted)]


def made_alone(run: RealSwarm, half: tuple[int, ...]) -> set[int]:
    """Rounds whose members were these peers and nobody else."""
    ids = {run.id_of(peer) for peer in half}
    return {event.round for event, _ in reported(run) if set(event.group) == ids}


def changed_over(run: RealSwarm) -> list[int]:
    """Who has undone rounds; AssertionError if any of them could not have back what it had put into one."""
    found = []
    for peer in range(run.size):
        alerts = [line.event for line in run.lines(peer) if isinstance(line.event, AlertRaised)]
        undone = [alert for alert in alerts if alert.code == "FORK" and "undone;" in alert.text]
        assert all(alert.level == "info" and "is owed again" in alert.text for alert in undone), undone
        found += [peer] * bool(undone)
    return found
