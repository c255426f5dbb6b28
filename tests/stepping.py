"""A trainer without a lifecycle: step after step at the learning rates of a round, submissions that are waited for."""

from __future__ import annotations

from collections.abc import Callable

from peer.train.backend import InnerStep
from peer.train.trainer import LocalTrainer

WRITE_S = 60.0


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
