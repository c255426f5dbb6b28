"""Clusters of real homes: to a round they are members like any other, and a home that is lost costs nobody else."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.node.store.held_layers import read_held
from peer.parallel.pipeline.stage_model import model_layers
from peer.schema.events import ClusterFormed, Evaluated, EventLine, TransferProgressed
from peer.testing.child_process import BUSY
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from peer.tools.audit.auditor import audit
from peer.tools.export.folder import export
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

CUT = (
    "model.config={hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2}",
    "inner.learning_rate=2e-3", "round.sync_rounds=1", "round.ramp_rounds=0", "round.gather_s=4",
    "round.exchange_s=4", "round.ack_s=2", "round.stagger_s=1", "round.keep_rounds=128", "round.snapshot_rounds=128",
    "round.max_staleness=128",
)  # fmt: skip
"""A model that can be cut, and rounds that wait for nobody long."""
EXACT = ("stages=2", "activations=float32")
WHOLE, LEAD, TWO, WORKER, SPARE = range(5)
"""Peers of a run of all kinds."""
BACK_S = 60.0
"""From the loss of a home, where a spare is there or it comes back, until its cluster takes part again."""


def losses(run: RealSwarm, rounds: int) -> dict[int, float]:
    """The held-out loss of each anchor up to this one, whoever measured it."""
    lines = [line.event for peer in range(run.size) for line in run.lines(peer)]
    return {event.round: event.loss for event in lines if isinstance(event, Evaluated) and event.round <= rounds}


@pytest.mark.nightly
def test_two_clusters_learn_what_two_whole_peers_do(swarm: StartSwarm, tmp_path: Path) -> None:
    """On the same data, since it falls to peers by their ids: after three rounds the same loss to 1e-5."""
    waiting = ("round.gather_s=60", "round.exchange_s=60", "round.ack_s=8")  # who is late has learned from other data
    sets = (*CUT, *waiting, 'codec.wire="float32"', "data.eval_sequences=16", "data.eval_every=1", "round.steps=10")
    whole = swarm(peers=2, real=True, sets=sets)
    whole.until_round(3)
    whole.until(lambda: 3 in losses(whole, 3), "the third loss was not measured")
    alone = losses(whole, 3)
    for peer in (0, 1):
        assert whole.stop(peer) == 0
        place = tmp_path / "swarm-1" / f"peer-{peer}"
        place.mkdir(parents=True, mode=0o700)
        shutil.copy(whole.directory_of(peer) / "identity.key", place / "identity.key")
    run = swarm(
        peers=4, real=True, sets=sets, own={0: EXACT, 1: EXACT}, works_for={2: 0, 3: 1},
    )  # fmt: skip
    assert [run.id_of(peer) for peer in (0, 1)] == [whole.id_of(peer) for peer in (0, 1)]
    run.until_round(3)
    run.until(lambda: 3 in losses(run, 3), "the third loss was not measured")
    run.assert_agreement()
    assert losses(run, 3) == pytest.approx(alone, rel=1e-5)
    for peer in range(run.size):
        assert run.stop(peer) == 0
        report = audit(run.directory_of(peer))
        assert report.last_round >= 3
        assert "this home of a cluster keeps layers" in report.sentence()


@pytest.mark.parametrize("overlap", ["none", pytest.param("streaming", marks=pytest.mark.nightly)])
def test_a_cluster_a_whole_peer_and_two_ranks_in_one_run(swarm: StartSwarm, overlap: str) -> None:
    """Three rounds with equal bits. Then the worker of the cluster is killed, and a spare steps in its place; then the
    lead, which comes back. The others' rounds go on, and nothing that was committed is lost."""
    sets = (*LIGHT, *CUT, "data.eval_every=1000", f'round.overlap="{overlap}"')
    run = swarm(
        peers=5, real=True, sets=sets, settings=("min_step_s=0.4",),
        own={LEAD: ("stages=2",), TWO: ("devices=cpu,cpu",)}, works_for={WORKER: LEAD, SPARE: LEAD},
    )  # fmt: skip
    run.until_round(3)
    run.assert_agreement()
    assert run.group(3) == {LEAD, WHOLE, TWO}

    worker = stage_holder(run)
    spare = {WORKER: SPARE, SPARE: WORKER}[worker]
    struck(run, worker)
    takes_part(run, time.monotonic())
    assert stage_holder(run) == spare
    run.restart(worker)
    struck(run, LEAD)
    run.restart(LEAD)
    takes_part(run, time.monotonic())
    run.assert_agreement()
    for peer in range(run.size):
        assert run.stop(peer) == 0
        assert "Traceback" not in run.log(peer)


YOUNG = ("round.keep_rounds=3", "round.snapshot_rounds=6", "round.max_staleness=8", "data.eval_every=1000")
"""What was decided is soon with nobody any more."""
SECOND, NEW_HOME, NEWCOMER = 1, 4, 5
"""The lead of another cluster, a home that comes late to the first one, and a peer that holds all of the model."""


@pytest.mark.nightly
def test_newcomers_load_what_only_the_homes_of_clusters_have(swarm: StartSwarm, tmp_path: Path) -> None:
    """In a run of two clusters, whose beginning nobody has any more, no home can give the whole model. A late home
    takes its layers, 8 bytes of each parameter; a late peer takes them all."""
    run = swarm(
        peers=4, real=True, sets=(*LIGHT, *CUT, *YOUNG), settings=("chain_mb=0", "newcomers_mbps=100", *RESTING),
        own={0: ("stages=2",), SECOND: ("stages=2",)}, works_for={2: 0, 3: SECOND, NEW_HOME: 0},
    )  # fmt: skip
    run.until(lambda: all(first_block(run, peer) > 1 for peer in range(4)), "all prune")
    assert run.join() == NEW_HOME
    run.wait_for(NEW_HOME, lambda line: isinstance(line.event, ClusterFormed))
    formed = [line.event for line in run.lines(NEW_HOME) if isinstance(line.event, ClusterFormed)][-1]
    run.wait_for(NEW_HOME, is_loaded)
    loaded = loaded_bytes(run, NEW_HOME)
    run.until(lambda: first_block(run, NEW_HOME) > 1, "the new home does not follow the chain")

    assert run.join() == NEWCOMER
    takes_part(run, time.monotonic(), NEWCOMER)
    held = next(row for row in formed.stages if row["peer"] != run.id_of(0))
    sizes = [layer.size for layer in model_layers(run.spec)]
    assert loaded_bytes(run, NEWCOMER) == 8 * sum(sizes)
    assert loaded == 8 * sum(sizes[held["first"] : held["last"] + 1])
    run.assert_agreement()
    for peer in range(run.size):
        assert run.stop(peer) == 0
        assert "Traceback" not in run.log(peer)
        audit(run.directory_of(peer))
    kept = read_held(run.directory_of(0))
    assert kept is not None
    missing = min(set(range(len(sizes))) - set(kept.layers))
    with pytest.raises(BadInput, match=f"layer {missing} of {len(sizes)} is in none of these folders"):
        export(run.directory_of(0), tmp_path / "half")
    said = export(run.directory_of(0), tmp_path / "joined", [run.directory_of(2), run.directory_of(NEW_HOME)])
    assert "parameters) is in" in said
    assert "The peer reported the same state" in (tmp_path / "joined" / "MEASURED.md").read_text()


def first_block(run: RealSwarm, peer: int) -> int:
    """Number of the oldest block on a home's disk."""
    return min((int(path.stem) for path in (run.directory_of(peer) / "chain").glob("*.block")), default=0)


def is_loaded(line: EventLine) -> bool:
    """Whether the last byte of a snapshot has come."""
    event = line.event
    return isinstance(event, TransferProgressed) and event.what == "snapshot" and event.bytes_done == event.bytes_total


def loaded_bytes(run: RealSwarm, peer: int) -> int:
    return next(line.event.bytes_total for line in run.lines(peer) if is_loaded(line))


def stage_holder(run: RealSwarm) -> int:
    """Who holds the second stage of the cluster now."""
    formed = [line.event for line in run.lines(LEAD) if isinstance(line.event, ClusterFormed)]
    peer_id = formed[-1].stages[1]["peer"]
    return next(peer for peer in (WORKER, SPARE) if run.id_of(peer) == peer_id)


def struck(run: RealSwarm, victim: int) -> None:
    """It is killed, and the others' rounds go on."""
    before = run.committed(WHOLE)[-1].round
    run.kill(victim)
    run.until(lambda: run.committed(WHOLE)[-1].round >= before + 2, "the others do not go on")


def takes_part(run: RealSwarm, since: float, peer: int = LEAD) -> None:
    """A round that is decided from now on counts the cluster, or this peer."""
    last = run.committed(WHOLE)[-1].round
    run.until(
        lambda: any(commit.round > last + 1 and peer in commit.group for commit in run.committed(WHOLE)),
        f"peer {peer} is in no group again",
    )
    assert time.monotonic() - since < BACK_S * BUSY
