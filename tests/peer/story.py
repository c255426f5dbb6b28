"""A link, a trainer and a shelf of checkpoints that only play their parts, on a clock that stands still."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dht.errors import DiskFull
from peer import session as sessions
from peer.events import (
    Event,
    RoundStarted,
)
from peer.lifecycle.fragments import FragmentSchedule
from peer.link.handle import LeaveRequested
from peer.protocol.block import Block, Update
from peer.session import Peer
from peer.settings import PeerSettings
from peer.spec import RunSpec, from_mapping
from peer.telemetry.reporter import Reporter
from peer.train.checkpoint import Checkpoint
from peer.train.residual import RewindResult
from tests.peer.rounds.build import HEAD, NAMES, PARTS, block, update

STEPS = 4
NEXT = HEAD.after(update()).anchor


def spec(**data: Any) -> RunSpec:
    deadlines = {"gather_s": 10, "exchange_s": 10, "ack_s": 2, "max_train_s": 100}
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
    ahead_s: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        """What the clock on the wall shows."""
        return 1_800_000_000.0 + self.now + self.ahead_s

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
    directory: Path = Path("DIR")

    def receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        self.waits.append(timeout_s)
        if not self.queue:
            self.on_wait(timeout_s)
        message = self.queue.popleft() if self.queue else None
        if message is not None and message[0] == "commit" and len(message) == 5:
            message = (*message, sessions.time.monotonic())
        if message is not None and message[0] == "ends with":
            self.has_ended = True
            raise message[1]
        return message

    def restart(self) -> None:
        self.has_ended, self.restarts = False, self.restarts + 1

    def send(self, kind: str, *fields: Any) -> None:
        self.told.append((kind, *fields))

    def announcer(self, kind: str, *fields: Any) -> Callable[[], None]:
        return lambda: self.send(kind, *fields)

    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.told]


@dataclass
class Trainer:
    """Counts what it is asked to do."""

    me: str = "p2"
    steps_in_round: int = STEPS
    step_in_round: int = 0
    layer_sizes: tuple[int, ...] = (5,)
    parameters: int = 5
    turns: FragmentSchedule = field(default_factory=lambda: FragmentSchedule(PARTS, 1))
    layer_names: tuple[str, ...] = ("layer",)
    frozen: bool = False
    has_progress: bool = False
    """Whether steps were made that no contribution holds."""
    room: bool = True
    is_frozen_on_disk: bool = True
    """Whether what is begun is there at once; else when it is waited for."""
    announce: Callable[[], None] | None = None
    too_old: float = 0.0
    """Norm of the work that it gives up with every update."""
    lost: int = 0
    """Of the updates that are undone, how many held work that is not on its disk any more."""
    step_s: float = 1.0
    evaluate_s: float = 0.0
    apply_s: float = 0.0
    begin_freeze_s: float = 0.0
    streams: bool = False
    is_away: bool = False
    """Whether it gave the device's memory back."""
    room_on_device: bool = True
    steps_given: int = 0
    """In what is being written."""
    clock: Clock = field(default_factory=Clock)
    done: list[str] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    """Where in the round each step took its learning rate."""
    anchor: Any = field(default_factory=lambda: SimpleNamespace(round=0, state_digest=lambda: b"state"))

    @property
    def round_in_training(self) -> int:
        return int(self.anchor.round) + (self.streams and self.frozen)

    def refit(self) -> None:
        """Nothing: memory does not shrink here."""

    def begin_round(self, members: tuple[str, ...]) -> None:
        self.done.append("begin")

    def train_step(self, stop: Callable[[], bool], position: float) -> Any:
        assert not self.is_away
        self.done.append("step")
        self.positions.append(position)
        self.has_progress = True
        self.step_in_round += 1
        self.clock.now += self.step_s
        return SimpleNamespace(loss=2.0, tokens=64, learning_rate=0.1)

    def begin_submit(self, anchor: bytes, announce: Callable[[], None]) -> None:
        assert not self.frozen
        self.clock.now += self.begin_freeze_s
        self.announce = announce if self.room else None
        if self.is_frozen_on_disk:
            self.written()
        self.frozen, self.has_progress = True, False
        if self.streams:
            self.steps_given, self.step_in_round = self.step_in_round, 0

    def written(self) -> None:
        """It is on disk, if there is room."""
        self.is_frozen_on_disk = True
        if self.announce is not None:
            self.announce()
            self.announce = None

    def finish_submit(self) -> None:
        if self.room:
            self.written()
        else:
            self.frozen, self.has_progress = False, True
            self.step_in_round += self.steps_given
            raise DiskFull("the disk is full")
        self.done.append("freeze")

    def apply(self, item: object, load: object) -> float:
        self.done.append("apply")
        self.clock.now += self.apply_s
        if not (self.streams and self.frozen):
            self.step_in_round = 0
        self.frozen = False
        self.anchor.round += 1
        return self.too_old

    def begin_apply(self, item: object, load: object) -> float:
        """All of it, before anything else happens."""
        return self.apply(item, load)

    @property
    def is_applied(self) -> bool:
        return True

    def finish_apply(self) -> bytes:
        state: bytes = self.anchor.state_digest()
        return state

    def undo(self, updates: Sequence[Update], restored: Any) -> RewindResult:
        self.done.append(f"undo {len(updates)}")
        self.frozen = False
        self.step_in_round = 0
        self.anchor.round = restored.round
        return RewindResult(returned=len(updates), lost=self.lost)

    def replay(self, item: object, load: object) -> float:
        self.done.append("replay")
        self.anchor.round += 1
        return self.too_old

    def resume(self, anchor: bytes) -> None:
        self.done.append("resume")

    def jump(self, name: bytes, restored: Any) -> float:
        self.done.append("jump")
        self.frozen = False
        self.anchor.round = restored.round
        return self.too_old

    def checkpoint(self, anchor: bytes) -> Checkpoint:
        return Checkpoint(state={"anchor": anchor.hex(), "round": self.anchor.round}, tensors={})

    def offload_model(self) -> None:
        self.is_away = True

    def reload_model(self) -> bool:
        self.is_away = self.is_away and not self.room_on_device
        return not self.is_away

    def evaluate(self, stop: Callable[[], bool]) -> tuple[float, int]:
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


class NoSnapshots:
    """It is never time to write one."""

    def due(self, round: int) -> bool:
        return False

    def wait(self) -> str:
        return ""


@dataclass
class Story:
    """One peer with everything around it."""

    clock: Clock
    link: Link
    trainer: Trainer
    shelf: Shelf
    events: list[Event]
    session: Reporter
    peer: Peer

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.peer.catch_up_or_train()

    def until(self, reached: Callable[[], object]) -> None:
        """Turn by turn; AssertionError if a hundred thousand are not enough."""
        for _ in range(100_000):
            if reached():
                return
            self.peer.catch_up_or_train()
        raise AssertionError("it is not reached")

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def commit(item: Block | None = None, agreed_at: float | None = None) -> tuple[Any, ...]:
    """The link heard of it when the trainer does, unless it says when."""
    when = () if agreed_at is None else (agreed_at,)
    return ("commit", (item or block()).to_bytes(), NEXT, 10, 20, *when)


@dataclass
class Beginning(Link):
    """A link up to the first round. It has the anchor where the trainer stands, unless `stands_at` is another."""

    asked_to_leave: bool = False
    stands_at: bytes = b""

    def expect(self, kind: str, timeout_s: float | None) -> tuple[Any, ...]:
        if self.asked_to_leave:
            raise LeaveRequested
        if kind == "spec":
            return ("ignored",)
        return self.stands_at or self.told[-1][-1] or HEAD.anchor, NAMES


def join_with(story: Story, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "parse", lambda text: spec())
    monkeypatch.setattr(sessions, "make_trainer", lambda *args: story.trainer)
    monkeypatch.setattr(sessions, "look_around", lambda *args: None)
    monkeypatch.setattr(sessions, "restore", lambda *args: (story.shelf, b""))
    monkeypatch.setattr(sessions, "SnapshotWriter", lambda *args: NoSnapshots())
    monkeypatch.setattr(sessions, "started", lambda *args: RoundStarted(round=0, steps=0))
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    story.peer.link = link  # type: ignore[assignment]
    sessions.join(link, "p1", PeerSettings(), None, story.session)  # type: ignore[arg-type]
