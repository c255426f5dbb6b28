"""The dead hold nobody up: who is not waited for, on whose word, and what that costs where `gather_s` is 300 s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from peer.consensus.protocol.messages import Heartbeat, Prepare
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.interface import Input, PeersUnreachable, Received, Send, Submitted, Tick
from peer.consensus.rounds.machine import begin
from peer.consensus.rounds.timeouts import SILENT_S, is_gone, lacks_quorum
from peer.planning.simulate.memory_network import NOTICED_S
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, rules

FIRST, SECOND, THIRD = HEAD.order
"""Of three voters, as they coordinate."""
FIVE = replace(HEAD, electorate=("p0", "p1", "p2", "p3", "p4"))
ACK_S, GATHER_S = 8.0, 300.0


def said(me: str, unreachable: tuple[str, ...] = (), *, ready: bool = True, voters: tuple[str, ...] = NAMES) -> Input:
    """A HEAD of `me`, heard at 10 s."""
    bits = sum(1 << voters.index(peer) for peer in unreachable)
    return Received(10.0, me, Heartbeat(HEAD.anchor, 0, 0, b"", ready, 1, 1, False, unreachable=bits))


def asks(*events: Input, me: str = FIRST, ready: bool = True) -> bool:
    """Whether `me`, which is ready, asks at once after these events, at 10 s."""
    state = begin(replace(rules(me), gather_s=GATHER_S), HEAD, 0.0)
    submitted = (Submitted(5.0, header(me)),) if ready else ()
    _, effects = run(state, *submitted, *events)
    return any(isinstance(effect, Send) and isinstance(effect.message, Prepare) for effect in effects)


@pytest.mark.parametrize(("heard", "lacks"), [(("p1", "p2"), True), (("p1", "p2", "p3"), False)])
def test_others_who_came_too_late_do_not_hide_that_no_quorum_is_there(heard: tuple[str, ...], lacks: bool) -> None:
    """Some of five come together when the rest have finished the run: each asks the organiser's node whether it is
    over, though it hears the others."""
    now = SILENT_S + 10.0
    words = (replace(said(peer), now=now) for peer in heard)  # type: ignore[call-arg]
    state, _ = run(begin(rules("p0"), FIVE, 0.0), *words)
    assert lacks_quorum(state, now) is lacks


# ---- whose word counts ----


def test_a_peer_that_nobody_reaches_is_not_waited_for() -> None:
    """Its own word and that of every other voter, in whatever order they come."""
    mine, theirs = PeersUnreachable(10.0, frozenset({THIRD})), said(SECOND, (THIRD,))
    assert not asks(said(SECOND))
    assert asks(mine, theirs)
    assert asks(theirs, mine)


def test_the_coordinators_own_word_excludes_nobody() -> None:
    """Its line to one member is cut; another still reaches that one, or has not said."""
    mine = PeersUnreachable(10.0, frozenset({THIRD}))
    assert not asks(mine, said(SECOND))
    assert not asks(mine)


def test_a_liar_that_reaches_nobody_excludes_nobody() -> None:
    """Its word alone, of everybody."""
    assert not asks(said(SECOND, NAMES))
    assert not asks(said(SECOND, NAMES), said(THIRD, NAMES, ready=False))


def test_who_is_cut_off_from_most_waits_for_all() -> None:
    """It cannot tell a dead majority from a dead line of its own."""
    assert not asks(PeersUnreachable(10.0, frozenset({SECOND, THIRD})))
    assert not asks(said(SECOND, (THIRD,)), PeersUnreachable(11.0, frozenset({SECOND, THIRD})))


def test_who_is_reached_again_is_waited_for_as_usual() -> None:
    """Found again before everybody was ready, by the coordinator or by another."""
    gone = PeersUnreachable(10.0, frozenset({THIRD})), said(SECOND, (THIRD,))
    submitted = Submitted(12.0, header(FIRST))
    assert asks(*gone, submitted, ready=False)
    assert not asks(*gone, PeersUnreachable(11.0, frozenset()), submitted, ready=False)
    assert not asks(*gone, said(SECOND), submitted, ready=False)


def test_a_dead_coordinator_is_passed_over() -> None:
    """The second asks as if it were the first."""
    assert asks(PeersUnreachable(10.0, frozenset({FIRST})), said(THIRD, (FIRST,)), me=SECOND)
    assert not asks(PeersUnreachable(10.0, frozenset({FIRST})), said(THIRD), me=SECOND)


def test_several_may_be_gone_at_once() -> None:
    """Two of five; what one of them said before it died does not count. Without three of five nobody is gone."""
    state = begin(rules("p0"), FIVE, 0.0)
    heard = (said(name, ("p3", "p4"), voters=FIVE.electorate) for name in ("p1", "p2"))
    state, _ = run(state, *heard, said("p4"), PeersUnreachable(10.0, frozenset({"p3", "p4"})))
    assert [is_gone(state, peer, 10.0) for peer in FIVE.electorate] == [False, False, False, True, True]
    state, _ = run(state, PeersUnreachable(11.0, frozenset({"p2", "p3", "p4"})))
    assert not any(is_gone(state, peer, 11.0) for peer in FIVE.electorate)


def test_a_word_about_another_anchor_says_nothing() -> None:
    """The bits are over another electorate."""
    state = begin(rules(FIRST), HEAD, 0.0)
    state, _ = run(state, PeersUnreachable(10.0, frozenset({THIRD})), said(SECOND, (THIRD,)))
    assert is_gone(state, THIRD, 10.0)
    heard, at = state.heard[SECOND]
    state = replace(state, heard={SECOND: (replace(heard, anchor=b"?" * 32), at)})
    assert not is_gone(state, THIRD, 10.0)


def test_long_silence_is_as_good_as_a_closed_connection() -> None:
    """Of a peer that was heard once; of others it says nothing, since this peer may have just begun."""
    state = begin(rules(FIRST), HEAD, 0.0)
    state, _ = run(state, said(THIRD))
    later = 10.0 + SILENT_S
    heard = {**state.heard, SECOND: (replace(state.heard[THIRD][0], unreachable=1 << NAMES.index(THIRD)), later)}
    state = replace(state, heard=heard)
    assert not is_gone(state, THIRD, later - 0.1)
    assert is_gone(state, THIRD, later)
    assert not is_gone(replace(state, heard={SECOND: heard[SECOND]}), THIRD, later)


def test_a_change_is_said_at_once_and_once() -> None:
    """The others wait for this word; of strangers nobody hears."""
    state = begin(rules(FIRST), HEAD, 0.0)
    events = (
        PeersUnreachable(1.0, frozenset({THIRD})),
        PeersUnreachable(2.0, frozenset({THIRD, "stranger"})),
        Tick(3.0),
    )
    state, effects = run(state, *events)
    heads = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Heartbeat)]
    assert [head.unreachable for head in heads] == [1 << NAMES.index(THIRD)]


# ---- what that comes to ----


class Patient(World):
    """Where waiting for the dead would be noticed."""

    def rules(self, name: str) -> Rules:
        """A peer that may wait long."""
        return replace(super().rules(name), gather_s=GATHER_S, ack_s=ACK_S, exchange_s=60.0)


Strike = Callable[[World, LogicalPeer], None]
PHASES = ("train", "submit", "prepare", "exchange", "reduce", "commit")
ROUND = 1
"""The one in whose course it happens: nothing was learned yet."""
WORLDS = [(0, 3), (1, 5), (2, 3)]
STRUCK = [(phase, number % 3, (3, 5)[number % 2]) for number, phase in enumerate(PHASES)]
"""Phases, in worlds of one seed after the other."""


def die(world: World, peer: LogicalPeer) -> None:
    """For good."""
    peer.crash()


def stop(world: World, peer: LogicalPeer) -> None:
    """For good, with connections that stay open."""
    peer.stall(1e6)


def live(world: World, peer: LogicalPeer) -> None:
    """Nothing happens."""


@cache
def story(seed: int, peers: int, phase: str, strike: Strike) -> tuple[float, ...]:
    """Seconds from commit to commit, as the quickest of the others sees them; p0 is struck in `phase` of ROUND."""
    world = Patient(seed, peers)

    def look(peer: LogicalPeer, entered: str, round: int) -> None:
        if (peer.name, entered, round) == ("p0", phase, ROUND):
            world.on_phase = None
            world.scheduler.call_in(0.0, strike, world, peer)

    world.on_phase = look
    world.scheduler.run_until(96.0)
    world.check()
    at = [min(commits[index].at_s for commits in world.history[1:]) for index in range(len(world.history[1]))]
    return tuple(after - before for before, after in zip([0.0, *at], at, strict=False))


@pytest.mark.parametrize(("seed", "peers"), WORLDS)
def test_after_a_death_the_next_round_takes_no_longer_than_usual(seed: int, peers: int) -> None:
    """While it trained, with `gather_s` = 300 and nothing learned: within 1.5 times a usual round."""
    usual_s = median(story(seed, peers, "never", live))
    assert max(story(seed, peers, "train", die)[ROUND:]) <= 1.5 * usual_s


@pytest.mark.parametrize(("phase", "seed", "peers"), STRUCK)
def test_a_death_in_any_phase_costs_until_it_is_noticed_and_an_answer(phase: str, seed: int, peers: int) -> None:
    """Of a reducer that has closed its parts: whether somebody has its means is asked before they are made again."""
    usual_s, took_s = max(story(seed, peers, "never", live)), story(seed, peers, phase, die)
    assert took_s[ROUND] <= usual_s + NOTICED_S + ACK_S + 1.0
    assert max(took_s[ROUND + 1 :]) <= 1.5 * usual_s


@pytest.mark.parametrize(("phase", "seed", "peers"), STRUCK)
def test_one_that_was_stopped_for_good_costs_once_what_silence_takes(phase: str, seed: int, peers: int) -> None:
    """SIGSTOP: its connections stay, and nothing comes. Three rounds at most are late, all together by no more than
    silence and the waits for what it was about to give; then it is no longer waited for, or not in the electorate."""
    usual_s, took_s = max(story(seed, peers, "never", live)), story(seed, peers, phase, stop)
    late_s = [seconds for seconds in took_s[ROUND:] if seconds > 1.5 * usual_s]
    assert len(late_s) <= 3
    assert sum(late_s) <= len(late_s) * usual_s + SILENT_S + 4 * ACK_S
    assert max(took_s[ROUND + 3 :]) <= 1.5 * usual_s


def test_who_restarts_is_a_member_again() -> None:
    """Two seconds later, before anybody noticed, and twenty seconds later."""
    for back_s in (2.0, 20.0):
        world = Patient(1, 3)
        world.scheduler.run_until(8.0)
        world.peers[0].crash()
        world.scheduler.call_in(back_s, world.peers[0].boot)
        world.scheduler.run_until(60.0)
        assert "p0" in world.peers[1].driver.state.head.members
        assert len(world.history[0]) >= len(world.history[1]) - 1
        world.check()


def test_a_peer_whose_line_to_one_member_is_cut_takes_part_in_the_rounds_that_others_lead() -> None:
    """Nobody takes it for gone; once the two have lost each other, neither holds a ballot up for the other's sake."""
    world = World(2, 4)
    world.scheduler.run_until(8.0)
    world.peers[0].streams.cut(["p1"], 1e6)
    world.peers[1].streams.cut(["p0"], 1e6)
    world.scheduler.run_until(30.0 + SILENT_S)
    lost_at = world.peers[2].disk.head.round
    world.scheduler.run_until(180.0)
    assert not any(is_gone(peer.driver.state, name, world.now) for peer in world.peers for name in ("p0", "p1"))
    blocks = world.peers[2].disk.blocks[lost_at:]
    members = [
        {member.peer for member in item.update.members} for item in blocks if item.update.coordinator in ("p2", "p3")
    ]
    assert members
    assert all(who == {"p0", "p1", "p2", "p3"} for who in members)
    world.check()


def test_two_peers_wait_for_each_other_as_ever() -> None:
    """One of two is no majority: it does not even ask."""
    world = Patient(3, 2)
    world.scheduler.run_until(8.0)
    world.peers[0].crash()
    world.scheduler.run_until(0.9 * GATHER_S)
    state = world.peers[1].driver.state
    assert state.header is not None
    assert state.acceptor.promised < 0
