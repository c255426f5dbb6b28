"""An update that is dated ahead of all clocks: no voter takes one, and who stands at one finds the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Update
from peer.consensus.protocol.validation import CLOCKS_DIFFER_S
from peer.consensus.rounds import collector
from peer.consensus.rounds.forks import FUTURE_S
from peer.schema.events import AlertRaised
from peer.testing.memory_swarm import World

TEN_YEARS_S = 10 * 365 * 86_400
MakeUpdate = Callable[..., Update]


def dated(patch: pytest.MonkeyPatch, ahead_s: int, by: str = "") -> None:
    """Updates that a coordinator makes are dated so far ahead; only its own if it is named."""
    make: MakeUpdate = collector.make_update

    def made(turn: Any, *given: Any) -> Update:
        update = make(turn, *given)
        return replace(update, time=update.time + ahead_s) if by in ("", turn.me) else update

    patch.setattr(collector, "make_update", made)


def rounds(world: World) -> list[int]:
    return [peer.disk.head.round for peer in world.peers]


@pytest.mark.parametrize("ahead_s", [int(CLOCKS_DIFFER_S) + 1, TEN_YEARS_S])
def test_voters_refuse_a_date_ahead_of_their_clock(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    """Whatever `min_round_s` is, here 0: the next coordinator leads the round, and the run goes on."""
    world = World(2, 4)
    assert world.rules("p0").min_round_s == 0
    dated(monkeypatch, ahead_s, by="p1")
    world.scheduler.run_until(120.0)
    world.check()
    assert min(rounds(world)) >= 6
    assert all(head.time <= 120 + CLOCKS_DIFFER_S for peer in world.peers for head in peer.disk.heads)
    assert all(block.update.coordinator != "p1" for block in world.peers[0].disk.blocks)


def test_voters_refuse_a_date_long_before_their_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would bring forward the moment at which a few may take over."""
    world = World(2, 4)
    world.scheduler.run_until(90.0)
    dated(monkeypatch, -70, by="p1")
    before = max(rounds(world))
    world.scheduler.run_until(210.0)
    world.check()
    made = [block.update for block in world.peers[0].disk.blocks[before + 1 :]]
    assert len(made) >= 6
    assert all(update.coordinator != "p1" for update in made)


def test_a_date_within_what_clocks_differ_by_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2, 4)
    dated(monkeypatch, int(CLOCKS_DIFFER_S) - 1, by="p1")
    world.scheduler.run_until(120.0)
    assert any(block.update.coordinator == "p1" for block in world.peers[0].disk.blocks)


def test_a_run_that_stands_in_the_future_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """All took a date ten years ahead once, as a majority with wrong clocks would: they go back before it and decide
    anew, each still with all that it has made, and are told why."""
    world = World(3, 4, takeover_s=12.0)
    world.scheduler.run_until(30.0)
    before = max(rounds(world))
    with monkeypatch.context() as patch:
        dated(patch, TEN_YEARS_S)
        patch.setattr(validation, "timely", lambda wall_s, time: True)
        while min(peer.disk.head.time for peer in world.peers) < TEN_YEARS_S:
            world.scheduler.run_until(world.now + 0.5)
    (poisoned,) = {peer.disk.head.anchor for peer in world.peers}
    parent = world.peers[0].disk.heads[-2].anchor
    del world.firm[parent], world.updates[parent]
    world.scheduler.run_until(world.now + FUTURE_S + 60.0)
    world.check()
    assert min(rounds(world)) >= before + 4
    assert all(poisoned not in [head.anchor for head in peer.disk.heads] for peer in world.peers)
    for peer in world.peers:
        assert any(isinstance(event, AlertRaised) and event.code == "FUTURE" for event in peer.reports)


def test_a_peer_whose_own_clock_stands_still_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is a year behind; the others go on, and it does not go back."""
    world = World(4, 4)
    rules = world.rules
    monkeypatch.setattr(world, "rules", lambda name: replace(rules(name), wall_offset_s=-3e7 * (name == "p3")))
    for peer in world.peers:
        peer.crash()
        peer.boot()
    world.scheduler.run_until(150.0)
    assert min(rounds(world)[:3]) >= 6
    assert not any(isinstance(event, AlertRaised) and event.code == "FUTURE" for event in world.peers[3].reports)
