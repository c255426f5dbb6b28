"""A home of a cluster becomes slow: blocks move to the others, and nothing that was committed is lost."""

from __future__ import annotations

import pytest

from peer.node.store.held_layers import read_held
from peer.parallel.pipeline.stage_model import model_layers
from peer.schema.events import AlertRaised, ClusterFormed
from peer.testing.process_swarm import RealSwarm
from peer.testing.pytest_plugin import StartSwarm
from peer.testing.short_waits import DRAG
from peer.tools.audit.auditor import audit
from tests.swarm.conftest import RESTING
from tests.swarm.test_clusters import CUT

pytestmark = pytest.mark.swarm

WHOLE, LEAD, WORKER = range(3)
SETS = (
    *CUT, "model.config={hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=2}",
    "inner.sequences=4", "data.eval_sequences=8", "round.steps=4", "data.eval_every=1000", "round.snapshot_rounds=2",
    "round.keep_rounds=2", "round.max_staleness=8",
)  # fmt: skip
USUAL_S, SLOW_S = 0.02, 0.08
"""Of a block, forward: much longer than it takes here, so that other work of this machine does not matter."""


def formed(run: RealSwarm, peer: int) -> list[ClusterFormed]:
    return [line.event for line in run.lines(peer) if isinstance(line.event, ClusterFormed)]


def moves(run: RealSwarm) -> list[str]:
    alerts = [line.event for line in run.lines(LEAD) if isinstance(line.event, AlertRaised)]
    return [alert.text for alert in alerts if "layers move between" in alert.text]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_blocks_leave_a_home_that_has_become_four_times_slower(swarm: StartSwarm) -> None:
    """All homes have the bits of a whole peer, before and after. What moved was with no other peer than the homes:
    the whole peer gives no snapshots to newcomers."""
    run = swarm(
        peers=3, real=True, sets=SETS, settings=(*RESTING, "newcomers_mbps=0"), own={LEAD: ("stages=2",)},
        works_for={WORKER: LEAD},
    )  # fmt: skip
    for peer in (LEAD, WORKER):
        (run.directory_of(peer) / DRAG).write_text(str(USUAL_S))
    run.wait_for(LEAD, lambda line: isinstance(line.event, ClusterFormed))
    run.until_round(3)
    before = formed(run, LEAD)[-1].stages
    (run.directory_of(WORKER) / DRAG).write_text(str(SLOW_S))
    run.until(lambda: moves(run), "the cut does not move", within_s=120)
    run.until(lambda: formed(run, LEAD)[-1].stages != before, "it is not dealt anew")
    run.until(lambda: formed(run, WORKER)[-1].stages == formed(run, LEAD)[-1].stages, "the worker has not heard")
    after = formed(run, LEAD)[-1].stages
    assert after[0]["last"] > before[0]["last"]
    last = run.committed(WHOLE)[-1].round
    run.until(lambda: any(c.round > last + 1 and LEAD in c.group for c in run.committed(WHOLE)), "it takes no part")
    run.assert_agreement()
    assert len(moves(run)) == 1
    assert "takes" in moves(run)[0]
    layers = len(model_layers(run.spec))
    for peer in range(run.size):
        assert run.stop(peer) == 0
        assert "Traceback" not in run.log(peer)
        audit(run.directory_of(peer))
    held = [read_held(run.directory_of(peer)) for peer in (LEAD, WORKER)]
    assert [layer for each in held if each is not None for layer in each.layers] == list(range(layers))
