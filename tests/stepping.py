"""A trainer without a lifecycle: step after step at the learning rates of a round, submissions that are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.optim import Optimizer

from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import InnerStep
from peer.training.train.optimizers import Optimizers
from peer.training.train.trainer import LocalTrainer

WRITE_S = 60.0


def loop_with(optimizer: Optimizer, model: nn.Module, *rest: Any) -> SingleDevice:
    """Inner steps by another optimizer than those that a run may name; `rest` as of `SingleDevice`."""
    with patch("peer.training.train.backend.make_optimizers", lambda *_, **__: Optimizers(optimizer)):
        return SingleDevice(model, *rest)


def never() -> bool:
    """Nobody asks it to stop."""
    return False


def steps_in_round(trainer: LocalTrainer) -> int:
    """H of the round in training."""
    return trainer.spec.steps_in(trainer.progress.in_training)


def step(trainer: LocalTrainer, stop: Callable[[], bool] = never) -> InnerStep:
    """The next inner step; beyond H, while a round is overdue, at the last learning rate."""
    return trainer.step(min(trainer.progress.step, steps_in_round(trainer) - 1), stop)


def submit(trainer: LocalTrainer, anchor: bytes) -> None:
    """Have the contribution to `anchor` on disk. Raises DiskFull."""
    trainer.submit(anchor).result(WRITE_S)


def slices(trainer: LocalTrainer, round: int) -> list[slice]:
    """Where what a round averages lies in the whole model, part by part."""
    return [slice(part.start, part.start + part.size) for part in trainer.progress.turns.parts(round)]
