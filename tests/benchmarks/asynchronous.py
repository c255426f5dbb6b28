"""Training without rounds: each peer's pseudo-gradient moves the parameters when it comes.

A rival, no part of the product: the parameters have one owner. Peers come in turn, one after the other within a round's
time, so that each starts from parameters that miss what the others were learning meanwhile.
"""

from __future__ import annotations

import torch

from peer.consensus.protocol.encoding import digest_of
from peer.schema.spec import RunSpec
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.data.source import Source
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_step import momentum_at
from peer.training.train.backend import SingleDevice, held_out_loss
from tests.benchmarks.delayed_nesterov import DelayedNesterov
from tests.benchmarks.variants import CPU, Outcome, Report, is_measured, measured, names_of, steps_of


class Worker:
    """One peer: a model and an inner optimizer of its own."""

    def __init__(self, spec: RunSpec, source: Source, name: str, slower: int) -> None:
        self._spec, self._slower = spec, slower
        self._model = build(spec)
        self._flat = FlatParameters(self._model)
        self._loop = SingleDevice(self._model, spec, ShardSampler(source, spec, name, names_of(spec), {}), CPU)
        self.start = self._flat.new()

    def push(self, outer: DelayedNesterov, round: int) -> int:
        """Train from where it was last, give what was learned, and take the parameters as they are then; the tokens."""
        whole = self._spec.steps_in(round)
        part, tokens = max(1, int(whole / self._slower + 0.5)), 0
        for step in range(part):
            tokens += self._loop.step(round, min(whole - 1.0, step * whole / part)).tokens
        outer.push(self.start - self._flat.new())
        self.start = outer.theta.clone()
        self._flat.copy_from(self.start)
        return tokens


def train_delayed(spec: RunSpec, slower: tuple[int, ...], report: Report) -> Outcome:
    """Every founder pushes once in the time of a round; the momentum is renewed when all have."""
    source, model, names = open_source(spec, spec.data.path), build(spec), names_of(spec)
    workers = [Worker(spec, source, name, slower[index % len(slower)]) for index, name in enumerate(names)]
    flat, held_out_BT, tokens = FlatParameters(model), torch.from_numpy(source.held_out()), 0
    outer = DelayedNesterov(
        flat.new(), period=len(names), learning_rate=spec.outer.learning_rate, factor=momentum_at(spec, 0)
    )  # fmt: skip

    def evaluate() -> float:
        flat.copy_from(outer.theta)
        return held_out_loss(model, held_out_BT, CPU)

    points = [measured(report, 0, 0, evaluate)]
    for round in range(spec.run.rounds):
        outer._factor = momentum_at(spec, round)
        tokens += sum(worker.push(outer, round) for worker in workers)
        if is_measured(spec, round + 1):
            points.append(measured(report, round + 1, tokens, evaluate))
    return Outcome(
        points=points, state=digest_of(outer.theta.numpy().tobytes()).hex(), wire_bytes=4 * flat.size,
        exchanges=spec.run.rounds, parameters=flat.size, steps=steps_of(spec),
    )  # fmt: skip
