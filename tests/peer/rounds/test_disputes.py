"""A reducer that lies about norms, and a member that denies true ones: the bytes say who it is, and all get to know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.events import AlertRaised, PenaltyImposed
from peer.rounds import disputes, judging
from peer.rounds.accusations import Objection
from peer.rounds.disputes import agrees
from peer.rounds.judging import bits_of
from peer.rounds.state import MISDECLARED, Exchange, Figures, Rules
from peer.rounds.update import Measurements, Penalty, Row
from peer.testing.world import World

LIAR = "p1"
SECONDS = 120.0


def times(row: Row, factor: float, only: int | None = None) -> Row:
    squares = (
        bits_of(judging.float_of(bits) * factor) if only in (None, index) else bits
        for index, bits in enumerate(row.squares)
    )
    return replace(row, squares=tuple(squares))


@pytest.fixture
def lies_about(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, float], None]:
    """Called with a member's index or None for all: from now on LIAR publishes squares times a factor."""

    def lie(victim: int | None, factor: float) -> None:
        honest = judging.measurements

        def measure(rules: Rules, exchange: Exchange) -> Measurements:
            found = honest(rules, exchange)
            if rules.me != LIAR:
                return found
            return replace(found, rows=tuple(times(row, factor, victim) for row in found.rows))

        monkeypatch.setattr(judging, "measurements", measure)

    return lie


def run(peers: int, seed: int = 3) -> World:
    world = World(seed, peers)
    world.liars.add(LIAR)
    world.scheduler.run_until(SECONDS)
    world.check()
    return world


def rows_of(world: World, code: str = MISDECLARED) -> list[Penalty]:
    return [row for block in world.peers[0].disk.blocks for row in block.update.penalties if row[1] == code]


def accused(world: World) -> dict[str, set[str]]:
    """Whom each peer saw lying with its own eyes."""
    return {
        peer.name: {event.about for event in peer.reports if isinstance(event, PenaltyImposed)} for peer in world.peers
    }


@pytest.mark.parametrize("factor", [0.01, 100.0])
@pytest.mark.parametrize("peers", [3, 4, 6])
def test_a_reducer_that_lies_about_norms_is_convicted(
    peers: int, factor: float, lies_about: Callable[[int | None, float], None]
) -> None:
    """Within two rounds; from then on it reduces nothing and counts nothing, and rounds go on without delay."""
    lies_about(None, factor)
    world = run(peers)
    blocks = world.peers[0].disk.blocks
    assert len(blocks) > 8
    convicted = rows_of(world)
    assert {row[0] for row in convicted} == {LIAR}
    lied = next(b.update.round for b in blocks if LIAR in [item.reducer for item in b.update.measured])
    assert min(row[3] for row in convicted) <= lied + 2 + world.rules(LIAR).judge.cooldown_rounds + 1
    assert "its bytes come to" in convicted[0][5]
    first = next(block.update.round for block in blocks if any(row[1] == MISDECLARED for row in block.update.penalties))
    for block in blocks[first - 1 : first + 3]:
        index = [pledge.peer for pledge in block.update.members].index(LIAR)
        assert all(row[index] == 0 for row in block.update.weights)
        assert LIAR not in [item.reducer for item in block.update.measured]
    assert all(block.update.ballot <= 1 for block in blocks), "a liar is not waited for"


def test_all_see_it_though_one_is_lied_about(lies_about: Callable[[int | None, float], None]) -> None:
    """The victim shows everybody its bytes: each honest peer knows from them, not from what it is told."""
    lies_about(0, 100.0)
    world = run(5)
    seen = accused(world)
    assert all(seen[peer.name] == {LIAR} for peer in world.peers if peer.name != LIAR), seen
    assert {row[0] for row in rows_of(world)} == {LIAR}


def test_a_member_that_denies_a_true_norm_convicts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own bytes prove that the reducer was right."""
    honest = disputes.agrees

    def denies(row: Row, index: int, found: Figures) -> bool:
        return False if inside[0] == LIAR else honest(row, index, found)

    inside = [""]
    look = disputes.look_at_rows

    def looking(turn: disputes.Turn) -> None:
        inside[0] = turn.me
        look(turn)
        inside[0] = ""

    monkeypatch.setattr(disputes, "agrees", denies)
    monkeypatch.setattr(disputes, "look_at_rows", looking)
    world = run(4)
    seen = accused(world)
    assert all(seen[peer.name] == {LIAR} for peer in world.peers if peer.name != LIAR), seen
    assert {row[0] for row in rows_of(world)} == {LIAR}


def test_honest_peers_object_to_nothing() -> None:
    """The tests above can fail."""
    world = World(3, 4)
    world.scheduler.run_until(SECONDS)
    world.check()
    assert not any(isinstance(event, AlertRaised) for peer in world.peers for event in peer.reports)
    assert rows_of(world) == []


def test_an_objection_costs_whoever_hears_it_no_memory(lies_about: Callable[[int | None, float], None]) -> None:
    """One for each member and exchange; after the next exchange they are forgotten."""
    lies_about(None, 100.0)
    world = run(6)
    assert all(len(peer.driver.state.disputes) <= disputes.DISPUTES_MOST for peer in world.peers)


@pytest.mark.parametrize(
    ("square", "dot", "found", "fits"),
    [
        (1.0, 0.5, Figures(1.0, 0.5, 1.0), True),
        (1.0005, 0.5, Figures(1.0, 0.5, 1.0), True),
        (1.01, 0.5, Figures(1.0, 0.5, 1.0), False),
        (0.0, 0.0, Figures(1e-9, 0.0, 1.0), False),
        (0.0, 0.0, Figures(0.0, 0.0, 1.0), True),
        (1.0, 0.49, Figures(1.0, 0.5, 1.0), False),
        (1.0, -0.5, Figures(1.0, 0.5, None), True),
        (math.nan, 0.0, Figures(math.nan, math.nan, 1.0), True),
        (math.inf, 0.0, Figures(1e40, 0.0, 1.0), True),
        (math.nan, 0.0, Figures(1.0, 0.0, 1.0), False),
        (1.0, 0.0, Figures(math.nan, 0.0, 1.0), False),
    ],
)
def test_what_agrees(square: float, dot: float, found: Figures, fits: bool) -> None:
    """Rounding is forgiven, nothing else; what was not compared with the last mean here is not disputed."""
    row = Row(0, (bits_of(square),), (bits_of(dot),), bits_of(1.0))
    assert agrees(row, 0, found) is fits


def test_an_objection_about_an_exchange_that_nobody_knows_is_dropped() -> None:
    """Whatever it says."""
    world = World(3, 3)
    world.scheduler.run_until(30.0)
    peer = world.peers[0]
    place = peer.driver.state.head.anchor, peer.driver.state.head.instance
    from peer.rounds.effects import Received
    from peer.rounds.messages import Place

    peer.driver.deliver(Received(world.now, "p1", Objection(Place(*place, 7), "p2", 0)))
    assert peer.driver.state.disputes == {}
