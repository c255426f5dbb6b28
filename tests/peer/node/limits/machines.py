"""A machine that says what a test wants it to say, and a peer that trains on it, on a clock of the test's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from msgspec.structs import replace

from peer.node.lifecycle.inputs_effects import OwnerChanged, Result, Step, Stepped, TrainerStatus, Work
from peer.node.limits.desired_state import Intent
from peer.node.limits.enforcer import LOOK_S, Enforcer, Throttle
from peer.node.limits.policy import Readings
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import AlertRaised, Event, PeerStateChanged
from peer.schema.settings import PeerSettings
from tests.peer.node.lifecycle.story import FakeTrainer, endless, in_step, joined

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
class Worker(FakeTrainer):
    """Makes steps of several micro-batches, and asks between them whether another one follows."""

    micro_batches: int = 16
    micro_batch_s: float = 0.5
    throttle: Callable[[], Throttle] = field(kw_only=True)
    pass_time: Callable[[float], float] = field(kw_only=True)
    """Returns what the clock shows then."""
    tokens: int = 0
    computed_until: float = 0.0
    """When the newest micro-batch ended."""
    computed_s: float = 0.0

    def result(self, work: Work) -> Result:
        if not isinstance(work, Step):
            return super().result(work)
        throttle, made = self.throttle(), 0
        while made < self.micro_batches and not (made and throttle.rest_or_stop()):
            self.computed_until = self.pass_time(self.micro_batch_s)
            self.computed_s += self.micro_batch_s
            made += 1
        self.tokens += 10 * made
        stepped = super().result(work)
        assert isinstance(stepped, Stepped)
        return replace(stepped, tokens=10 * made, rest_s=throttle.left_s())


class Home:
    """A story whose clock moves only through here: the limits are looked at every LOOK_S of it."""

    def __init__(self, begins_at: float, *, is_in_step: bool = True) -> None:
        self.events: list[Event] = []
        """Of the limits; those of the life are in the story."""
        self.session = Reporter(self.events.append)
        self.sensors, self.traffic = Sensors(), Traffic()
        self.plan: list[tuple[float, Callable[[], None]]] = []
        """What happens when, in seconds of the story's clock."""
        wishes = self.wishes = self.session.wishes
        vars(wishes)["_clock"] = lambda: self.story.now
        self.worker = Worker(
            TrainerStatus(round=0), takes_s={}, pass_time=self.pass_time,
            throttle=lambda: Throttle(wishes, lambda: self.story.now, lambda: wishes.pausing, self._sleep),
        )  # fmt: skip
        self.story = joined(endless(), is_in_step=False, now=begins_at, trainer=self.worker)
        self.story.on_wait = lambda timeout_s: self.pass_time(min(timeout_s, LOOK_S))
        self.story.finish = wishes.round_is_given
        self.enforcer = Enforcer(
            self.session, self.sensors, self.traffic, lambda: self.story.now, UTC,  # type: ignore[arg-type]
        )  # fmt: skip
        self._next_look = begins_at
        wishes.listen(self._say_wishes)
        if is_in_step:
            self.story.feed(in_step)

    def _say_wishes(self) -> None:
        wishes = self.wishes
        self.session.has_trained |= self.story.state == "TRAINING"
        self.story.feed(
            lambda now: OwnerChanged(now, wishes.holds, wishes.now is Intent.FINISH, wishes.min_step_s)
        )  # fmt: skip

    def pass_time(self, seconds: float) -> float:
        """Look and happen on the way."""
        ends = self.story.now + seconds
        while True:
            events = sorted(at for at, _ in self.plan)
            following = min([self._next_look, *events[:1]])
            if following > ends:
                break
            self.story.now = max(self.story.now, following)
            for at, happen in [item for item in self.plan if item[0] <= self.story.now]:
                self.plan.remove((at, happen))
                happen()
            if self._next_look <= self.story.now:
                self._next_look += LOOK_S
                self.enforcer.look()
        self.story.now = ends
        return ends

    def _sleep(self, seconds: float) -> None:
        self.pass_time(seconds)

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have it happen so many seconds from now."""
        self.plan.append((self.story.now + seconds, happen))

    def say(self, **readings: Any) -> None:
        """Have the machine say something else, as well as what it says."""
        self.sensors.says = dataclasses.replace(self.sensors.says, **readings)

    @property
    def alerts(self) -> list[AlertRaised]:
        return [event for event in self.events if isinstance(event, AlertRaised)]

    @property
    def said(self) -> PeerStateChanged:
        """The newest."""
        newest: PeerStateChanged = self.story.all(PeerStateChanged)[-1]
        return newest
