"""A peer whose branch lost: it goes back, says so, and goes on with the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.events import AlertRaised, RoundCommitted
from peer.train import replay
from tests.peer.rounds.build import HEAD, NAMES, block, update
from tests.peer.story import NEXT, STEPS, Story, commit

UNDO = ("undo", (block().to_bytes(),), HEAD.anchor, NAMES)


@pytest.fixture
def sought(story: Story, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Which anchors were restored."""
    asked: list[tuple[bytes, int]] = []

    def restore_at(directory: Path, spec: object, name: bytes, round: int) -> SimpleNamespace:
        asked.append((name, round))
        return SimpleNamespace(round=round)

    monkeypatch.setattr(replay, "restore_at", restore_at)
    story.link.directory = Path("DIR")  # type: ignore[attr-defined]
    return asked


def test_it_stands_at_the_fork_again_and_has_that_on_disk(story: Story, sought: list[tuple[bytes, int]]) -> None:
    """Restored, given back, written, and told to the link, in this order; then the other branch is applied."""
    story.turns(STEPS)
    story.link.queue.append(commit())
    story.turns(1)
    written = len(story.shelf.written)
    story.link.queue += [UNDO, commit(block(update(ballot=1)))]
    story.turns(1)
    assert sought == [(HEAD.anchor, 0)]
    assert story.trainer.done[-2:] == ["undo 1", "apply"]
    assert story.shelf.written[written:] == [HEAD.anchor.hex()]
    assert story.link.told[-2:] == [("applied", HEAD.anchor, b"state"), ("applied", NEXT, b"state")]
    assert [event.round for event in story.told(RoundCommitted)] == [1, 1]
    (alert,) = (alert for alert in story.told(AlertRaised) if alert.code == "FORK")
    assert (alert.level, alert.text) == (
        "info",
        "round 1 is undone; what this peer had put into it is owed again",
    )


def test_work_that_cannot_be_given_back_is_a_warning(story: Story, sought: list[tuple[bytes, int]]) -> None:
    """It names how much."""
    story.trainer.lost = 1
    undone = tuple(block(update(round=round)).to_bytes() for round in (3, 2, 1))
    story.link.queue.append(("undo", undone, HEAD.anchor, NAMES))
    story.turns(1)
    (alert,) = story.told(AlertRaised)
    assert alert.level == "warning"
    assert alert.text.startswith("rounds 1 to 3 are undone; what this peer had put into 3 of them is owed again; ")
    assert alert.text.endswith("what it had put into 1 of them is not on its disk any more and is lost")


def test_it_trains_on_from_there(story: Story, sought: list[tuple[bytes, int]]) -> None:
    """A new round of all its steps, and one freeze."""
    story.turns(STEPS)
    story.link.queue.append(commit())
    story.turns(2)
    story.link.queue.append(UNDO)
    story.turns(1)
    del story.trainer.done[:]
    story.turns(STEPS + 1)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "freeze"]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)
