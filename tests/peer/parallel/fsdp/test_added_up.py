"""How often ranks with copies of one share add up their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from peer.parallel.fsdp.sharded_model import add_up_gradients, forget_gradients, shard
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema import spec as specs
from peer.training.model.build import build
from peer.training.model.net import Batch, attend_without_looking, call_for_loss

HYBRID = ShardingStrategy(kind=Sharding.HYBRID, ranks=4, group=2)


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """One of four ranks; what the others would send is not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        spec = specs.load("micro")
        made = build(spec)
        attend_without_looking(made, spec.model.context)
        call_for_loss(made)
        shard(made, HYBRID, torch.device("cpu"))
        yield made
    finally:
        dist.destroy_process_group()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each all-reduce."""
    found: list[int] = []
    reduce: Any = dist.all_reduce

    def noted(values: torch.Tensor, *rest: Any, **more: Any) -> Any:
        found.append(values.numel())
        return reduce(values, *rest, **more)

    monkeypatch.setattr(dist, "all_reduce", noted)
    return found


def backward(model: nn.Module) -> None:
    summed, _ = model(Batch.of(torch.randint(0, 257, (2, 65))))
    summed.backward()


def test_once_in_a_step(model: nn.Module, added: list[int]) -> None:
    """For each of two blocks and the rest; in between each rank keeps its own sum."""
    for is_last in (False, False, True):
        add_up_gradients(model, is_last)
        backward(model)
        assert len(added) == (3 if is_last else 0)
    assert all(each.grad is not None for each in model.parameters())


def test_what_was_given_up_is_forgotten(model: nn.Module) -> None:
    def norm_of_a_step() -> float:
        add_up_gradients(model, True)
        torch.manual_seed(1)
        backward(model)
        return float(sum(each.grad.to_local().square().sum() for each in model.parameters() if each.grad is not None))

    expected = norm_of_a_step()
    forget_gradients(model)
    add_up_gradients(model, False)
    backward(model)
    forget_gradients(model)
    assert norm_of_a_step() == expected
