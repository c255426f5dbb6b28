"""A peer's story: train, submit, wait, apply, measure, catch up, leave."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from msgspec.structs import replace

from peer.node.lifecycle.inputs_effects import Apply, Evaluate, Interrupt, Step
from peer.node.lifecycle.state import Following
from peer.schema.events import (
    AlertRaised,
    Evaluated,
    InnerProgressed,
    PeerStateChanged,
    RoundStarted,
)
from peer.schema.ipc import Leave, LossMeasured, OfferContribution, ReportProgress, StandsAt
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, update
from tests.peer.node.lifecycle.story import (
    NEXT,
    STATE,
    STEPS,
    Said,
    Story,
    behind,
    commit,
    endless,
    in_step,
    joined,
    positioned,
    replayed,
    snapshot_taken,
    spec,
    submit_asked,
)


def test_a_peer_that_is_behind_waits_for_the_link() -> None:
    """It trains once the link says it is in step, not before, and nothing wakes it meanwhile."""
    story = joined(is_in_step=False)
    story.turns(2)
    assert story.trainer.done == []
    assert story.waits == [float("inf")] * 2
    story.queue.append(in_step)
    story.turns(2)
    assert story.trainer.done == ["begin", "step"]


def test_a_peer_that_falls_behind_stops_training_until_it_is_in_step(story: Story) -> None:
    """It slept: what it would train on is long past."""
    story.turns(1)
    story.queue.append(behind)
    story.turns(2)
    steps = story.trainer.done.count("step")
    story.turns(3)
    assert story.trainer.done.count("step") == steps
    assert story.state == "SYNCING"
    story.queue.append(in_step)
    story.turns(2)
    assert story.trainer.done.count("step") > steps


def test_a_peer_that_is_asked_to_leave_does_not_catch_up_to_the_end() -> None:
    """Hundreds of blocks may wait: it applies the one it is at, and goes."""
    story = joined(is_in_step=False)
    story.feed(*[commit() for _ in range(5)])
    story.leave()
    story.turns(1)
    assert story.trainer.done.count("apply") == 1
    assert story.left


def test_all_steps_then_submit_then_wait(story: Story) -> None:
    """H steps, one contribution, and the link hears of it once."""
    story.turns(STEPS + 3)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "submit"]
    assert story.words(OfferContribution) == [OfferContribution(HEAD.anchor)]
    assert story.told[-1] == OfferContribution(HEAD.anchor)
    assert story.state == "AVERAGING"
    assert story.all(RoundStarted)[0].steps == STEPS


def test_a_gentle_peer_rests_after_each_step_and_wakes_for_the_next() -> None:
    """A step and its rest take `min_step_s`, and the last step of a round is followed by the submit at once."""
    story = joined(is_in_step=False)
    story.gentle(5.0)
    story.on_wait = story.sleep
    began_at = story.now
    story.feed(in_step)
    story.until(lambda: story.trainer.status.offered)
    assert story.now - began_at == pytest.approx((STEPS - 1) * 5.0 + 1.0)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "submit"]
    assert 0 < max(story.waits) <= 4.0


@pytest.mark.parametrize(("said", "done"), [(submit_asked, "submit"), (commit(), "apply")])
def test_a_gentle_peer_does_in_its_rest_what_the_link_wants(said: Said, done: str) -> None:
    """It answers at once, but its next step is made no sooner for that."""
    story = joined(is_in_step=False)
    story.gentle(1000.0)
    story.feed(in_step)
    story.turns(1)
    story.queue.append(said)
    story.turns(1)
    assert story.trainer.done == ["begin", "step", done]
    assert story.now == 1001.0
    story.on_wait = story.sleep
    if done == "submit":
        story.queue.append(commit())
    story.until(lambda: story.trainer.done.count("step") == 2)
    assert story.now - 1000.0 == 1000.0 + 1.0


def test_what_is_done_within_a_rest_is_not_exposed() -> None:
    """The wait for the others is, from the end of the rest on."""
    story = joined(is_in_step=False)
    story.gentle(10.0)
    story.feed(in_step)
    story.on_wait = story.sleep
    story.until(lambda: story.trainer.status.offered)
    story.now = story.life.rests_until + 3.0
    story.queue.append(commit())
    story.turns(1)
    assert [told.exposed_s for told in story.rounds] == [3.0]


def test_a_gentle_peer_that_falls_behind_does_not_finish_its_rest() -> None:
    """What it would rest for is long past."""
    story = joined(is_in_step=False)
    story.gentle(1000.0)
    story.feed(in_step)
    story.turns(1)
    story.feed(behind)
    assert story.state == "SYNCING"


def test_a_gentle_peer_that_is_asked_to_leave_does_not_finish_its_rest() -> None:
    story = joined(is_in_step=False)
    story.gentle(1000.0)
    story.feed(in_step)
    story.turns(1)
    story.leave()
    story.turns(1)
    assert story.left
    assert story.now == 1001.0


def test_the_memory_of_a_gpu_is_told_with_progress(story: Story) -> None:
    story.trainer.status = replace(story.trainer.status, device_gb=24.0)
    story.turns(STEPS)
    assert {told.device_gb for told in story.words(ReportProgress)} == {24.0}


def test_progress_is_told_once_a_second_and_at_the_end(story: Story) -> None:
    """The link learns the share that is done; people learn loss and speed."""
    story.trainer.takes_s[Step] = 0.4
    story.turns(STEPS)
    told = story.words(ReportProgress)
    assert [message.share for message in told] == [0.75, 1.0]
    assert [(message.loss, message.tokens_per_s, message.device_gb) for message in told] == [(2.0, 160.0, None)] * 2
    assert [event.tokens for event in story.all(InnerProgressed)] == [192, 64]
    assert all(event.loss == 2.0 for event in story.all(InnerProgressed))


def test_a_slow_peer_submits_when_the_time_is_over(story: Story) -> None:
    """It gives what it has."""
    story.trainer.takes_s[Step] = 60.0
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "submit"]


def test_a_submit_is_made_after_the_step_that_is_being_made(story: Story) -> None:
    """The others are done; half a contribution is better than none. A simulated trainer makes no further step."""
    story.turns(1)
    story.feed(submit_asked)
    assert story.effects[-1] == Interrupt(at_once=False)
    story.turns(1)
    assert story.trainer.done == ["begin", "step", "step", "submit"]


def test_who_has_made_nothing_makes_a_step_before_it_submits(story: Story) -> None:
    story.feed(submit_asked)
    story.turns(1)
    assert story.trainer.done == ["begin", "step", "submit"]


def test_an_ask_that_comes_too_late_is_ignored(story: Story) -> None:
    """One contribution per anchor; and it does not submit the next round by itself."""
    story.turns(STEPS)
    story.queue.append(submit_asked)
    story.queue.append(commit())
    story.turns(2)
    assert story.trainer.done.count("submit") == 1
    story.turns(STEPS - 2)
    assert story.trainer.done.count("submit") == 1


def test_an_ask_followed_by_a_commit_is_forgotten(story: Story) -> None:
    """The request was about the anchor before."""
    story.turns(1)
    story.feed(submit_asked, commit())
    story.turns(2)
    assert story.trainer.done[-2:] == ["begin", "step"]
    assert "submit" not in story.trainer.done


def test_an_ask_that_follows_a_commit_is_about_the_next_anchor(story: Story) -> None:
    """Also while the update before it is still to be applied."""
    story.turns(1)
    story.feed(commit(), submit_asked)
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "apply", "begin", "submit"]
    assert story.words(OfferContribution) == [OfferContribution(NEXT)]


def test_a_commit_is_applied_and_told(story: Story) -> None:
    """To the link with the state it led to, to people with everything that counted."""
    story.turns(STEPS)
    story.now += 5.0
    story.queue.append(commit())
    story.turns(1)
    assert story.told[-1] == StandsAt(NEXT, STATE)
    (told,) = story.rounds
    assert (told.update.round, told.bytes_sent, told.bytes_received, told.in_step) == (1, 10, 20, True)
    assert (told.anchor, told.state) == (NEXT, STATE)
    assert (told.round_s, told.exposed_s) == (STEPS + 5.0, 5.0)
    story.turns(1)
    assert story.trainer.done[-2:] == ["begin", "step"]


def test_who_catches_up_says_that_it_is_no_news() -> None:
    """What happened to others long ago is in the rounds."""
    story = joined(is_in_step=False)
    story.queue.append(commit())
    story.turns(1)
    assert [told.in_step for told in story.rounds] == [False]


@pytest.mark.parametrize("said", [commit(), replayed()])
def test_work_that_is_given_up_for_its_age_is_told(said: Said, story: Story) -> None:
    """How much it was."""
    story.trainer.given_up = 0.125
    story.queue.append(said)
    story.turns(2)
    assert [alert.text for alert in story.all(AlertRaised)] == [
        "work of norm 0.125 was too old at round 1 and is given up; training goes on from there"
    ]


def test_a_commit_while_training_starts_the_next_round(story: Story) -> None:
    """This peer was too slow for the round; what it learned stays with the trainer."""
    story.turns(2)
    story.feed(commit())
    story.turns(1)
    assert story.trainer.done == ["begin", "step", "step", "step", "apply"]
    story.turns(1)
    assert story.trainer.done[-2:] == ["begin", "step"]
    assert story.life.round.anchor == NEXT


def test_several_commits_at_once() -> None:
    """A peer that was away applies them in a row, before it trains again."""
    story = joined(is_in_step=False)
    story.queue += [commit(), commit(), in_step]
    story.turns(2)
    assert [what for what in story.trainer.done if what != "evaluate"] == ["apply", "apply", "begin", "step"]


def test_an_overdue_round_holds_nobody(story: Story) -> None:
    """After every deadline together, inner steps go on; the contribution stays as it is."""
    story.turns(STEPS + 1)
    table = story.life.run.round
    assert story.waits == [table.gather_s + 2 * (table.silence_s + table.exchange_s)]
    story.wait(71.0)
    story.turns(3)
    assert story.trainer.done[STEPS + 1 :] == ["submit", "step", "step", "step"]
    assert (story.state, story.why) == ("TRAINING", "round 1 is overdue; training goes on")
    story.queue.append(commit())
    story.turns(2)
    assert [told.exposed_s for told in story.rounds] == [71.0]


def test_the_chain_on_disk_is_replayed_without_a_word() -> None:
    """After a restart: no round is told twice, and what was offered is offered again."""
    story = joined(is_in_step=False)
    story.queue += [replayed(), positioned(NEXT)]
    story.turns(1)
    assert story.trainer.done == ["replay", "resume"]
    assert story.rounds == []
    assert story.told == [StandsAt(NEXT, STATE)]
    assert story.life.round.anchor == NEXT


def test_a_long_replay_is_told_once_a_second() -> None:
    """Which round of how many."""
    story = joined(endless(), is_in_step=False)
    for number in range(1, 6):
        story.now += 0.4
        story.queue.append(replayed(update(round=number), 5))
        story.turns(1)
    told = [event.why for event in story.all(PeerStateChanged) if "disk" in event.why]
    assert told == ["round 4 of 5 from its own disk"]


@pytest.mark.parametrize("given_up", [0.0, 2.5])
def test_a_snapshot_moves_the_anchor(given_up: float) -> None:
    """A checkpoint follows at once; who loses work by it is told, and nobody trains before the link says so."""
    story = joined(endless(), is_in_step=False)
    story.trainer.given_up = given_up
    story.queue += [snapshot_taken(), positioned(NEXT)]
    story.turns(1)
    assert story.trainer.done == ["jump", "resume"]
    here = story.life.round
    assert (here.anchor, here.members, story.life.trainer.round) == (NEXT, NAMES[:2], 16)
    assert story.saved == [NEXT]
    assert story.told == [StandsAt(NEXT, STATE)]
    alerts = [event.text for event in story.all(AlertRaised)]
    assert len(alerts) == bool(given_up)
    assert all("goes on at round 16" in text and "2.5" in text for text in alerts)


def test_an_ask_that_a_lost_link_made_is_forgotten(story: Story) -> None:
    """The new link stands elsewhere, and asks again if it must."""
    story.turns(1)
    story.feed(submit_asked, replayed(), positioned(NEXT))
    story.turns(3)
    assert "submit" not in story.trainer.done


@pytest.mark.parametrize("kind", ["commit", "replay"])
def test_who_left_gets_no_shards_and_measures_nothing(kind: str) -> None:
    """The same members after a restart, when the link names them: the data must be the same."""
    story = joined(is_in_step=False)
    item = update(members=(header("p0"), header("p1", leaving=True), header("p2")))
    story.queue.append(commit(item) if kind == "commit" else replayed(item))
    story.turns(1)
    assert story.life.round.members == HEAD.after(item).members == ("p0", "p2")
    assert len(story.rounds) == (kind == "commit")


def test_a_round_that_all_left_is_measured_by_nobody() -> None:
    """Somebody who comes later applies it all the same."""
    story = joined(is_in_step=False)
    story.queue.append(commit(update(members=tuple(header(name, leaving=True) for name in NAMES))))
    story.turns(1)
    assert story.trainer.done == ["apply"]


def test_what_was_offered_before_a_restart_is_waited_for() -> None:
    """A round that is then overdue begins with this peer's own data, and its contribution stays as it is."""
    story = joined(is_in_step=False)
    story.trainer.status = replace(story.trainer.status, offered=True)
    story.queue += [positioned(), in_step]
    story.turns(3)
    assert "step" not in story.trainer.done
    assert story.state == "AVERAGING"
    story.wait(10 + 2 * (20 + 10) + 1)
    story.turns(STEPS + 1)
    assert [what for what in story.trainer.done if what != "evaluate"] == ["resume", "begin", *["step"] * (STEPS + 1)]


def test_every_second_of_a_round_is_training_or_exposed() -> None:
    """Measuring the anchor and catching up are no training; what one round exposed is not told again of the next."""
    story = joined(is_in_step=False)
    story.life = replace(story.life, me="p1")
    story.trainer.takes_s[Evaluate] = 7.0
    began_at = story.now
    story.queue.append(positioned())
    story.turns(1)
    for wait_s in (3.0, 4.0):
        story.now += wait_s
        story.queue.append(commit())
        story.turns(1)
    story.queue.append(in_step)
    story.turns(1 + STEPS)
    story.now += 5.0
    story.queue.append(commit())
    story.turns(1)
    times = [(told.round_s, told.exposed_s) for told in story.rounds]
    assert "evaluate" in story.trainer.done
    assert [exposed for _, exposed in times[:2]] == [seconds for seconds, _ in times[:2]]
    assert times[2][0] - times[2][1] == STEPS
    assert sum(seconds for seconds, _ in times) == story.life.told_at - began_at


def test_the_speed_of_training_leaves_out_the_wait_for_others(story: Story) -> None:
    """64 tokens per step of a second each, however long the round before was being agreed."""
    story.turns(STEPS)
    story.now += 50.0
    story.queue.append(commit())
    story.turns(1 + STEPS)
    assert {event.tokens_per_s for event in story.all(InnerProgressed)} == {64.0}


def test_the_first_founder_measures_the_start() -> None:
    """Once, and nobody else does; people read what it does."""
    done = []
    for me in NAMES:
        story = joined(is_in_step=False)
        story.life = replace(story.life, me=me)
        story.queue.append(positioned())
        story.turns(1)
        done += story.trainer.done
        words = "measuring the held-out loss of the first parameters"
        assert (words in [event.why for event in story.all(PeerStateChanged)]) == (me == "p0")
    assert done.count("evaluate") == 1


@pytest.mark.parametrize(("every", "last", "expected"), [(1, 0, 6), (2, 0, 3), (4, 0, 1), (4, 6, 2)])
def test_exactly_one_member_measures_an_anchor_and_all_the_last(every: int, last: int, expected: int) -> None:
    """They take turns; the last one is what the run has come to, and each measures it before it leaves."""
    evaluated, told = [], 0
    for me in NAMES:
        run = spec(data={"eval_every": every})
        story = joined(dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=last)), is_in_step=False)
        story.life = replace(story.life, me=me)
        for round in range(1, 7):
            before = len(story.all(Evaluated))
            story.queue.append(commit(update(round=round)))
            story.turns(1)
            evaluated += [(round, me)] * (len(story.all(Evaluated)) - before)
        told += len(story.words(LossMeasured))
        assert story.left == bool(last)
    measured = Counter(round for round, _ in evaluated)
    assert all(times == (len(NAMES) if round == last else 1) for round, times in measured.items())
    assert len(measured) == expected
    assert told == len(evaluated), "others read it on the board"
    assert len({me for _, me in evaluated}) == 3 or expected < 6


def test_who_is_no_member_measures_nothing_at_the_end() -> None:
    """As a home of a cluster, which holds a part of the model."""
    run = spec()
    story = joined(dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=1)), is_in_step=False)
    story.life = replace(story.life, me="a home")
    story.queue.append(commit(update(round=1)))
    story.turns(1)
    assert "evaluate" not in story.trainer.done


@pytest.mark.parametrize("finished", [False, True])
def test_leaving_and_finishing_are_told_to_the_link(finished: bool) -> None:
    """So that the others know whether to wait; a checkpoint is the last thing, and nothing follows."""
    story = joined(is_in_step=False)
    if finished:
        story.queue += [commit(update(round=number)) for number in (1, 2, 3)]
    else:
        story.leave()
    story.turns(1)
    assert story.words(Leave) == [Leave(finished)]
    assert story.left
    assert story.saved == [NEXT if finished else HEAD.anchor]
    effects = len(story.effects)
    story.feed(in_step, commit())
    assert len(story.effects) == effects


def test_leaving_is_told_in_the_middle_of_what_the_trainer_does(story: Story) -> None:
    """An apply of a large model takes a while: the others hear of it at once, and a step ends with its micro-batch."""
    story.leave()
    assert (story.told[-1], story.interrupted[-1]) == (Leave(False), True)
    assert story.pending is not None
    story.turns(1)
    assert story.left
    story = joined()
    story.turns(STEPS)
    story.feed(commit())
    assert isinstance(story.pending, Apply)
    story.leave()
    assert story.told[-1] == Leave(False)
    story.turns(1)
    assert story.left
    assert story.saved[-1] == NEXT


def test_nobody_is_told_to_wait_for_somebody_who_follows(story: Story) -> None:
    """Where it stands in the chain is what the link says."""
    assert story.life.connection == Following(in_step=True)


def test_who_goes_on_alone_says_that_nobody_counts_its_work() -> None:
    """After a restart, until a round has other members again."""
    story = joined(endless())
    assert story.life.round.members == NAMES
    assert story.why == "towards round 1"
    mine = (dataclasses.replace(update().members[0], peer=story.life.me),)
    for number, members in ((1, mine), (2, update().members)):
        story.turns(STEPS)
        story.queue.append(commit(dataclasses.replace(update(round=number), members=members)))
        story.turns(2)
        alone = ", alone: nobody else counts its work until somebody joins" if members == mine else ""
        assert story.why == f"towards round {number + 1}{alone}"
