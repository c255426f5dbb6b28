"""A home that works for the lead of a cluster: it steps when the lead does, and submits when the lead says so."""

from __future__ import annotations

from msgspec.structs import replace

from tests.peer.node.lifecycle.story import STEPS, Story, commit, joined, submit_asked


def worker() -> Story:
    """In step, at the first anchor."""
    story = joined(is_in_step=True)
    story.life = replace(story.life, serves=True)
    return story


def test_it_offers_nothing_by_itself() -> None:
    """However many steps its lead has had it make: only the lead counts them."""
    story = worker()
    story.turns(3 * STEPS)
    assert story.trainer.done.count("step") >= 2 * STEPS
    assert not story.trainer.status.offered


def test_it_submits_when_it_is_asked_and_goes_on_when_the_round_is_decided() -> None:
    story = worker()
    story.turns(2)
    story.queue.append(submit_asked)
    story.turns(3)
    assert story.trainer.status.offered
    assert story.state == "AVERAGING"
    story.queue.append(commit())
    story.turns(4)
    assert story.trainer.status.round == 1
    assert story.state == "TRAINING"


def test_it_submits_although_it_has_learned_nothing() -> None:
    """It has come back, and lost what it had: what it owes, or zeros, is its layers' part all the same."""
    story = worker()
    story.queue.append(submit_asked)
    story.turns(2)
    assert story.trainer.status.offered


def test_who_asks_before_it_stands_there_is_heard_once_it_does() -> None:
    """The lead may have applied a round first."""
    story = worker()
    story.turns(1)
    story.queue += [submit_asked, commit(), submit_asked]
    story.turns(8)
    assert story.trainer.done.count("apply") == 1
    assert story.trainer.status.round == 1
    assert story.trainer.status.offered
