"""A peer's story with a link and a trainer that only play their parts, on a clock that stands still."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dht.errors import DiskFull, RunMismatch
from peer import session as sessions
from peer import telling
from peer.averaging.child import Left
from peer.averaging.pipe import LinkLost
from peer.events import (
    AlertRaised,
    CheckpointWritten,
    Evaluated,
    Event,
    InnerProgressed,
    PeerStateChanged,
    RoundCommitted,
    RoundStarted,
)
from peer.rounds.update import Block
from peer.session import Peer
from peer.spec import RunSpec, from_mapping
from peer.telling import Progress, Session
from peer.train.checkpoint import Checkpoint
from tests.peer.rounds.build import HEAD, NAMES, block, pledge, update

STEPS = 4
NEXT = HEAD.after(update()).anchor


def spec(**data: Any) -> RunSpec:
    deadlines = {"gather_s": 10, "exchange_s": 10, "ack_s": 2, "patience_s": 20, "max_train_s": 100}
    return from_mapping(
        {
            "run": {"name": "story", "rounds": 3},
            "model": {"architecture": "llama", "context": 8},
            "data": data,
            "round": {"steps": STEPS, **deadlines},
        },
        "test",
    )


@dataclass
class Clock:
    """What the session believes the time to be."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Link:
    """Says what is queued, remembers what it is told."""

    queue: deque[tuple[Any, ...]] = field(default_factory=deque)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    has_ended: bool = False
    restarts: int = 0
    on_wait: Callable[[float], None] = lambda timeout_s: None

    def receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        self.waits.append(timeout_s)
        if not self.queue:
            self.on_wait(timeout_s)
        message = self.queue.popleft() if self.queue else None
        if message is not None and message[0] == "ends with":
            self.has_ended = True
            raise message[1]
        return message

    def restart(self) -> None:
        self.has_ended, self.restarts = False, self.restarts + 1

    def send(self, kind: str, *fields: Any) -> None:
        self.told.append((kind, *fields))

    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.told]


@dataclass
class Trainer:
    """Counts what it is asked to do."""

    me: str = "p2"
    steps_in_round: int = STEPS
    step_in_round: int = 0
    layer_sizes: tuple[int, ...] = (5,)
    frozen: bool = False
    room: bool = True
    step_s: float = 1.0
    evaluate_s: float = 0.0
    clock: Clock = field(default_factory=Clock)
    done: list[str] = field(default_factory=list)
    anchor: Any = field(default_factory=lambda: SimpleNamespace(round=0, state_digest=lambda: b"state"))

    def begin_round(self, members: tuple[str, ...]) -> None:
        self.done.append("begin")

    def train_step(self) -> Any:
        self.done.append("step")
        self.step_in_round += 1
        self.clock.now += self.step_s
        return SimpleNamespace(loss=2.0, tokens=64, learning_rate=0.1)

    def freeze(self, anchor: bytes) -> None:
        assert not self.frozen
        if not self.room:
            raise DiskFull("the disk is full")
        self.done.append("freeze")
        self.frozen = True

    def apply(self, item: object, load: object) -> None:
        self.done.append("apply")
        self.frozen = False
        self.step_in_round = 0
        self.anchor.round += 1

    def replay(self, item: object, load: object) -> None:
        self.done.append("replay")
        self.anchor.round += 1

    def resume(self, anchor: bytes) -> None:
        self.done.append("resume")

    def checkpoint(self, anchor: bytes) -> Checkpoint:
        return Checkpoint(state={"anchor": anchor.hex()}, tensors={})

    def evaluate(self) -> tuple[float, int]:
        self.done.append("evaluate")
        self.clock.now += self.evaluate_s
        return 3.0, 100


@dataclass
class Shelf:
    """Checkpoints that only count; `room` is whether there is any."""

    clock: Clock
    folder: Path = Path("DIR/checkpoints")
    every_s: float = float("inf")
    room: bool = True
    written: list[str] = field(default_factory=list)

    def due(self, *, round_ends: bool) -> bool:
        return round_ends or self.clock.now - 1000.0 >= self.every_s * (len(self.written) + 1)

    def write(self, checkpoint: Checkpoint) -> Path:
        if not self.room:
            raise DiskFull("no room for a checkpoint")
        self.written.append(checkpoint.state["anchor"])
        return self.folder / f"{len(self.written):08d}"


@dataclass
class Story:
    """One peer with everything around it."""

    clock: Clock
    link: Link
    trainer: Trainer
    shelf: Shelf
    events: list[Event]
    session: Session
    peer: Peer

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.peer.catch_up_or_train()

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    """A peer that has joined and is in step."""
    clock, link, events = Clock(), Link(), []
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(telling, "time", clock)
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    trainer = Trainer(clock=clock)
    session = Session(events.append)
    shelf = Shelf(clock)
    peer = Peer(
        link, trainer, shelf, spec(), session, b"state", HEAD.anchor, NAMES, in_step=True  # type: ignore[arg-type]
    )  # fmt: skip
    peer.round_began_at, peer.progress = clock.now, Progress(since=clock.now)
    return Story(clock, link, trainer, shelf, events, session, peer)


def commit(item: Block | None = None) -> tuple[Any, ...]:
    return ("commit", (item or block()).to_bytes(), NEXT, 10, 20)


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


def test_progress_is_told_once_a_second_and_at_the_end(story: Story) -> None:
    """The link learns the share that is done; people learn loss and speed."""
    story.trainer.step_s = 0.4
    story.turns(STEPS)
    progress = [fields[0] for kind, *fields in story.link.told if kind == "progress"]
    assert progress == [0.75, 1.0]
    assert [event.tokens for event in story.told(InnerProgressed)] == [192, 64]
    assert all(event.loss == 2.0 for event in story.told(InnerProgressed))


def test_a_slow_peer_freezes_when_the_time_is_over(story: Story) -> None:
    """It gives what it has."""
    story.trainer.step_s = 60.0
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "freeze"]


def test_a_freeze_is_made_at_the_next_step(story: Story) -> None:
    """The others are done; half a contribution is better than none."""
    story.turns(1)
    story.link.queue.append(("freeze",))
    story.turns(2)
    assert story.trainer.done == ["begin", "step", "step", "step", "freeze"]


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
    assert event.weights == dict(zip(NAMES, update().weights[0], strict=True))
    assert event.tokens == 300
    assert (event.digest, event.state) == (NEXT.hex(), b"state".hex())
    assert (event.round_s, event.exposed_s) == (STEPS + 5.0, 5.0)
    story.turns(1)
    assert story.trainer.done[-2:] == ["begin", "step"]


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


def test_a_freeze_that_a_lost_link_asked_for_is_forgotten(story: Story) -> None:
    """The new link stands elsewhere, and asks again if it must."""
    story.turns(1)
    story.link.queue += [("freeze",), ("replay", block().to_bytes(), 1), ("resume", NEXT)]
    story.turns(2)
    assert "freeze" not in story.trainer.done


@pytest.mark.parametrize("kind", ["commit", "replay"])
def test_who_left_gets_no_shards_and_measures_nothing(story: Story, kind: str) -> None:
    """The same members after a restart, when the link names them: the data must be the same."""
    item = block(update(members=(pledge("p0"), pledge("p1", leaving=True), pledge("p2"))))
    story.link.queue.append(commit(item) if kind == "commit" else ("replay", item.to_bytes(), 1))
    story.peer._hear(0.0)
    assert story.peer.members == HEAD.after(item.update).members == ("p0", "p2")
    assert [event.group for event in story.told(RoundCommitted)] == [list(NAMES)] * (kind == "commit")


def test_a_round_that_all_left_is_measured_by_nobody(story: Story) -> None:
    """Somebody who comes later applies it all the same."""
    story.link.queue.append(commit(block(update(members=tuple(pledge(name, leaving=True) for name in NAMES)))))
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


@dataclass
class Beginning(Link):
    """A link up to the first round. It has the anchor where the trainer stands, unless `stands_at` is another."""

    asked_to_leave: bool = False
    stands_at: bytes = b""

    def expect(self, kind: str, timeout_s: float | None) -> tuple[Any, ...]:
        if self.asked_to_leave:
            raise Left
        if kind == "spec":
            return ("ignored",)
        return self.stands_at or self.told[-1][-1] or HEAD.anchor, NAMES


@pytest.mark.parametrize(("commits", "last"), [(0, "leave"), (3, "finish")])
def test_leaving_and_finishing_are_told_to_the_link(
    commits: int, last: str, monkeypatch: pytest.MonkeyPatch, story: Story
) -> None:
    """So that the others know whether to wait."""
    link = Beginning(deque([commit()] * commits))
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    story.session.emit = lambda event: setattr(story.session, "stopping", commits == 0)
    monkeypatch.setattr(sessions, "parse", lambda text: spec())
    monkeypatch.setattr(sessions, "_make_trainer", lambda *args: story.trainer)
    monkeypatch.setattr(sessions, "_restore", lambda *args: (story.shelf, HEAD.anchor))
    monkeypatch.setattr(sessions, "_started", lambda *args: RoundStarted(round=0, steps=0))
    sessions.join(link, "p1", None, None, story.session)  # type: ignore[arg-type]
    assert link.kinds() == ["leave"] or link.told[0] == ("model", (5,), b"state", HEAD.anchor)
    assert link.kinds()[-1] == last
    assert len(story.shelf.written) == 1


def test_leaving_before_the_run_begins(story: Story) -> None:
    """Nobody waits for a spec that a person does not want any more."""
    with pytest.raises(Left):
        sessions.join(Beginning(asked_to_leave=True), "p1", None, None, story.session)  # type: ignore[arg-type]


# ---- checkpoints ----


def test_a_checkpoint_is_written_while_the_round_is_agreed(story: Story) -> None:
    """After the link heard of the contribution, so that nobody waits for a disk."""
    story.turns(STEPS)
    assert story.shelf.written == [HEAD.anchor.hex()]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)
    (event,) = story.told(CheckpointWritten)
    assert (event.round, event.path) == (0, "DIR/checkpoints/00000001")


def test_a_long_round_is_written_within(story: Story) -> None:
    """A crash costs minutes, not the hours of a round."""
    story.shelf.every_s = 2.0
    story.turns(2)
    assert len(story.shelf.written) == 1
    assert "freeze" not in story.trainer.done


def test_no_room_for_a_checkpoint_is_told_once(story: Story) -> None:
    """Training goes on with the one before; when there is room again, the next one is written."""
    story.shelf.room = False
    for number in range(3):
        story.turns(STEPS)
        story.link.queue.append(commit(block(update(round=number + 1))))
        story.turns(1)
    assert story.trainer.anchor.round == 3
    assert [event.code for event in story.told(AlertRaised)] == ["CHECKPOINT"]
    story.peer.write_checkpoint(last=True)
    assert "are lost" in story.told(AlertRaised)[-1].text
    story.shelf.room = True
    story.turns(STEPS)
    assert len(story.shelf.written) == 1


def test_a_checkpoint_beside_the_chain_is_refused(story: Story) -> None:
    """One line that says what to do."""
    story.peer.link = Beginning(stands_at=b"elsewhere")  # type: ignore[assignment]
    with pytest.raises(RunMismatch, match="move the checkpoints away"):
        story.peer.meet()


# ---- a full disk, a lost link ----


def test_a_full_disk_pauses_and_loses_nothing(story: Story) -> None:
    """The link is heard meanwhile; the contribution is frozen when there is room."""
    story.trainer.room = False
    story.turns(STEPS - 1)
    with pytest.raises(DiskFull):
        story.turns(1)
    story.link.on_wait = story.clock.sleep
    story.peer.pause("the disk is full")
    assert story.told(PeerStateChanged)[-1].state == "PAUSED"
    assert story.told(PeerStateChanged)[-1].why.startswith("the disk is full; make room")
    story.trainer.room = True
    story.turns(1)
    assert story.trainer.done[-2:] == ["step", "freeze"]
    assert story.link.told[-1] == ("frozen", HEAD.anchor)


def test_a_pause_ends_when_asked_to_leave(story: Story) -> None:
    """At once."""
    story.session.stopping = True
    story.peer.pause("the disk is full")
    assert story.link.waits == []


@pytest.mark.parametrize("failure", [DiskFull("the disk is full"), LinkLost()])
def test_a_link_that_ends_during_a_pause_is_started_again(
    story: Story, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It writes to the same disk, so it is likely to fail too."""
    story.trainer.room = False
    link = Beginning(deque([("in_step",)]))

    def wait(timeout_s: float) -> None:
        story.clock.sleep(timeout_s)
        if story.session.state == "PAUSED" and not link.restarts:
            link.queue.append(("ends with", failure))
            story.trainer.room = True
        elif link.restarts and link.kinds()[-1] == "model":
            link.queue += [("resume", HEAD.anchor), ("in_step",)]
        story.session.stopping = story.trainer.frozen

    link.on_wait = wait
    join_with(story, link, monkeypatch)
    assert link.restarts == 1
    assert story.trainer.done.count("freeze") == 1
    assert link.kinds()[-2:] == ["frozen", "leave"]


def test_a_link_that_ends_as_it_is_told_goodbye(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager ends a whole group at once: the peer leaves all the same, with everything kept."""

    class Gone(Beginning):
        def send(self, kind: str, *fields: Any) -> None:
            super().send(kind, *fields)
            if kind == "leave":
                raise LinkLost

    link = Gone(deque([("in_step",)]), on_wait=lambda timeout_s: setattr(story.session, "stopping", True))
    join_with(story, link, monkeypatch)
    assert link.kinds()[-1] == "leave"
    assert len(story.shelf.written) == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_leaving_while_the_link_is_away(story: Story, monkeypatch: pytest.MonkeyPatch, has_ended: bool) -> None:
    """Everything is kept, and an ended link is told nothing."""
    link = Beginning(deque([("in_step",), ("ends with", DiskFull("the disk is full"))]))

    def leave(event: Event) -> None:
        if isinstance(event, PeerStateChanged):
            story.session.stopping = has_ended and event.state == "PAUSED"
            link.asked_to_leave = event.why == "connecting again"

    story.session.emit = leave
    join_with(story, link, monkeypatch)
    assert len(story.shelf.written) == 1
    assert link.kinds()[-1] == ("model" if has_ended else "leave")


def join_with(story: Story, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "parse", lambda text: spec())
    monkeypatch.setattr(sessions, "_make_trainer", lambda *args: story.trainer)
    monkeypatch.setattr(sessions, "_restore", lambda *args: (story.shelf, b""))
    monkeypatch.setattr(sessions, "_started", lambda *args: RoundStarted(round=0, steps=0))
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    story.peer.link = link  # type: ignore[assignment]
    sessions.join(link, "p1", None, None, story.session)  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", [DiskFull("the disk is full"), LinkLost()])
def test_a_link_that_ended_is_started_again(story: Story, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """The trainer tells it where it stands, and hears what was decided since; no step is lost."""
    messages = [("in_step",), ("ends with", failure), ("replay", block().to_bytes(), 1), ("resume", NEXT), ("in_step",)]
    link = Beginning(deque([*messages, commit(), commit()]))
    join_with(story, link, monkeypatch)
    assert link.restarts == 1
    assert [fields for kind, *fields in link.told if kind == "model"] == [
        [(5,), b"state", b""],
        [(5,), b"state", HEAD.anchor],
    ]
    assert ("applied", NEXT, b"state") in link.told
    assert link.kinds()[-1] == "finish"


def test_a_link_that_ends_again_and_again_ends_the_peer(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a checkpoint of all that it learned."""
    link = Beginning(deque([("ends with", LinkLost())] * 9))
    with pytest.raises(LinkLost):
        join_with(story, link, monkeypatch)
    assert link.restarts == sessions.LINKS_LOST
    assert len(story.shelf.written) == 1
    assert {event.code for event in story.told(AlertRaised)} == {"LINK"}
