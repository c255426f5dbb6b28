"""A step in which the optimizer's memory runs out leaves no trace, and is made again with what it was made of."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dht.errors import MemoryFull
from peer.schema.spec import RunSpec, load
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters, trained
from peer.training.train.atomic import AtomicSteps
from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import MicroBatch
from peer.training.train.optimizers import Optimizers, make_optimizers
from tests.saved import optimizer_state

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
NO_ROOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
MUON, ADAMW = "torch.optim._muon._zeropower_via_newtonschulz", "torch.optim.adam.torch.zeros_like"
"""Where they take memory: Muon for each of its matrices, AdamW twice for each parameter and once in its life."""


class Feed:
    """Sequences of which each is another, in order."""

    def __init__(self, context: int) -> None:
        self._tokens_BT = torch.randint(0, 257, (64, context + 1), generator=torch.Generator().manual_seed(0))
        self.read = 0

    def next(self, sequences: int) -> Tensor:
        self.read += sequences
        return self._tokens_BT[self.read - sequences : self.read]


def spec_of(optimizer: str) -> RunSpec:
    spec = load("micro")
    inner = dataclasses.replace(spec.inner, optimizer=optimizer, sequences=8, accumulation=1, warmup_steps=0)
    return dataclasses.replace(spec, inner=inner)


class Peer:
    """A model in training."""

    def __init__(self, optimizer: str, sequences: int, device: torch.device = CPU) -> None:
        spec = spec_of(optimizer)
        self.model = build(spec).to(device)
        self.feed, self.micro = Feed(spec.model.context), MicroBatch(sequences)
        self.loop = SingleDevice(self.model, spec, self.feed, device, micro=self.micro)

    def bits(self) -> dict[str, Tensor]:
        state = {name: value.clone() for name, value in optimizer_state(self.loop).items()}
        return {"parameters": FlatParameters(self.model).new()} | state


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Scarce:
    """Fails at the call of this number, counted from 1; does what it stands for at all others."""

    def __init__(self, real: Callable[..., Any], at: int) -> None:
        self._real, self._at = real, at
        self.calls = 0

    def __call__(self, *words: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self._at:
            raise NO_ROOM
        return self._real(*words, **named)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Scarce]:
    def prepare(where: str, at: int) -> Scarce:
        module, _, name = where.rpartition(".")
        owner: Any = torch if module.endswith(".torch") else torch.optim._muon
        scarce = Scarce(getattr(owner, name), at)
        monkeypatch.setattr(owner, name, scarce)
        return scarce

    return prepare


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "where", "at", "steps_before"),
    [
        ("adamw", ADAMW, 1, 0), ("adamw", ADAMW, 8, 0), ("adamw", ADAMW, 33, 0),
        ("muon", MUON, 1, 0), ("muon", MUON, 9, 0), ("muon", MUON, 9, 2), ("muon", ADAMW, 20, 0),
    ],
)  # fmt: skip
def test_the_micro_batch_is_halved_and_the_round_goes_on_to_the_bit(
    optimizer: str, where: str, at: int, steps_before: int, fail: Callable[[str, int], Scarce]
) -> None:
    """As if it had had half the micro-batch, and nothing had failed: parameters, moments, sequences."""
    other, peer = Peer(optimizer, 4), Peer(optimizer, 8)
    for step in range(steps_before):
        peer.micro.sequences = 4
        assert peer.loop.step(3, step) == other.loop.step(3, step)
    expected = [other.loop.step(3, steps_before), other.loop.step(3, steps_before + 1)]
    peer.micro.sequences = 8
    scarce = fail(where, at)
    found = [peer.loop.step(3, steps_before), peer.loop.step(3, steps_before + 1)]
    assert scarce.calls > at, "it has failed, and was asked again"
    assert peer.micro.sequences == 4
    assert found == expected
    assert same(peer.bits(), other.bits())
    assert peer.feed.read == other.feed.read


def test_without_room_for_one_the_step_is_made_when_there_is(fail: Callable[[str, int], Scarce]) -> None:
    """The peer pauses on MemoryFull; what was read is not lost."""
    other, peer = Peer("muon", 1), Peer("muon", 1)
    before = peer.bits()
    fail(MUON, 5)
    with pytest.raises(MemoryFull, match="no room for even one sequence"):
        peer.loop.step(3, 0)
    assert same(peer.bits(), before)
    assert peer.loop.step(3, 0) == other.loop.step(3, 0)
    assert same(peer.bits(), other.bits())


def with_gradients(optimizer: str) -> tuple[nn.Module, Optimizers]:
    spec = spec_of(optimizer)
    model = build(spec)
    optimizers = make_optimizers(model, spec, CPU)
    give_gradients(model)
    return model, optimizers


def give_gradients(model: nn.Module) -> None:
    draws = torch.Generator().manual_seed(1)
    for parameter in trained(model):
        parameter.grad = torch.randn(parameter.shape, generator=draws)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_a_step_takes_may_lie_in_main_memory(optimizer: str, fail: Callable[[str, int], Scarce]) -> None:
    """Then they lie in main memory, and the step is made from the same gradients; nothing is halved."""
    (mine, whole), (other, alone) = with_gradients(optimizer), with_gradients(optimizer)
    steps = AtomicSteps(whole, CPU)
    steps._asides = (False, True)
    fail(MUON if optimizer == "muon" else ADAMW, 7)
    assert steps.step(0.01)
    assert all(parameter.grad is None for parameter in trained(mine))
    alone.step(0.01)
    assert same(whole.state_of(trained(mine)), alone.state_of(trained(other)))
    assert torch.equal(FlatParameters(mine).new(), FlatParameters(other).new())


def test_other_errors_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizers = with_gradients("adamw")

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(optimizers.members[0], "step", fail)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        AtomicSteps(optimizers, CPU).step(0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("aside", [False, True])
def test_steps_have_the_bits_of_the_optimizers_themselves(optimizer: str, aside: bool) -> None:
    (mine, whole), (other, alone) = with_gradients(optimizer), with_gradients(optimizer)
    steps = AtomicSteps(whole, CPU)
    steps._asides = (aside,)
    for _ in range(3):
        give_gradients(mine)
        give_gradients(other)
        assert steps.step(0.01)
        alone.step(0.01)
    assert same(whole.state_of(trained(mine)), alone.state_of(trained(other)))
    assert torch.equal(FlatParameters(mine).new(), FlatParameters(other).new())


@pytest.mark.parametrize(("optimizer", "at_most"), [("adamw", 0), ("muon", 3)])
def test_a_step_holds_no_copy_of_what_it_changes(optimizer: str, at_most: int) -> None:
    """Bytes per element of its matrices: Muon has a direction in bfloat16 for each, and one matrix in work; a copy of
    matrices and momenta would be 8 more."""
    model, optimizers = with_gradients(optimizer)
    steps = AtomicSteps(optimizers, CPU)
    assert steps.step(0.01)
    give_gradients(model)
    before = {id(value) for value in gc.get_objects() if issubclass(type(value), Tensor)}
    moves = steps._moves(aside=False)
    assert moves is not None
    made = [value for value in gc.get_objects() if issubclass(type(value), Tensor) and id(value) not in before]
    moved = sum(value.numel() for group in optimizers.members[0].param_groups for value in group["params"])
    assert bool(made) == (optimizer == "muon")
    assert sum(value.untyped_storage().nbytes() for value in made) <= at_most * moved


@pytest.mark.cuda
def test_on_a_gpu_adamw_takes_memory_in_its_first_step_alone() -> None:
    """What the copies that are not made rest on."""
    spec = spec_of("adamw")
    model = build(spec).to(CUDA)
    optimizers = make_optimizers(model, spec, CUDA)
    taken = []
    for _ in range(3):
        for parameter in trained(model):
            parameter.grad = torch.ones_like(parameter)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        optimizers.step(0.01)
        taken.append(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
    assert taken[0] > 0
    assert taken[1:] == [0, 0]


@pytest.mark.cuda
@pytest.mark.parametrize(("optimizer", "where"), [("adamw", ADAMW), ("muon", MUON)])
def test_on_a_gpu_a_half_made_step_leaves_no_trace(
    optimizer: str, where: str, fail: Callable[[str, int], Scarce]
) -> None:
    """With copies on the device: the step is made at the second try, and nothing is halved."""
    other, peer = Peer(optimizer, 8, CUDA), Peer(optimizer, 8, CUDA)
    expected = other.loop.step(3, 0)
    fail(where, 7)
    assert peer.loop.step(3, 0) == expected
    assert peer.micro.sequences == 8
    assert same(peer.bits(), other.bits())
