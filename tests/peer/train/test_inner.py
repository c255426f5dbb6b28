"""Inner steps on one peer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from dht.errors import BadInput
from peer import spec as specs
from peer.model.build import build
from peer.model.flat import FlatParameters
from peer.spec import RunSpec
from peer.train.evaluate import held_out_loss
from peer.train.inner import InnerLoop, adamw, choose_device, uses_bfloat16
from peer.train.schedule import learning_rate

CPU = torch.device("cpu")


class Repeating:
    """The same few sequences for ever, a few at a time."""

    def __init__(self, context: int, sequences: int = 8) -> None:
        self.tokens_BT = torch.randint(0, 257, (sequences, context + 1), generator=torch.Generator().manual_seed(0))
        self.at = 0

    def next(self, sequences: int) -> Tensor:
        rows = [(self.at + row) % len(self.tokens_BT) for row in range(sequences)]
        self.at += sequences
        return self.tokens_BT[rows]


@pytest.fixture
def spec() -> RunSpec:
    return specs.load("micro")


def changed(spec: RunSpec, **inner: object) -> RunSpec:
    return dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, **inner))  # type: ignore[arg-type]


def test_training_lowers_the_loss(spec: RunSpec) -> None:
    """Forty steps on eight sequences: half of a guess's loss is learned by heart, and reported."""
    model = build(spec)
    feed = Repeating(spec.model.context)
    loop = InnerLoop(model, spec, feed, CPU)
    steps = [loop.step(2, step) for step in range(40)]
    assert steps[0].loss == pytest.approx(5.55, abs=0.2)
    assert steps[-1].loss < 3.5
    assert held_out_loss(model, feed.tokens_BT, CPU, sequences=3) < 3.5


def test_a_step_reports_tokens_rate_and_norm(spec: RunSpec) -> None:
    """Tokens are labels of all micro-batches; the rate is the schedule's; the norm is before clipping."""
    spec = changed(spec, accumulation=3, sequences=2, clip=1e-3)
    step = InnerLoop(build(spec), spec, Repeating(spec.model.context), CPU).step(4, 7)
    assert step.tokens == 3 * 2 * spec.model.context
    assert step.learning_rate == learning_rate(spec, 4, 7)
    assert step.grad_norm > 0.1


def test_accumulation_is_one_large_batch(spec: RunSpec) -> None:
    """Four micro-batches of two sequences move the model like one of eight."""
    moved = []
    for accumulation, sequences in ((1, 8), (4, 2)):
        given = changed(spec, accumulation=accumulation, sequences=sequences)
        model = build(given)
        loop = InnerLoop(
            model, given, Repeating(spec.model.context), CPU, lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
        )
        loop.step(0, 0)
        moved.append(FlatParameters(model).new())
    assert torch.allclose(moved[0], moved[1], atol=1e-6)


def test_gradients_are_clipped(spec: RunSpec) -> None:
    """A plain SGD step of rate 1 is exactly as long as the clip."""
    spec = changed(spec, clip=0.01, learning_rate=1.0, warmup_steps=0)
    model = build(spec)
    before = FlatParameters(model).new()
    loop = InnerLoop(model, spec, Repeating(spec.model.context), CPU, lambda m: torch.optim.SGD(m.parameters(), lr=1.0))
    loop.step(0, 0)
    assert (FlatParameters(model).new() - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_only_matrices_decay(spec: RunSpec) -> None:
    """Norm weights are in the group without decay; every parameter is in one group."""
    model = build(spec)
    matrices, others = adamw(model, spec, CPU).param_groups
    assert {value.dim() for value in matrices["params"]} == {2}
    assert matrices["weight_decay"] == spec.inner.weight_decay
    assert {value.dim() for value in others["params"]} == {1}
    assert others["weight_decay"] == 0
    assert len(matrices["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_bfloat16_is_used_where_asked_for(spec: RunSpec) -> None:
    """`auto` keeps float32 on a CPU; parameters stay float32 under autocast, and the loss is close."""
    assert not uses_bfloat16(spec, CPU)
    losses = []
    for precision in ("float32", "bfloat16"):
        given = changed(spec, precision=precision)
        model = build(given)
        losses.append(InnerLoop(model, given, Repeating(spec.model.context), CPU).step(0, 0).loss)
        assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
    assert losses[0] != losses[1]


def test_evaluation_leaves_the_model_in_training(spec: RunSpec) -> None:
    """And counts every label once, whatever the batches."""
    model: nn.Module = build(spec).train()
    tokens_BT = Repeating(spec.model.context, 7).tokens_BT
    one, many = (held_out_loss(model, tokens_BT, CPU, sequences=size) for size in (7, 2))
    assert one == pytest.approx(many, abs=1e-6)
    assert model.training
    assert all(value.grad is None for value in model.parameters())


def test_a_device_that_is_not_there_is_one_clear_line() -> None:
    """`auto` always finds one."""
    assert choose_device("cpu") == CPU
    assert choose_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(BadInput, match=r"settings\.device is 'abacus'"):
        choose_device("abacus")
