"""A swarm is cut in halves, neither of which is a quorum: both train on, and nothing that anybody did is lost."""

from __future__ import annotations

import time

import pytest

from peer.schema.events import AlertRaised, RoundCommitted
from peer.testing.faults import Partition
from peer.testing.ledger_check import audit_books
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT, "round.gather_s=3.0", "round.exchange_s=4.0", "round.ack_s=1.0", "round.stagger_s=1.0",
    "round.restart_s=0.0", "round.keep_rounds=64", "round.snapshot_rounds=64", "round.max_staleness=64",
    "data.eval_every=1000",
)  # fmt: skip
CUT = Partition(phase="train", round=1, peers=(2, 3), seconds=20.0)
ROUNDING = 1e-6
"""Of the largest element that a peer produced: what single precision may lose of it in so many rounds."""
LAST_S = 4.0
"""So long after the cut what was agreed before may still be committed."""


def test_both_halves_wait_and_nothing_is_lost_when_they_meet(swarm: StartSwarm) -> None:
    """No round is decided while they are apart; then all are members of the same rounds again. What each peer produced
    is counted, still owed, or discounted with its age, read from its files."""
    run = swarm(peers=4, real=True, sets=SETS, settings=["min_step_s=0.4"], books=True)
    run.inject(CUT)
    run.until_struck(CUT)
    cut_at_s = time.time() - run.began_at
    stood_at = max(run.committed(peer)[-1].round for peer in range(4) if run.committed(peer))
    run.until_round(stood_at + 3)
    run.assert_agreement()
    lines = [line for peer in range(4) for line in run.lines(peer)]
    committed_at = [line.t - run.began_at for line in lines if isinstance(line.event, RoundCommitted)]
    assert not any(cut_at_s + LAST_S < at_s < cut_at_s + CUT.seconds for at_s in committed_at)
    assert all(len(commit.group) >= 3 for peer in range(4) for commit in run.committed(peer))
    codes = {line.event.code for line in lines if isinstance(line.event, AlertRaised)}
    assert codes.isdisjoint({"FORK", "RESTART", "STUCK", "RESYNC"})
    for peer in range(4):
        assert run.stop(peer) == 0
    for peer in range(4):
        books = audit_books(run.directory_of(peer), run.spec, run.id_of(peer))
        assert books.missing < ROUNDING * books.produced, f"peer {peer}: {books}"
