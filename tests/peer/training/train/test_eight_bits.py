"""AdamW with moments of eight bits, beside AdamW."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import peer
from peer.schema import spec as specs
from peer.schema.peak_memory import PLAIN, Rung
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters, trained
from peer.training.train import atomic
from peer.training.train.atomic import AtomicSteps
from peer.training.train.backend import SingleDevice, held_out_loss
from peer.training.train.eight_bit_adamw import EightBitAdamW, no_moments, packed, unpacked
from peer.training.train.optimizers import Optimizers, make_optimizers
from tests.night import at_night

CPU = torch.device("cpu")
EIGHT_BITS = Rung(eight_bits=True)


class Code:
    """Windows of the product's own source text."""

    def __init__(self, seed: int, context: int) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(peer.__file__).parent.glob("*.py")))
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._generator, self._columns = torch.Generator().manual_seed(seed), context + 1

    def next(self, sequences: int) -> Tensor:
        firsts = torch.randint(0, len(self._tokens) - self._columns, (sequences,), generator=self._generator)
        return torch.stack([self._tokens[first : first + self._columns] for first in firsts])


def learned(seed: int, rung: Rung) -> float:
    """The held-out loss after 200 steps of `micro`."""
    micro = specs.load("micro")
    spec = dataclasses.replace(micro, run=dataclasses.replace(micro.run, seed=seed))
    model = build(spec)
    loop = SingleDevice(model, spec, Code(seed, spec.model.context), CPU, rung=rung)
    for _ in range(200):
        loop.step(10, 0.0)
    return held_out_loss(model, Code(99, spec.model.context).next(64), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *at_night(2, 3)])
def test_it_learns_as_much(seed: int) -> None:
    assert learned(seed, EIGHT_BITS) == pytest.approx(learned(seed, PLAIN), rel=0.003)


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


def models(*rungs: bool) -> list[tuple[nn.Module, Optimizers]]:
    spec = specs.load("micro")
    made = [build(spec) for _ in rungs]
    for model in made:
        give_gradients(model)
    return [
        (model, make_optimizers(model, spec, CPU, eight_bits=eight))
        for model, eight in zip(made, rungs, strict=True)
    ]  # fmt: skip


def give_gradients(model: nn.Module) -> None:
    draws = torch.Generator().manual_seed(1)
    for parameter in trained(model):
        parameter.grad = torch.randn(parameter.shape, generator=draws)


def test_the_first_step_is_adamws() -> None:
    """Nothing was rounded before it: only what is remembered of it is."""
    (mine, small), (other, large) = models(True, False)
    assert {type(member) for member in small.members} == {EightBitAdamW, torch.optim.AdamW}
    for optimizers in (small, large):
        assert AtomicSteps(optimizers, CPU).step(0.01)
    torch.testing.assert_close(FlatParameters(mine).new(), FlatParameters(other).new(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("writes", [False, True])
def test_a_checkpoint_of_the_other_rung_is_read(writes: bool) -> None:
    """And then moments have as many bits as the reader's; what was rounded stays so."""
    (one, before), (other, after) = models(writes, not writes)
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
    ((model, optimizers),) = models(True)
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
