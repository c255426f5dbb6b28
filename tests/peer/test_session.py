"""A peer's story: train, freeze, commit, catch up, measure, leave."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from peer import session as sessions
from peer.events import (
    AlertRaised,
    Evaluated,
    InnerProgressed,
    PeerStateChanged,
    PenaltyImposed,
    RoundCommitted,
    RoundStarted,
)
from peer.link.channel import LinkLost
from peer.link.handle import LeaveRequested
from peer.settings import PeerSettings
from peer.spec import from_mapping
from peer.train import replay
from tests.peer.rounds.build import HEAD, NAMES, block, header, update
from tests.peer.story import NEXT, STEPS, Beginning, Story, commit, join_with, spec


def test_a_peer_that_is_behind_waits_for_the_link(story: Story) -> None:
    """It trains once the link says it is in step, not before."""
    story.peer.in_step = False
    story.turns(2)
    assert story.trainer.done == []
    assert all(wait > 0 for wait in story.link.waits)
    story.link.queue.append(("in_step",))
    story.turns(2)
    assert story.trainer.done == ["begin", "step"]


def test_a_peer_that_falls_behind_stops_training_until_it_is_in_step(story: Story) -> None:
    """It slept: what it would train on is long past."""
    story.turns(1)
    story.link.queue.append(("behind",))
    story.turns(1)
    steps = story.trainer.done.count("step")
    story.turns(3)
    assert story.trainer.done.count("step") == steps
    assert story.peer.session.state == "SYNCING"
    story.link.queue.append(("in_step",))
    story.turns(2)
    assert story.trainer.done.count("step") > steps


def test_a_peer_that_is_asked_to_leave_does_not_catch_up_to_the_end(story: Story) -> None:
    """Hundreds of blocks may wait: it applies the one it is at, and goes."""
    story.peer.in_step = False
    story.link.queue += [commit() for _ in range(5)]
    story.peer.session.stopping = True
    story.turns(1)
    assert story.trainer.done.count("apply") == 1


def test_all_steps_then_freeze_then_wait(story: Story) -> None:
    """H steps, one contribution, and the link hears of it once."""
    story.turns(STEPS + 3)
    assert story.trainer.done == ["begin", *["step"] * STEPS, "freeze"]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)
    assert story.link.kinds().count("frozen") == 1
    assert story.told(PeerStateChanged)[-1].state == "AVERAGING"
    assert story.told(RoundStarted)[0].steps == STEPS


def test_a_gentle_peer_rests_after_each_step_and_hears_the_link_meanwhile(story: Story) -> None:
    """A step and its rest take `min_step_s`, and the last step of a round is followed by the freeze at once."""
    story.session.wishes.min_step_s, story.link.on_wait = 5.0, story.clock.sleep
    began_at = story.clock.now
    story.until(lambda: story.trainer.frozen)
    assert story.clock.now - began_at == pytest.approx(
        (STEPS - 1) * story.session.wishes.min_step_s + story.trainer.step_s
    )
    assert story.trainer.done == ["begin", *["step"] * STEPS, "freeze"]
    assert 0 < max(story.link.waits) <= sessions.POLL_S


@pytest.mark.parametrize(("said", "done"), [(("freeze",), "freeze"), (commit(), "apply")])
def test_a_gentle_peer_does_in_its_rest_what_the_link_wants(story: Story, said: tuple[object, ...], done: str) -> None:
    """It answers within a moment, but its next step is made no sooner for that."""
    story.session.wishes.min_step_s, story.link.on_wait = 1000.0, story.clock.sleep
    story.turns(3)
    story.link.queue.append(said)
    story.turns(2)
    assert story.trainer.done == ["begin", "step", done]
    assert story.clock.now - 1000.0 < story.trainer.step_s + 5 * sessions.POLL_S
    if said[0] == "freeze":
        story.link.queue.append(commit())
    story.until(lambda: story.trainer.done.count("step") == 2)
    assert story.clock.now - 1000.0 == 1000.0 + story.trainer.step_s


def test_what_is_done_within_a_rest_is_not_exposed(story: Story) -> None:
    """The wait for the others is, from the end of the rest on."""
    story.session.wishes.min_step_s, story.link.on_wait = 10.0, story.clock.sleep
    story.until(lambda: story.trainer.frozen)
    story.clock.now = story.peer.rests_until + 3.0
    story.link.queue.append(commit())
    story.turns(1)
    (event,) = story.told(RoundCommitted)
    assert event.exposed_s == 3.0


def test_a_gentle_peer_that_falls_behind_does_not_finish_its_rest(story: Story) -> None:
    """What it would rest for is long past."""
    story.session.wishes.min_step_s, story.link.on_wait = 1000.0, story.clock.sleep
    story.turns(3)
    story.link.queue.append(("behind",))
    story.turns(2)
    assert story.session.state == "SYNCING"


def test_a_gentle_peer_that_is_asked_to_leave_does_not_finish_its_rest(story: Story) -> None:
    story.session.wishes.min_step_s, story.peer.met = 1000.0, True

    def wait(seconds: float) -> None:
        story.clock.sleep(seconds)
        story.session.stopping = len(story.link.waits) == 4

    story.link.on_wait = wait
    story.peer.take_part()
    assert len(story.link.waits) == 4


def test_the_memory_of_a_gpu_is_told_with_progress(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.session.device_gb", lambda: 24.0)
    story.turns(STEPS)
    assert {fields[3] for kind, *fields in story.link.told if kind == "progress"} == {24.0}


def test_progress_is_told_once_a_second_and_at_the_end(story: Story) -> None:
    """The link learns the share that is done; people learn loss and speed."""
    story.trainer.step_s = 0.4
    story.turns(STEPS)
    progress = [fields[0] for kind, *fields in story.link.told if kind == "progress"]
    assert progress == [0.75, 1.0]
    assert [tuple(told) for kind, _, *told in story.link.told if kind == "progress"] == [(2.0, 160.0, None)] * 2
    assert [event.tokens for event in story.told(InnerProgressed)] == [192, 64]
    assert all(event.loss == 2.0 for event in story.told(InnerProgressed))


def test_a_slow_peer_freezes_when_the_time_is_over(story: Story) -> None:
    """It gives what it has."""
    story.trainer.step_s = 60.0
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "freeze"]


def test_a_freeze_is_made_after_the_step_that_is_being_made(story: Story) -> None:
    """The others are done; half a contribution is better than none."""
    story.turns(1)
    story.link.queue.append(("freeze",))
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "freeze"]


def test_who_has_made_nothing_makes_a_step_before_it_freezes(story: Story) -> None:
    story.link.queue.append(("freeze",))
    story.peer._hear(0.0)
    story.turns(1)
    assert story.trainer.done == ["begin", "step", "freeze"]


def test_a_freeze_that_comes_too_late_is_ignored(story: Story) -> None:
    """One contribution per anchor; and it does not freeze the next round by itself."""
    story.turns(STEPS)
    story.link.queue.append(("freeze",))
    story.link.queue.append(commit())
    story.turns(2)
    assert story.trainer.done.count("freeze") == 1
    story.turns(STEPS - 2)
    assert story.trainer.done.count("freeze") == 1


def test_a_freeze_followed_by_a_commit_is_forgotten(story: Story) -> None:
    """The request was about the anchor before."""
    story.turns(1)
    story.link.queue += [("freeze",), commit()]
    story.turns(2)
    assert "freeze" not in story.trainer.done


def test_a_commit_is_applied_and_told(story: Story) -> None:
    """To the link with the state it led to, to people with everything that counted."""
    story.turns(STEPS)
    story.clock.now += 5.0
    story.link.queue.append(commit())
    story.turns(1)
    assert story.link.told[-1] == ("applied", NEXT, b"state")
    (event,) = story.told(RoundCommitted)
    assert (event.round, event.group, event.bytes_sent, event.bytes_received) == (1, list(NAMES), 10, 20)
    assert event.tokens == 300
    assert (event.digest, event.state) == (NEXT.hex(), b"state".hex())
    assert (event.round_s, event.exposed_s) == (STEPS + 5.0, 5.0)
    story.turns(1)
    assert story.trainer.done[-2:] == ["begin", "step"]


def test_what_came_too_late_weighs_nothing(story: Story) -> None:
    """Of parts of 2, 2 and 1 elements p1 gave the first two and p2 only the first; nobody weighs more for that."""
    story.link.queue.append(commit())
    story.turns(1)
    (event,) = story.told(RoundCommitted)
    full = update().weights[0]
    assert event.weights == dict(zip(NAMES, (full[0], full[1] * 4 // 5, full[2] * 2 // 5), strict=True))


def test_the_penalties_of_a_round_are_told(story: Story) -> None:
    """One event each, in plain words, and all of them in that of the round."""
    story.peer.in_step = True
    story.link.queue.append(commit())
    story.turns(1)
    told = [(event.about, event.code, event.evidence, event.factor) for event in story.told(PenaltyImposed)]
    assert told == [
        ("p1", "LATE", "2 of 3 parts came in time", 0.6667), ("p2", "LATE", "1 of 3 parts came in time", 0.3333),
    ]  # fmt: skip
    (committed,) = story.told(RoundCommitted)
    assert committed.penalties == [asdict(event) for event in story.told(PenaltyImposed)]


def test_who_catches_up_tells_only_its_own_penalties(story: Story) -> None:
    """It was told about: what happened to others long ago is in the rounds."""
    story.peer.in_step = False
    story.link.queue.append(commit())
    story.turns(1)
    assert [event.about for event in story.told(PenaltyImposed)] == [story.trainer.me]
    assert len(story.told(RoundCommitted)[0].penalties) == 2


@pytest.mark.parametrize("said", [commit(), ("replay", block().to_bytes(), 1)])
def test_work_that_is_given_up_for_its_age_is_told(said: tuple[object, ...], story: Story) -> None:
    """How much it was."""
    story.trainer.too_old = 0.125
    story.link.queue.append(said)
    story.turns(1)
    assert [alert.text for alert in story.told(AlertRaised)] == [
        "work of norm 0.125 was too old at round 1 and is given up; training goes on from there"
    ]


def test_a_commit_while_training_starts_the_next_round(story: Story) -> None:
    """This peer was too slow for the round; what it learned stays with the trainer."""
    story.turns(2)
    story.link.queue.append(commit())
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "step", "apply", "begin", "step"]
    assert story.peer.anchor == NEXT


def test_several_commits_at_once(story: Story) -> None:
    """A peer that was away applies them in a row, before it trains again."""
    story.peer.in_step = False
    story.link.queue += [commit(), commit(), ("in_step",)]
    story.turns(2)
    assert [what for what in story.trainer.done if what != "evaluate"] == ["apply", "apply", "begin", "step"]


def test_an_overdue_round_holds_nobody(story: Story) -> None:
    """After every deadline together, inner steps go on; the contribution stays as it is."""
    story.turns(STEPS + 1)
    story.clock.now += 10 + 2 * (20 + 10) + 1
    story.turns(3)
    assert story.trainer.done[STEPS + 1 :] == ["freeze", "step", "step", "step"]
    assert story.told(PeerStateChanged)[-1].state == "TRAINING"
    story.link.queue.append(commit())
    story.turns(1)
    (event,) = story.told(RoundCommitted)
    assert event.exposed_s == 71.0


def test_the_chain_on_disk_is_replayed_without_a_word(story: Story) -> None:
    """After a restart: no round is told twice, and what was offered is offered again."""
    story.peer.in_step = False
    story.link.queue += [("replay", block().to_bytes(), 1), ("resume", NEXT)]
    story.turns(1)
    assert story.trainer.done == ["replay", "resume"]
    assert story.told(RoundCommitted) == []
    assert story.link.told == [("applied", NEXT, b"state")]
    assert story.peer.anchor == NEXT


def test_a_replayed_block_moves_the_anchor(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is lost, or a person who leaves, between two of them: none is ever applied twice."""
    link = Beginning(deque([("replay", block().to_bytes(), 2), ("ends with", LinkLost())]))
    link.on_wait = lambda timeout_s: setattr(story.session, "stopping", True)
    join_with(story, link, monkeypatch)
    assert [fields[-1] for kind, *fields in link.told if kind == "model"] == [b"", NEXT]
    assert story.shelf.written == [NEXT.hex()]


@pytest.mark.parametrize("given_up", [0.0, 2.5])
def test_a_snapshot_moves_the_anchor(story: Story, monkeypatch: pytest.MonkeyPatch, given_up: float) -> None:
    """A checkpoint follows at once; who loses work by it is told, and nobody trains before the link says so."""
    restored = SimpleNamespace(round=16)
    monkeypatch.setattr(replay, "read_anchor", lambda directory, round, name: restored)
    story.peer.in_step, story.trainer.too_old = False, given_up
    story.link.queue += [("snapshot", 16, NEXT, NAMES[:2]), ("resume", NEXT)]
    story.turns(1)
    assert story.trainer.done == ["jump", "resume"]
    assert (story.peer.anchor, story.peer.members, story.trainer.anchor.round) == (NEXT, NAMES[:2], 16)
    assert story.shelf.written == [NEXT.hex()]
    assert story.link.told == [("applied", NEXT, b"state")]
    alerts = [event.text for event in story.told(AlertRaised)]
    assert len(alerts) == bool(given_up)
    assert all("goes on at round 16" in text and "2.5" in text for text in alerts)


def test_a_freeze_that_a_lost_link_asked_for_is_forgotten(story: Story) -> None:
    """The new link stands elsewhere, and asks again if it must."""
    story.turns(1)
    story.link.queue += [("freeze",), ("replay", block().to_bytes(), 1), ("resume", NEXT)]
    story.turns(2)
    assert "freeze" not in story.trainer.done


@pytest.mark.parametrize("kind", ["commit", "replay"])
def test_who_left_gets_no_shards_and_measures_nothing(story: Story, kind: str) -> None:
    """The same members after a restart, when the link names them: the data must be the same."""
    item = block(update(members=(header("p0"), header("p1", leaving=True), header("p2"))))
    story.link.queue.append(commit(item) if kind == "commit" else ("replay", item.to_bytes(), 1))
    story.peer._hear(0.0)
    assert story.peer.members == HEAD.after(item.update).members == ("p0", "p2")
    assert [event.group for event in story.told(RoundCommitted)] == [list(NAMES)] * (kind == "commit")


def test_a_round_that_all_left_is_measured_by_nobody(story: Story) -> None:
    """Somebody who comes later applies it all the same."""
    story.link.queue.append(commit(block(update(members=tuple(header(name, leaving=True) for name in NAMES)))))
    story.peer._hear(0.0)
    assert story.trainer.done == ["apply"]


def test_what_was_offered_before_a_restart_is_waited_for(story: Story) -> None:
    """A round that is then overdue begins with this peer's own data, and its contribution stays as it is."""
    story.peer.in_step = False
    story.trainer.frozen = True
    story.link.queue += [("resume", HEAD.anchor), ("in_step",)]
    story.turns(3)
    assert "step" not in story.trainer.done
    assert story.told(PeerStateChanged)[-1].state == "AVERAGING"
    story.clock.now += 10 + 2 * (20 + 10) + 1
    story.turns(STEPS + 1)
    assert [what for what in story.trainer.done if what != "evaluate"] == ["resume", "begin", *["step"] * (STEPS + 1)]


def test_every_second_of_a_round_is_training_or_exposed(story: Story) -> None:
    """Measuring the anchor and catching up are no training; what one round exposed is not told again of the next."""
    story.peer.in_step = False
    story.trainer.me, story.trainer.evaluate_s = "p1", 7.0
    began_at = story.clock.now
    story.link.queue += [("resume", HEAD.anchor)]
    story.turns(1)
    for wait_s in (3.0, 4.0):
        story.clock.now += wait_s
        story.link.queue.append(commit())
        story.peer._hear(0.0)
    story.link.queue.append(("in_step",))
    story.turns(1 + STEPS)
    story.clock.now += 5.0
    story.link.queue.append(commit())
    story.turns(1)
    times = [(event.round_s, event.exposed_s) for event in story.told(RoundCommitted)]
    assert "evaluate" in story.trainer.done
    assert [exposed for _, exposed in times[:2]] == [seconds for seconds, _ in times[:2]]
    assert times[2][0] - times[2][1] == STEPS
    assert sum(seconds for seconds, _ in times) == story.peer.round_began_at - began_at


def test_the_speed_of_training_leaves_out_the_wait_for_others(story: Story) -> None:
    """64 tokens per step of a second each, however long the round before was being agreed."""
    story.turns(STEPS)
    story.clock.now += 50.0
    story.link.queue.append(commit())
    story.turns(1 + STEPS)
    assert {event.tokens_per_s for event in story.told(InnerProgressed)} == {64.0}


def test_the_first_founder_measures_the_start(story: Story) -> None:
    """Once, and nobody else does."""
    for me in NAMES:
        story.trainer.me = me
        story.link.queue.append(("resume", HEAD.anchor))
        story.turns(1)
    assert story.trainer.done.count("evaluate") == 1


@pytest.mark.parametrize(("every", "last", "expected"), [(1, 0, 6), (2, 0, 3), (4, 0, 1), (4, 6, 2)])
def test_exactly_one_member_measures_an_anchor(story: Story, every: int, last: int, expected: int) -> None:
    """They take turns; the last anchor is always measured."""
    evaluated = []
    for me in NAMES:
        table = {"run": {"name": "x", "rounds": last}, "model": {"architecture": "llama", "context": 8}}
        story.peer.spec = from_mapping(table | {"data": {"eval_every": every}}, "test")
        story.trainer.me, story.trainer.anchor.round = me, 0
        for round in range(1, 7):
            before = len(story.told(Evaluated))
            story.link.queue.append(commit(block(update(round=round))))
            story.peer._hear(0.0)
            evaluated += [(round, me)] * (len(story.told(Evaluated)) - before)
    rounds = sorted(round for round, _ in evaluated)
    assert rounds == sorted(set(rounds))
    assert len(rounds) == expected
    assert story.link.kinds().count("evaluated") == expected, "others read it on the board"
    assert len({me for _, me in evaluated}) == 3 or expected < 6


def test_reports_of_the_link_are_events(story: Story) -> None:
    """Their fields by name."""
    story.link.queue.append(("report", "RoundStarted", {"round": 7, "steps": 1}))
    story.turns(1)
    assert RoundStarted(round=7, steps=1) in story.events


def test_a_run_has_an_end(story: Story) -> None:
    """After `run.rounds` the peer is finished."""
    for _ in range(3):
        assert not story.peer.finished
        story.link.queue.append(commit())
        story.peer._hear(0.0)
    assert story.peer.finished


@pytest.mark.parametrize(("commits", "last"), [(0, "leave"), (3, "finish")])
def test_leaving_and_finishing_are_told_to_the_link(
    commits: int, last: str, monkeypatch: pytest.MonkeyPatch, story: Story
) -> None:
    """So that the others know whether to wait."""
    link = Beginning(deque([commit()] * commits))
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    story.session.emit = lambda event: setattr(story.session, "stopping", commits == 0)
    monkeypatch.setattr(sessions, "parse", lambda text: spec())
    monkeypatch.setattr(sessions, "make_trainer", lambda *args: story.trainer)
    monkeypatch.setattr(sessions, "look_around", lambda *args: None)
    monkeypatch.setattr(sessions, "restore", lambda *args: (story.shelf, HEAD.anchor))
    monkeypatch.setattr(sessions, "started", lambda *args: RoundStarted(round=0, steps=0))
    sessions.join(link, "p1", PeerSettings(), None, story.session)  # type: ignore[arg-type]
    assert link.kinds() == ["leave"] or link.told[0] == ("model", (5,), b"state", HEAD.anchor)
    assert link.kinds()[-1] == last
    assert len(story.shelf.written) == 1


def test_leaving_before_the_run_begins(story: Story) -> None:
    """Nobody waits for a spec that a person does not want any more."""
    with pytest.raises(LeaveRequested):
        sessions.join(Beginning(asked_to_leave=True), "p1", None, None, story.session)  # type: ignore[arg-type]
