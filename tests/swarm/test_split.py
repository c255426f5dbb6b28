"""A swarm is cut in halves, neither of which is a quorum: both train and wait, meet, and nothing is lost."""

from __future__ import annotations

import time

import pytest

from peer.schema.events import RoundCommitted
from peer.testing.faults import Partition
from peer.testing.ledger_check import audit_books
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT

pytestmark = [pytest.mark.swarm, pytest.mark.nightly]

SETS = (
    *LIGHT,
    "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=3.0", "round.exchange_s=4.0",
    "round.ack_s=1.0", "round.stagger_s=1.0", "round.restart_s=0.0", "round.keep_rounds=64",
    "round.snapshot_rounds=64", "round.max_staleness=64", "data.eval_every=1000",
)  # fmt: skip
CUT = Partition(phase="train", round=1, peers=(2, 3), seconds=20.0)
SETTLED_S = 3.0
"""What was on its way when the cut came is told by then."""
ROUNDING = 1e-6
"""Of the largest element that a peer produced: what single precision may lose of it in so many rounds."""


def test_both_halves_wait_and_nothing_is_lost_when_they_meet(swarm: StartSwarm) -> None:
    """No round is decided while they are apart. What each peer produced is then counted on the one chain, still owed,
    or discounted with its age, read from the files of each peer."""
    run = swarm(peers=4, real=True, sets=SETS, settings=["min_step_s=0.4"], books=True)
    run.inject(CUT)
    run.until_struck(CUT)
    cut_at = time.time()
    run.until_round(run.committed(0)[-1].round + 3)
    run.assert_agreement()
    told = [line for peer in range(4) for line in run.lines(peer) if isinstance(line.event, RoundCommitted)]
    apart = [line for line in told if cut_at + SETTLED_S < line.t < cut_at + CUT.seconds]
    assert not apart, "no half is a quorum"
    assert max(line.t for line in told) > cut_at + CUT.seconds
    for peer in range(4):
        assert run.stop(peer) == 0
    for peer in range(4):
        books = audit_books(run.directory_of(peer), run.spec, run.id_of(peer))
        assert books.missing < ROUNDING * books.produced, f"peer {peer}: {books}"
