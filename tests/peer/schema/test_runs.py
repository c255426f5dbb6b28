"""The shipped runs: each parses, builds, and says what it needs."""

from __future__ import annotations

import dataclasses

import pytest

from dht.errors import BadSpec
from peer.schema import spec as specs
from peer.training.model.footprint import describe, size_of
from peer.training.train.optimizers import steps_before

PARAMETERS = {
    "micro": (90_000, 130_000),
    "tiny": (700_000, 950_000),
    "small": (28_000_000, 32_000_000),
    "gpt2-small": (124_000_000, 125_000_000),
    "llama-1b": (1_000_000_000, 1_200_000_000),
}


def test_every_shipped_run_is_here() -> None:
    """The list in the spec module and this one."""
    assert set(specs.SHIPPED) == set(PARAMETERS)


@pytest.mark.parametrize("name", specs.SHIPPED)
def test_a_shipped_run_parses_and_prints_its_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameter count and memory need, without allocating the model."""
    spec = specs.load(name)
    size = size_of(spec)
    low, high = PARAMETERS[name]
    assert low <= size.parameters <= high
    assert size.training_bytes == 16 * size.parameters
    assert size.total_bytes > 30 * size.parameters
    print(describe(spec))
    printed = capsys.readouterr().out
    assert "parameters" in printed
    assert "B for parameters, gradients and AdamW" in printed


def test_muon_needs_one_moment_less() -> None:
    """For the hidden matrices alone; the sentence says which optimizer it counts."""
    spec = specs.load("micro")
    muon = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, optimizer="muon"))
    blocks = 2 * (4 * 64 * 64 + 3 * 64 * 160)
    assert size_of(spec).training_bytes - size_of(muon).training_bytes == 4 * blocks
    assert "B for parameters, gradients and Muon" in describe(muon)


@pytest.mark.parametrize("name", specs.SHIPPED)
def test_a_shipped_run_survives_its_own_text(name: str) -> None:
    """What a bootstrap node serves parses to the same run."""
    spec = specs.load(name)
    assert specs.parse(specs.dump(spec)).digest() == spec.digest()


@pytest.mark.parametrize("name", specs.SHIPPED)
def test_a_shipped_run_ends_its_schedule_with_the_run(name: str) -> None:
    """Learning rates fall over the whole run and warm up within its first tenth or so."""
    spec = specs.load(name)
    assert spec.run.rounds > 0
    assert spec.inner.warmup_steps <= 0.15 * steps_before(spec, spec.run.rounds)


DRAFTED = {
    "smollm2-135m-code": (134_515_008, 1.1e9),
    "continue-1b": (1_711_376_384, 40e9),
    "adapter-8b": (8.19e9, 24e9),
}
"""Parameters of the model from which it starts, and the memory of the card that its first lines name."""


def test_every_draft_is_here() -> None:
    assert set(specs.DRAFTS) == set(DRAFTED)


@pytest.mark.parametrize("name", specs.DRAFTS)
def test_a_draft_is_sized_without_its_model_and_is_no_run_yet(name: str) -> None:
    spec, (parameters, card_bytes) = specs.load(name), DRAFTED[name]
    size = size_of(spec)
    assert spec.model_layers.parameters == pytest.approx(parameters, rel=1e-3)
    assert card_bytes / 2 < size.training_bytes + size.frozen_bytes + size.activation_bytes < card_bytes
    assert spec.start is not None
    assert spec.start.model in describe(spec)
    with pytest.raises(BadSpec, match=r"start\.digest is missing"):
        spec.digest()
    assert specs.parse(specs.dump(spec)) == spec
