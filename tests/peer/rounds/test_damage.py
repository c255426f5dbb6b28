"""The schedules can fail: each deliberate damage to the protocol is caught by some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.rounds import coordinate, decide
from peer.rounds.settlement import Settlement
from peer.rounds.state import Acceptor
from peer.testing import integers
from peer.testing.integers import IntegerDisk
from tests.peer.rounds.test_schedules import run_schedule, run_until_bytes_are_lost

Damage = Callable[[pytest.MonkeyPatch], None]


def caught(schedules: int, *, targeted: bool) -> bool:
    """Whether any of the schedules notices."""
    for seed in range(schedules):
        try:
            run_schedule(seed, targeted=targeted, peers=3 + seed % 3)
        except AssertionError:
            return True
    return False


def quorum_of_half(patch: pytest.MonkeyPatch) -> None:
    """A quorum of n/2 lets two halves decide differently."""
    for module in (coordinate, decide):
        patch.setattr(module, "quorum", lambda electorate: max(1, len(electorate) // 2))


def no_write_ahead(patch: pytest.MonkeyPatch) -> None:
    """A voter that forgets its promises and votes in a crash."""

    def forget(disk: IntegerDisk, acceptor: Acceptor) -> None:
        disk.owner.burn()

    patch.setattr(IntegerDisk, "save_acceptor", forget)


def accepted_is_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that ignores what may already be decided."""
    choose = coordinate._choose

    def ignore(turn: coordinate.Turn, lead: coordinate.Lead) -> None:
        promises = {peer: replace(promise, accepted=None) for peer, promise in lead.promises.items()}
        choose(turn, replace(lead, promises=promises))

    patch.setattr(coordinate, "_choose", ignore)


def vote_without_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """A voter that votes for bytes which it does not hold; they may die with the one that has them."""
    honest, vote = decide.missing_parts, decide._vote_if_held

    def blindly(*args: Any) -> None:
        decide.missing_parts = lambda state, update: []
        try:
            vote(*args)
        finally:
            decide.missing_parts = honest

    patch.setattr(decide, "_vote_if_held", blindly)


def carry_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Work that a round counted stays in the balance and is offered again."""
    honest = integers.settle

    def twice(*args: object) -> tuple[Settlement, ...]:
        return tuple(Settlement.UNTOUCHED if what is Settlement.COUNTED else what for what in honest(*args))

    patch.setattr(integers, "settle", twice)


def void_loses_the_carry(patch: pytest.MonkeyPatch) -> None:
    """Work that a round missed is treated as counted."""
    honest = integers.settle

    def lose(*args: object) -> tuple[Settlement, ...]:
        return tuple(Settlement.COUNTED if what is Settlement.MISSED else what for what in honest(*args))

    patch.setattr(integers, "settle", lose)


@pytest.mark.parametrize(
    ("damage", "schedules", "targeted"),
    [
        (quorum_of_half, 60, True),
        (no_write_ahead, 200, True),
        (accepted_is_not_adopted, 200, True),
        (carry_counted_twice, 4, False),
        (void_loses_the_carry, 20, False),
    ],
)
def test_damage_is_caught(damage: Damage, schedules: int, targeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within this many schedules at least one invariant breaks. Plain faults alone miss the voter's sins."""
    damage(monkeypatch)
    assert caught(schedules, targeted=targeted)


def test_votes_without_the_bytes_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the only peer that has the bytes of a decided update dies, the others cannot follow."""
    vote_without_the_bytes(monkeypatch)
    with pytest.raises(AssertionError, match="died with one peer"):
        run_until_bytes_are_lost(0)
