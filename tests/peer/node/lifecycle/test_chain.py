"""When a checkpoint is written, and where a peer begins on the chain of its disk."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dht.errors import RunMismatch
from peer.node.lifecycle.inputs_effects import Began, Greet, Step, Woken
from peer.node.lifecycle.state import SAVE_EVERY_S, SAVE_SHARE, Joining
from peer.schema.events import AlertRaised, CheckpointWritten
from peer.schema.ipc import OfferContribution
from tests.peer.consensus.rounds.build import HEAD, NAMES, update
from tests.peer.node.lifecycle.story import (
    NEXT,
    STEPS,
    Story,
    beginning,
    commit,
    in_step,
    positioned,
    replayed,
)

# ---- checkpoints ----


def test_a_checkpoint_is_written_while_the_round_is_agreed(story: Story) -> None:
    """After the link heard of the contribution, so that nobody waits for a disk."""
    story.turns(STEPS)
    assert story.saved == [HEAD.anchor]
    assert story.told[-1] == OfferContribution(HEAD.anchor)
    (event,) = story.all(CheckpointWritten)
    assert (event.round, event.path) == (0, "DIR/checkpoints/00000001")


def test_a_long_round_is_written_within(story: Story) -> None:
    """A crash costs minutes, not the hours of a round."""
    story.trainer.takes_s[Step] = SAVE_EVERY_S / 2 + 1
    story.turns(2)
    assert story.saved[:1] == [HEAD.anchor]


def test_a_slow_disk_takes_no_more_than_its_share(story: Story) -> None:
    """However often a round ends."""
    story.save_s = 10.0
    for number in range(2):
        story.turns(STEPS)
        story.queue.append(commit(update(round=number + 1)))
        story.turns(1)
    assert story.saved == [HEAD.anchor]
    story.now += 10.0 / SAVE_SHARE
    story.turns(STEPS)
    assert len(story.saved) == 2


def test_no_room_for_a_checkpoint_is_told_once(story: Story) -> None:
    """Training goes on with the one before; when there is room again, the next one is written."""
    story.room_for_checkpoints = False
    for number in range(2):
        story.turns(STEPS)
        story.queue.append(commit(update(round=number + 1)))
        story.turns(1)
    assert story.life.trainer.round == 2
    assert [event.code for event in story.all(AlertRaised)] == ["CHECKPOINT"]
    story.leave()
    story.turns(1)
    assert story.left
    assert "are lost" in story.all(AlertRaised)[-1].text


def test_there_is_room_again(story: Story) -> None:
    """Then the next one is written without a word."""
    story.room_for_checkpoints = False
    story.turns(STEPS)
    story.room_for_checkpoints = True
    story.queue.append(commit())
    story.turns(1 + STEPS)
    assert story.saved == [NEXT]


# ---- where the chain stands ----


def test_the_link_hears_where_the_trainer_stands_and_it_replays_from_there() -> None:
    story = beginning()
    story.feed(Woken)
    assert [effect for effect in story.effects if isinstance(effect, Greet)] == [Greet(b"")]
    story.feed(lambda now: Began(now, HEAD.anchor, NAMES), replayed(), positioned(NEXT), in_step)
    story.turns(2)
    assert story.trainer.done[:2] == ["replay", "resume"]
    assert story.life.round.anchor == NEXT


def test_a_checkpoint_beside_the_chain_is_refused(story: Story) -> None:
    """One line that says what to do."""
    story.life = replace(story.life, connection=Joining("begin"))
    story.feed(lambda now: Began(now, NEXT, NAMES))
    assert isinstance(story.failed, RunMismatch)
    assert "move the checkpoints away" in str(story.failed)


@pytest.mark.parametrize("on_device", [True, False])
def test_until_a_step_is_to_be_made_the_gpu_is_its_owners(on_device: bool) -> None:
    """Whoever waits for the founders of a run may wait for hours."""
    story = beginning(on_device=on_device)
    story.feed(Woken, lambda now: Began(now, HEAD.anchor, NAMES), positioned())
    story.turns(1)
    assert story.trainer.status.on_device == on_device
    story.queue.append(in_step)
    story.turns(2)
    assert story.trainer.status.on_device
    assert story.trainer.done[-2:] == ["begin", "step"]
