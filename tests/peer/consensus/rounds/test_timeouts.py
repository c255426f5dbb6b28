"""Deadlines that learn: what they are after which arrivals, that one peer stretches none, and that they find back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.protocol.block import NEVER, NOT_AWAITED, VOID, ContributionHeader, Times, Update
from peer.consensus.protocol.messages import Heartbeat, MeanData
from peer.consensus.protocol.norms import judgement_of
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.interface import Received, TrainingProgress
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import BallotPhase, CoordinatorState, MemberState
from peer.consensus.rounds.timeouts import (
    CONTROL_FLOOR_S,
    DATA_FLOOR_S,
    Deadlines,
    answers_s,
    asks_at,
    at,
    by_lines,
    caps,
    learn,
    measure,
    patience_s,
    ready_after_others_s,
    ready_after_s,
)
from peer.consensus.rounds.transition import Transition
from peer.planning.simulate.group import Group
from peer.testing.memory_swarm import World
from tests.peer.consensus.rounds.build import HEAD, NAMES, PAYLOADS, header, place, rules, state_of, update
from tests.peer.planning.simulate.scenarios import setting, spec

RULES = replace(rules("p0"), gather_s=60.0, ack_s=8.0, exchange_s=120.0)
CAPS = Deadlines(60.0, 8.0, 120.0, 240.0)
WAITED = CAPS.packed()


def decided(*took: Times, waited: Times = WAITED) -> Update:
    """An update of so many members that carries these times."""
    members = tuple(header(f"p{index}") for index in range(len(took)))
    return update(members=members, contributors=(1, 1, 1), waited=waited, took=took)


def all_alike(*ms: int) -> Update:
    """An update whose four waits saw the same arrivals."""
    return decided(*((each, each, each, each) for each in ms))


def test_the_spec_says_how_long_while_nothing_is_known() -> None:
    """Before the first round, and after updates that measured nothing."""
    assert learn([], RULES) == CAPS
    assert learn([update()] * 8, RULES) == CAPS


@pytest.mark.parametrize("rounds", [1, 2])
def test_after_one_round_or_two_the_slowest_is_given_three_times_as_long(rounds: int) -> None:
    """At least 15 s, never more than the spec says, and that where somebody did not come. Answers take their time."""
    assert learn([all_alike(0, 10, 20, 12_000)] * rounds, RULES) == Deadlines(36.0, 8.0, 36.0, 36.0)
    assert learn([all_alike(0, 10, 20, 30)] * rounds, RULES) == Deadlines(15.0, 8.0, 15.0, 15.0)
    assert learn([all_alike(0, 10, 30_000)] * rounds, RULES) == Deadlines(60.0, 8.0, 90.0, 90.0)
    assert learn([all_alike(0, 10, NEVER)] * rounds, RULES) == CAPS
    assert learn([all_alike(0, 10)] * rounds, replace(RULES, gather_s=1.0)).gather_s == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_the_first_deadlines_cut_off_no_honest_peer(seed: int) -> None:
    """One of five is ten times as slow as the others, and each up to half slower or faster from round to round."""
    dice, usual_s = Random(seed), (0.0, 2.0, 2.0, 2.0, 20.0)
    rounds = [tuple(seconds * dice.uniform(0.5, 1.5) for seconds in usual_s) for _ in range(3)]
    for known in (1, 2):
        first = learn([all_alike(*(round(1000 * seconds) for seconds in came)) for came in rounds[:known]], RULES)
        assert min(first.exchange_s, first.means_s) >= max(rounds[known])
        assert first.gather_s >= min(RULES.gather_s, max(rounds[known]))


def with_lines(*bps: int) -> tuple[ContributionHeader, ...]:
    return tuple(header(f"p{index}", bandwidth_bps=each) for index, each in enumerate(bps))


def test_before_any_round_the_slowest_line_says_how_long_parts_are_waited_for() -> None:
    """20 bytes of parts, of which the largest has 8: the slowest sends 20 + 3 · 8 bytes in 44 s at 8 bit/s, and has
    three times as long, up to the cap; for the means it is as long again. Nothing is said of it where one line is not
    known, or rounds have told more."""
    most = Deadlines(60.0, 8.0, 600.0, 1200.0)
    state = state_of("p0", rules=replace(RULES, exchange_s=600.0), deadlines=most)
    assert sum(state.rules.bytes_in(0)) == 20
    assert by_lines(state, with_lines(8, 1000, 1000)) == replace(most, exchange_s=132.0, means_s=264.0)
    assert by_lines(state, with_lines(10**9, 10**9)) == replace(most, exchange_s=15.0, means_s=30.0)
    assert by_lines(state, with_lines(1, 1000, 1000)) == most
    assert by_lines(state, with_lines(0, 1000, 1000)) == most
    learned = replace(most, gather_s=20.0, exchange_s=20.0)
    assert by_lines(replace(state, deadlines=learned), with_lines(8, 8, 8)) == learned


def test_in_the_first_round_a_slow_line_is_in_time() -> None:
    """Of five peers one has a twentieth of the others' upload. All that it gives counts, and so do its means, though
    the group waits for less than the spec allows."""
    alike = setting(peers=5, rounds=2, spec=spec(exchange_s=3600.0))
    slow = replace(alike.machines[0], upload_bps=alike.machines[0].upload_bps / 20)
    group = Group(replace(alike, machines=(slow, *alike.machines[1:])))
    group.run()
    first = group.peers[1].disk.blocks[0].update
    assert len(first.members) == 5
    assert first.waited[2] < 3_600_000
    assert not any(NEVER in row for row in first.took)
    assert all(bits == 0b11111 for bits in first.contributors)
    assert VOID not in first.parts


def test_a_peer_says_how_long_its_steps_take_once_it_has_made_a_tenth() -> None:
    """By those that it made here: of a round that began with steps made ahead, too. The next round begins anew."""
    state = state_of("p0", rules=RULES)
    found = []
    for now, share in ((5.0, 0.25), (6.0, 0.3), (8.0, 0.5), (11.0, 0.75)):
        state, _ = step(state, TrainingProgress(now, share))
        found.append(state.train_s)
    assert found == [0, 0, 12, 12]
    assert Transition(state, 11.0).my_head().train_s == 12


def test_in_the_first_round_who_is_slow_is_waited_for_by_its_own_word() -> None:
    """Three times as long as it says that all of its steps take, from its first word of that, whatever it says later;
    as long as the spec allows while one has not said so; at least 15 s from the first that was ready."""
    patient = replace(RULES, gather_s=600.0)
    state = state_of("p0", rules=patient, deadlines=caps(patient), submitted_at=10.0, ready_at={"p1": 12.0})
    assert asks_at(state) == 610.0
    says = Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False, train_s=70)
    state, _ = step(state, Received(20.0, "x", says))
    assert asks_at(state) == 610.0, "a stranger"
    state, _ = step(state, Received(20.0, "p2", says))
    assert asks_at(state) == 20.0 + 3 * 70.0
    state, _ = step(state, Received(50.0, "p2", replace(says, train_s=700)))
    assert asks_at(state) == 20.0 + 3 * 70.0
    assert asks_at(replace(state, expected_by={"p2": 11.0})) == 10.0 + 15.0
    assert asks_at(replace(state, ready_at={})) == 610.0, "most are not ready"
    both = replace(state, ready_at={"p1": 4.0, "p2": 6.0})
    assert asks_at(replace(both, rules=replace(RULES, min_steps=99))) == 6.0 + RULES.gather_s, "two were here before me"
    assert asks_at(replace(state, rules=replace(state.rules, gather_s=60.0), deadlines=CAPS)) == 70.0


def test_deadlines_of_known_arrivals() -> None:
    """Golden values. Of 0, 4, 6, 20 s the middle is 5 s and the MAD 3 s: 1.25 · (5 + 4 · 3) = 21.25 s; a quorum came
    within 6 s. What is less than the floor, or more than the cap, is that."""
    assert learn([all_alike(0, 4000, 6000, 20_000)] * 3, RULES) == Deadlines(21.25, 8.0, 21.25, 21.25)
    assert learn([all_alike(0, 10, 20, 30)] * 3, RULES) == Deadlines(3.0, 2.0, 3.0, 3.0)
    assert learn([all_alike(0, 0, 40_000, 41_000, 42_000)] * 3, RULES) == Deadlines(60.0, 8.0, 60.0, 60.0)
    alone = learn([all_alike(0, 40_000)] * 3, replace(RULES, patience=1.0))
    assert alone == Deadlines(50.0, 8.0, 50.0, 50.0), "of two peers both are the quorum"


def test_a_larger_fragment_is_given_longer() -> None:
    """After rounds that carried 8 bytes one that carries 12 waits half as long again for parts and for means, no longer
    for answers; after larger ones it waits as long."""
    two = replace(RULES, fragments=2)
    assert [sum(two.bytes_in(round)) for round in (0, 1)] == [12, 8]
    took = all_alike(0, 4000, 6000, 20_000)
    assert learn([replace(took, round=2)] * 3, two) == Deadlines(21.25, 8.0, 1.5 * 21.25, 1.5 * 21.25)
    assert learn([replace(took, round=1)] * 3, two) == learn([took] * 3, RULES)


def test_only_the_last_eight_rounds_count() -> None:
    """Fast ones before and after."""
    slow, fast = all_alike(0, 30_000, 40_000), all_alike(0, 4000, 4000)
    assert learn([slow] * 5 + [fast] * 8, RULES) == learn([fast] * 3, RULES)
    assert learn([fast] * 8 + [slow] * 6 + [fast] * 2, RULES) == learn([slow] * 6 + [fast] * 2, RULES)


def test_more_patience_waits_longer() -> None:
    """One setting for people; 1 is the least."""
    rounds = [all_alike(0, 4000, 6000, 20_000)] * 3
    waits = [learn(rounds, replace(RULES, patience=patience)).exchange_s for patience in (1.0, 2.0, 4.0, 8.0)]
    assert waits == [10.0, 13.75, 21.25, 36.25]


def test_caps_below_the_floor_hold() -> None:
    """Small specs, such as those of tests, wait as little as they say."""
    small = replace(RULES, gather_s=1.0, ack_s=0.5, exchange_s=1.5)
    assert learn([all_alike(0, 900, 1000)] * 3, small) == Deadlines(1.0, 0.5, 1.5, 3.0)


def test_who_does_not_come_at_all_stretches_nothing() -> None:
    """One of four, in every round of all: the wait is as if it had come soon after the others."""
    missing = learn([all_alike(0, 3000, 4000, NEVER)] * 8, RULES)
    assert missing == learn([all_alike(0, 3000, 4000, 7500)] * 8, RULES)
    assert missing.exchange_s == pytest.approx(1.25 * (3.5 + 4 * 2.0))
    assert learn([all_alike(0, 10, 20, NEVER)] * 8, RULES).exchange_s == DATA_FLOOR_S


def test_who_did_not_answer_missed_the_answer() -> None:
    """The absent are not members, so that they have no times; two of five move the middle no further than to those
    who answered."""
    absent = tuple((peer, "ABSENT", 0, 2, -1, "did not answer") for peer in ("p3", "p4"))
    rounds = [replace(all_alike(0, 100, 200), penalties=absent)] * 3
    assert learn(rounds, RULES).ack_s == CONTROL_FLOOR_S
    absent += tuple((peer, "ABSENT", 0, 2, -1, "did not answer") for peer in ("p5", "p6"))
    assert learn([replace(rounds[0], penalties=absent)] * 3, RULES).ack_s == CAPS.ack_s


def test_nobody_awaited_means_the_cap() -> None:
    """A peer alone, or a coordinator that reduces nothing."""
    assert learn([all_alike(NOT_AWAITED, NOT_AWAITED)] * 8, RULES) == CAPS


@pytest.mark.slow
@given(
    took=st.lists(st.lists(st.integers(0, NEVER), min_size=1, max_size=8), min_size=1, max_size=8),
    patience=st.floats(1.0, 100.0),
)
def test_whatever_a_coordinator_says_the_deadlines_stay_between_floor_and_cap(
    took: list[list[int]], patience: float
) -> None:
    """A lie costs time at most."""
    learned = learn([all_alike(*row) for row in took], replace(RULES, patience=patience))
    assert DATA_FLOOR_S <= learned.gather_s <= 60.0
    assert CONTROL_FLOOR_S <= learned.ack_s <= 8.0
    assert min(learned.exchange_s, learned.means_s) >= DATA_FLOOR_S
    assert learned.exchange_s <= 120.0
    assert learned.means_s <= 240.0


# ---- how late one was ----


def test_one_early_peer_makes_nobody_late() -> None:
    """A slow peer whose few long steps end early, or a liar, would have all others train less."""
    late = decided(*((ms, 0, 0, 0) for ms in (0, 900, 1000, 4000)))
    assert [ready_after_s(late, f"p{index}") for index in range(4)] == [0.0, 0.9, 1.0, 4.0]
    assert [ready_after_others_s(late, f"p{index}") for index in range(4)] == pytest.approx([0.0, 0.0, 0.1, 3.1])


def test_of_two_the_later_one_is_late() -> None:
    assert ready_after_others_s(decided((0, 0, 0, 0), (700, 0, 0, 0)), "p1") == 0.7


def test_who_did_not_come_is_no_measure_of_others() -> None:
    late = decided((0, 0, 0, 0), (NEVER, 0, 0, 0), (NOT_AWAITED, 0, 0, 0), (500, 0, 0, 0))
    assert [ready_after_others_s(late, f"p{index}") for index in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert ready_after_others_s(decided((NEVER, 0, 0, 0)), "p0") == 0.0


# ---- rounds whose deadlines are those of the rounds before ----


class Arrivals:
    """Five peers whose parts take a random time; whoever is later than the deadline is missing."""

    def __init__(self, seed: int, peers: int = 5) -> None:
        self.dice, self.peers = Random(seed), peers
        self.updates: list[Update] = []
        self.waits: list[float] = []

    def run(self, rounds: int, typical_s: float, *, dead: int = 0) -> None:
        """So many more rounds. A ballot in which no quorum comes is followed by one that waits twice as long."""
        for _ in range(rounds):
            came = [typical_s * self.dice.uniform(0.7, 1.3) for _ in range(self.peers - 1 - dead)]
            wait_s = learn(self.updates, RULES).exchange_s
            while sum(seconds <= wait_s for seconds in came) < self.peers // 2:
                wait_s = min(120.0, 2 * wait_s)
            self.waits.append(wait_s)
            took = [round(1000 * seconds) if seconds <= wait_s else NEVER for seconds in came]
            waited = Deadlines(60.0, 8.0, wait_s, 120.0).packed()
            self.updates.append(decided(*((ms, ms, ms, ms) for ms in (0, *took, *[NEVER] * dead)), waited=waited))


@pytest.mark.parametrize("seed", range(5))
def test_deadlines_grow_again_when_everybody_gets_slower(seed: int) -> None:
    """4 s, then 20 s, then 70 s: within eight rounds of a change everybody is in time again, and stays so."""
    world = Arrivals(seed)
    world.run(12, 4.0)
    assert 1.3 * 4.0 <= world.waits[-1] <= 15.0
    for typical_s in (20.0, 70.0):
        world.run(8, typical_s)
        world.run(8, typical_s)
        assert min(world.waits[-8:]) >= 1.3 * typical_s
        assert not any(row[2] == NEVER for item in world.updates[-8:] for row in item.took)
    world.run(16, 4.0)
    assert world.waits[-1] <= 15.0


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_peer_moves_no_deadline_over_time(seed: int) -> None:
    """Hundred rounds without it: the deadline neither creeps up nor down."""
    world = Arrivals(seed)
    world.run(100, 8.0, dead=1)
    assert min(world.waits[8:]) >= 1.3 * 8.0
    assert max(world.waits[8:]) <= 60.0


def test_a_ballot_that_follows_waits_twice_as_long() -> None:
    """So that a deadline that became too short for anything to arrive cannot stop the run; up to the caps."""
    learned = Deadlines(3.0, 2.0, 4.0, 5.0)
    state = state_of("p0", rules=RULES, deadlines=learned)
    assert at(state, -1) == at(state, 0) == learned
    assert at(state, 2) == Deadlines(12.0, 8.0, 16.0, 20.0)
    assert at(state, 10**9) == CAPS == caps(RULES)


def test_the_next_coordinator_waits_longer_than_any_wait_of_the_one_before() -> None:
    """Parts and then means, and an answer before and after; and a freeze, which is not learned."""
    state = state_of("p0", rules=RULES, deadlines=Deadlines(3.0, 2.0, 9.0, 5.0))
    assert patience_s(state) == 9.0 + DATA_FLOOR_S + 2 * 2.0
    assert patience_s(replace(state, deadlines=Deadlines(3.0, 2.0, 9.0, 25.0))) == 25.0 + 2 * 2.0
    assert patience_s(replace(state, deadlines=Deadlines(3.0, 2.0, 3.0, 3.0))) == 8.0 + 2 * 2.0


def test_a_fast_coordinator_does_not_hurry_the_others() -> None:
    """It asks a while after somebody was first ready; but while most have nothing only after all that the spec
    gives, counted from its own freeze. So it does, too, while little is known."""
    state = state_of("p0", rules=RULES, deadlines=Deadlines(10.0, 2.0, 3.0, 3.0), submitted_at=100.0)
    assert asks_at(state) == 160.0
    assert asks_at(replace(state, ready_at={"p1": 95.0})) == 105.0
    assert asks_at(replace(state, ready_at={"p1": 105.0})) == 110.0
    assert asks_at(replace(state, ready_at={"p1": 130.0})) == 130.0, "a quorum came late: the turns count from there"
    assert asks_at(replace(state, ready_at={"p1": 95.0}, deadlines=CAPS)) == 160.0


def test_who_still_trains_is_given_the_time_to_encode() -> None:
    """A learned wait for messages would always be too short for it; the silent get no such time."""
    state = state_of("p0", rules=RULES, deadlines=Deadlines(3.0, 2.0, 3.0, 3.0))
    assert answers_s(state, 0, 1.0, NAMES) == 2.0
    training = Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False)
    state = replace(state, heard={"p1": (training, 0.0)})
    assert answers_s(state, 0, 1.0, NAMES) == 8.0
    assert answers_s(state, 0, 30.0, NAMES) == 2.0, "it has died meanwhile"
    assert answers_s(state, 0, 1.0, ("p0", "p2")) == 2.0, "it is not asked"


def test_ballots_that_nobody_led_make_no_wait_longer() -> None:
    """Else who begins with a late ballot would have all waits of its round at their upper bounds. Each one that is led
    doubles them."""
    first = Deadlines(3.0, 2.0, 3.0, 3.0)
    turn = Transition(state_of("p0", rules=RULES, deadlines=first), 0.0)
    turn.skip_to(3600)
    assert at(turn.state, 3600) == first
    assert at(turn.state, 3601).ack_s == 2 * first.ack_s


# ---- what is measured ----


def test_a_coordinator_measures_when_each_member_came() -> None:
    """p0 coordinates and reduces part 0; p1 was ready 1.5 s before it; p2 was not, and gives no part in time."""
    bare = MeanData(place(), 0, 1, "p1", 0b11, b"d" * 32, b"")
    lead = CoordinatorState(
        ballot=0, stage=BallotPhase.REDUCING, asked=NAMES, until=0.0, repeat_at=0.0, began_at=13.0,
        promised_at={"p0": 13.0, "p1": 13.25, "p2": 14.0}, expected=frozenset((0, 1, 2)),
    )  # fmt: skip
    exchange = MemberState(
        place=place(), members=tuple(header(name) for name in NAMES), reducers=NAMES, received={0: 0b011},
        closes_at=0.0, began_at=15.0, part_at={"p1": 17.125}, means={1: bare}, mean_at={"p1": 20.5},
        judgement=judgement_of(RULES, HEAD, tuple(map(header, NAMES))),
    )  # fmt: skip
    state = state_of("p0", rules=RULES, deadlines=CAPS, submitted_at=10.0, ready_at={"p1": 8.5})
    waited, took = measure(state, lead, exchange)
    assert waited == (60_000, 8000, 120_000, 240_000)
    assert took == ((1500, 0, 0, 0), (0, 250, 2125, 5500), (NEVER, NOT_AWAITED, NEVER, NEVER))


def test_readiness_is_when_it_was_heard_first() -> None:
    """HEAD is repeated; that of another anchor or of a stranger says nothing."""
    ready = Heartbeat(HEAD.anchor, 0, 0, b"", True, 1, 1, False)
    state = state_of("p0", rules=RULES)
    for now, peer, said in (
        (1.0, "p1", replace(ready, ready=False)),
        (2.0, "p1", ready),
        (5.0, "p1", ready),
        (6.0, "x", ready),
        (7.0, "p2", replace(ready, anchor=PAYLOADS[0] * 4)),
    ):
        state, _ = step(state, Received(now, peer, said))
    assert state.ready_at == {"p1": 2.0}


# ---- the same at every peer ----


class Patient(World):
    """With caps that leave something to learn."""

    def rules(self, name: str) -> Rules:
        """A peer that may wait long."""
        return replace(super().rules(name), gather_s=30.0, ack_s=8.0, exchange_s=40.0)


def run_until(world: World, done: Callable[[], bool], within_s: float) -> None:
    started = world.now
    while not done():
        assert world.now - started < within_s, f"not within {within_s} s"
        world.scheduler.run_until(world.now + 0.25)


def test_all_peers_of_a_swarm_learn_the_same() -> None:
    """After commits, and after a restart from disk; and less than the spec allows."""
    world = Patient(1, 4)

    def at_round(least: int) -> Callable[[], bool]:
        return lambda: all(peer.driver.state.head.round >= least for peer in world.peers)

    run_until(world, at_round(6), 120.0)
    learned: dict[bytes, Deadlines] = {}

    def compare() -> None:
        for peer in world.peers:
            state = peer.driver.state
            assert learned.setdefault(state.head.anchor, state.deadlines) == state.deadlines

    compare()
    for peer in world.peers:
        peer.crash()
        peer.boot()
        compare()
        assert peer.driver.state.deadlines.exchange_s == DATA_FLOOR_S
        assert peer.driver.state.deadlines.ack_s == CONTROL_FLOOR_S
        assert peer.driver.state.deadlines.gather_s < 30.0
    run_until(world, at_round(9), 120.0)
    compare()
    world.check()
