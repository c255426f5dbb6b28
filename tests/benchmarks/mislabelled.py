"""A trainer that learns from random labels in some rounds: EDiT's own test of a bad worker (arXiv:2412.07210)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.schema.spec import RunSpec
from peer.training.model.net import Batch, Net
from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import InnerStep
from peer.training.train.trainer import LocalTrainer


class Mislabelled(LocalTrainer):
    """Reads what it should read, but in `rounds` every token that it learns to predict is a random one."""

    def __init__(self, spec: RunSpec, me: str, folder: Path, device: torch.device, rounds: Collection[int]) -> None:
        super().__init__(spec, me, folder, device, data_path=spec.data.path)
        plain: Any = self._backend
        backend = RandomLabels(plain._model, spec, self._batches, device)
        backend.rounds, backend.vectors = rounds, plain.vectors
        self._backend = backend


class RandomLabels(SingleDevice):
    """Inner steps with random labels in some rounds."""

    rounds: Collection[int] = ()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._whole._net = self._mislabelling = RandomNet(self._model)

    def step(self, round: int, position: float, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """An inner step as always, but for the labels."""
        seed = (self._spec.run.seed << 32) + (round << 16) + int(position)
        now = round in self.rounds
        self._mislabelling.draws = torch.Generator(self._device).manual_seed(seed) if now else None
        return super().step(round, position, stop)


class RandomNet(Net):
    """Draws its labels while it has a generator."""

    draws: torch.Generator | None = None

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if self.draws is not None:
            shape = tuple(batch.labels_BT.shape)
            batch = replace(batch, labels_BT=torch.randint(len(self.head.weight), shape, generator=self.draws))
        return super().forward(batch)
