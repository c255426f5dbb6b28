"""The prompts of a run: who continues them, when, what people read, and that an owner comes first."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peer.node.lifecycle.inputs_effects import ContinuePrompts
from peer.schema.events import AlertRaised, SampleWritten
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import EvaluateTable
from tests.peer.node.lifecycle.story import NAMES, PAUSED, STEPS, Story, commit, joined, positioned, spec, update


def prompted(every: int = 1, rounds: int = 0) -> RunSpec:
    run = spec()
    return dataclasses.replace(
        run,
        run=dataclasses.replace(run.run, rounds=rounds),
        evaluate=EvaluateTable(prompts=("Once\nupon", "def"), every=every),
    )


def beginning(run: RunSpec, me: str) -> Story:
    story = joined(run, is_in_step=False)
    story.life = replace(story.life, me=me)
    return story


@pytest.mark.parametrize(("every", "last", "expected"), [(1, 0, range(1, 7)), (4, 0, [4]), (4, 6, [4, 6])])
def test_exactly_one_member_continues_them(every: int, last: int, expected: Sequence[int]) -> None:
    """They take turns; both prompts in one go."""
    told: Counter[int] = Counter()
    who = set()
    for me in NAMES:
        story = beginning(prompted(every, last), me)
        for round in range(1, 7):
            story.queue.append(commit(update(round=round)))
            story.turns(1)
        told.update(event.round for event in story.all(SampleWritten))
        who |= {me} if story.all(SampleWritten) else set()
    assert told == dict.fromkeys(expected, 2)
    assert who == set(NAMES) or every > 1


def test_the_first_founder_continues_them_from_the_start() -> None:
    """What comes later is seen beside it."""
    samples = []
    for me in NAMES:
        story = beginning(prompted(), me)
        story.queue.append(positioned())
        story.turns(1)
        samples += story.all(SampleWritten)
    assert [event.round for event in samples] == [0, 0]


def test_what_is_told_is_one_bounded_line() -> None:
    """Other machines show it: nothing in it that a terminal obeys."""
    story = beginning(prompted(), "p1")
    story.queue.append(commit())
    story.turns(1)
    first, second = story.all(SampleWritten)
    assert (first.round, first.prompt, first.text) == (1, "Once ↵ upon", "of 1 ↵ and\N{REPLACEMENT CHARACTER}[2J")
    assert (second.prompt, second.text) == ("def", "x" * 2000)


def test_a_run_without_prompts_asks_for_none() -> None:
    story = beginning(spec(), "p1")
    story.queue.append(commit())
    story.turns(1)
    assert "evaluate" in story.trainer.done
    assert "continue" not in story.trainer.done


def test_a_paused_peer_continues_none() -> None:
    """And a pause ends what it had begun."""
    story = joined(prompted())
    story.life = replace(story.life, me="p1")
    story.turns(STEPS)
    story.feed(commit())
    while not isinstance(story.pending, ContinuePrompts):
        story._work()
    story.hold(PAUSED)
    assert story.interrupted[-1] is True
    story.turns(2)
    done = story.trainer.done.count("continue")
    story.queue.append(commit(update(round=2)))
    story.turns(2)
    assert story.trainer.done.count("continue") == done


def test_a_device_without_room_is_told() -> None:
    story = beginning(prompted(), "p1")
    story.trainer.loses = False
    story.queue.append(commit())
    story.turns(1)
    assert story.all(SampleWritten) == []
    assert "the prompts of this run are not continued here" in story.all(AlertRaised)[-1].text
