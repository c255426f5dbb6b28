"""A peer that applies an update beside its next inner steps: who hears of it when, and what counts as exposed."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from dht.errors import BadInput, DeviceLost
from peer.node.lifecycle.inputs_effects import (
    Apply,
    Emit,
    EmitRound,
    Evaluate,
    LayersReady,
    LeaveDevice,
    Save,
    Step,
    Submit,
    TrainerFailed,
    Work,
)
from peer.schema.events import Evaluated, PhaseEntered, RoundStarted
from peer.schema.ipc import Leave, LossMeasured, StandsAt
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.node.lifecycle.story import (
    NEXT,
    PAUSED,
    STATE,
    STEPS,
    Story,
    behind,
    commit,
    joined,
    spec,
    submit_asked,
)

WAITS_S = 0.25
"""For layers, in every step until they are there."""


@pytest.fixture
def layered() -> Story:
    """A peer that has joined and is in step."""
    story = joined(spec(overlap="layerwise"))
    story.trainer.applies_at_once = False
    return story


def commit_round(story: Story) -> None:
    """Make all steps, offer them, and hear of the commit: its layers are on their way."""
    story.turns(STEPS)
    story.feed(commit())
    story.turns(1)
    assert story.trainer.done[-1] == "apply"
    story.trainer.waited_s = WAITS_S


def layers_ready(story: Story) -> None:
    story.trainer.waited_s = 0.0
    story.feed(lambda now: LayersReady(now, STATE))


def test_the_next_step_begins_before_the_update_is_applied(layered: Story) -> None:
    """The round is told, to people and the link, when its state is known: one step later."""
    commit_round(layered)
    assert layered.life.round.anchor == NEXT
    assert isinstance(layered.pending, Step)
    assert not layered.rounds
    layered.turns(1)
    layers_ready(layered)
    assert [told.state for told in layered.rounds] == [STATE]
    assert layered.told[-1] == StandsAt(NEXT, STATE)
    told = [
        type(effect.event if isinstance(effect, Emit) else effect)
        for effect in layered.effects
        if isinstance(effect, EmitRound) or (isinstance(effect, Emit) and isinstance(effect.event, RoundStarted))
    ]
    assert told == [RoundStarted, RoundStarted, EmitRound]


def test_exposed_is_the_wait_for_the_commit_and_what_the_steps_waited_for_layers(layered: Story) -> None:
    """Not the steps themselves, however many of them it takes."""
    layered.turns(STEPS)
    layered.now += 5.0
    layered.feed(commit())
    layered.turns(1)
    layered.trainer.waited_s = WAITS_S
    layered.turns(2)
    layers_ready(layered)
    (told,) = layered.rounds
    assert told.exposed_s == pytest.approx(5.0 + 2 * WAITS_S)
    assert told.round_s == pytest.approx(STEPS + 5.0 + 2)


def test_the_wait_for_layers_is_no_part_of_a_step(layered: Story) -> None:
    """What a peer's speed is learned from."""
    commit_round(layered)
    layered.turns(1)
    layers_ready(layered)
    layered.turns(1)
    measured = [seconds for seconds, _ in layered.life.pace.speed.steps]
    assert measured == pytest.approx([1.0] * STEPS + [1.0 - WAITS_S, 1.0])


def test_who_gives_early_waits_for_the_last_layer_first(layered: Story) -> None:
    """The others ask for what there is after one step; waiting is exposed, in the round that it belongs to."""
    commit_round(layered)
    layered.feed(submit_asked)
    layered.turns(2)
    assert layered.trainer.done[-2:] == ["begin", "step"]
    layered.now += 7.0
    layers_ready(layered)
    layered.turns(1)
    assert layered.trainer.done[-1] == "submit"
    (told,) = layered.rounds
    assert told.exposed_s == pytest.approx(7.0 + WAITS_S)
    assert [event.phase for event in layered.all(PhaseEntered)] == ["submit", "apply", "submit"]


@pytest.mark.parametrize(("said", "follows"), [("commit", Apply), ("pause", LeaveDevice), ("leave", Save)])
def test_whatever_needs_the_whole_anchor_comes_after_the_last_layer(
    layered: Story, said: str, follows: type[Work]
) -> None:
    """Another update, a pause, the last checkpoint: the round is told before."""
    commit_round(layered)
    match said:
        case "commit":
            layered.feed(commit())
        case "pause":
            layered.hold(PAUSED)
        case _:
            layered.leave()
    done = list(layered.trainer.done)
    layered.turns(3)
    assert layered.trainer.done == [*done, "begin", "step"]
    assert not layered.rounds
    layers_ready(layered)
    assert len(layered.rounds) == 1
    assert isinstance(layered.pending, follows)


def test_a_peer_that_falls_behind_waits_for_its_layers_without_a_step(layered: Story) -> None:
    commit_round(layered)
    layered.feed(behind)
    layered.turns(3)
    assert layered.trainer.done[-2:] == ["begin", "step"]
    layers_ready(layered)
    assert [told.in_step for told in layered.rounds] == [False]


@pytest.mark.parametrize("case", ["last round", "behind", "pausing"])
def test_where_no_step_follows_it_is_applied_at_once(layered: Story, case: str) -> None:
    """Nothing would be beside it."""
    layered.turns(STEPS)
    match case:
        case "last round":
            run = layered.life.run
            layered.life = replace(
                layered.life, run=dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=1))
            )
        case "behind":
            layered.feed(behind)
        case _:
            layered.hold(PAUSED)
    layered.queue.append(commit())
    layered.turns(1)
    assert layered.trainer.done[-1] in ("apply", "evaluate")
    assert len(layered.rounds) == 1


def test_damage_leaves_the_peer_where_it_was(layered: Story) -> None:
    """As if the commit had not come: the anchor's name still fits what the trainer holds, and that is kept."""
    layered.turns(STEPS)
    layered.feed(commit())
    assert isinstance(layered.pending, Apply)
    layered.pending = None
    damage = BadInput("its bytes are not those that were agreed")
    layered.feed(lambda now: TrainerFailed(now, damage, in_work=True))
    assert layered.failed is damage
    layered.leave()
    layered.turns(1)
    assert layered.left
    assert layered.saved[-1] == HEAD.anchor
    assert not layered.rounds


def test_layers_that_fail_end_the_peer_and_not_its_checkpoint_alone(layered: Story) -> None:
    """What the trainer says to the last checkpoint is heard, and nothing is tried for ever."""
    commit_round(layered)
    failure = BadInput("its bytes are not those that were agreed")
    layered.feed(lambda now: TrainerFailed(now, failure))
    assert layered.failed is failure
    layered.leave()
    while not isinstance(layered.pending, Save):
        layered._work()
    layered.pending = None
    layered.feed(lambda now: TrainerFailed(now, failure, in_work=True))
    assert layered.left


@pytest.mark.parametrize("in_work", [True, False])
def test_a_device_that_is_gone_is_asked_for_no_checkpoint(layered: Story, in_work: bool) -> None:
    """It would answer nothing, or never. The others hear that this peer leaves."""
    commit_round(layered)
    saved, failure = list(layered.saved), DeviceLost("cuda has failed")
    layered.pending = None if in_work else layered.pending
    layered.feed(lambda now: TrainerFailed(now, failure, in_work=in_work))
    assert layered.left
    assert layered.failed is failure
    assert Leave(finished=False) in layered.told
    assert layered.saved == saved


def test_who_evaluates_the_round_does_so_once_it_is_applied(layered: Story) -> None:
    """Its own time is exposed, in the next round; the others read it on the board."""
    layered.trainer.takes_s[Evaluate] = 3.0
    layered.life = replace(layered.life, me=layered.life.round.members[1])
    commit_round(layered)
    layered.turns(1)
    assert not layered.all(Evaluated)
    layers_ready(layered)
    layered.turns(2)
    assert [(event.round, event.precision) for event in layered.all(Evaluated)] == [(1, "bfloat16")]
    assert layered.words(LossMeasured) == [LossMeasured(1, 3.0)]
    assert layered.trainer.done[-3:] == ["step", "evaluate", "step"]
    assert layered.life.times.exposed_s - layered.life.told_exposed_s == pytest.approx(3.0)


def test_a_loss_for_which_there_is_no_room_is_not_measured(story: Story) -> None:
    """It is said; the round counts, and training goes on."""
    story.life = replace(story.life, me="p1")
    story.trainer.loses = False
    story.turns(STEPS)
    story.queue.append(commit())
    story.turns(2)
    (alert,) = (event for event in story.events if getattr(event, "code", "") == "MEMORY")
    assert getattr(alert, "text", "").endswith("the held-out loss of this round is not measured here")
    assert story.words(LossMeasured) == []
    assert story.why == "towards round 2"
    assert Submit not in [type(story.pending)]
