"""A model that leaves its device comes back with the same bits; what it had there is free meanwhile.

The same stories are told on the CPU, where leaving is a copy to other memory, and on a GPU if there is one: without
one, that is reported as not run at the end (`tests/devices.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import gc

import pytest
import torch
from torch import Tensor

from peer.schema import spec as specs
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.backend import SingleDevice
from peer.training.train.offload import Offload
from tests.peer.training.train.conftest import Make
from tests.saved import load_optimizer_state, optimizer_state

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
LEFT_BYTES = 64 << 20
"""What the matrix library keeps of a GPU at most."""


class Fixed:
    """The same tokens again and again."""

    def next(self, sequences: int) -> Tensor:
        return torch.randint(0, 257, (sequences, 65), generator=torch.Generator().manual_seed(7))


def loop_on(device: torch.device, optimizer: str, **config: int) -> tuple[SingleDevice, FlatParameters]:
    spec = specs.load("micro")
    spec = dataclasses.replace(
        spec, inner=dataclasses.replace(spec.inner, optimizer=optimizer),
        model=dataclasses.replace(spec.model, context=64, config=spec.model.config | config),
    )  # fmt: skip
    model = build(spec).to(device)
    return SingleDevice(model, spec, Fixed(), device), FlatParameters(model)


def bits(loop: SingleDevice, flat: FlatParameters) -> dict[str, Tensor]:
    return {"parameters": flat.new()} | {name: value.clone() for name, value in optimizer_state(loop).items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def goes_on_as_if_it_had_stayed(device: torch.device, optimizer: str) -> None:
    stays, leaves = (loop_on(device, optimizer) for _ in range(2))
    for loop, _ in (stays, leaves):
        for step in range(3):
            loop.step(2, step)
    before, there = bits(*leaves), held(leaves[0].residence)
    leaves[0].residence.leave()
    leaves[0].residence.leave()
    assert leaves[0].residence.is_aside
    assert not places(held(leaves[0].residence)) & places(there), "nothing stays where it was"
    assert same(bits(*leaves), before), "a checkpoint meanwhile holds the same"
    leaves[1].copy_from(leaves[1].new())  # as an update does that is applied meanwhile
    leaves[0].residence.come_back()
    leaves[0].residence.come_back()
    assert same(bits(*leaves), before)
    steps = [[loop.step(2, step) for step in range(3, 6)] for loop, _ in (stays, leaves)]
    assert steps[0] == steps[1]
    assert same(bits(*stays), bits(*leaves))


def held(residence: Offload) -> list[Tensor]:
    """Its tensors as they lie now: while somebody has them, nothing else gets their memory."""
    return [tensor.data for tensor in residence._tensors()] + [state[key] for _, state, key in residence._states()]


def places(tensors: list[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_goes_on_bit_for_bit(optimizer: str) -> None:
    goes_on_as_if_it_had_stayed(CPU, optimizer)


def test_a_device_without_room_leaves_everything_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-way there is as bad as gone: nothing has changed, and the next try comes back with all bits."""
    loop, flat = loop_on(CPU, "adamw")
    loop.step(2, 0)
    before = bits(loop, flat)
    loop.residence.leave()
    aside = held(loop.residence)
    moved: list[int] = []

    def without_room(tensor: Tensor, device: torch.device) -> Tensor:
        moved.append(1)
        if len(moved) > 5:
            raise torch.OutOfMemoryError("somebody plays")
        return tensor.detach().to(device, copy=True)

    with monkeypatch.context() as patched:
        patched.setattr("peer.training.train.offload.copied", without_room)
        with pytest.raises(torch.OutOfMemoryError):
            loop.residence.come_back()
    assert loop.residence.is_aside
    assert places(held(loop.residence)) == places(aside)
    loop.residence.come_back()
    assert same(bits(loop, flat), before)


def test_a_state_that_was_loaded_meanwhile_comes_along() -> None:
    loop, flat = loop_on(CPU, "adamw")
    loop.step(2, 0)
    before = copy.deepcopy(bits(loop, flat))
    loop.residence.leave()
    load_optimizer_state(loop, {name: value for name, value in before.items() if name != "parameters"})
    loop.residence.come_back()
    assert same(bits(loop, flat), before)


def test_it_does_not_train_while_it_is_aside() -> None:
    loop, _ = loop_on(CPU, "adamw")
    loop.residence.leave()
    with pytest.raises(AssertionError, match="on its device again"):
        loop.step(2, 0)


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_on_a_gpu_training_goes_on_bit_for_bit(optimizer: str) -> None:
    goes_on_as_if_it_had_stayed(CUDA, optimizer)


@pytest.mark.cuda
def test_a_gpu_is_free_while_its_model_is_aside() -> None:
    """Allocated and reserved: what other programs see as used goes down by all but a workspace."""
    loop, _ = loop_on(CUDA, "adamw", hidden_size=1024, intermediate_size=4096, num_hidden_layers=8)
    loop.step(2, 0)
    torch.cuda.synchronize()
    free_before, _ = torch.cuda.mem_get_info()
    held_bytes = torch.cuda.memory_allocated()
    assert held_bytes > 4 * LEFT_BYTES
    loop.residence.leave()
    gc.collect()
    assert torch.cuda.memory_allocated() < LEFT_BYTES
    assert torch.cuda.memory_reserved() < LEFT_BYTES
    free_after, _ = torch.cuda.mem_get_info()
    assert free_after - free_before > held_bytes - LEFT_BYTES
    loop.residence.come_back()
    loop.step(2, 1)


def test_a_trainer_waits_for_an_update_that_is_applied_before_it_moves(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are written by threads of their own: none may write where a parameter no longer lies."""
    trainer = make()
    order: list[str] = []
    monkeypatch.setattr(trainer, "_require_layers", lambda: order.append("layers"))
    monkeypatch.setattr(trainer._backend, "_device", CUDA)
    residence = trainer._backend.residence
    monkeypatch.setattr(residence, "_tensors", lambda: order.append("moves") or iter(()))
    monkeypatch.setattr("peer.training.train.offload.empty_device_cache", lambda device: None)
    trainer.leave_device()
    assert residence.is_aside
    assert trainer.take_device()
    assert order == ["layers", "moves", "layers", "moves"]
