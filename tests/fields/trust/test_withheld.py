"""Who keeps back what the others wait for is waited for once, and then hardly any more; and it is not accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.messages import Heartbeat, Message, PartData, Promise, Reassign, Start
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import collector, member, reassignment, timeouts
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect, SendMean, SendParts
from peer.consensus.rounds.state import CoordinatorState, MemberState
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_swarm import World
from tests.fields.trust.liars import LIAR, VICTIM, Stage, honest_rounds
from tests.night import at_night

pytestmark = pytest.mark.slow

SECONDS = 100.0
LEARNING_S = 200.0
"""Where the others take some rounds to learn what the liar is like."""


def withholds(patch: pytest.MonkeyPatch, stage: Stage, kinds: tuple[type[Effect], ...], every: int = 1) -> None:
    """The liar gives others nothing of these kinds, in one round of `every`."""
    perform = Driver._perform

    def withhold(driver: Driver, effect: Effect) -> None:
        to = getattr(effect, "to", LIAR)
        is_kept = isinstance(effect, kinds) and to != LIAR and driver.state.head.round % every == 0
        if is_kept and stage.lies(driver.state.rules.me):
            stage.told["withheld"] += 1
        else:
            perform(driver, effect)

    patch.setattr(Driver, "_perform", withhold)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kinds", [(SendMean,), (SendParts,), (SendMean, SendParts)])
@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_who_withholds_its_means_or_its_parts_holds_up_the_others_for_less_than_half_a_round(
    peers: int, kinds: tuple[type[Effect], ...], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, stage = honest_rounds(peers, SECONDS), Stage.of(peers)
    withholds(monkeypatch, stage, kinds, every)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["withheld"] > 0
    assert 1.5 * rounds >= usual
    assert stage.accused() == set()
    assert stage.poisoned() == []


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_who_gives_its_means_to_all_but_the_coordinator_holds_up_the_others_for_less_than_half_a_round(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each coordinator remembers that it had to ask the others for them."""
    usual, stage, perform = honest_rounds(peers, LEARNING_S), Stage.of(peers), Driver._perform

    def withhold(driver: Driver, effect: Effect) -> None:
        if isinstance(effect, SendMean) and stage.lies(driver.state.rules.me):
            coordinator = driver.state.head.leader(effect.mean.place.ballot)
            stage.told["withheld"] += coordinator in effect.to
            effect = replace(effect, to=tuple(peer for peer in effect.to if peer != coordinator))
        perform(driver, effect)

    monkeypatch.setattr(Driver, "_perform", withhold)
    stage.run(stage.from_s)
    rounds = stage.run(LEARNING_S)
    assert stage.told["withheld"] > 0
    assert 1.4 * rounds >= usual
    assert stage.accused() == set()


def test_a_voter_whose_parts_were_lost_once_counts_in_every_later_round() -> None:
    """It is waited for as long as the others take, and as long again."""
    stage = Stage.of(4)
    stage.world.liars = set()
    loses_its_parts_once(stage)
    stage.run(12.0)
    rounds = stage.run(60.0)
    for block in stage.blocks[-rounds:]:
        assert block.update.contributed(VICTIM, 0)


def loses_its_parts_once(stage: Stage) -> None:
    """The victim's, in about one round."""
    stage.run(stage.from_s)
    stage.world.network.drops = lambda sender, receiver, frame: sender == VICTIM and frame[1] == PartData.code
    stage.run(12.0)
    assert any(timeouts.is_hurried(peer.driver.state, VICTIM) for peer in stage.honest)
    stage.world.network.drops = None


def test_a_voter_on_a_slow_line_whose_parts_were_lost_once_counts_again_soon() -> None:
    """In the time that the others take, and as long again, it never comes: who is not waited for is not silent."""
    stage = Stage.of(4)
    stage.world.liars = set()
    stage.world.network.delays = lambda sender, receiver, frame: (
        1.6 if sender == VICTIM and frame[1] == PartData.code else 0.0
    )
    loses_its_parts_once(stage)
    stage.run(60.0)
    rounds = stage.run(60.0)
    for block in stage.blocks[-rounds:]:
        assert all(block.update.contributed(VICTIM, part) for part in range(6))


@pytest.mark.parametrize(("peers", "friends"), [(3, 0), (4, 0), (4, 1), pytest.param(7, 3, marks=pytest.mark.nightly)])
def test_a_coordinator_that_starts_hardly_anybody_does_not_count_with_them_alone(
    peers: int, friends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who pledged something and was not asked for it checks no update without it: that ballot is lost."""
    usual, stage, send = honest_rounds(peers, LEARNING_S), Stage.of(peers), Driver._send

    def keep(driver: Driver, to: tuple[str, ...], message: Message) -> None:
        if isinstance(message, Start) and stage.lies(driver.state.rules.me):
            stage.told["starts"] += 1
            to = to[:friends]
        send(driver, to, message)

    monkeypatch.setattr(Driver, "_send", keep)
    stage.run(stage.from_s)
    rounds = stage.run(LEARNING_S)
    assert stage.told["starts"] > 0
    for block in stage.blocks[-rounds:]:
        givers = {peer.name for peer in stage.world.peers if block.update.contributed(peer.name, 0)}
        assert len(givers - {LIAR}) > friends
    assert (1.6 if friends else 1.5) * rounds >= usual, "a ballot in which some were asked is given up later"
    assert stage.accused() == set()


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_a_coordinator_makes_nobody_look_silent_whose_parts_it_has_reduced_again(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, when it leads: none of the others has waited for the victim."""
    stage, given_up = Stage.of(peers, parts=2 * peers), collector._given_up

    def repairs_at_once(turn: Transition, lead: CoordinatorState, exchange: MemberState, missing: set[int]) -> bool:
        theirs = {part for part in missing if exchange.reducers[part] == VICTIM} - lead.repaired
        if stage.lies(turn.me) and theirs:
            stage.told["repairs"] += 1
            collector._repair(turn, exchange, theirs, {VICTIM})
        return given_up(turn, turn.state.lead or lead, exchange, missing)

    monkeypatch.setattr(collector, "_given_up", repairs_at_once)
    stage.run(stage.from_s)
    for _ in range(10):
        stage.run(5.0)
        assert not any(timeouts.is_hurried(peer.driver.state, VICTIM) for peer in stage.honest)
    assert stage.told["repairs"] > 0


@pytest.mark.parametrize("proposes", [False, True])
@pytest.mark.parametrize("peers", [3, 4, *at_night(7)])
def test_a_coordinator_that_has_all_parts_reduced_again_by_itself_does_not_count_alone(
    peers: int, proposes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and it waits for nobody's parts. `proposes`: it proposes such means, too; else it sees that all would
    refuse them."""
    usual, stage, orders = honest_rounds(peers, SECONDS), Stage.of(peers), set()
    poll_means, awaits_others, have_checked = (
        collector.poll_means, reassignment._awaits_others, collector._have_checked
    )  # fmt: skip

    def orders_all(turn: Transition, lead: CoordinatorState) -> None:
        exchange = turn.state.exchange
        leads = exchange is not None and exchange.place.ballot == lead.ballot and stage.lies(turn.me)
        if leads and exchange is not None and exchange.place not in orders:
            orders.add(exchange.place)
            others = tuple((part, LIAR) for part, owner in enumerate(exchange.reducers) if owner != LIAR)
            turn.send(exchange.names, Reassign(exchange.place, others))
            member._close(turn, exchange)
        poll_means(turn, lead)

    monkeypatch.setattr(collector, "poll_means", orders_all)
    monkeypatch.setattr(
        reassignment, "_awaits_others", lambda turn, *what: not stage.lies(turn.me) and awaits_others(turn, *what)
    )
    if proposes:
        monkeypatch.setattr(
            collector, "_have_checked", lambda turn, exchange: stage.lies(turn.me) or have_checked(turn, exchange)
        )
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert orders
    electorate = [peer.name for peer in stage.world.peers]
    for block in stage.blocks[-rounds:]:
        update = block.update
        for name, contributors in zip(update.parts, update.contributors, strict=True):
            assert name == VOID or validation.is_of_enough(electorate, update.members, contributors)
            assert name == VOID or 2 * contributors.bit_count() >= peers
    assert 1.5 * rounds >= usual
    assert stage.accused() <= {LIAR}


def test_names_that_nobody_knows_push_no_voter_out_of_what_is_remembered() -> None:
    stage = Stage.of(4)
    stage.run(1.0)
    state = stage.honest[0].driver.state
    silent = timeouts.silent_after(state, [LIAR], (), [LIAR])
    names = [f"name {number}" for number in range(2 * timeouts.SILENT_MOST)]
    assert LIAR in timeouts.silent_after(replace(state, silent=silent), names, (), names)


class Patient(World):
    """It waits up to eight seconds for an answer, as runs do."""

    def rules(self, name: str) -> Rules:
        return replace(super().rules(name), ack_s=8.0)


def test_who_answers_late_in_each_round_that_it_is_not_ready_is_waited_for_once_by_each_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against one that says so at once."""
    with monkeypatch.context() as patch:
        usual = _rounds_with_one_unready(patch, 0.0)
    assert 4 * _rounds_with_one_unready(monkeypatch, 7.0) >= 3 * usual


def _rounds_with_one_unready(patch: pytest.MonkeyPatch, answers_after_s: float) -> int:
    stage, send = Stage(Patient(5, 4)), Driver._send
    stage.world.liars = {LIAR}

    def unready(driver: Driver, to: tuple[str, ...], message: Message) -> None:
        if not stage.lies(driver.state.rules.me):
            send(driver, to, message)
        elif isinstance(message, Heartbeat):
            send(driver, to, replace(message, ready=False))
        elif isinstance(message, Promise):
            empty = replace(message.header, root=b"", norms=b"", tokens=0, steps=0)
            late = replace(message, header=empty.signed(driver.state.rules.keys))
            stage.world.scheduler.call_in(answers_after_s, send, driver, to, late)
            stage.told["not ready"] += 1
        else:
            send(driver, to, message)

    patch.setattr(Driver, "_send", unready)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["not ready"] > 0
    assert stage.accused() == set()
    return rounds
