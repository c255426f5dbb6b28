"""A peer that applies an update beside its next inner steps: who hears of it when, and what counts as exposed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from dht.errors import BadInput
from peer.events import Evaluated, PhaseEntered, RoundCommitted, RoundStarted
from peer.limits.desired_state import Intent
from peer.link.channel import LinkLost
from tests.peer.rounds.build import HEAD
from tests.peer.story import NEXT, STEPS, Story, Trainer, commit


@dataclass
class LayerwiseTrainer(Trainer):
    """Its updates are applied after so many steps."""

    steps_beside: int = 1
    waits_s: float = 0.25
    """For layers, in every step until then."""
    finish_s: float = 8.0
    """Of whoever does not wait until then."""
    steps_left: int = 0
    waited_s: float = 0.0
    damaged: bool = False

    def begin_apply(self, item: object, load: object) -> float:
        if self.damaged:
            raise BadInput("its bytes are not those that were agreed")
        self.apply(item, load)
        self.done[-1] = "begin apply"
        self.steps_left, self.waited_s = self.steps_beside, 0.0
        return self.too_old

    @property
    def is_applied(self) -> bool:
        return self.steps_left == 0

    def train_step(self, stop: Any, position: float) -> Any:
        if self.steps_left:
            self.steps_left -= 1
            self.waited_s += self.waits_s
        return super().train_step(stop, position)

    def finish_apply(self) -> bytes:
        self.clock.now += 0.0 if self.is_applied else self.finish_s
        self.steps_left = 0
        self.done.append("finish apply")
        return b"its state"


@pytest.fixture
def layered(story: Story) -> Story:
    """A peer that has joined, is in step, and whose spec says layerwise."""
    story.trainer = story.peer.trainer = LayerwiseTrainer(clock=story.clock)  # type: ignore[assignment]
    story.peer.spec = dataclasses.replace(
        story.peer.spec, round=dataclasses.replace(story.peer.spec.round, overlap="layerwise")
    )
    return story


def trainer_of(story: Story) -> LayerwiseTrainer:
    assert isinstance(story.trainer, LayerwiseTrainer)
    return story.trainer


def commit_round(story: Story) -> None:
    """Make all steps, offer them, and hear of the commit in the turn after."""
    story.turns(STEPS)
    story.link.queue.append(commit())
    story.turns(1)


def test_the_next_step_begins_before_the_update_is_applied(layered: Story) -> None:
    """The round is told, to people and the link, when its state is known: one step later."""
    commit_round(layered)
    assert layered.trainer.done[-1] == "begin apply"
    assert layered.peer.anchor == NEXT
    assert not layered.told(RoundCommitted)
    layered.turns(2)
    assert layered.trainer.done[-5:] == ["begin apply", "begin", "step", "finish apply", "step"]
    assert [event.state for event in layered.told(RoundCommitted)] == [b"its state".hex()]
    assert ("applied", NEXT, b"its state") in layered.link.told
    assert [type(event) for event in layered.events if isinstance(event, (RoundStarted, RoundCommitted))] == [
        RoundStarted, RoundStarted, RoundCommitted,
    ]  # fmt: skip


def test_exposed_is_the_wait_for_the_commit_and_what_the_steps_waited_for_layers(layered: Story) -> None:
    """Not the steps themselves, however many of them it takes."""
    trainer_of(layered).steps_beside = 2
    layered.turns(STEPS)
    layered.clock.sleep(5.0)
    layered.link.queue.append(commit())
    layered.turns(1)
    layered.turns(3)
    (committed,) = layered.told(RoundCommitted)
    assert committed.exposed_s == pytest.approx(5.0 + 2 * trainer_of(layered).waits_s)
    assert committed.round_s == pytest.approx(STEPS + 5.0 + 2)


def test_the_wait_for_layers_is_no_part_of_a_step(layered: Story) -> None:
    """What a peer's speed is learned from."""
    commit_round(layered)
    layered.turns(2)
    step_s = layered.trainer.step_s
    measured = [seconds for seconds, _ in layered.peer.pace.speed.steps]
    assert measured == pytest.approx([step_s] * STEPS + [step_s - trainer_of(layered).waits_s, step_s])


def test_who_gives_early_waits_for_the_last_layer_first(layered: Story) -> None:
    """The others ask for what there is after one step; waiting is exposed, in the round that it belongs to."""
    trainer_of(layered).steps_beside = 100
    commit_round(layered)
    layered.link.queue.append(("freeze",))
    layered.turns(1)
    assert layered.trainer.done[-4:] == ["begin", "step", "finish apply", "freeze"]
    (committed,) = layered.told(RoundCommitted)
    assert committed.exposed_s == pytest.approx(trainer_of(layered).finish_s + trainer_of(layered).waits_s)
    phases = [type(event) for event in layered.events if isinstance(event, (PhaseEntered, RoundCommitted))]
    assert phases == [PhaseEntered, PhaseEntered, RoundCommitted, PhaseEntered]


@pytest.mark.parametrize("said", ["commit", "pause", "behind", "checkpoint", "last checkpoint"])
def test_whatever_needs_the_whole_anchor_comes_after_the_last_layer(layered: Story, said: str) -> None:
    """Another update, a pause, catching up, a checkpoint: the round is told before."""
    trainer_of(layered).steps_beside = 100
    commit_round(layered)
    match said:
        case "commit":
            layered.link.queue.append(commit())
            layered.peer._hear(0.0)
        case "pause":
            layered.session.wishes.wish(Intent.PAUSE)
            layered.turns(1)
        case "behind":
            layered.link.queue.append(("behind",))
            layered.turns(3)
        case _:
            layered.peer.write_checkpoint(last=said.startswith("last"))
    assert "finish apply" in layered.trainer.done
    assert layered.told(RoundCommitted)


def test_a_link_that_is_lost_does_not_cost_the_last_checkpoint(layered: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be told of the round any more; people are, and the disk is."""
    trainer_of(layered).steps_beside = 100
    commit_round(layered)

    def lost(kind: str, *fields: Any) -> None:
        raise LinkLost

    monkeypatch.setattr(layered.link, "send", lost)
    layered.peer.write_checkpoint(last=True)
    assert layered.told(RoundCommitted)
    assert layered.shelf.written[-1] == NEXT.hex()


@pytest.mark.parametrize("case", ["last round", "behind", "pausing"])
def test_where_no_step_follows_it_is_applied_at_once(layered: Story, case: str) -> None:
    """Nothing would be beside it."""
    layered.turns(STEPS)
    match case:
        case "last round":
            run = dataclasses.replace(layered.peer.spec.run, rounds=1)
            layered.peer.spec = dataclasses.replace(layered.peer.spec, run=run)
        case "behind":
            layered.peer.in_step = False
        case _:
            layered.session.wishes.wish(Intent.PAUSE)
    layered.link.queue.append(commit())
    layered.peer._hear(0.0)
    assert layered.trainer.done[-1] in ("apply", "evaluate")
    assert layered.told(RoundCommitted)


def test_damage_leaves_the_peer_where_it_was(layered: Story) -> None:
    """As if the commit had not come: the anchor's name still fits what the trainer holds."""
    trainer_of(layered).damaged = True
    layered.turns(STEPS)
    layered.link.queue.append(commit())
    with pytest.raises(BadInput):
        layered.turns(1)
    layered.peer.write_checkpoint(last=True)
    assert layered.shelf.written[-1] == HEAD.anchor.hex()
    assert not layered.told(RoundCommitted)


def test_who_evaluates_the_round_does_so_once_it_is_applied(layered: Story) -> None:
    """Its own time is exposed, in the next round."""
    layered.trainer.evaluate_s = 3.0
    layered.trainer.me = layered.peer.members[1]
    commit_round(layered)
    assert not layered.told(Evaluated)
    layered.turns(2)
    assert [event.round for event in layered.told(Evaluated)] == [1]
    assert layered.trainer.done[-3:] == ["finish apply", "evaluate", "step"]
    assert layered.peer.exposure.seconds - layered.peer.exposed_before_s == pytest.approx(3.0)
