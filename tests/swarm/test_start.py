"""Real peers whose run starts from an open model, all of it trained or an adapter of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.store import start_blob
from peer.schema.events import Evaluated, RoundCommitted, TransferProgressed
from peer.schema.spec import dump
from peer.schema.spec_fields import AdapterTable
from peer.testing.faults import Crash
from peer.testing.pytest_plugin import StartSwarm
from peer.tools.audit.auditor import audit
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from tests.open_models import publish, run_from
from tests.swarm.conftest import LIGHT, RESTING
from tests.talks import write_both

pytestmark = pytest.mark.swarm

SETS = (*LIGHT, "round.ramp_rounds=0", "round.sync_rounds=0", "data.eval_every=1", 'codec.wire="float32"')
ADAPTERS = {"whole": None, "adapter": AdapterTable(rank=4, alpha=8)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trained", [pytest.param("whole", marks=pytest.mark.nightly), "adapter"])
def test_a_run_from_an_open_model(
    trained: str, swarm: StartSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two peers is killed in a round and comes back. A newcomer on another machine gets the model from them.

    All have the same bits, what they send is that of what is trained, and the chain is audited.
    """
    publish(tmp_path / "model", tie_word_embeddings=True)
    spec = run_from(tmp_path / "model", adapter=ADAPTERS[trained])
    (tmp_path / "spec.toml").write_text(dump(spec))
    write_both(tmp_path / "data")
    little = ("data.source='files'", f"data.path='{tmp_path}/data/letters'")  # a tokenizer of a model is slow
    run = swarm(peers=2, real=True, spec=str(tmp_path / "spec.toml"), sets=(*SETS, *little), settings=RESTING)
    run.until_round(2)
    run.inject(Crash(peer=1, phase="train", round=3, back_after_s=1.0))
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    newcomer = run.join()
    run.wait_for(newcomer, lambda line: isinstance(line.event, TransferProgressed) and line.event.what == "model")
    run.until_round(6)
    start_blob.require_intact(spec.start.digest)
    run.assert_agreement()
    losses = [line.event.loss for line in run.lines(0) if isinstance(line.event, Evaluated)]
    assert losses[-1] < losses[0]
    elements = len(FlatParameters(build(spec)).new())
    commits = [line.event for line in run.lines(0) if isinstance(line.event, RoundCommitted)]
    sent = [commit.bytes_sent for commit in commits if commit.round in (1, 2)]
    assert 4 * elements < max(sent) < 2.2 * 4 * elements + 100_000
    for peer in range(3):
        assert run.stop(peer) == 0
        assert audit(run.directory_of(peer)).last_round >= 6
