"""Held-out losses of parameters that a run left on disk, measured when nothing else is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.consensus.protocol.layout import cut
from peer.node.store.objects import load_object
from peer.schema.spec import RunSpec
from peer.training.checkpoint.replay import read_chain
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from peer.training.train.backend import SingleDevice, held_out_loss
from tests.benchmarks.variants import CPU, Together
from tests.vectors import whole


class HeldOut:
    """The held-out text of a spec, and its model to measure with."""

    def __init__(self, spec: RunSpec) -> None:
        self._source = open_source(spec, spec.data.path)
        self._model = build(spec)
        self._flat = FlatParameters(self._model)
        self._initial = self._flat.new()
        self._tokens_BT = torch.from_numpy(self._source.held_out())

    @property
    def parameters(self) -> int:
        return self._flat.size

    @property
    def initial(self) -> np.ndarray[Any, Any]:
        """The parameters that every run begins with."""
        return self._initial.numpy()

    def loss(self, theta: Tensor) -> float:
        """Of these parameters (flat float32), in nats per token."""
        self._flat.copy_from(theta)
        return held_out_loss(self._model, self._tokens_BT, CPU)

    def of_initial(self) -> float:
        """Before any step."""
        return self.loss(self._initial)

    def of_vectors(self, paths: Sequence[Path]) -> list[float]:
        """Of vectors in files."""
        return [self.loss(torch.from_numpy(np.load(path))) for path in paths]

    def of_chain(self, directory: Path, spec: RunSpec) -> list[float]:
        """Of every anchor of a run directory that holds its chain from the beginning, anchor 0 first."""
        self._flat.copy_from(self._initial)
        layout = cut([layer.size for layer in self._flat.layers], spec.codec.part_elements)
        chain = read_chain(directory, spec)
        assert chain.base.round == 0, f"the chain in {directory} begins at round {chain.base.round}"
        anchor = OuterState.initial(self._flat.by_layer())
        losses = [self.of_initial()]
        for update in chain.updates:
            advance(anchor, update, spec, layout, partial(load_object, directory))
            losses.append(self.loss(whole(anchor.theta)))
        return losses

    def of_synchronous(
        self, spec: RunSpec, peers: Sequence[str], every: int
    ) -> Iterator[tuple[int, float, np.ndarray[Any, Any]]]:
        """(steps, loss, parameters) of every so many steps of data parallelism, in one process, without end.

        The arithmetic of DDP but for the order of additions: one model and one optimizer, each step on the mean
        gradient of all peers' batches.
        """
        feed = Together([ShardSampler(self._source, spec, peer, peers, {}) for peer in peers])
        inner = dataclasses.replace(spec.inner, accumulation=spec.inner.accumulation * len(peers))
        model = build(spec)
        flat, loop = FlatParameters(model), SingleDevice(model, dataclasses.replace(spec, inner=inner), feed, CPU)
        step = 0
        while True:
            for _ in range(every):
                loop.step(*divmod(step, spec.round.steps))
                step += 1
            theta = flat.new()
            yield step, self.loss(theta), theta.numpy()
