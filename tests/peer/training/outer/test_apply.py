"""What an update does tile by tile is what the same operations do over whole vectors, written out here."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.consensus.codec import codec
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import VOID, PartOutcome, part_outcomes
from peer.consensus.protocol.encoding import digest
from peer.schema.spec import RunSpec
from peer.training.outer import outer_step
from peer.training.outer.outer_step import momentum_at
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound, contribution
from tests.stepping import step, submit
from tests.vectors import starts, whole

FIRST = digest("anchor", 0)
NAMES = ("p0", "p1")
STREAMS = {"overlap": "streaming"}
KINDS: list[dict[str, Any]] = [
    {}, {"void": {0, 4}}, {"left_out": {"p1"}}, {"left_out": {"p1"}}, {"refused": {1, 2}}, {},
]  # fmt: skip
"""Of the rounds that are made: parts are void, a contribution is missed, all that came for parts was refused.

With `max_staleness` 1 the contribution that is missed twice is given up.
"""


@pytest.fixture
def two(spec: RunSpec, tmp_path: Path, request: pytest.FixtureRequest) -> list[LocalTrainer]:
    """Two peers of the codec and round that the test names."""
    wire, round = request.param
    table = dataclasses.replace(spec.round, **round)
    spec = dataclasses.replace(spec, round=table, codec=dataclasses.replace(spec.codec, wire=wire))
    return [LocalTrainer(spec, name, tmp_path / name, torch.device("cpu"), data_path=spec.data.path) for name in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("two", "tile"),
    [
        (("int4", {}), 64), (("float32", {}), 64), (("float16", {"gamma": 0.0}), 64), (("sparse", {}), codec.TILE),
        (("int8", {"fragments": 2}), 64), (("int4", STREAMS | {"merge": "rebase"}), 64),
        (("float32", STREAMS | {"fragments": 3}), 64), (("sparse", STREAMS), codec.TILE),
        (("float32", STREAMS | {"max_staleness": 1}), 64), (("int4", STREAMS | {"merge": "rebase"}), codec.TILE),
    ],
    indirect=["two"],
)  # fmt: skip
def test_tiles_do_not_show(two: list[LocalTrainer], tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """θ, momentum, residual and local parameters, bit for bit; with tiles that end within parts and parameters, too."""
    monkeypatch.setattr(outer_step, "TILE", tile)
    anchor = FIRST
    for kind in KINDS:
        for trainer in two:
            trainer.begin_round(NAMES)
            step(trainer)
            submit(trainer, anchor)
            if trainer.progress.streams:
                step(trainer)
        decided = DecidedRound(two, anchor, left_out=kind.get("left_out", ()), void=kind.get("void", ()))
        means = tuple(
            VOID if part in kind.get("refused", ()) else mean for part, mean in enumerate(decided.update.parts)
        )
        decided.update = dataclasses.replace(decided.update, parts=means)
        at_once = [by_whole_vectors(trainer, decided) for trainer in two]
        decided.apply_to(*two)
        for trainer, expected in zip(two, at_once, strict=True):
            vectors = trainer._backend.vectors
            found = (
                whole(trainer.anchor.theta),
                whole(trainer.anchor.momentum),
                whole(vectors.residual),
                vectors.flat.new(),
            )
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
            assert torch.equal(starts(trainer), expected[-1])
        anchor = decided.next_anchor


def by_whole_vectors(trainer: LocalTrainer, decided: DecidedRound) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """θ, momentum, residual and local parameters after the update."""
    update, spec, now = decided.update, trainer.spec, trainer._backend.vectors.flat.new()
    theta, velocity, residual = (
        vector.clone()
        for vector in (
            whole(trainer.anchor.theta),
            whole(trainer.anchor.momentum),
            whole(trainer._backend.vectors.residual),
        )
    )
    encoding, mine = Codec(spec.codec.wire), contribution(trainer, update.parent)
    outcomes = part_outcomes(update, trainer.me, True)
    too_old = bool(copy.deepcopy(trainer.progress).settle(update, True).too_old.fragments)
    momentum, own = momentum_at(spec, update.round - 1), None if too_old else trainer._interpolates
    progress = starts(trainer) - now
    start = now.clone()
    for part, piece in enumerate(trainer.progress.turns.parts(update.round - 1)):
        where = slice(piece.start, piece.start + piece.size)
        if not update.rolled_back(part):
            name = update.parts[part]
            mean = (
                torch.zeros(piece.size)
                if name == VOID
                else decoded(encoding.of_means, encoding.without_rows(decided.objects[name], piece.size), piece.size)
            )
            velocity[where] = velocity[where] * momentum + mean
            theta[where] = theta[where] - (velocity[where] * momentum + mean) * spec.outer.learning_rate
        if outcomes[part] is PartOutcome.COUNTED:
            residual[where] = residual[where] - decoded(encoding, mine.payload(part), piece.size)
        elif outcomes[part] is PartOutcome.MISSED:
            residual[where] = residual[where] * spec.round.gamma
        if too_old:
            residual[where] = 0
        if own is not None:
            progress[where] = (theta[where] - residual[where] - now[where]) * own
        owed = residual[where] + progress[where]
        start[where] = theta[where] if encoding.is_sparse else theta[where] - owed
    return theta, velocity, residual + progress, start


def decoded(encoding: Codec, payload: bytes, elements: int) -> Tensor:
    return torch.from_numpy(encoding.decode(payload)[:elements])
