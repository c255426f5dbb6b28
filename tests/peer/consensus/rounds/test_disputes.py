"""A reducer that lies about norms, and a member that denies true ones: the bytes say who it is, and all get to know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol import norms
from peer.consensus.protocol.block import NormRow, Penalty, SignedNorms
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import BallotId, Message, NormDispute, NormTable
from peer.consensus.protocol.norms import PartNorms, bits_of
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import misconduct
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import PartMeasured, Received
from peer.consensus.rounds.misconduct import agrees
from peer.schema.events import AlertRaised, PenaltyImposed
from peer.testing.memory_swarm import World

LIAR = "p1"
SECONDS = 120.0


def times(row: NormRow, factor: float, only: int | None = None) -> NormRow:
    squares = (
        bits_of(norms.float_of(bits) * factor) if only in (None, index) else bits
        for index, bits in enumerate(row.squares)
    )
    return replace(row, squares=tuple(squares))


@pytest.fixture
def lies_about(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, float], None]:
    """Called with a member's index or None for all: from now on LIAR publishes squares times a factor."""

    def lie(victim: int | None, factor: float) -> None:
        honest = norms.measurements

        def measure(rules: Rules, *received: Any) -> SignedNorms:
            found = honest(rules, *received)
            if rules.me != LIAR:
                return found
            return replace(found, rows=tuple(times(row, factor, victim) for row in found.rows))

        monkeypatch.setattr(norms, "measurements", measure)

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


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "factor"), [(3, 0.01), (3, 100.0), (4, 0.01), (6, 100.0)])
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
    assert min(row[3] for row in convicted) <= lied + 2 + world.rules(LIAR).aggregation.cooldown_rounds + 1
    assert "its bytes come to" in convicted[0][5]
    first = next(block.update.round for block in blocks if any(row[1] == MISDECLARED for row in block.update.penalties))
    for block in blocks[first - 1 : first + 3]:
        index = [header.peer for header in block.update.members].index(LIAR)
        assert all(row[index] == 0 for row in block.update.weights)
        assert LIAR not in [item.reducer for item in block.update.measured]
    assert all(block.update.ballot <= 1 for block in blocks), "a liar is not waited for"


@pytest.mark.slow
def test_all_see_it_though_one_is_lied_about(lies_about: Callable[[int | None, float], None]) -> None:
    """The victim shows everybody its bytes: each honest peer knows from them, not from what it is told."""
    lies_about(0, 100.0)
    world = run(5)
    seen = accused(world)
    assert all(seen[peer.name] == {LIAR} for peer in world.peers if peer.name != LIAR), seen
    assert {row[0] for row in rows_of(world)} == {LIAR}


def test_a_member_that_denies_a_true_norm_convicts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own bytes prove that the reducer was right."""
    honest = misconduct.agrees

    def denies(row: NormRow, index: int, found: PartNorms, tolerances: float = 1.0) -> bool | None:
        return False if inside[0] == LIAR else honest(row, index, found, tolerances)

    inside = [""]
    look = misconduct.look_at_rows

    def looking(turn: misconduct.Transition) -> None:
        inside[0] = turn.me
        look(turn)
        inside[0] = ""

    monkeypatch.setattr(misconduct, "agrees", denies)
    monkeypatch.setattr(misconduct, "look_at_rows", looking)
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


@pytest.mark.slow
def test_an_objection_costs_whoever_hears_it_no_memory(lies_about: Callable[[int | None, float], None]) -> None:
    """One for each member and exchange; after the next exchange they are forgotten."""
    lies_about(None, 100.0)
    world = run(6)
    assert all(len(peer.driver.state.disputes) <= misconduct.DISPUTES_MOST for peer in world.peers)


@pytest.mark.parametrize(
    ("square", "dot", "found", "fits"),
    [
        (1.0, 0.5, PartNorms(1.0, 0.5, 1.0), True),
        (1.0005, 0.5, PartNorms(1.0, 0.5, 1.0), True),
        (1.01, 0.5, PartNorms(1.0, 0.5, 1.0), False),
        (0.0, 0.0, PartNorms(1e-9, 0.0, 1.0), False),
        (0.0, 0.0, PartNorms(0.0, 0.0, 1.0), True),
        (1.0, 0.49, PartNorms(1.0, 0.5, 1.0), False),
        (1.0, -0.5, PartNorms(1.0, 0.5, None), None),
        (2.0, -0.5, PartNorms(1.0, 0.5, None), False),
        (math.nan, 0.0, PartNorms(math.nan, math.nan, 1.0), True),
        (math.inf, 0.0, PartNorms(1e40, 0.0, 1.0), True),
        (math.nan, 0.0, PartNorms(1.0, 0.0, 1.0), False),
        (1.0, 0.0, PartNorms(math.nan, 0.0, 1.0), False),
    ],
)
def test_what_agrees(square: float, dot: float, found: PartNorms, fits: bool | None) -> None:
    """Rounding is forgiven, nothing else; without the last mean nobody can tell about an inner product."""
    row = NormRow(0, (bits_of(square),), (bits_of(dot),), bits_of(1.0))
    assert agrees(row, 0, found) is fits


@pytest.fixture
def lies_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Called with a victim: as coordinator LIAR shows it alone a wrong row about it, signed as well as the true one."""

    def lie(victim: str) -> None:
        honest = Driver._send

        def send(driver: Driver, to: tuple[str, ...], message: Message) -> None:
            if driver.state.rules.me != LIAR or not isinstance(message, NormTable) or victim not in to:
                honest(driver, to, message)
                return
            honest(driver, tuple(peer for peer in to if peer != victim), message)
            honest(driver, (victim,), spoilt(driver, message))

        monkeypatch.setattr(Driver, "_send", send)

    def spoilt(driver: Driver, table: NormTable) -> NormTable:
        assert driver.state.exchange is not None
        members, place = driver.state.exchange.members, table.place
        measured = (
            replace(item, rows=tuple(times(row, 100.0) for row in item.rows)).signed(
                driver.state.rules.keys, place.anchor, place.ballot, members
            )
            if item.reducer == LIAR
            else item
            for item in table.measured
        )
        return NormTable(place, tuple(measured))

    return lie


def test_whoever_is_shown_another_row_than_the_rest_is_not_taken_for_the_liar(lies_to: Callable[[str], None]) -> None:
    """The objection shows the row with its signature: all judge by that one, whatever they were shown themselves."""
    lies_to("p2")
    world = run(4)
    seen = accused(world)
    assert all(seen[peer.name] <= {LIAR} for peer in world.peers if peer.name != LIAR), seen
    assert {row[0] for row in rows_of(world)} == {LIAR}


def test_a_reducer_that_compares_with_another_mean_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody has the last mean: no bytes need be shown."""
    honest = norms.measurements

    def measure(rules: Rules, *received: Any) -> SignedNorms:
        found = honest(rules, *received)
        if rules.me != LIAR:
            return found
        rows = (replace(row, direction=bits_of(norms.float_of(row.direction) * 1e6)) for row in found.rows)
        return replace(found, rows=tuple(row if row.dots else replace(row, direction=0) for row in rows))

    monkeypatch.setattr(norms, "measurements", measure)
    world = run(4)
    assert {row[0] for row in rows_of(world)} == {LIAR}
    assert "another mean" in rows_of(world)[0][5]


def test_figures_that_were_not_asked_for_and_objections_that_come_again_do_no_harm(
    lies_about: Callable[[int | None, float], None],
) -> None:
    """Evidence of a part that the dispute is not about, the same part twice, and a second objection."""
    lies_about(None, 100.0)
    world = World(3, 4)
    world.liars.add(LIAR)
    peer = world.peers[0]
    while not peer.driver.state.disputes:
        world.scheduler.run_until(world.now + 0.01)
        assert world.now < SECONDS
    (place, giver), dispute = next(iter(peer.driver.state.disputes.items()))
    for part in (7, 65_536, *dispute.parts, *dispute.parts):
        peer.driver.deliver(PartMeasured(world.now, place, giver, part, PartNorms(1.0), evidence=True))
    exchange = peer.driver.state.exchange or peer.driver.state.past
    assert exchange is not None
    for item in exchange.measured:
        for row in item.rows:
            peer.driver.deliver(Received(world.now, giver, NormDispute(place, item, row.layer)))
    assert peer.driver.state.disputes[place, giver].parts == dispute.parts


def test_an_objection_about_an_exchange_that_nobody_knows_is_dropped() -> None:
    """Whatever it says."""
    world = World(3, 3)
    world.scheduler.run_until(30.0)
    peer, item = world.peers[0], world.peers[0].disk.blocks[-1].update.measured[0]
    head = peer.driver.state.head
    objection = NormDispute(BallotId(head.anchor, head.instance, 7), item, item.rows[0].layer)
    peer.driver.deliver(Received(world.now, "p1", objection))
    assert peer.driver.state.disputes == {}
