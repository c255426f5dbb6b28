"""A device that is as slow as one declares: whoever measures a swarm needs no machine per peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

PACED = "paced"
"""In the directory of a peer whose device is to be slow there is a file of this name."""


class Stepping(Protocol):
    """The part of `peer.train.trainer.Trainer` that is slowed down."""

    @property
    def waited_s(self) -> float: ...
    @property
    def train_step(self) -> Callable[..., Any]: ...


def is_paced(directory: Path) -> bool:
    """Whether the device of this peer is to be as slow as its `settings.min_step_s`."""
    return (directory / PACED).exists()


def slow_down(trainer: Stepping, step_s: float) -> None:
    """Have each inner step keep the trainer's thread for at least `step_s`, as arithmetic would.

    `settings.min_step_s` alone is a rest between steps, in which a peer can do for nothing what else is to be done.
    """
    train_step = trainer.train_step

    def train_step_slowly(*arguments: Any, **named: Any) -> Any:
        began_at, waited_before_s = time.monotonic(), trainer.waited_s
        step = train_step(*arguments, **named)
        # What the step waited for layers is no arithmetic.
        waited_s = max(0.0, trainer.waited_s - waited_before_s)
        time.sleep(max(0.0, began_at + step_s + waited_s - time.monotonic()))
        return step

    vars(trainer)["train_step"] = train_step_slowly
