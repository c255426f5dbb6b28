"""Homes that do not hold the model alone find each other in a run, with no line that anybody passes by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.network.link.cluster_invite import LINE_FILE, found_in, issue_in, keep_found
from peer.schema.events import ClusterFormed
from peer.schema.ipc import HomesFound
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from tests.swarm.conftest import LIGHT, RESTING
from tests.swarm.test_clusters import CUT

pytestmark = pytest.mark.swarm

SMALL = ("memory_gb=2",)
"""Of which `PROCESS_BYTES` leaves room for a third of the model, since a round needs as much again."""
SEARCHING = {
    "peer.parallel.cluster.home_offer.PROCESS_BYTES": 2e9 - 4.2e6, "peer.planning.homes.home_search.SETTLE_S": 4.0,
    "peer.network.link.cluster_invite.ASSEMBLE_S": 30.0,
    "peer.planning.plan.run_needs.PROCESS_BYTES": 2e9 - 4.2e6,
}  # fmt: skip
WHOLE, LATE = 3, 4


def test_three_small_homes_find_each_other_and_train_with_a_whole_peer(swarm: StartSwarm, tmp_path: Path) -> None:
    """One of them comes from a cluster that never formed, since its lead does not answer: it gives that up. After a
    restart all go to their cluster."""
    had_place = tmp_path / "swarm-0" / "peer-0"
    had_place.mkdir(parents=True, mode=0o700)
    gone = issue_in(tmp_path / "gone")
    keep_found(had_place, HomesFound(gone.lead, (gone.lead, "me", "another"), 100.0, gone.text(), 0.0))
    run = swarm(
        peers=4, real=True, sets=(*LIGHT, *CUT, "data.eval_every=1000", "run.founders=2"), settings=RESTING,
        own=dict.fromkeys(range(3), SMALL), hurry=SEARCHING,
    )  # fmt: skip
    run.until(lambda: len(formed(run)) > 0, "no cluster was formed")
    homes = {row["peer"] for row in formed(run)[0].stages}
    assert homes <= {run.id_of(peer) for peer in range(3)}
    lead = next(peer for peer in range(3) if run.id_of(peer) == formed(run)[0].lead)
    run.until(lambda: all_took_part(run, lead, 3), "the cluster and the whole peer do not make rounds together")
    found = [found_in(run.directory_of(peer)) for peer in range(3)]
    assert [each is not None and each.is_formed for each in found] == [True] * 3
    assert [(run.directory_of(peer) / LINE_FILE).exists() for peer in range(4)] == [
        peer not in (lead, WHOLE) for peer in range(4)
    ]

    for peer in range(3):
        assert run.stop(peer) == 0
    for peer in range(3):
        run.restart(peer)
    last = max(commit.round for commit in run.committed(WHOLE))
    run.until(lambda: all_took_part(run, lead, last + 4), "homes do not find their cluster again")
    assert [found_in(run.directory_of(peer)) for peer in range(3)] == found
    for peer in range(run.size):
        assert run.stop(peer) == 0
        assert "Traceback" not in run.log(peer)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_home_that_is_gone_for_good_is_replaced_by_one_that_looks(swarm: StartSwarm) -> None:
    """A cluster that found itself loses a worker, which never comes back. A home that joins the run afterwards, and
    cannot hold the model either, finds the free place on the board."""
    run = swarm(
        peers=4, real=True, sets=(*LIGHT, *CUT, "data.eval_every=1000", "run.founders=2"), settings=RESTING,
        own=dict.fromkeys((0, 1, 2, LATE), SMALL), hurry=SEARCHING,
    )  # fmt: skip
    run.until(lambda: len(formed(run)) > 0, "no cluster was formed")
    lead = next(peer for peer in range(3) if run.id_of(peer) == formed(run)[0].lead)
    run.until(lambda: all_took_part(run, lead, 3), "the cluster and the whole peer do not make rounds together")
    worker = next(peer for peer in range(3) if peer != lead)
    run.kill(worker)
    assert run.join() == LATE
    run.until(lambda: run.id_of(LATE) in holders(run, lead), "the newcomer takes no place in the cluster")
    last = max(commit.round for commit in run.committed(WHOLE))
    run.until(lambda: all_took_part(run, lead, last + 2), "the cluster trains no more")
    assert run.id_of(worker) not in holders(run, lead)
    run.assert_agreement()


def holders(run: RealSwarm, lead: int) -> set[str]:
    """The homes that hold a stage of the cluster now."""
    events = [line.event for line in run.lines(lead)]
    return {row["peer"] for row in [event for event in events if isinstance(event, ClusterFormed)][-1].stages}


def formed(run: RealSwarm) -> list[ClusterFormed]:
    lines = [line.event for peer in range(3) for line in run.lines(peer)]
    return [event for event in lines if isinstance(event, ClusterFormed)]


def all_took_part(run: RealSwarm, lead: int, round: int) -> bool:
    try:
        return run.group(round) == {lead, WHOLE}
    except (AssertionError, KeyError, StopIteration):
        return False
