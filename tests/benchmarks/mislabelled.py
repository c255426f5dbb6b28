"""A trainer that learns from random labels in some rounds: EDiT's own test of a bad worker (arXiv:2412.07210)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peer.schema.spec import RunSpec
from peer.training.model.build import next_token_logits
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
    _now = False

    def step(self, round: int, step: int, stop: Callable[[], bool] = lambda: False) -> InnerStep:
        """An inner step as always, but for the labels."""
        self._now = round in self.rounds
        self._generator = torch.Generator(self._device).manual_seed((self._spec.run.seed << 32) + (round << 16) + step)
        return super().step(round, step, stop)

    def _loss(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self._now:
            return super()._loss(tokens_BT)
        logits_BTV = next_token_logits(self._model, tokens_BT)
        labels_BT = torch.randint(logits_BTV.shape[-1], logits_BTV.shape[:2], generator=self._generator)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), labels_BT.flatten()), None
