"""Short waits for tests: smaller constants where a person would wait, and devices that rest."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

HURRY = "hurry.json"
"""In the directory of a peer that is to be quick there is a file of this name."""


def write_hurry(directory: Path, constants: Mapping[str, float]) -> None:
    """Have the peer of this directory take these values from its next start on, as
    `peer.node.lifecycle.link_changes.CLOCK_RETRY_S`."""
    (directory / HURRY).write_text(json.dumps(dict(constants)))


def hurry(directory: Path) -> None:
    """In a process of such a peer: set what its file says. AssertionError for a constant that there is not."""
    path = directory / HURRY
    if not path.exists():
        return
    for name, value in json.loads(path.read_text()).items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        assert isinstance(getattr(owner, constant, None), float | int), f"no such constant: {name}"
        setattr(owner, constant, value)


PACED = "paced"
"""In the directory of a peer whose device is to be slow there is a file of this name."""
FORWARD = 1 / 3
"""Of a step: a backward pass takes twice as long as the forward pass before it (arXiv:2001.08361, section 2.1)."""


class Stepping(Protocol):
    """The part of `peer.training.train.trainer.LocalTrainer` that is slowed down."""

    @property
    def layer_names(self) -> Sequence[str]: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def step(self) -> Callable[..., Any]: ...


def is_paced(directory: Path) -> bool:
    """Whether the device of this peer is to be as slow as its `settings.min_step_s`."""
    return (directory / PACED).exists()


def slow_down(trainer: Stepping, model: Any, step_s: float, forwards: int = 1) -> None:
    """Have each inner step of `model` keep the trainer's thread for at least `step_s`, as arithmetic would.

    A third of that is spread over the layers of its `forwards` forward passes: what is done beside the step is done
    while a layer computes, and the next layer is read when the one before has computed. `settings.min_step_s` alone is
    a rest between steps, in which a peer can do for nothing what else is to be done. `model` is None where it lies with
    ranks: then all of it follows the step.
    """
    named = () if model is None else model.named_modules()
    modules = [module for name, module in named if name in trainer.layer_names]
    layer_s = step_s * FORWARD / (forwards * max(1, len(modules)))
    step_at_once, computing = trainer.step, _Step(trainer)

    def step_slowly(*arguments: Any, **named: Any) -> Any:
        computing.begin()
        step = step_at_once(*arguments, **named)
        computing.until(step_s)
        computing.at_work = False
        return step

    for module in modules:
        module.register_forward_hook(lambda *_: computing.layer(layer_s))
    vars(trainer)["step"] = step_slowly


DRAG = "drag"
"""While there is a file of this name in the directory of a home of a cluster, each of its blocks computes for as many
seconds forward as the file says, and for twice as long backward, or for as long as it takes if that is longer. The
speed that the home offers is at most that which these seconds allow for micro-batches of one sequence."""
BLOCK = re.compile(r".*\blayers\.\d+")


def drag(model: Any, directory: Path) -> None:
    """Have the blocks of this model look for that file."""
    path, began_at = directory / DRAG, 0.0

    def begin(*_: Any) -> None:
        nonlocal began_at
        began_at = time.monotonic()

    def compute_until(passes: float) -> None:
        if path.exists():
            time.sleep(max(0.0, began_at + passes * float(path.read_text()) - time.monotonic()))

    for name, module in model.named_modules():
        if BLOCK.fullmatch(name):
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(lambda *_: compute_until(1))
            module.register_full_backward_pre_hook(begin)
            module.register_full_backward_hook(lambda *_: compute_until(1 / FORWARD - 1))


class _Step:
    """How far the device would be in the step at work, if there is one."""

    def __init__(self, trainer: Stepping) -> None:
        self._trainer = trainer
        self.at_work = False

    def begin(self) -> None:
        self._began_at, self._waited_before_s, self._forward_s = time.monotonic(), self._trainer.waited_s, 0.0
        self.at_work = True

    def layer(self, seconds: float) -> None:
        if self.at_work:
            self._forward_s += seconds
            self.until(self._forward_s)

    def until(self, seconds: float) -> None:
        """Be at work for so long since the beginning; what the step waited for layers is no arithmetic."""
        waited_s = max(0.0, self._trainer.waited_s - self._waited_before_s)
        time.sleep(max(0.0, self._began_at + seconds + waited_s - time.monotonic()))


if __name__ == "__main__":  # an organiser's node with the constants that its folder's file says
    hurry(Path(sys.argv[sys.argv.index("--dir") + 1]))
    runpy.run_module("bootstrap", run_name="__main__", alter_sys=True)
