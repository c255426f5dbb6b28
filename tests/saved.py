"""All that a trainer is, as numbers to compare; and its checkpoints, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from peer.training.checkpoint.checkpoint import STATE, Checkpoint, Checkpoints
from peer.training.checkpoint.layer_state import derived_start
from peer.training.train.backend import SingleDevice
from peer.training.train.trainer import LocalTrainer


def saved(trainer: LocalTrainer, anchor: bytes, folder: Path) -> Checkpoint:
    """Written below `folder` and opened."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Checkpoints(folder).write(trainer.checkpoint(anchor))
    return Checkpoint(path=path, state=json.loads((path / STATE).read_text()))


def everything(trainer: LocalTrainer, anchor: bytes) -> dict[str, Tensor]:
    """By file and name, copied: θ and m, and all that a checkpoint may hold."""
    capture = trainer.checkpoint(anchor)
    found = {f"rest.{name}": tensor.clone() for name, tensor in capture.rest.items()}
    for number, layer in enumerate(capture.layers):
        theta, momentum = trainer.anchor.layer(number)
        found |= {f"{number}.theta": theta.clone(), f"{number}.momentum": momentum.clone()}
        found |= {f"{number}.{piece.name}": torch.cat(piece.sources).clone() for piece in layer.pieces}
        if layer.start is None:
            residual = layer.residual.sources[0]
            found[f"{number}.start"] = derived_start(theta, residual, sparse=layer.sparse).clone()
    return found


def words(trainer: LocalTrainer, anchor: bytes) -> str:
    """What else a checkpoint says."""
    return json.dumps(trainer.checkpoint(anchor).state)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Where the two differ, to the bit."""
    assert one.keys() == other.keys()
    return [name for name in one if one[name].numpy().tobytes() != other[name].numpy().tobytes()]


def optimizer_state(loop: SingleDevice) -> dict[str, Tensor]:
    """What its optimizers remember, by layer and name, where it lies."""
    return {
        f"{number}:{name}": value
        for number in range(len(loop.layers))
        for name, value in loop.optimizer_of(number).items()
    }


def load_optimizer_state(loop: SingleDevice, state: dict[str, Tensor]) -> None:
    for number in range(len(loop.layers)):
        mine = {name.partition(":")[2]: value for name, value in state.items() if name.startswith(f"{number}:")}
        loop.load_optimizer_of(number, mine)
