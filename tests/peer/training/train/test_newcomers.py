"""Names cost nothing, a vote does: what peers that never trained get done beside three that do, with real trainers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from peer.consensus.protocol.block import Update
from peer.consensus.protocol.membership import VOTES_AFTER
from peer.consensus.protocol.messages import Message, PartData, Promise
from peer.schema.spec import RunSpec, load
from tests.adversaries import Forging, Tampering, noise
from tests.training_swarm import Role, TrainingSwarm, names_of

VOTERS, NAMES = 3, 5
ROUNDS = 10
SLOWER = 1.5
"""Times the usual length of a round."""


class Silent(Tampering):
    """Says that it is ready, pledges a contribution, and then gives nothing of it."""

    def tamper(self, to: str, message: Message) -> bytes | None:
        return None if isinstance(message, PartData) else super().tamper(to, message)


class Mute(Tampering):
    """Says that it is ready, and never answers."""

    def tamper(self, to: str, message: Message) -> bytes | None:
        return None if isinstance(message, Promise) else super().tamper(to, message)


def small() -> RunSpec:
    """Rounds of a few steps of a model of one layer: enough for work to point somewhere."""
    spec = load("micro")
    config = {**spec.model.config, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    return dataclasses.replace(
        spec,
        run=dataclasses.replace(spec.run, founders=VOTERS, rounds=ROUNDS, seed=3),
        model=dataclasses.replace(spec.model, context=32, config=config),
        inner=dataclasses.replace(spec.inner, sequences=2, warmup_steps=0),
        data=dataclasses.replace(spec.data, eval_sequences=32, eval_every=ROUNDS),
        round=dataclasses.replace(spec.round, steps=4, sync_rounds=0, ramp_rounds=0, restart_s=20.0),
    )


def swarm_of(folder: Path, newcomers: Sequence[Role], rounds: int = ROUNDS) -> TrainingSwarm:
    spec = small()
    swarm = TrainingSwarm(spec, folder, readers=names_of(spec.run.seed, VOTERS), newcomers=newcomers)
    swarm.until_round(rounds)
    return swarm


def _counts(update: Update, name: str) -> bool:
    """Whether something of a member is in the means."""
    names = [member.peer for member in update.members]
    weighs = name in names and any(row[names.index(name)] for row in update.weights)
    return weighs and any(update.contributed(name, part) for part in range(len(update.parts)))


def rounds_s(swarm: TrainingSwarm) -> list[float]:
    """How long each round took, by the first voter's clock."""
    at = [0.0, *swarm.honest[0].reached_at]
    return [after - before for before, after in pairwise(at)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> TrainingSwarm:
    return swarm_of(tmp_path_factory.mktemp("alone"), ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "role",
    [
        pytest.param(lambda: Forging(noise), id="a majority with garbage"),
        pytest.param(Silent, id="silent after a pledge"),
        pytest.param(Mute, id="mute", marks=pytest.mark.nightly),
    ],
)
def test_five_untrained_names_beside_three_honest_peers(
    role: Callable[[], Role], alone: TrainingSwarm, tmp_path: Path
) -> None:
    """They get no vote within ten rounds, nothing that they give is applied, and no round takes half as long again."""
    beside = swarm_of(tmp_path, [role() for _ in range(NAMES)])
    strangers = {peer.name for peer in beside.peers[VOTERS:]}
    for update in beside.honest[0].updates:
        assert not strangers & set(update.elect)
        assert not any(_counts(update, name) for name in strangers)
    assert beside.differing() == []
    assert max(rounds_s(beside)) <= SLOWER * max(rounds_s(alone))
    assert abs(beside.losses[ROUNDS] / alone.losses[ROUNDS] - 1) < 0.05, "they read other windows, no more"


@pytest.mark.slow
def test_an_honest_newcomer_votes_after_its_third_accepted_round(tmp_path: Path) -> None:
    """It contributes at once."""
    swarm = swarm_of(tmp_path, [Role()], VOTES_AFTER + 2)
    newcomer = swarm.peers[VOTERS].name
    updates = swarm.honest[0].updates
    accepted = [update.round for update in updates if _counts(update, newcomer)]
    votes = [update.round for update in updates if newcomer in update.elect]
    assert accepted[0] == 2, "a run's first round has nothing to hold its work against"
    assert votes[0] == accepted[VOTES_AFTER - 1]
