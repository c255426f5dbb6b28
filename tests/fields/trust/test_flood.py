"""Strangers who ask as much as they can are not felt in a round, and keep nothing from a newcomer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from dht.streams.answer_budget import AHEAD_S, STRANGERS_SHARE, AnswerBudget
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import GetBlocks, GetObjects, Heartbeat, ObjectData, encode
from peer.consensus.rounds import block_sync
from peer.consensus.rounds.driver import bytes_a_minute
from peer.schema.events import AlertRaised, ReportReceived
from peer.testing.memory_peer import LogicalPeer
from tests.fields.trust.liars import Stage

ASKERS = tuple(f"s{index:02}" for index in range(50))
FLOOD_S = 30.0


class Flood:
    """Fifty strangers ask so many peers for all that they have, each second; every line carries `line_bps`."""

    def __init__(self, asked: int, line_bps: float) -> None:
        self.stage = Stage.of(4)
        self.world = self.stage.world
        self.world.liars = set()
        self.given = Counter[str]()
        """Bytes of blocks and objects that strangers were given, by who gave them."""
        self._free_at = defaultdict[str, float](float)
        self._asked, self._line_bps = asked, line_bps
        self.stage.run(self.stage.from_s)
        self.genesis = self.world.peers[0].disk.blocks[0].update.parent
        self.world.network.delays = self._line
        for peer in self.world.peers:
            peer.driver.budget.upload_bps = lambda: line_bps
        if asked:
            self.world.scheduler.call_in(1.0, self._ask)

    def _line(self, source: str, to: str, frame: bytes) -> float:
        """How much later the last byte is there: frames of a sender wait for those before."""
        if to in ASKERS and len(frame) > 1_000:  # all but the HEADs that answer who has nothing new to hear
            self.given[source] += len(frame)
        now = self.world.now
        self._free_at[source] = max(self._free_at[source], now) + 8 * len(frame) / self._line_bps
        return self._free_at[source] - now

    def _ask(self) -> None:
        blocks, objects = encode(GetBlocks((self.genesis,))), {}
        for peer in self.world.peers[: self._asked]:
            objects[peer.name] = encode(GetObjects(tuple(list(peer.disk.objects)[-64:])))
            for asker in ASKERS:
                peer.on_frame(asker, blocks)
                peer.on_frame(asker, objects[peer.name])
        self.world.scheduler.call_in(1.0, self._ask)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "line_bps"), [(1, 400_000.0), pytest.param(4, 20e6, marks=pytest.mark.nightly)])
def test_fifty_askers_make_no_round_longer_than_a_tenth_and_a_newcomer_gets_its_blocks(
    asked: int, line_bps: float
) -> None:
    """Each peer gives them a tenth of its line, and the newcomer, a stranger too, comes to where the others are: from
    peers that are asked by nobody else, or with its part of what all strangers get."""
    usual, flood = Flood(0, line_bps), Flood(asked, line_bps)
    rounds, flooded = usual.stage.run(FLOOD_S), flood.stage.run(FLOOD_S)
    assert 1.1 * flooded >= rounds
    newcomer = flood.world.join()
    flood.stage.run(FLOOD_S)
    assert newcomer.disk.head.round >= flood.world.peers[0].disk.head.round - 1
    most = STRANGERS_SHARE * line_bps / 8 * (2 * FLOOD_S + AHEAD_S) + 200_000
    assert flood.given
    assert max(flood.given.values()) <= most


REMEMBERED = 64
"""In place of `MAX_HEARD`: the crowd is as much larger than what is remembered."""


@pytest.fixture
def few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sync, "MAX_HEARD", REMEMBERED)


def crowd(stage: Stage, frame: Callable[[LogicalPeer], bytes]) -> None:
    """From now on more names than a peer remembers send this to all, twice a second."""
    names = [f"s{index:03}" for index in range(REMEMBERED + 11)]

    def speak() -> None:
        for peer in stage.world.peers:
            said = frame(peer)
            for name in names:
                peer.on_frame(name, said)
        stage.world.scheduler.call_in(0.5, speak)

    speak()


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_remembered")
def test_who_is_behind_is_told_though_more_names_ask_than_are_answered() -> None:
    """A question is a hundred bytes. A voter that nobody tells how it goes on is no voter any more."""
    stage = Stage.of(5)
    stage.run(stage.from_s)
    late = stage.world.peers[4]
    stage.world.network.partition([late.name])
    stage.run(60.0)
    genesis = stage.blocks[0].update.parent
    stage.world.network.heal()
    crowd(stage, lambda peer: encode(GetBlocks((genesis,))))
    stage.run(10.0)
    assert late.disk.head.round >= stage.world.peers[1].disk.head.round - 1


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_remembered")
def test_guests_stay_members_though_more_names_are_here_than_are_remembered() -> None:
    stage = Stage.of(4)
    stage.run(stage.from_s)
    guest = stage.world.join()
    stage.run(15.0)

    def head(peer: LogicalPeer) -> bytes:
        mine = peer.driver.state.head
        return encode(Heartbeat(mine.anchor, mine.round, 0, b"", False, 0, 0, False))

    crowd(stage, head)
    rounds = stage.run(20.0)
    for block in stage.blocks[-rounds - 1 :]:
        assert guest.name in [header.peer for header in block.update.members]
        assert guest.name not in block.update.elect


def test_what_strangers_say_of_themselves_fills_no_history_and_alarms_nobody() -> None:
    """Fifty of them say other figures, and other bits, four times a second."""
    stage = Stage.of(4)
    stage.run(stage.from_s)
    peer, before = stage.honest[0], len(stage.honest[0].reports)
    while stage.world.now < stage.from_s + 10.0:
        head = peer.driver.state.head
        for name in ASKERS:
            steps = round(100 * stage.world.now)
            said = Heartbeat(head.anchor, head.round, 0, digest_of(name.encode()), True, 1, steps, False)
            peer.on_frame(name, encode(said))
        stage.world.scheduler.run_until(stage.world.now + 0.25)
    told = peer.reports[before:]
    assert 5 <= sum(isinstance(event, ReportReceived) and event.about in ASKERS for event in told) <= 11
    assert not [event for event in told if isinstance(event, AlertRaised)]


# ---- the budget ----


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def given(budget: AnswerBudget, peer: str, size_bytes: int = 1_000) -> int:
    """How many bytes it is given now, in objects of this size, if it asks on and on."""
    total = 0
    while total < 1 << 26 and budget.has_room_for(peer):
        budget.give(peer, size_bytes)
        total += size_bytes
    return total


def budget_of(clock: Clock, upload_bps: float, admitted: str = "") -> AnswerBudget:
    state = Stage.of(4).world.peers[0].driver.state
    return AnswerBudget(
        clock, lambda: bytes_a_minute(state), lambda peer: state.is_owed(peer) or peer == admitted,
        lambda: upload_bps,
    )  # fmt: skip


@pytest.mark.slow
def test_guests_that_ask_for_everything_again_and_again_have_the_strangers_share() -> None:
    """Each would else take as much of every line as a voter has of it, and there are seats for twenty."""
    stage = Stage.of(4)
    stage.run(stage.from_s)
    guest, line_bps = stage.world.join(), 400_000.0
    stage.run(15.0)
    peer, given = stage.honest[0], Counter[str]()
    assert guest.name in peer.driver.state.named
    peer.driver.budget.upload_bps = lambda: line_bps

    def line(source: str, to: str, frame: bytes) -> float:
        given[to] += len(frame) if source == peer.name and frame[1] == ObjectData.code else 0
        return 0.01

    stage.world.network.delays = line

    def ask(asker: str) -> None:
        peer.on_frame(asker, encode(GetObjects(tuple(list(peer.disk.objects)[-64:]))))
        stage.world.scheduler.call_in(0.1, partial(ask, asker))

    for asker in (guest.name, "p3"):
        ask(asker)
    stage.run(FLOOD_S)
    assert given[guest.name] <= STRANGERS_SHARE * line_bps / 8 * (FLOOD_S + AHEAD_S) + 10_000
    assert given["p3"] > 2 * given[guest.name]


def test_members_and_who_was_admitted_are_not_counted(clock: Clock) -> None:
    budget = budget_of(clock, 1e6, "a")
    assert [given(budget, peer) >= 1 << 26 for peer in ("p1", "a", "s")] == [True, True, False]


def test_strangers_together_have_a_tenth_of_the_line_in_the_long_run(clock: Clock) -> None:
    budget = budget_of(clock, 1e6)
    total = 0
    for _ in range(600):
        total += sum(given(budget, asker) for asker in ASKERS)
        clock.now += 1.0
    assert 0.7 < total / (STRANGERS_SHARE * 1e6 / 8 * 600.0) < 1.2


def test_who_has_had_nothing_lately_gets_something_however_many_ask(clock: Clock) -> None:
    """And in the long run as much as any other."""
    budget, honest, others = budget_of(clock, 1e6), 0, 0
    for _ in range(600):
        others += sum(given(budget, asker) for asker in ASKERS)
        honest += given(budget, "honest")
        clock.now += 1.0
    assert honest > 0.5 * others / len(ASKERS)


def test_where_the_line_is_not_known_each_has_what_two_rounds_have_in_a_minute(clock: Clock) -> None:
    """In a small run what one question may cost."""
    budget = budget_of(clock, 0.0)
    first = given(budget, "s")
    assert (1 << 24) <= first <= (1 << 24) + 1_000
    clock.now += 30.0
    assert 0.45 < given(budget, "s") / first < 0.55
