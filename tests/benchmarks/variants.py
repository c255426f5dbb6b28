"""The ways to train one spec that the quality benchmark compares, each as one deterministic run in this process.

`float32`, `float16`, `int8`, `int4`, `sparse`: DiLoCo of all peers, with the product's trainers, contribution files,
codec, mean and outer step; only the network is missing. `one-peer`: the same with a single peer. `ddp`: the peers'
gradients averaged at every step (synchronous data parallelism) on the same tokens. `adamw`: a single peer without
an outer step.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import genesis_anchor
from peer.schema.spec import RunSpec
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.backend import SingleDevice, held_out_loss
from peer.training.train.optimizers import steps_before
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.stepping import step, steps_in_round, submit

CODECS = ("float32", "float16", "int8", "int4", "sparse")
SINGLE = ("one-peer", "adamw")
VARIANTS = (*CODECS, "one-peer", "ddp", "adamw")
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a run stood when its loss was measured."""

    round: int
    tokens: int
    """Tokens trained on by all peers together."""
    loss: float
    """Held-out loss in nats per token."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of one variant gave."""

    points: list[Point]
    state: str
    """Hash of the last parameters and outer momentum (of the parameters alone without an outer step)."""
    wire_bytes: int
    """Encoded size of what is averaged: one contribution, or one gradient."""
    mean_bytes: int = 0
    """Encoded size of the average; 0: the same."""
    exchanges: int
    """How often it is averaged in the run."""
    parameters: int
    steps: int
    """Inner steps of one peer."""
    findings: list[Found] = field(default_factory=list)
    """What was found against contributions."""
    rounds_s: float = 0.0
    """Processor time of all rounds without the evaluations, all peers' work one after the other."""
    measuring_s: float = 0.0
    """Of these: every contribution was measured once."""
    judging_s: float = 0.0
    """Of these: one peer's judgements."""


Found = tuple[int, str, str, int, int, str]
"""(round of the anchor that it leads to, peer, code, layer, factor over 65,536, evidence)."""
Report = Callable[[Point], None]
Make = Callable[[RunSpec, str, Path], LocalTrainer]
"""A trainer by its name, with its folder."""


def spec_of(variant: str, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec that `variant` trains. What has no codec of its own takes float32, which loses nothing."""
    founders = 1 if variant in SINGLE else peers
    wire: Any = variant if variant in CODECS else "float32"
    run = dataclasses.replace(base.run, seed=seed, founders=founders)
    return dataclasses.replace(base, run=run, codec=dataclasses.replace(base.codec, wire=wire))


def run_variant(variant: str, spec: RunSpec, report: Report) -> Outcome:
    """Train `spec`, as `spec_of` gave it, to its last round."""
    if variant in ("ddp", "adamw"):
        return train_synchronously(spec, report)
    return train_diloco(spec, report)


def names_of(spec: RunSpec) -> tuple[str, ...]:
    """One name per founder. They decide who reads which shard, so another seed gives others."""
    return tuple(f"seed-{spec.run.seed}-peer-{number}" for number in range(1, spec.run.founders + 1))


def plain(spec: RunSpec, name: str, folder: Path) -> LocalTrainer:
    """A trainer as the product makes it."""
    return LocalTrainer(spec, name, folder, CPU, data_path=spec.data.path)


def train_diloco(spec: RunSpec, report: Report, make: Make = plain) -> Outcome:
    """All founders' trainers, one after the other in every round, and the update they would agree on."""
    names, rounds = names_of(spec), Rounds()
    with tempfile.TemporaryDirectory(prefix="homefires-") as folder:
        trainers = [make(spec, name, Path(folder) / name) for name in names]
        first, tokens = trainers[0], 0
        points = [measured(report, 0, 0, lambda: first.evaluate().loss)]
        anchor = genesis_anchor(spec.digest(), names, first.anchor.state_digest())
        for round in range(spec.run.rounds):
            began_at = time.process_time()
            for trainer in trainers:
                tokens += _train_round(trainer, names)
                submit(trainer, anchor)
            decided = rounds.decide(trainers, anchor)
            decided.apply_to(*trainers)
            anchor = decided.next_anchor
            rounds.seconds += time.process_time() - began_at
            if is_measured(spec, round + 1):
                points.append(measured(report, round + 1, tokens, lambda: first.evaluate().loss))
        return outcome_of(spec, trainers, points, rounds)


def _train_round(trainer: LocalTrainer, names: tuple[str, ...]) -> int:
    trainer.begin_round(names)
    return sum(step(trainer).tokens for _ in range(steps_in_round(trainer)))


@dataclass
class Rounds:
    """The decided rounds of a run, each judged by the one before, and what all of them found and took."""

    last: DecidedRound | None = None
    findings: list[Found] = field(default_factory=list)
    seconds: float = 0.0
    measuring_s: float = 0.0
    judging_s: float = 0.0

    def decide(self, trainers: list[LocalTrainer], anchor: bytes) -> DecidedRound:
        """The next round."""
        self.last = decided = DecidedRound(trainers, anchor, before=self.last)
        round = decided.update.round
        self.findings += [
            (round, found.peer, found.code, found.layer, found.factor, found.evidence)
            for found in decided.judgement.findings
        ]
        self.measuring_s += decided.measuring_s
        self.judging_s += decided.judging_s
        return decided


def outcome_of(spec: RunSpec, trainers: list[LocalTrainer], points: list[Point], rounds: Rounds) -> Outcome:
    """What a run gave that these trainers made together, who must hold the same bits."""
    states, first = {trainer.anchor.state_digest() for trainer in trainers}, trainers[0]
    assert len(states) == 1, "trainers with the same updates hold other bits"
    codec = Codec(spec.codec.wire)
    wire_bytes, mean_bytes = (
        sum(each.part_bytes(part.size) for part in first.parts) for each in (codec, codec.of_means)
    )
    return Outcome(
        points=points, state=states.pop().hex(), wire_bytes=wire_bytes, mean_bytes=mean_bytes,
        exchanges=spec.run.rounds, parameters=first.parameters, steps=steps_of(spec), findings=rounds.findings,
        rounds_s=rounds.seconds, measuring_s=rounds.measuring_s, judging_s=rounds.judging_s,
    )  # fmt: skip


class Together:
    """The peers' batches one after the other: micro-batch i of a step is peer i's."""

    def __init__(self, feeds: list[ShardSampler]) -> None:
        self._feeds, self._turn = feeds, 0

    def next(self, sequences: int) -> Tensor:
        """Tokens (sequences, context + 1) of the peer whose turn it is."""
        feed = self._feeds[self._turn % len(self._feeds)]
        self._turn += 1
        return feed.next(sequences)


def train_synchronously(spec: RunSpec, report: Report) -> Outcome:
    """One model; every step takes the mean gradient of all founders' batches. One founder is plain AdamW.

    The mean over peers is the accumulation over micro-batches that the inner loop has, so schedule,
    clipping (of the mean gradient, as in DDP) and optimizer are the product's.
    """
    names, source, model = names_of(spec), open_source(spec, spec.data.path), build(spec)
    feed = Together([ShardSampler(source, spec, name, names, {}) for name in names])
    inner = dataclasses.replace(spec.inner, accumulation=spec.inner.accumulation * len(names))
    loop = SingleDevice(model, dataclasses.replace(spec, inner=inner), feed, CPU)
    held_out_BT, tokens = torch.from_numpy(source.held_out()), 0
    points = [measured(report, 0, 0, lambda: held_out_loss(model, held_out_BT, CPU))]
    for round in range(spec.run.rounds):
        tokens += sum(loop.step(round, step).tokens for step in range(spec.steps_in(round)))
        if is_measured(spec, round + 1):
            points.append(measured(report, round + 1, tokens, lambda: held_out_loss(model, held_out_BT, CPU)))
    flat = FlatParameters(model)
    return Outcome(
        points=points, state=digest_of(flat.new().numpy().tobytes()).hex(), wire_bytes=4 * flat.size,
        exchanges=steps_of(spec), parameters=flat.size, steps=steps_of(spec),
    )  # fmt: skip


def is_measured(spec: RunSpec, round: int) -> bool:
    """Whether the anchor of this round is evaluated: as in a run, and the last."""
    return round % spec.data.eval_every == 0 or round == spec.run.rounds


def steps_of(spec: RunSpec) -> int:
    """Inner steps of one peer in the whole run."""
    return steps_before(spec, spec.run.rounds)


def measured(report: Report, round: int, tokens: int, measure: Callable[[], float]) -> Point:
    """A point of a run, told to `report`."""
    point = Point(round=round, tokens=tokens, loss=measure())
    report(point)
    return point
