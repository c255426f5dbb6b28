"""What one peer catches another at is told by its headers, for some rounds; more than half of the others convict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol.block import Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import MeanData, encode
from peer.consensus.rounds import collector
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect, SendMean
from peer.consensus.rounds.transition import REPORT_ROUNDS, Transition
from peer.schema.events import AlertRaised
from peer.testing.memory_peer import PART_BYTES, decoded, encoded
from peer.testing.memory_swarm import World

LIAR = "p1"
SECONDS = 120.0


@pytest.fixture
def two_means(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Called with a number: from now on LIAR sends so many of the receivers another mean than the rest. Both are right:
    they differ in what encoding loses."""

    def lie(others: int) -> None:
        perform = Driver._perform

        def tampering(driver: Driver, effect: Effect) -> None:
            if not isinstance(effect, SendMean) or driver.state.rules.me != LIAR:
                perform(driver, effect)
                return
            for number, peer in enumerate(sorted(effect.to)):
                mean = effect.mean if number >= others else another(driver, effect.mean)
                payload = driver._disk.load(mean.digest)
                driver._streams.send(peer, encode(replace(mean, payload=payload)))

        monkeypatch.setattr(Driver, "_perform", tampering)

    return lie


def another(driver: Driver, mean: MeanData) -> MeanData:
    payload = driver._disk.load(mean.digest)
    assert payload is not None
    other = encoded(decoded(payload) ^ 1) + payload[PART_BYTES:]
    driver._disk.save_object(digest_of(other), other)
    return replace(mean, digest=digest_of(other)).signed(driver.state.rules.keys)


def run(peers: int, seconds: float = SECONDS) -> World:
    world = World(3, peers)
    world.liars.add(LIAR)
    world.scheduler.run_until(seconds)
    world.check()
    return world


def liars_on_chain(world: World) -> set[str]:
    blocks = world.peers[0].disk.blocks
    return {row[0] for block in blocks for row in block.update.penalties if row[1] == MISDECLARED}


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "others"), [(3, 1), (4, 2), (6, 3)])
def test_two_right_means_of_a_part_cost_nothing(peers: int, others: int, two_means: Callable[[int], None]) -> None:
    """However many got which: what is proposed all fetch, all apply the same, and nobody is accused."""
    two_means(others)
    world = run(peers)
    assert liars_on_chain(world) == set()
    newest = min(peer.disk.head.round for peer in world.peers)
    usual = World(3, peers)
    usual.scheduler.run_until(SECONDS)
    assert newest >= 0.8 * min(peer.disk.head.round for peer in usual.peers)
    assert len({peer.disk.heads[newest - 1].anchor for peer in world.peers}) == 1


def proposes_weights(monkeypatch: pytest.MonkeyPatch, weight: int) -> None:
    """From now on LIAR gives everybody this weight in what it proposes."""
    honest = collector.make_update

    def make(turn: Transition, *more: object) -> Update:
        update = honest(turn, *more)  # type: ignore[arg-type]
        if turn.me != LIAR:
            return update
        return replace(update, weights=(tuple(weight for _ in update.members),))

    monkeypatch.setattr("peer.consensus.rounds.collector.make_update", make)


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "weight"), [(3, 1), (5, -1), (5, 65_537), (3, 1 << 62)])
def test_a_coordinator_whose_update_is_not_what_is_computed_is_convicted(
    peers: int, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody votes for it, everybody reports it; the next ballot commits."""
    proposes_weights(monkeypatch, weight)
    world = run(peers)
    assert liars_on_chain(world) == {LIAR}
    texts = [event.text for peer in world.peers for event in peer.reports if isinstance(event, AlertRaised)]
    assert any("its weights are not those" in text for text in texts)
    assert all(block.update.coordinator != LIAR for block in world.peers[0].disk.blocks)


def test_a_report_is_repeated_for_some_rounds_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it arrives though a header comes too late, and so that an old lie does not follow a peer for ever."""
    proposes_weights(monkeypatch, 1)
    world = run(4)
    blocks = world.peers[0].disk.blocks
    reporting = [
        block.update.round
        for block in blocks
        if any(peer == LIAR for header in block.update.members for peer, _ in header.reports)
    ]
    assert reporting[:REPORT_ROUNDS] == list(range(reporting[0], reporting[0] + REPORT_ROUNDS))
    cooldown = world.rules(LIAR).aggregation.cooldown_rounds
    convicted = [block.update.round for block in blocks if any(row[1] == MISDECLARED for row in block.update.penalties)]
    assert len(convicted) >= min(cooldown, len(blocks) - 2)


def test_honest_peers_report_nobody() -> None:
    """The tests above can fail."""
    world = World(3, 4)
    world.scheduler.run_until(SECONDS)
    world.check()
    blocks = world.peers[0].disk.blocks
    assert len(blocks) > 8
    assert not any(header.reports for block in blocks for header in block.update.members)
