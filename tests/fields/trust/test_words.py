"""Nobody owns, stalls or ends a run by what it says: who leads, who votes, what was accepted, who is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol.block import Block, Roster, Tenure, Update
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import BallotId, Heartbeat, PartData, encode
from peer.consensus.rounds import acceptor, collector, coordinator, timeouts
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect, RosterHeard, SendMean
from peer.consensus.rounds.state import Proposal
from peer.consensus.rounds.transition import Transition
from peer.planning.simulate.memory_network import LinkModel
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER, World
from tests.fields.trust.liars import LIAR, Stage, honest_rounds
from tests.fields.trust.talkers import floods, hasty, invents_an_acceptance, misses_everybody, votes_for_nothing
from tests.night import at_night

pytestmark = pytest.mark.slow

SECONDS = 100.0


# ---- who leads ----


@pytest.mark.parametrize("seed", [9, *at_night(5, 6)])
def test_a_hasty_voter_leads_when_it_is_its_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks first, at once, for a ballot of its own: the others apply the waiting rule, and answer its turn alone.

    Neither does it have their ballots compete with each other.
    """
    honest, stage = Stage.of(5, seed), Stage.of(5, seed)
    honest.run(stage.from_s)
    usual = honest.run(SECONDS)
    hasty(monkeypatch, stage)
    stage.run(stage.from_s)
    before, led = len(stage.blocks), stage.led_by_liar()
    rounds = stage.run(SECONDS)
    assert stage.told["asked"] > 0
    assert 1.25 * rounds >= usual
    assert stage.led_by_liar() - led <= 2 * rounds / 5 + 1, (before, rounds)


def test_nothing_that_a_coordinator_may_choose_changes_who_leads_next() -> None:
    """Times, waits, members and voids: the order goes by who led before."""
    names = tuple(f"p{index}" for index in range(7))
    tenures = tuple(Tenure(name, 8, 9, index) for index, name in enumerate(names))
    head = ChainHead(anchor=b"a" * 32, round=9, weight=0, electorate=names, members=names, tenures=tenures)
    stage = Stage.of(7)
    stage.run(30.0)
    update = stage.blocks[-1].update
    orders = set()
    for tried in range(200):
        took = tuple((tried, *row[1:]) for row in update.took)
        other = replace(update, took=took, time=update.time + tried, waited=(tried, *update.waited[1:]))
        orders.add(stage.honest[0].disk.heads[-2].after(other).order)
    assert len(orders) == 1
    assert head.leader(0) == "p0"


def test_everybody_leads_in_turn() -> None:
    stage = Stage.of(5)
    stage.world.liars = set()
    stage.run(SECONDS)
    leaders = [block.update.coordinator for block in stage.blocks]
    for first in range(len(leaders) - 4):
        assert len(set(leaders[first : first + 5])) == 5


def test_two_liars_who_lead_one_after_the_other_expel_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave out as many voters as they may, whenever they lead, and sign that these are away."""
    stage = Stage.of(7)
    liars, victims = {"p0", "p1"}, ("p5", "p6")
    stage.world.liars = liars
    taken, away = coordinator._taken, timeouts.away

    def few(turn: Transition, lead: Any) -> Any:
        found = taken(turn, lead)
        return {peer: said for peer, said in found.items() if turn.me not in liars or peer not in victims}

    monkeypatch.setattr(coordinator, "_taken", few)
    monkeypatch.setattr(timeouts, "away", lambda state, now: victims if state.rules.me in liars else away(state, now))
    stage.run(SECONDS)
    assert len(stage.blocks) > 10
    assert stage.blocks[-1].update.elect == tuple(sorted(f"p{index}" for index in range(7)))


def test_a_coordinator_that_leaves_out_more_than_may_lie_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update has at least a quorum of the voters among its members."""
    stage = Stage.of(5)
    taken = coordinator._taken
    enough = Transition.are_enough

    def few(turn: Transition, lead: Any) -> Any:
        found = taken(turn, lead)
        if not stage.lies(turn.me):
            return found
        stage.told["left out"] += 1
        return dict(sorted(found.items())[: quorum(turn.state.electorate) - 1])

    monkeypatch.setattr(coordinator, "_taken", few)
    monkeypatch.setattr(Transition, "are_enough", lambda turn, count: stage.lies(turn.me) or enough(turn, count))
    stage.run(stage.from_s)
    assert stage.run(SECONDS) > 5
    assert stage.told["left out"] > 0
    assert not [block for block in stage.blocks if len(block.update.members) < quorum(range(5))]
    assert len(stage.blocks[-1].update.elect) == 5


def test_who_says_that_others_have_left_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The electorate is a function of the signed headers: an update that names another one is refused."""
    stage = Stage.of(5)
    make_update = collector.make_update

    def alone(turn: Transition, lead: Any, exchange: Any) -> Update:
        update = make_update(turn, lead, exchange)
        if not stage.lies(turn.me):
            return update
        stage.told["expelled"] += 1
        return replace(update, elect=tuple(sorted({LIAR, "p1"})))

    monkeypatch.setattr(collector, "make_update", alone)
    stage.run(stage.from_s)
    assert stage.run(SECONDS) > 5
    assert stage.told["expelled"] > 0
    assert all(len(block.update.elect) == 5 for block in stage.blocks)


# ---- what was accepted ----


def test_an_acceptance_that_nobody_proposed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A voter tells the next coordinator that it has accepted something: without a quorum's votes it counts nothing."""
    usual, stage = honest_rounds(5, SECONDS), Stage.of(5)
    invents_an_acceptance(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["invented"] > 0
    assert stage.poisoned() == []
    assert 1.5 * rounds >= usual


def test_votes_for_what_does_not_exist_keep_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner gives its means to the coordinator alone and floods the others with votes for invented digests."""
    usual, stage = honest_rounds(5, SECONDS, parts=12), Stage.of(5, parts=12)
    perform = Driver._perform

    def withhold(driver: Driver, effect: Effect) -> None:
        if isinstance(effect, SendMean) and stage.lies(driver.state.rules.me):
            lead = driver.state.head.leader(max(0, driver.state.acceptor.promised))
            stage.told["withheld"] += 1
            effect = replace(effect, to=tuple(peer for peer in effect.to if peer == lead))
        perform(driver, effect)

    monkeypatch.setattr(Driver, "_perform", withhold)
    votes_for_nothing(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["withheld"] > 0
    assert rounds >= 0.8 * usual


def test_the_votes_of_too_few_decide_nothing_however_long_they_wait() -> None:
    """One fast key that is alone makes no block, and one that it makes up is refused; nothing is ever undone."""
    stage = Stage.of(5)
    stage.run(stage.from_s)
    stage.world.network.partition([LIAR])
    before = stage.world.peers[0].disk.head.round
    assert stage.run(150.0) > 10
    assert stage.world.peers[0].disk.head.round <= before + 1
    last = stage.blocks[-1]
    forged = Block(last.update, last.votes[: quorum(range(len(last.update.elect))) - 2])
    head = stage.honest[0].disk.heads[-2]
    from peer.consensus.protocol.validation import check_block

    assert "votes" in check_block(stage.world.rules("p1"), head, forged)


# ---- floods ----


@pytest.mark.parametrize("peers", [4, *at_night(5)])
@pytest.mark.parametrize("what", ["objections", "disputes", "stuck", "away"])
def test_a_flood_of_false_words_costs_a_fifth_at_most(what: str, peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is bounded: one objection an anchor, proofs that are none end the listening, a lone seal means nothing."""
    usual, stage = honest_rounds(peers, SECONDS, parts=12), Stage.of(peers, parts=12)

    attack = misses_everybody if what == "away" else floods(what)
    attack(monkeypatch, stage)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["said"] > 100
    assert rounds >= 0.8 * usual
    assert len(stage.blocks[-1].update.elect) == peers
    assert stage.accused() == set()


def test_guests_that_never_say_what_they_have_checked_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they give is right. One of them becomes a voter, and may lie."""

    def rounds(mute: set[str]) -> int:
        cast = acceptor._cast

        def silent(turn: Transition, proposal: Proposal, phase: int) -> None:
            if turn.me not in mute:
                cast(turn, proposal, phase)

        stage = Stage.of(4)
        known = Roster(1, tuple(sorted(peer.name for peer in stage.world.peers))).signed(ModelKeys(ORGANISER))
        for peer in stage.world.peers:
            peer.driver.deliver(RosterHeard(stage.world.now, known))
        with monkeypatch.context() as patch:
            patch.setattr(acceptor, "_cast", silent)
            stage.run(stage.from_s)
            guests = [stage.world.join().name for _ in range(3)]
            made = stage.run(SECONDS)
        assert {*guests} <= {header.peer for header in stage.blocks[-1].update.members}
        return made

    assert rounds({"p4", "p5", "p6"}) >= 0.94 * rounds(set())


@pytest.mark.parametrize("sender", ["stranger", LIAR])
def test_parts_that_come_too_early_push_out_nobody_elses(sender: str) -> None:
    """Where lines differ parts overtake the START of their ballot; there is room for two contributions of these, and
    somebody fills that with parts of ballots that will never begin."""
    stage = Stage(World(5, 5, LinkModel(delay_s=(0.01, 0.4)), parts=12))
    stage.world.liars = {LIAR}
    stage.run(stage.from_s)

    def flood() -> None:
        for peer in stage.honest:
            state = peer.driver.state
            head, sizes = state.head, state.rules.bytes_in(state.head.round)
            place = BallotId(head.anchor, state.instance, max(0, state.acceptor.promised) + 50)
            peer.on_frame(sender, encode(Heartbeat(head.anchor, head.round, 0, b"", False, 0, 0, False)))
            for number in range(2 * len(sizes)):
                part, path = number % len(sizes), (digest_of(b"%d" % number),)
                peer.on_frame(sender, encode(PartData(place, 0, part, path, bytes(sizes[part]))))
        stage.world.scheduler.call_in(0.5, flood)

    stage.world.scheduler.call_in(0.1, flood)
    rounds = stage.run(SECONDS / 2)
    updates = [block.update for block in stage.blocks[-rounds:]]
    lost = [
        (update.round, header.peer, part)
        for update in updates
        for header in update.members
        for part in range(len(update.parts))
        if header.root and header.peer != sender and not update.contributed(header.peer, part)
    ]
    assert lost == []
