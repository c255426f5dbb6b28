"""A peer whose owner pauses it: what it has made is given, nobody waits for it, and it goes on at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.events import AlertRaised, Evaluated, InnerProgressed, PeerStateChanged, RoundCommitted
from peer.limits.desired_state import PAUSED_WHY, Intent
from peer.session import POLL_S
from tests.peer.rounds.build import HEAD, block, update
from tests.peer.story import NEXT, STEPS, Story, commit


@pytest.fixture
def paused(story: Story) -> Story:
    """After one of its steps."""
    story.turns(1)
    story.session.wishes.wish(Intent.PAUSE)
    story.link.on_wait = story.clock.sleep
    story.turns(3)
    return story


def state(story: Story) -> tuple[str, str]:
    event = story.told(PeerStateChanged)[-1]
    return event.state, event.why


def test_what_was_made_is_given_and_no_step_follows(paused: Story) -> None:
    """Below H, too; the link hears of it once, as of a peer that sits out."""
    assert paused.trainer.done == ["begin", "step", "freeze"]
    assert paused.link.kinds().count("paused") == 1
    assert paused.link.told[-1] == ("paused", HEAD.anchor)
    assert "frozen" not in paused.link.kinds()
    assert sum(event.tokens for event in paused.told(InnerProgressed)) == 64
    assert paused.shelf.written == [HEAD.anchor.hex()]
    assert state(paused) == ("PAUSED", PAUSED_WHY)


def test_the_device_is_free_before_what_was_made_is_written(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may want to start a game, and a large contribution takes a disk some seconds."""
    away: list[bool] = []
    begin_submit = story.trainer.begin_submit

    def begin(anchor: bytes, announce: Callable[[], None]) -> None:
        away.append(story.trainer.is_away)
        begin_submit(anchor, announce)

    monkeypatch.setattr(story.trainer, "begin_submit", begin)
    story.turns(1)
    story.session.wishes.wish(Intent.PAUSE)
    story.turns(1)
    assert away == [True]


def test_a_peer_that_has_made_nothing_gives_nothing(story: Story) -> None:
    story.session.wishes.wish(Intent.PAUSE)
    story.turns(2)
    assert story.trainer.done == []
    assert story.link.told == [("paused", HEAD.anchor)]


def test_a_paused_peer_stays_in_step(paused: Story) -> None:
    """It applies what the others decide, and is ready at once at every anchor."""
    for number in range(2):
        paused.link.queue.append(commit(block(update(round=number + 1))))
        paused.turns(2)
    assert paused.trainer.done.count("apply") == 2
    assert paused.trainer.done.count("step") == 1
    anchors = [fields[0] for kind, *fields in paused.link.told if kind == "paused"]
    assert anchors == [HEAD.anchor, NEXT, NEXT]
    assert len(paused.told(RoundCommitted)) == 2


def test_paused_time_is_not_exposed(paused: Story) -> None:
    """The others agree for as long as they like: this peer would not have trained."""
    paused.clock.now += 500.0
    paused.turns(1)
    paused.link.queue.append(commit())
    paused.turns(1)
    (event,) = paused.told(RoundCommitted)
    assert event.round_s > 500.0
    assert event.exposed_s <= 2 * POLL_S


def test_the_wait_for_others_before_a_pause_is_exposed(story: Story) -> None:
    """Only what it could have trained in, and did not for want of an anchor."""
    story.turns(STEPS + 1)
    story.clock.now += 7.0
    story.session.wishes.wish(Intent.PAUSE)
    story.turns(1)
    story.clock.now += 100.0
    story.link.queue.append(commit())
    story.turns(1)
    (event,) = story.told(RoundCommitted)
    assert event.exposed_s == pytest.approx(7.0)


def test_it_trains_again_at_once(paused: Story) -> None:
    """Its part of this round is given, so its steps count for the next one; those of that round it makes in full."""
    paused.link.on_wait = lambda timeout_s: None
    paused.session.wishes.wish(Intent.TRAIN)
    paused.turns(2)
    assert paused.trainer.done == ["begin", "step", "freeze", "step", "step"]
    assert paused.link.kinds().count("resumed") == 1
    assert state(paused) == ("TRAINING", "towards round 2, since its part of round 1 is given")
    paused.link.queue.append(commit())
    paused.turns(STEPS + 1)
    assert paused.trainer.done.count("freeze") == 2
    assert paused.link.told[-1] == ("frozen", NEXT)


def test_who_gave_nothing_may_still_give_something_after_a_pause(story: Story) -> None:
    """As if the round began now for it."""
    story.session.wishes.wish(Intent.PAUSE)
    story.turns(2)
    story.clock.now += 1000.0
    story.session.wishes.wish(Intent.TRAIN)
    story.turns(1)
    assert state(story) == ("TRAINING", "towards round 1")
    assert story.trainer.done == ["begin", "step"]
    story.turns(STEPS - 1)
    assert story.trainer.done[-1] == "freeze"
    assert [kind for kind in story.link.kinds() if kind != "progress"] == ["paused", "resumed", "frozen"]


def test_finishing_makes_all_steps_of_the_round_first(story: Story) -> None:
    story.turns(1)
    story.session.wishes.wish(Intent.FINISH)
    story.turns(STEPS + 2)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "freeze"]
    assert story.link.kinds()[-2:] == ["frozen", "paused"]
    assert state(story)[0] == "PAUSED"


def test_finishing_a_round_that_is_given_pauses_at_once(story: Story) -> None:
    story.turns(STEPS + 1)
    story.session.wishes.wish(Intent.FINISH)
    story.turns(1)
    assert state(story)[0] == "PAUSED"


def test_who_resumes_before_the_round_is_finished_does_not_pause(story: Story) -> None:
    story.session.wishes.wish(Intent.FINISH)
    story.turns(1)
    story.session.wishes.wish(Intent.TRAIN)
    story.turns(STEPS)
    assert state(story)[0] == "AVERAGING"


def test_a_wish_while_it_catches_up_is_remembered(story: Story) -> None:
    """It comes into step first."""
    story.peer.in_step = False
    story.session.wishes.wish(Intent.PAUSE)
    story.turns(2)
    assert state(story)[0] == "SYNCING"
    story.link.queue.append(("in_step",))
    story.turns(2)
    assert state(story)[0] == "PAUSED"
    assert story.trainer.done == []


def test_a_pause_ends_a_rest(story: Story) -> None:
    """A gentle peer pauses within a moment."""
    story.session.wishes.min_step_s = 1000.0

    def wait(seconds: float) -> None:
        story.clock.sleep(seconds)
        if len(story.link.waits) == 4:
            story.session.wishes.wish(Intent.PAUSE)

    story.link.on_wait = wait
    story.turns(1)
    assert story.clock.now - 1000.0 < story.trainer.step_s + 4 * POLL_S


def test_a_new_link_hears_that_the_peer_is_paused(paused: Story) -> None:
    """It knows nothing of what the one before was told."""
    paused.link.queue.append(("resume", HEAD.anchor))
    paused.turns(2)
    assert paused.link.kinds().count("paused") == 2


def test_a_freeze_that_was_asked_for_before_a_pause_is_forgotten(story: Story) -> None:
    """After the pause all steps are made."""
    story.session.wishes.wish(Intent.PAUSE)
    story.link.queue.append(("freeze",))
    story.turns(2)
    story.session.wishes.wish(Intent.TRAIN)
    story.turns(2)
    assert "freeze" not in story.trainer.done


def test_leaving_while_paused(paused: Story) -> None:
    """Whoever pauses can go."""
    paused.session.stopping = True
    paused.peer.met = True
    paused.peer.take_part()
    assert paused.trainer.done.count("step") == 1


def test_a_full_disk_does_not_keep_the_pause_from_the_others(story: Story) -> None:
    """Else they would wait for it in every round; its work stays in memory and is given at the next anchor."""
    story.turns(1)
    story.trainer.room = False
    story.session.wishes.wish(Intent.PAUSE)
    story.link.on_wait = story.clock.sleep
    story.turns(4)
    assert story.link.kinds().count("paused") == 1
    (alert,) = story.told(AlertRaised)
    assert "stays in memory" in alert.text
    story.trainer.room = True
    story.link.queue.append(commit())
    story.turns(3)
    assert story.trainer.done[-1] == "freeze"


def test_finishing_is_done_with_the_freeze(story: Story) -> None:
    """Also if the round is decided before the next turn: no step of another round follows."""
    story.session.wishes.wish(Intent.FINISH)
    story.turns(STEPS)
    story.link.queue.append(commit())
    assert story.session.wishes.pausing
    story.turns(3)
    assert story.trainer.done.count("step") == STEPS


def test_a_paused_peer_measures_nothing(paused: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner wants the device."""
    monkeypatch.setattr(paused.peer, "_my_turn_to_evaluate", lambda update: True)
    paused.link.queue.append(commit())
    paused.turns(2)
    assert "evaluate" not in paused.trainer.done
    assert paused.told(Evaluated) == []
