"""A machine that says what a test wants it to say, and a peer that trains on it, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC
from types import SimpleNamespace
from typing import Any

from peer.limits.enforcer import LOOK_S, Enforcer
from peer.limits.policy import Readings
from peer.settings import PeerSettings
from tests.peer.story import Clock, Story, Trainer

FREE = Readings(
    idle_s=1e6, on_battery=False, running=(), folder_bytes=0, memory_bytes=0, temperature_c=40.0, power_w=50.0
)  # fmt: skip
"""Nothing that any limit minds."""


@dataclass
class Sensors:
    """Says what was set."""

    says: Readings = FREE

    def read(self, settings: PeerSettings, now: float) -> Readings:
        return self.says


@dataclass
class Traffic:
    """Of this month."""

    month_bytes: int = 0


@dataclass
class Worker(Trainer):
    """Makes steps of several micro-batches, and asks between them."""

    micro_batches: int = 16
    micro_batch_s: float = 0.5
    pass_time: Callable[[float], None] = lambda seconds: None
    tokens: int = 0
    computed_until: float = 0.0
    """When the newest micro-batch ended."""
    computed_s: float = 0.0

    def train_step(self, stop: Callable[[], bool], position: float) -> Any:
        made = 0
        while made < self.micro_batches and not (made and stop()):
            self.pass_time(self.micro_batch_s)
            self.computed_until = self.clock.now
            self.computed_s += self.micro_batch_s
            made += 1
        self.tokens += 10 * made
        self.done.append("step")
        self.has_progress = True
        self.step_in_round += 1
        return SimpleNamespace(loss=2.0, tokens=10 * made, learning_rate=0.1)


@dataclass
class Home:
    """A story whose clock moves only through here: the limits are looked at every LOOK_S of it."""

    story: Story
    sensors: Sensors = field(default_factory=Sensors)
    traffic: Traffic = field(default_factory=Traffic)
    plan: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What happens when, in seconds of the story's clock."""

    def __post_init__(self) -> None:
        clock = self.story.clock
        self.session = self.story.session
        vars(self.session.wishes)["_clock"] = clock.monotonic
        self.enforcer = Enforcer(
            self.session, self.sensors, self.traffic, clock.monotonic, UTC,  # type: ignore[arg-type]
        )  # fmt: skip
        self.worker = Worker(clock=clock, pass_time=self.pass_time)
        self.story.trainer = self.story.peer.trainer = self.worker  # type: ignore[assignment]
        self.story.link.on_wait = self.pass_time
        self._next_look = clock.now

    @property
    def clock(self) -> Clock:
        return self.story.clock

    def pass_time(self, seconds: float) -> None:
        """Look and happen on the way."""
        ends = self.clock.now + seconds
        while True:
            events = sorted(at for at, _ in self.plan)
            following = min([self._next_look, *events[:1]])
            if following > ends:
                break
            self.clock.now = max(self.clock.now, following)
            for at, happen in [item for item in self.plan if item[0] <= self.clock.now]:
                self.plan.remove((at, happen))
                happen()
            if self._next_look <= self.clock.now:
                self._next_look += LOOK_S
                self.enforcer.look()
        self.clock.now = ends

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have it happen so many seconds from now."""
        self.plan.append((self.clock.now + seconds, happen))

    def say(self, **readings: Any) -> None:
        """Have the machine say something else, as well as what it says."""
        self.sensors.says = replace(self.sensors.says, **readings)
