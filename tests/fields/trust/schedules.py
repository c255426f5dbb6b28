"""Schedules of faults in which one of four peers lies besides: which lie, from when on, and which faults, by number."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from peer.consensus.protocol.messages import Propose, Start
from peer.consensus.rounds.interface import SendMean, SendParts
from peer.schema.events import PenaltyImposed
from tests.fields.trust.headers import (
    has_them_checked_before,
    leaves_one_out,
    proposes_under_others,
    refuses_what_nobody_asked,
    starts_one_with_others,
)
from tests.fields.trust.liars import LIAR, Attack, Stage, coordinator_swaps, equivocates, owner_lies
from tests.fields.trust.misers import declares, falls_silent, is_never_ready, keeps
from tests.fields.trust.talkers import floods, hasty, invents_an_acceptance, misses_everybody, votes_for_nothing
from tests.model_swarm import FaultyWorld, Overcome, run_schedule

PEERS = 4
NORMS = {"nan": "7fc00000", "infinite": "7f800000", "huge": "7f7fffff", "tiny": "00000001", "none": "00000000"}
ATTACKS: dict[str, Attack] = {
    **{f"owner: {mode}": owner_lies(mode) for mode in ("sum", "row", "flip")},
    **{f"coordinator: {mode}": coordinator_swaps(mode) for mode in ("bare", "true", "false")},
    "two proposals": equivocates,
    "asks first": hasty,
    "an acceptance": invents_an_acceptance,
    "votes for nothing": votes_for_nothing,
    "all are away": misses_everybody,
    **{f"flood: {what}": floods(what) for what in ("objections", "disputes", "stuck")},
    "other headers: proposed": proposes_under_others,
    "other headers: checked before": has_them_checked_before,
    "other headers: started": starts_one_with_others,
    "shows bytes of who is left out": leaves_one_out,
    "refuses all": refuses_what_nobody_asked,
    "keeps means": keeps((SendMean,)),
    "keeps parts": keeps((SendParts,)),
    **{f"leads without {kind.__name__}": falls_silent(kind) for kind in (Start, Propose)},
    "never ready": is_never_ready,
    **{f"norms: {name}": declares(bytes.fromhex(norm)) for name, norm in NORMS.items()},
}
BEGINS_S = 20.0
"""It lies from some moment before this on, to the end."""


def attack_of(number: int) -> str:
    """Each as often as the others, and with all kinds of faults in turn."""
    return list(ATTACKS)[(number + number // (3 * len(ATTACKS))) % len(ATTACKS)]


def run(number: int, kind: str, restart_s: float) -> FaultyWorld:
    """One schedule. Besides what holds in every schedule, nobody honest is accused; and as long as the voters bear a
    liar, nothing false is decided, and it moves on."""
    stages: list[Stage] = []

    with pytest.MonkeyPatch.context() as patch:

        def bend(world: FaultyWorld) -> None:
            world.liars, world.may_stand = {LIAR}, lambda: not _bears_one(_newest(world))
            stages.append(Stage(world, from_s=Random(f"lies {number}").uniform(0.0, BEGINS_S)))
            ATTACKS[attack_of(number)](patch, stages[0])

        try:
            world = run_schedule(number, kind, restart_s=restart_s, peers=PEERS, bend=bend)
        except Overcome:
            world = stages[0].world
            world.counts["stands"] = True
            return world
    (stage,) = stages
    poisoned = [round for round in stage.poisoned() if _bears_one(_deciding(stage, round))]
    accused = stage.accused() | _penalised(stage)
    world.counts["lies"] = sum(stage.told.values())
    assert not poisoned, f"false means in rounds {poisoned}"
    assert accused <= {LIAR}, f"accused: {sorted(accused)}"
    return world


def _bears_one(voters: Sequence[str]) -> bool:
    """Of three nobody may lie; after a Restart, or where others left, there may be so few, and the liar among them."""
    return LIAR not in voters or len(voters) >= 4


def _newest(world: FaultyWorld) -> tuple[str, ...]:
    """Who decides now: also after a Restart that nothing has followed yet."""
    states = [peer.driver.state for peer in world.peers if peer.alive]
    return max((state.head.round, state.head.number, state.head.electorate) for state in states)[2]


def _deciding(stage: Stage, round: int) -> tuple[str, ...]:
    disk = max(stage.honest, key=lambda peer: peer.disk.head.round).disk
    before, block = (disk.genesis, *disk.heads)[round - 1], disk.blocks[round - 1]
    return block.restarts[-1].electorate if block.restarts else before.electorate


def _penalised(stage: Stage) -> set[str]:
    """In all lives of the honest."""
    return {event.about for peer in stage.honest for event in peer.reports if isinstance(event, PenaltyImposed)}
