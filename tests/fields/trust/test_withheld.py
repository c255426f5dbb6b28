"""Who keeps back what the others wait for is waited for once, and then hardly any more; and it is not accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.messages import Heartbeat, Message, PartData, Promise
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Effect, SendMean, SendParts
from peer.testing.memory_swarm import World
from tests.fields.trust.liars import LIAR, VICTIM, Stage, honest_rounds

pytestmark = pytest.mark.slow

SECONDS = 200.0


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
@pytest.mark.parametrize("peers", [4, 7])
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


@pytest.mark.parametrize("peers", [4, 7])
def test_who_gives_its_means_to_all_but_the_coordinator_holds_up_the_others_for_less_than_half_a_round(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each coordinator remembers that it had to ask the others for them."""
    usual, stage, perform = honest_rounds(peers, SECONDS), Stage.of(peers), Driver._perform

    def withhold(driver: Driver, effect: Effect) -> None:
        if isinstance(effect, SendMean) and stage.lies(driver.state.rules.me):
            coordinator = driver.state.head.leader(effect.mean.place.ballot)
            stage.told["withheld"] += coordinator in effect.to
            effect = replace(effect, to=tuple(peer for peer in effect.to if peer != coordinator))
        perform(driver, effect)

    monkeypatch.setattr(Driver, "_perform", withhold)
    stage.run(stage.from_s)
    rounds = stage.run(SECONDS)
    assert stage.told["withheld"] > 0
    assert 1.4 * rounds >= usual
    assert stage.accused() == set()


def test_a_voter_whose_parts_were_lost_once_counts_in_every_later_round() -> None:
    """It is waited for as long as the others take, and as long again."""
    stage = Stage.of(4)
    stage.world.liars = set()
    stage.run(stage.from_s)
    stage.world.network.drops = lambda sender, receiver, frame: sender == VICTIM and frame[1] == PartData.code
    stage.run(12.0)
    assert any(VICTIM in peer.driver.state.silent for peer in stage.honest)
    stage.world.network.drops = None
    stage.run(12.0)
    rounds = stage.run(60.0)
    for block in stage.blocks[-rounds:]:
        assert block.update.contributed(VICTIM, 0)


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
    assert 1.2 * _rounds_with_one_unready(monkeypatch, 7.0) >= usual


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
