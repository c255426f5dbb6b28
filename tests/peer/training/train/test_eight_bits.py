"""AdamW with moments of eight bits, and gradients of sixteen, beside AdamW."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import peer
from peer.planning.plan.model_shape import peak_of, shape_of
from peer.schema import spec as specs
from peer.schema.peak_memory import PLAIN, Rung
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters, trained
from peer.training.train import atomic, eight_bit_adamw
from peer.training.train.atomic import AtomicSteps
from peer.training.train.backend import SingleDevice, held_out_loss
from peer.training.train.eight_bit_adamw import EightBitAdamW, no_moments, packed, unpacked
from peer.training.train.optimizers import Optimizers, make_optimizers
from tests.night import at_night
from tests.tensor_memory import held

CPU = torch.device("cpu")
EIGHT_BITS = Rung(recomputes=True, eight_bits=True)
LOWEST = Rung(recomputes=True, eight_bits=True, half_gradients=True)

LLAMA = {"vocab_size": 257, "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}


class Code:
    """Windows of the product's own source text."""

    def __init__(self, seed: int, context: int) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(peer.__file__).parent.glob("*.py")))
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._generator, self._columns = torch.Generator().manual_seed(seed), context + 1

    def next(self, sequences: int) -> Tensor:
        firsts = torch.randint(0, len(self._tokens) - self._columns, (sequences,), generator=self._generator)
        return torch.stack([self._tokens[first : first + self._columns] for first in firsts])


@functools.cache
def learned(seed: int, steps: int, rung: Rung) -> float:
    """The held-out loss after so many steps of `micro`."""
    micro = specs.load("micro")
    spec = dataclasses.replace(micro, run=dataclasses.replace(micro.run, seed=seed))
    model = build(spec)
    loop = SingleDevice(model, spec, Code(seed, spec.model.context), CPU, rung=rung)
    for _ in range(steps):
        loop.step(10, 0.0)
    return held_out_loss(model, Code(99, spec.model.context).next(64), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("rung", [LOWEST, *at_night(EIGHT_BITS)])
@pytest.mark.parametrize("seed", [1, *at_night(2, 3)])
@pytest.mark.parametrize("steps", [60, *at_night(200)])
def test_it_learns_as_much(seed: int, steps: int, rung: Rung) -> None:
    assert learned(seed, steps, rung) == pytest.approx(learned(seed, steps, PLAIN), rel=0.003)


def test_blocks_of_values_keep_their_size() -> None:
    """Each is off by half a level at most, down to a thousandth of the largest of its block."""
    values = torch.randn(9, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -20, 9)[:, None]
    values = values.flatten()[:2200]
    state = {"step": torch.tensor(3.0), "exp_avg": values, "exp_avg_sq": values.square()}
    kept = packed(state)
    assert sum(value.numel() * value.element_size() for value in kept.values()) < 2.04 * values.numel() + 16
    found = unpacked(kept, values)
    assert found["step"] == 3
    largest = kept["exp_avg_scale"].repeat_interleave(256)[:2200]
    for share, off in ((0.1, 0.08), (1e-3, 0.3)):
        is_large = values.abs() > share * largest
        torch.testing.assert_close(found["exp_avg"][is_large], values[is_large], rtol=off, atol=0)
        torch.testing.assert_close(found["exp_avg_sq"][is_large], values[is_large].square(), rtol=2 * off, atol=0)


def models(*rungs: Rung) -> list[tuple[nn.Module, Optimizers]]:
    spec = specs.load("micro")
    made = [build(spec) for _ in rungs]
    optimizers = [make_optimizers(model, spec, CPU, rung) for model, rung in zip(made, rungs, strict=True)]
    for model in made:
        give_gradients(model)
    return list(zip(made, optimizers, strict=True))


def give_gradients(model: nn.Module) -> None:
    """Such as 16 bits hold, too."""
    draws = torch.Generator().manual_seed(1)
    for parameter in trained(model):
        given = torch.randn(parameter.shape, generator=draws).bfloat16()
        torch.autograd.backward((parameter * given).sum())


def test_the_first_step_is_adamws() -> None:
    """Nothing was rounded before it: only what is remembered of it is."""
    (mine, small), (other, large) = models(EIGHT_BITS, PLAIN)
    assert {type(member) for member in small.members} == {EightBitAdamW, torch.optim.AdamW}
    for optimizers in (small, large):
        assert AtomicSteps(optimizers, CPU).step(0.01)
    torch.testing.assert_close(FlatParameters(mine).new(), FlatParameters(other).new(), rtol=1e-6, atol=1e-6)


def test_a_step_of_gradients_in_16_bits_is_that_of_the_same_ones_in_32() -> None:
    (mine, short), (other, long) = models(LOWEST, EIGHT_BITS)
    large = {each.dtype for each in trained(mine) if each.grad is not None and each.grad.dtype == torch.bfloat16}
    assert large == {torch.float32}, "only gradients have 16 bits"
    for _ in range(3):
        assert AtomicSteps(short, CPU).step(0.01)
        assert AtomicSteps(long, CPU).step(0.01)
        assert torch.equal(FlatParameters(mine).new(), FlatParameters(other).new())
        give_gradients(mine)
        give_gradients(other)


@pytest.mark.slow
@pytest.mark.parametrize("rung", [LOWEST, *at_night(EIGHT_BITS)])
def test_it_takes_what_the_estimate_says(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two micro-batches a step; and with little scratch, for the usual one is larger than this model."""
    piece = 1 << 16
    scratch_bytes = 24 * piece
    monkeypatch.setattr(eight_bit_adamw, "PIECE", piece)
    monkeypatch.setattr(atomic, "SCRATCH_BYTES", scratch_bytes)
    micro = specs.load("micro")
    config = {**LLAMA, "num_hidden_layers": 6}
    spec = dataclasses.replace(
        micro, model=dataclasses.replace(micro.model, config=config, context=32),
        inner=dataclasses.replace(micro.inner, sequences=1, accumulation=2, precision="bfloat16"),
    )  # fmt: skip
    with held() as noted:
        loop = SingleDevice(build(spec), spec, Code(1, 32), CPU, rung=rung)
        for _ in range(2):
            loop.step(0, 0.0)
    told = peak_of(shape_of(spec), spec, 1, bfloat16=True, rung=rung)
    in_step, in_backward = told.states + scratch_bytes, told.states + told.blocks + told.logits
    assert noted.most_bytes == pytest.approx(max(in_step, in_backward), rel=0.04)


@pytest.mark.parametrize("writes", [False, True])
def test_a_checkpoint_of_the_other_rung_is_read(writes: bool) -> None:
    """And then moments have as many bits as the reader's; what was rounded stays so."""
    rungs = (EIGHT_BITS, PLAIN)
    (one, before), (other, after) = models(*rungs if writes else rungs[::-1])
    before.step(0.01)
    after.load_state_of(trained(other), before.state_of(trained(one)))
    dtypes = {value.dtype for name, value in after.state_of(trained(other)).items() if name.endswith("exp_avg")}
    assert dtypes == {torch.float32} if writes else dtypes == {torch.float32, torch.uint8}
    give_gradients(one)
    give_gradients(other)
    with torch.no_grad():
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            theirs.copy_(mine)
    before.step(0.01)
    after.step(0.01)
    torch.testing.assert_close(FlatParameters(one).new(), FlatParameters(other).new(), rtol=0, atol=5e-3)


def test_without_memory_for_moments_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ((model, optimizers),) = models(EIGHT_BITS)
    left = iter(range(3))

    def scarce(parameter: Tensor) -> dict[str, Tensor]:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return no_moments(parameter)

    monkeypatch.setattr(atomic, "no_moments", scarce)
    before = FlatParameters(model).new()
    assert not AtomicSteps(optimizers, CPU).step(0.01)
    assert torch.equal(FlatParameters(model).new(), before)
    assert not any(member.state for member in optimizers.members)
