"""On a processor blocks are compiled where the run is long enough to repay it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.parallel.autotune import compile_gain
from peer.parallel.autotune.compile_gain import DRY_RUN_S, SAVES, may_repay, repays
from peer.planning.plan.model_shape import shape_of
from peer.schema.settings import PeerSettings
from peer.schema.spec import load
from peer.training.train.optimizers import steps_before

SPEC = load("micro")
STEPS = steps_before(SPEC, SPEC.run.rounds)
ENDLESS = replace(SPEC, run=replace(SPEC.run, rounds=0))


def test_all_steps_together_save_more_than_compiling_took() -> None:
    assert repays(SPEC, 1.0, STEPS - 0.5)
    assert not repays(SPEC, 1.0, STEPS + 0.5)
    assert repays(ENDLESS, 1e-9, 1e9)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> float:
    """Matrix products of such a speed that compiling all of the run just repays a dry run, in operations per
    second."""
    tokens = SPEC.inner.sequences * SPEC.inner.accumulation * SPEC.model.context
    flops = STEPS * tokens * shape_of(SPEC).flops_per_token(SPEC.model.context) * SAVES / DRY_RUN_S
    monkeypatch.setattr(compile_gain, "flops_of", lambda *about, **named: flops * 0.99)
    monkeypatch.setattr(compile_gain.shutil, "which", lambda name: "/usr/bin/g++")
    return flops


def test_a_dry_run_is_made_where_the_run_is_long_on_this_processor(
    slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_repay(SPEC, PeerSettings())
    monkeypatch.setattr(compile_gain, "flops_of", lambda *about, **named: slow * 1.01)
    assert not may_repay(SPEC, PeerSettings())
    assert may_repay(ENDLESS, PeerSettings())


@pytest.mark.usefixtures("slow")
def test_without_a_compiler_no_dry_run_is_made_unless_its_owner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_gain.shutil, "which", lambda name: None)
    assert not may_repay(ENDLESS, PeerSettings())
    assert may_repay(SPEC, PeerSettings(compile="yes"))
    assert not may_repay(ENDLESS, PeerSettings(compile="no"))
