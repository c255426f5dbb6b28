"""A peer's life on a clock that stands still: its trainer and its link only play their parts."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from peer.consensus.protocol.block import Update
from peer.node.lifecycle import inputs_effects as words
from peer.node.lifecycle.inputs_effects import (
    Continuations,
    ContinuePrompts,
    Do,
    Done,
    Emit,
    EmitRound,
    Evaluate,
    Fail,
    GrantFinish,
    HeldOutLoss,
    Interrupt,
    LayersReady,
    LeaveAsked,
    LifeEffect,
    LifeInput,
    Moved,
    NoData,
    NoRoom,
    OwnerChanged,
    Positioned,
    Replayed,
    RoundDecided,
    Save,
    Saved,
    Say,
    SnapshotTaken,
    Step,
    Stepped,
    Submit,
    SubmitAsked,
    SyncChanged,
    TakeBack,
    TrainerStatus,
    Woken,
    Work,
    Written,
)
from peer.node.lifecycle.machine import begin, step
from peer.node.lifecycle.state import Following, Life, Mode
from peer.node.limits.policy import Hold
from peer.schema.events import Event
from peer.schema.ipc import ToLink
from peer.schema.spec import RunSpec, from_mapping
from tests.peer.consensus.rounds.build import HEAD, NAMES, update

STEPS = 4
NEXT = HEAD.after(update()).anchor
PAUSED = Hold("PAUSED", "its owner paused it")
QUOTA = Hold("QUOTA", "the traffic of this month is used up")
TOKENS = 64

Said = Callable[[float], LifeInput]
"""What the link says, at whatever time it is heard."""


def spec(**tables: Any) -> RunSpec:
    round = {"steps": STEPS, "gather_s": 10, "exchange_s": 10, "ack_s": 2, "max_train_s": 100}
    return from_mapping(
        {
            "run": {"name": "story", "rounds": 3},
            "model": {"architecture": "llama", "context": 8},
            "data": tables.pop("data", {}),
            "round": round | tables,
        },
        "test",
    )


def endless(**tables: Any) -> RunSpec:
    """Without a last round."""
    run = spec(**tables)
    return dataclasses.replace(run, run=dataclasses.replace(run.run, rounds=0))


def commit(item: Update | None = None, agreed_at: float | None = None) -> Said:
    """A round is decided; the link hears of it when the trainer does, unless it says when."""
    return lambda now: RoundDecided(now, item or update(), NEXT, 10, 20, now if agreed_at is None else agreed_at)


def replayed(item: Update | None = None, last_round: int = 1) -> Said:
    return lambda now: Replayed(now, item or update(), NEXT, last_round)


def snapshot_taken(round: int = 16) -> Said:
    return lambda now: SnapshotTaken(now, round, NEXT, NAMES[:2])


def positioned(anchor: bytes = HEAD.anchor) -> Said:
    return lambda now: Positioned(now, anchor)


def in_step(now: float) -> LifeInput:
    return SyncChanged(now, True)


def behind(now: float) -> LifeInput:
    return SyncChanged(now, False)


def submit_asked(now: float) -> LifeInput:
    return SubmitAsked(now)


@dataclass
class FakeTrainer:
    """Takes its time, and counts what it is asked to do."""

    status: TrainerStatus
    done: list[str] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    """Where in the round each step took its learning rate."""
    takes_s: dict[type, float] = field(default_factory=lambda: {Step: 1.0})
    streams: bool = False
    room_on_disk: bool = True
    room_on_device: bool = True
    room_to_train: bool = True
    data_are_here: bool = True
    writes_at_once: bool = True
    """Whether a contribution is on disk as soon as it is begun."""
    applies_at_once: bool = True
    given_up: float = 0.0
    """Norm of what is too old, with every move."""
    lost: int = 0
    waited_s: float = 0.0
    """Within each step, for layers."""
    rest_s: float = 0.0
    loses: bool = True
    """Whether it has room to measure a held-out loss."""
    steps_given: int = 0

    def result(self, work: Work) -> words.Result:
        """What comes of the work, with the status that follows."""
        match work:
            case Step(_, position, members):
                return self._step(position, members)
            case Submit(_, members):
                self._begin(members)
                self.steps_given = self.status.step
                step = 0 if self.streams else self.status.step
                self._set(offered=True, fresh=False, step=step)
                return None
            case TakeBack():
                step = self.status.step + (self.steps_given if self.streams else 0)
                self._set(offered=False, fresh=True, step=step)
                return None
            case Evaluate():
                self.done.append("evaluate")
                found = HeldOutLoss(3.0, 100, precision="bfloat16")
                return found if self.loses else NoRoom("the memory of cuda has no room")
            case ContinuePrompts(round):
                self.done.append("continue")
                whole = Continuations((f"of {round}\nand\x1b[2J", "x" * 9000))
                return whole if self.loses else NoRoom("the memory of cuda has no room")
            case words.LeaveDevice():
                self._set(on_device=False)
                return None
            case words.TakeDevice():
                self._set(on_device=self.room_on_device)
                return None if self.room_on_device else NoRoom()
            case words.Save():
                return None
        return self._move(work)

    def _begin(self, members: tuple[str, ...] | None) -> None:
        if members is not None:
            self.done.append("begin")

    def _step(self, position: float, members: tuple[str, ...] | None) -> words.Result:
        assert self.status.on_device
        if not self.room_to_train:
            return NoRoom("the memory of cuda has no room for even one sequence")
        self._begin(members)
        if not self.data_are_here:
            return NoData("the data are away")
        self.done.append("step")
        self.positions.append(position)
        self._set(step=self.status.step + 1, fresh=True)
        return Stepped(
            tokens=TOKENS, loss=2.0, learning_rate=0.1, waited_s=self.waited_s, rest_s=self.rest_s
        )  # fmt: skip

    def _move(self, work: Work) -> Moved:
        kept = self.status.step if self.streams and self.status.offered else 0
        match work:
            case words.Apply(beside=beside):
                self.done.append("apply")
                self._set(round=self.status.round + 1, offered=False, step=kept, fresh=kept > 0 or self.status.fresh)
                return Moved(self.given_up, None if beside else b"state" * 6 + b"xx")
            case words.Replay():
                self.done.append("replay")
                self._set(round=self.status.round + 1, step=0)
                return Moved(self.given_up)
            case words.Adopt(round):
                self.done.append("jump")
                self._set(round=round, offered=False)
                return Moved(self.given_up)
            case words.Resume():
                self.done.append("resume")
                return Moved(state=STATE)
        raise AssertionError(work)

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)


STATE = b"state" * 6 + b"xx"


@dataclass
class Story:
    """One life with everything around it; `turns` is one piece of work each, or one wait."""

    life: Life
    trainer: FakeTrainer
    now: float = 1000.0
    queue: deque[Said] = field(default_factory=deque)
    """What the link says next."""
    told: list[ToLink] = field(default_factory=list)
    """What it was told."""
    events: list[Event] = field(default_factory=list)
    rounds: list[EmitRound] = field(default_factory=list)
    effects: list[LifeEffect] = field(default_factory=list)
    saved: list[bytes] = field(default_factory=list)
    """Anchors of the checkpoints that were written."""
    room_for_checkpoints: bool = True
    save_s: float = 0.0
    waits: list[float] = field(default_factory=list)
    on_wait: Callable[[float], object] = lambda timeout_s: None
    pending: Work | None = None
    failed: Exception | None = None
    owner: OwnerChanged = field(default_factory=lambda: OwnerChanged(0.0))
    interrupted: list[bool] = field(default_factory=list)
    finish: Callable[[], object] = lambda: None
    """Called when who wished to finish its round may pause."""

    def __post_init__(self) -> None:
        self.finish = self._pause

    def feed(self, *said: Said) -> None:
        for each in said:
            self.life, effects = step(self.life, each(self.now))
            self.effects += effects
            for effect in effects:
                self._perform(effect)

    def _perform(self, effect: LifeEffect) -> None:
        match effect:
            case Do(work):
                assert self.pending is None
                self.pending = work
            case Say(message):
                self.told.append(message)
            case Emit(event):
                self.events.append(event)
            case EmitRound():
                self.rounds.append(effect)
            case Fail(error):
                self.failed = error
            case GrantFinish():
                self.finish()
            case Interrupt(at_once):
                self.interrupted.append(at_once)

    # ---- what goes on ----

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            if self.pending is None:
                self._wait()
            else:
                self._work()
            self._settle()
            while self.queue:
                self.feed(self.queue.popleft())
                self._settle()

    def until(self, reached: Callable[[], object]) -> None:
        """Turn by turn; AssertionError if ten thousand are not enough."""
        for _ in range(10_000):
            if reached():
                return
            self.turns()
        raise AssertionError("it is not reached")

    def wait(self, seconds: float) -> None:
        """Nothing happens but that time passes."""
        self.now += seconds
        self.feed(Woken)

    def _settle(self) -> None:
        """All that follows and is no step."""
        while self.pending is not None and not isinstance(self.pending, Step):
            self._work()

    def _wait(self) -> None:
        timeout_s = self.life.wake_at - self.now
        self.waits.append(timeout_s)
        self.on_wait(timeout_s)
        if self.now >= self.life.wake_at:
            self.feed(Woken)

    def sleep(self, timeout_s: float) -> None:
        """As `on_wait`: time passes."""
        self.now += min(max(timeout_s, 0.0), 0.5)

    def _work(self) -> None:
        work, self.pending = self.pending, None
        assert work is not None
        self.now += self.trainer.takes_s.get(type(work), 0.0)
        if isinstance(work, Save):
            self._save(work)
        result = self.trainer.result(work)
        self.feed(lambda now: Done(now, result, self.trainer.status))
        if isinstance(work, Submit) and self.trainer.writes_at_once:
            self.written()
        if isinstance(work, words.Apply) and work.beside and self.trainer.applies_at_once:
            self.feed(lambda now: LayersReady(now, STATE))

    def _save(self, work: Save) -> None:
        round = self.trainer.status.round
        if not self.room_for_checkpoints:
            self.feed(lambda now: Saved(now, round, self.save_s, no_room="no room for a checkpoint"))
            return
        self.saved.append(work.anchor)
        path = f"DIR/checkpoints/{len(self.saved):08d}"
        self.feed(lambda now: Saved(now, round, self.save_s, path, 10))

    def written(self) -> None:
        """The contribution is on disk, if there is room."""
        anchor = self.life.round.anchor
        if self.trainer.room_on_disk:
            self.trainer.done.append("submit")
        no_room = "" if self.trainer.room_on_disk else "the disk is full"
        self.feed(lambda now: Written(now, anchor, no_room))

    # ---- its owner ----

    def _pause(self) -> None:
        self.queue.appendleft(lambda now: replace(self.owner, now=now, holds=(PAUSED,), finishing=False))

    def hold(self, *holds: Hold, finishing: bool = False) -> None:
        self.owner = OwnerChanged(self.now, holds, finishing, self.owner.min_step_s)
        self.feed(lambda now: replace(self.owner, now=now))

    def gentle(self, min_step_s: float) -> None:
        self.owner = replace(self.owner, min_step_s=min_step_s)
        self.feed(lambda now: replace(self.owner, now=now))

    def leave(self) -> None:
        self.feed(LeaveAsked)

    # ---- what it said ----

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def words(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    @property
    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.told]

    @property
    def state(self) -> str:
        return self.life.said[0]

    @property
    def why(self) -> str:
        return self.life.said[1]

    @property
    def left(self) -> bool:
        return self.life.mode is Mode.LEFT


def beginning(
    run: RunSpec | None = None, *, on_device: bool = True, now: float = 1000.0, trainer: FakeTrainer | None = None
) -> Story:
    """A peer that has met nobody yet."""
    trainer = trainer or FakeTrainer(TrainerStatus(round=0, on_device=on_device))
    run = run or spec()
    trainer.streams = run.round.overlap == "streaming"
    return Story(begin(run, "p2", trainer.status, b"", now), trainer, now)


def joined(
    run: RunSpec | None = None, *, is_in_step: bool = True, now: float = 1000.0, trainer: FakeTrainer | None = None
) -> Story:
    """A peer that has joined, at the first anchor."""
    story = beginning(run, now=now, trainer=trainer)
    # Where a chain on its disk would be replayed: nothing of that is told here.
    here = replace(story.life.round, anchor=HEAD.anchor, members=NAMES)
    story.life = replace(story.life, connection=Following(False), met=True, round=here)
    if is_in_step:
        story.feed(in_step)
    return story
