"""Runs a peer's lifecycle on a virtual clock: a trainer whose work takes declared seconds does what it asks for.

It stands for `peer.session` and `peer.network.link` of a real peer, with the round machine's own driver in between.
Inner steps are made many at once. They end early where a real trainer would: after the step, or after the micro-batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import cast

from peer.consensus.protocol.block import Block, ContributionHeader
from peer.consensus.protocol.head import ChainHead
from peer.consensus.rounds.driver import Driver, trainer_input
from peer.consensus.rounds.interface import Input
from peer.node.lifecycle.inputs_effects import (
    Began,
    Do,
    Done,
    Emit,
    EmitRound,
    Fail,
    ForgetForecast,
    GrantFinish,
    Greet,
    Interrupt,
    LifeEffect,
    LifeInput,
    Positioned,
    Reconnect,
    Result,
    RoundDecided,
    Say,
    Step,
    Stepped,
    Submit,
    SubmitAsked,
    SyncChanged,
    TrainerStatus,
    Woken,
    Work,
    WriteSnapshot,
    Written,
)
from peer.node.lifecycle.machine import begin, step
from peer.node.lifecycle.state import Life
from peer.node.lifecycle.trainer_results import PROGRESS_S
from peer.schema import ipc
from peer.schema.events import Event
from peer.schema.spec import RunSpec

NEVER = float("inf")


class LifeHost(ABC):
    """One life with its trainer and driver in this process. It is the driver's `TrainerPort`."""

    life: Life
    driver: Driver
    name: str

    # ---- its clock and its trainer ----

    @property
    @abstractmethod
    def now(self) -> float:
        """Virtual seconds."""

    @abstractmethod
    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s`, if this life still lasts then."""

    @property
    @abstractmethod
    def head(self) -> ChainHead:
        """The head of the chain on disk."""

    @property
    @abstractmethod
    def status(self) -> TrainerStatus:
        """The trainer's status."""

    @abstractmethod
    def step_s(self) -> float:
        """Seconds of each inner step in the batch that begins now."""

    @abstractmethod
    def train(self, steps: int, whole: float) -> Stepped:
        """The trainer made this number of inner steps; `whole` is the share of the last one that was made."""

    @abstractmethod
    def do(self, work: Work) -> Result:
        """Do any other work; it lasts `seconds` from now on."""

    @abstractmethod
    def seconds(self, work: Work) -> float:
        """The duration of a work; for a submission, until it is written to disk during training."""

    @abstractmethod
    def header(self, anchor: bytes) -> ContributionHeader:
        """The contribution on disk for an anchor; an empty one if there is none."""

    # ---- what people and the others hear ----

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Report an event to people."""

    def tell_round(self, told: EmitRound) -> None:  # noqa: B027  # not all have somebody to tell
        """Report a decided round, once."""

    def traffic(self) -> tuple[int, int]:
        """The bytes sent and received since the last call."""
        return 0, 0

    def say(self, message: ipc.AnyToLink) -> None:
        """Pass a message from the trainer's side to the round machine."""
        event = trainer_input(message, self.now, self.header)
        if event is not None:
            self.deliver(event)

    def reconnect(self) -> None:
        """Connect again after a time without traffic."""
        raise AssertionError("no link ends here")

    # ---- the lifecycle ----

    def begin_life(self, run: RunSpec, *, serves: bool = False) -> None:
        """Begin a life with a trainer at `head`, and a driver; `start` follows. With `serves` it works for a lead."""
        self._inbox: deque[LifeInput] = deque()
        self._busy, self._in_step, self._wakes_at = False, False, NEVER
        self._batch, self._batch_began_at, self._batch_steps, self._batch_step_s = 0, 0.0, 0, 0.0
        self.life = begin(run, self.name, self.status, self.head.anchor, self.now, serves=serves)

    def start(self) -> None:
        """Join, and train if the others have the same anchor."""
        self.feed(Woken(self.now))
        self._look()

    def feed(self, event: LifeInput) -> None:
        """Step the lifecycle. Inputs that arrive while its effects are performed wait their turn."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        while self._inbox:
            self.life, effects = step(self.life, self._inbox.popleft())
            for effect in effects:
                self._perform(effect)
        self._busy = False
        wakes_at = self.life.wake_at
        if wakes_at < self._wakes_at:
            self._wakes_at = wakes_at
            self.later(wakes_at - self.now, self._wake)

    def hear(self, event: LifeInput) -> None:
        """Called with what a link tells a trainer."""
        self.feed(event)

    def _wake(self) -> None:
        self._wakes_at = NEVER
        self.feed(Woken(self.now))

    def _perform(self, effect: LifeEffect) -> None:
        match effect:
            case Do(Step(most=most)):
                self._begin_steps(most)
            case Do(work):
                self._begin(work)
            case Interrupt(at_once):
                self._cut_short(at_once)
            case Say(message):
                self.say(cast("ipc.AnyToLink", message))  # all that there are
            case Greet(anchor):
                self._in_step = False  # what was said of it before is not heard by one that still joins
                self.hear(Began(self.now, anchor, self.head.members))
                self.hear(Positioned(self.now, anchor))
            case Emit(event):
                self.tell(event)
            case EmitRound():
                self.tell_round(effect)
            case Reconnect():
                self.reconnect()
            case Fail(error):
                raise error
            case WriteSnapshot() | ForgetForecast():
                return
            case GrantFinish():
                raise AssertionError("nobody wishes to finish a round here")

    # ---- work ----

    def _begin(self, work: Work) -> None:
        seconds, result = self.seconds(work), self.do(work)
        if isinstance(work, Submit):
            self._done(result)
            self._after(seconds, self._written, work.anchor)
        else:
            self._after(seconds, self._done, result)

    def _after(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        if seconds > 0:
            self.later(seconds, call, *args)
        else:
            call(*args)

    def _done(self, result: Result) -> None:
        self.feed(Done(self.now, result, self.status))

    def _written(self, anchor: bytes) -> None:
        self.feed(Written(self.now, anchor))

    def _begin_steps(self, most: int) -> None:
        """Make one step at a time until the speed is known. After that, steps go up to half of the part, if that is
        reported, or to its end."""
        made, step_s = self.life.trainer.step, self.step_s()
        half = (made + most + 1) // 2
        steps = half - made if made < half and half * step_s >= PROGRESS_S else most
        steps = steps if self.life.pace.step_s else 1
        self._batch += 1
        self._batch_began_at, self._batch_steps, self._batch_step_s = self.now, steps, step_s
        self.later(steps * step_s, self._end_steps, self._batch, steps, 1.0)

    def _cut_short(self, at_once: bool) -> None:
        if not self._batch_steps:  # they have ended, which the lifecycle is about to hear
            return
        made = (self.now - self._batch_began_at) / self._batch_step_s
        steps = max(1, math.ceil(made - 1e-6))
        if at_once:
            self._end_steps(self._batch, steps, min(1.0, made - steps + 1))
        elif steps < self._batch_steps:
            self._batch, self._batch_steps = self._batch + 1, steps
            self.later((steps - made) * self._batch_step_s, self._end_steps, self._batch, steps, 1.0)

    def _end_steps(self, batch: int, steps: int, whole: float) -> None:
        if batch == self._batch and self._batch_steps:
            self._batch_steps = 0
            self._done(self.train(steps, whole))

    # ---- the round machine ----

    def deliver(self, event: Input) -> None:
        """Pass an input to the round machine."""
        self.driver.deliver(event)
        self._look()

    def _look(self) -> None:
        """A peer trains while it has the same anchor as the electorate."""
        in_step = self.driver.state.in_step
        if in_step != self._in_step:
            self._in_step = in_step
            self.hear(SyncChanged(self.now, in_step))

    def committed(self, block: Block, head: ChainHead) -> None:
        """Called by the driver; the block is on disk."""
        self.hear(RoundDecided(self.now, block.update, head.anchor, *self.traffic(), self.now))

    def request_submit(self) -> None:
        """Called by the driver."""
        self.hear(SubmitAsked(self.now))

    @abstractmethod
    def resync(self, why: str) -> None:
        """Called by the driver: the chain cannot be followed any more."""
