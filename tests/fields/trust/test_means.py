"""Nobody bends a mean: neither the owner of a part, nor a coordinator, nor who reduces a part again."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol.electorate import quorum
from peer.consensus.rounds import acceptor, collector, member
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect, SendMean, ShowRow
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_swarm import World
from tests.fields.trust.liars import LIAR, VICTIM, Stage, coordinator_swaps, honest_rounds, owner_lies
from tests.night import at_night

pytestmark = pytest.mark.slow

SECONDS = 100.0


@pytest.mark.parametrize(("peers", "mode"), [(4, "sum"), (5, "row"), (4, "flip")])
def test_a_false_mean_of_a_parts_owner_counts_in_no_round(
    peers: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is named by all others, reduces nothing any more, and rounds take at most half as long again."""
    usual, stage = honest_rounds(peers, SECONDS), Stage.of(peers)
    owner_lies(mode)(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["false means"] > 0
    assert stage.poisoned() == []
    assert stage.accused() == {LIAR}
    assert 1.5 * rounds >= usual


@pytest.mark.parametrize("mode", ["bare", "true", "false"])
def test_a_coordinator_that_puts_other_means_into_its_proposal_decides_nothing(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In none of the rounds that it leads; the others lead on."""
    usual, stage = honest_rounds(5, SECONDS), Stage.of(5)
    coordinator_swaps(mode)(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["swapped"] > 0
    assert stage.poisoned() == []
    assert stage.accused() <= {LIAR}
    assert 1.5 * rounds >= usual


def test_what_is_reduced_again_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that orders every part reduced again, by itself, and lies."""
    stage = Stage.of(5)
    owner_lies("sum")(monkeypatch, stage)
    poll = collector.poll_means

    def again(turn: Transition, lead: Any) -> None:
        exchange = turn.state.exchange
        if stage.lies(turn.me) and exchange is not None and not lead.repaired and not exchange.again.redo:
            others = {part for part, owner in enumerate(exchange.reducers) if owner != LIAR}
            monkeypatch.setattr(collector.reassignment, "reassignment_order", lambda *args: [LIAR])
            stage.told["orders"] += 1
            collector._repair(turn, exchange, others, set())
            return
        poll(turn, lead)

    monkeypatch.setattr(collector, "poll_means", again)
    stage.run(stage.from_s)
    assert stage.run(SECONDS) > 3
    assert stage.told["orders"] > 0
    assert stage.poisoned() == []
    assert stage.accused() <= {LIAR}


@pytest.mark.parametrize("peers", [4, *at_night(5)])
def test_who_reduces_a_part_again_is_not_blamed_for_what_a_liar_gave(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The liar declares a hundredth of what it gives, and withholds its means: others reduce its parts, and leave out
    what is more than was declared. It has no parts in the round after one in which its means did not come."""
    usual, stage = honest_rounds(peers, SECONDS), Stage.of(peers)
    pledge, perform = member._pledge, Driver._perform

    def belittle(turn: Transition) -> None:
        offered = turn.state.offered
        if stage.lies(turn.me) and offered is not None and offered.norms:
            size = 4 * len(turn.fragment.parts)
            squares = struct.iter_unpack(">f", offered.norms[:size])
            less = b"".join(struct.pack(">f", square / 10_000) for (square,) in squares)
            turn.set(offered=replace(offered, norms=less + offered.norms[size:]))
            stage.told["belittled"] += 1
        pledge(turn)

    def withhold(driver: Driver, effect: Effect) -> None:
        if isinstance(effect, SendMean) and stage.lies(driver.state.rules.me):
            stage.told["withheld"] += 1
        else:
            perform(driver, effect)

    monkeypatch.setattr(member, "_pledge", belittle)
    monkeypatch.setattr(Driver, "_perform", withhold)
    stage.run(stage.from_s)
    assert 3 * stage.run(SECONDS) >= 2 * (usual - 1)
    assert stage.told["belittled"] > 0
    assert stage.told["withheld"] > 0
    assert stage.poisoned() == []
    assert stage.accused() <= {LIAR}


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_a_proof_shown_to_one_voter_splits_nobody(peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar's own row in its own part is false, and it shows its pledged bytes to just so many voters that no quorum
    is left: whoever is shown something passes it on, and the round goes on in the next ballot."""
    usual, stage = honest_rounds(peers, SECONDS, parts=12), Stage.of(peers, parts=12)
    owner_lies("own")(monkeypatch, stage)
    on_propose, cast = acceptor.on_propose, acceptor._cast

    def show(turn: Transition, sender: str, message: Any) -> None:
        if not stage.lies(turn.me):
            on_propose(turn, sender, message)
            return
        update = message.update
        honest = [voter for voter in turn.state.electorate if voter != LIAR]
        targets = tuple(honest[: len(honest) - quorum(turn.state.electorate) + 1])
        proposal = acceptor.Proposal(message.place.ballot, update, message.signature)
        turn.set(proposals={**turn.state.proposals, update.digest: proposal})
        for part, name in enumerate(update.parts):
            turn.emit(ShowRow(targets, message.place, part, name, update.contributors[part]))
        stage.told["shown"] += 1

    monkeypatch.setattr(acceptor, "on_propose", show)
    monkeypatch.setattr(
        acceptor, "_cast", lambda turn, proposal, phase: None if stage.lies(turn.me) else cast(turn, proposal, phase)
    )
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["shown"] > 0  # its own row in its own part is its own contribution: nobody else is misquoted
    assert 1.5 * rounds >= usual
    assert stage.accused() <= {LIAR}


@pytest.mark.parametrize("delay_s", [*at_night(0.5, 1.5), 1.9])
def test_a_proof_may_take_longer_than_an_answer(delay_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole part goes up a home's line for longer than `ack_s`: the objection comes at once and holds the vote."""
    stage = Stage.of(5, seed=7, parts=12)
    owner_lies("flip")(monkeypatch, stage)
    perform = Driver._perform

    def slowly(driver: Driver, effect: Effect) -> None:
        if isinstance(effect, ShowRow):
            stage.told["disputes"] += 1
            stage.world.scheduler.call_in(delay_s, perform, driver, effect)
        else:
            perform(driver, effect)

    monkeypatch.setattr(Driver, "_perform", slowly)
    stage.run(stage.from_s)
    assert stage.run(150.0) > 8
    assert stage.told["disputes"] > 0
    assert stage.poisoned() == []
    assert stage.accused() == {LIAR}


def test_a_cluster_among_the_members_catches_a_false_mean_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home that keeps the layers compares them, and shows what it gave."""
    stage = Stage(World(5, 4, clusters={1: 2}, parts=4))
    stage.world.liars = {LIAR}
    owner_lies("flip")(monkeypatch, stage)
    stage.run(stage.from_s)
    assert stage.run(SECONDS) > 3
    assert stage.told["false means"] > 0
    assert stage.poisoned() == []
    assert stage.accused() == {LIAR}
    assert VICTIM in stage.blocks[-1].update.elect
