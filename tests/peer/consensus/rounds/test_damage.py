"""The schedules can fail: each deliberate damage to the protocol is caught by some of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import ContributionHeader, PartOutcome, Update
from peer.consensus.protocol.electorate import quorum
from peer.consensus.rounds import acceptor as decide
from peer.consensus.rounds import coordinator
from peer.consensus.rounds.interface import PersistAcceptor
from peer.consensus.rounds.transition import Transition
from peer.testing import memory_peer
from peer.testing.memory_peer import IntegerDisk, IntegerSums, Ledger, LogicalPeer
from tests.model_swarm import run_schedule
from tests.peer.consensus.rounds.test_schedules import run_until_bytes_are_lost

PRESENT_S = 8.0


# ---- the voter's memory ----


def no_write_ahead(patch: pytest.MonkeyPatch) -> None:
    """A voter that forgets its promises and votes in a crash."""
    patch.setattr(IntegerDisk, "save_acceptor", lambda disk, acceptor: disk.owner.burn())


def acceptance_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """A voter that remembers its promises only."""
    save = IntegerDisk.save_acceptor
    patch.setattr(
        IntegerDisk,
        "save_acceptor",
        lambda disk, acceptor: save(disk, replace(acceptor, accepted=None, certificate=())),
    )


def promise_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A voter that votes for a proposal though it has promised a later ballot."""
    propose = decide.on_propose

    def forgiving(turn: Transition, sender: str, message: Any) -> None:
        acceptor = turn.state.acceptor
        turn.set(acceptor=replace(acceptor, promised=min(acceptor.promised, message.place.ballot)))
        propose(turn, sender, message)

    patch.setattr(decide, "on_propose", forgiving)


# ---- the coordinator ----


def accepted_is_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that ignores what may already be decided."""
    choose = coordinator._choose

    def ignore(turn: Transition, lead: coordinator.CoordinatorState) -> None:
        promises = {peer: replace(promise, accepted=None, certificate=()) for peer, promise in lead.promises.items()}
        choose(turn, replace(lead, promises=promises))

    patch.setattr(coordinator, "_choose", ignore)


def coordinator_forgets_its_ballot(patch: pytest.MonkeyPatch) -> None:
    """It may lead the same ballot again after a crash, and propose something else."""
    begin = coordinator._begin

    def unwritten(turn: Transition, ballot: int) -> None:
        begin(turn, ballot)
        turn.effects[:] = [effect for effect in turn.effects if not isinstance(effect, PersistAcceptor)]

    patch.setattr(coordinator, "_begin", unwritten)


# ---- the quorum ----


def _patch_quorum(patch: pytest.MonkeyPatch, damaged: Callable[[Sequence[str]], int]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("peer.consensus.rounds.") and getattr(module, "quorum", None) is quorum:
            patch.setattr(module, "quorum", damaged)


def quorum_of_half(patch: pytest.MonkeyPatch) -> None:
    """A quorum of n/2 lets two halves decide differently."""
    _patch_quorum(patch, lambda electorate: max(1, len(electorate) // 2))


def majority_of_those_present(patch: pytest.MonkeyPatch) -> None:
    """A majority of whoever was heard lately, in place of the electorate."""
    turns: list[Transition] = []
    begin = Transition.__init__

    def noted(turn: Transition, state: Any, now: float) -> None:
        begin(turn, state, now)
        turns[:] = [turn]

    def present(electorate: Sequence[str]) -> int:
        heard, now = turns[0].state.heard, turns[0].now
        there = [peer for peer in electorate if peer in heard and now - heard[peer][1] < PRESENT_S]
        return (1 + len(there)) // 2 + 1

    patch.setattr(Transition, "__init__", noted)
    _patch_quorum(patch, present)


# ---- the bytes ----


def vote_without_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """A voter that votes for bytes which it does not hold; they may die with the one that has them."""
    honest, vote = validation.missing_parts, decide._vote_if_held

    def blindly(*args: Any) -> None:
        validation.missing_parts = lambda state, update: []
        try:
            vote(*args)
        finally:
            validation.missing_parts = honest

    patch.setattr(decide, "_vote_if_held", blindly)
    patch.setattr(decide, "_is_sound", lambda *args: True)


def x_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """A contribution that is gone after a crash; another one is offered in its place."""
    crash, save = LogicalPeer.crash, IntegerDisk.save_contribution

    def save_in_memory(disk: IntegerDisk, header: ContributionHeader, payloads: list[bytes]) -> None:
        save(disk, header, payloads)
        disk.memory = header.anchor  # type: ignore[attr-defined]

    def forget(peer: LogicalPeer) -> None:
        crash(peer)
        peer.disk.contributions.pop(getattr(peer.disk, "memory", b""), None)

    patch.setattr(IntegerDisk, "save_contribution", save_in_memory)
    patch.setattr(LogicalPeer, "crash", forget)


def own_bytes_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A reducer applies what it computed itself, though the update names other bytes."""
    reduce, apply = IntegerSums.reduce, Ledger.apply
    own: dict[tuple[str, bytes, int], bytes] = {}

    def remember(sums: IntegerSums, effect: Any, done: Callable[[bytes], None]) -> None:
        def stored(digest: bytes) -> None:
            own[sums.disk.owner.name, effect.place.anchor, effect.part] = sums.disk.objects[digest]  # type: ignore[attr-defined]
            done(digest)

        reduce(sums, effect, stored)

    def stubborn(ledger: Ledger, me: str, update: Update, mine: Any, objects: dict[bytes, bytes]) -> None:
        kept = {
            digest: own[me, update.parent, part]
            for part, digest in enumerate(update.parts)
            if (me, update.parent, part) in own
        }
        apply(ledger, me, update, mine, objects | kept)

    patch.setattr(IntegerSums, "reduce", remember)
    patch.setattr(Ledger, "apply", stubborn)


# ---- the residual ----


def _settle_as(patch: pytest.MonkeyPatch, wrong: dict[PartOutcome, PartOutcome]) -> None:
    honest = memory_peer.part_outcomes
    patch.setattr(memory_peer, "part_outcomes", lambda *args: tuple(wrong.get(what, what) for what in honest(*args)))


def carry_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Work that a round counted stays in the residual and is offered again."""
    _settle_as(patch, {PartOutcome.COUNTED: PartOutcome.NOT_SUBMITTED})


def void_loses_the_carry(patch: pytest.MonkeyPatch) -> None:
    """Work that a round missed is treated as counted."""
    _settle_as(patch, {PartOutcome.MISSED: PartOutcome.COUNTED})


@dataclass(frozen=True, kw_only=True)
class Catch:
    """Which schedules catch a damage."""

    kind: str
    restart_s: float = 0.0
    seeds: int
    first: int = 0
    """The one that did when it was last looked for: the others are tried only if it does no longer."""
    watched: bool = False


CATCHES: dict[Callable[[pytest.MonkeyPatch], None], Catch] = {
    no_write_ahead: Catch(kind="targeted", seeds=200, first=39),
    acceptance_is_not_written: Catch(kind="targeted", seeds=5, watched=True),
    promise_is_ignored: Catch(kind="targeted", seeds=60, first=4),
    accepted_is_not_adopted: Catch(kind="targeted", seeds=200, first=51),
    coordinator_forgets_its_ballot: Catch(kind="targeted", seeds=5, watched=True),
    quorum_of_half: Catch(kind="targeted", seeds=60, first=3),
    majority_of_those_present: Catch(kind="splits", seeds=60, first=4),
    x_is_not_written: Catch(kind="random", seeds=30, first=5),
    own_bytes_are_kept: Catch(kind="random", seeds=60, first=3),
    carry_counted_twice: Catch(kind="random", seeds=4),
    void_loses_the_carry: Catch(kind="random", seeds=20),
}


def caught_by(catch: Catch) -> int | None:
    """A schedule that notices."""
    for seed in (catch.first, *range(catch.seeds)):
        try:
            run_schedule(
                seed, catch.kind, restart_s=catch.restart_s, peers=3 + seed % 3, watched=catch.watched
            )  # fmt: skip
        except AssertionError:
            return seed
    return None


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("damage", CATCHES, ids=lambda damage: damage.__name__)
def test_damage_is_caught(damage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within so many schedules at least one invariant breaks. Plain faults alone miss the voter's sins."""
    damage(monkeypatch)
    assert caught_by(CATCHES[damage]) is not None


def test_votes_without_the_bytes_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the only peer that has the bytes of a decided update dies, the others cannot follow."""
    vote_without_the_bytes(monkeypatch)
    with pytest.raises(AssertionError, match="died with one peer"):
        run_until_bytes_are_lost(0)
