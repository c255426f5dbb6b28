"""What a peer says of itself: its state and why, and how the inner steps go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from peer.events import AlertRaised, Event, InnerProgressed, PeerStateChanged, SettingsChanged
from peer.lifecycle.exposed_time import ExposedTime
from peer.limits.desired_state import DesiredState
from peer.limits.policy import Decision
from peer.live_settings import LiveSettings
from peer.protocol.block import Update
from peer.settings import PeerSettings

if TYPE_CHECKING:
    from peer.train.residual import RewindResult
    from peer.train.trainer import Trainer

PROGRESS_S = 1.0
UNTIL_S = 60.0
"""An end that moves by less is not said again."""


@dataclass
class Reporter:
    """Where events go, and whether somebody asked this peer to leave."""

    emit: Callable[[Event], None]
    stopping: bool = False
    building: bool = False
    """The model is being built: a signal need not wait for that."""
    wishes: DesiredState = field(default_factory=DesiredState)
    """Whether the owner of this peer wants it to train."""
    chosen: LiveSettings = field(default_factory=LiveSettings)
    """The owner's settings."""
    link_began: Callable[[], None] = lambda: None
    """Called when a link takes the place of one that has ended."""
    state: str = ""
    why: str = ""
    until: float | None = None
    has_trained: bool = False

    def __post_init__(self) -> None:
        self.chosen.listen(self.wishes.take)

    @property
    def settings(self) -> PeerSettings:
        return self.chosen.settings

    def judge(self, verdict: Decision) -> None:
        self.wishes.judge(verdict)

    def say(self, state: str, why: str, until: float | None = None) -> None:
        """Say what this peer does, why, and when that ends by itself (Unix time): once per change."""
        if (state, why) != (self.state, self.why) or _differ(until, self.until):
            self.state, self.why, self.until = state, why, until
            self.has_trained |= state == "TRAINING"
            self.emit(PeerStateChanged(state=state, why=why, until=until))

    def change(self, values: Mapping[str, Any]) -> str:
        """Other settings from now on; see `LiveSettings.change`."""
        note = self.chosen.change(values)
        self.emit(SettingsChanged(settings=asdict(self.chosen.settings)))
        return note

    def warn(self, code: str, text: str) -> None:
        self.emit(AlertRaised(level="warning", code=code, text=text))

    def say_undone(self, updates: Sequence[Update], undone: RewindResult) -> None:
        """What a change to the others' branch, which the link announced, did to this peer's own work."""
        first, last = updates[-1].round, updates[0].round
        which = f"round {last} is undone" if first == last else f"rounds {first} to {last} are undone"
        back = "it" if first == last else f"{undone.returned} of them"
        gone = "it" if first == last else f"{undone.lost} of them"
        parts = [
            which,
            f"what this peer had put into {back} is owed again" if undone.returned else "",
            f"what it had put into {gone} is not on its disk any more and is lost" if undone.lost else "",
        ]
        text = "; ".join(part for part in parts if part)
        self.emit(AlertRaised(level="warning" if undone.lost else "info", code="FORK", text=text))

    def say_given_up(self, norm: float, round: int) -> None:
        """What this peer had learned was older than the run takes: its `norm`, 0.0 if nothing was given up."""
        if norm:
            text = f"work of norm {norm:.3g} was too old at round {round} and is given up; training goes on from there"
            self.warn("STALE", text)

    def say_left_behind(self, norm: float, round: int) -> None:
        """What this peer had last offered or was too old did not come along to a snapshot: its `norm`, or 0.0."""
        if norm:
            text = f"this peer goes on at round {round}; of what it had learned, work of norm {norm:.3g} may have been"
            self.warn("RESYNC", f"{text} counted already or is too old, and is not offered again")

    def left(self) -> bool:
        return self.stopping


def _differ(until: float | None, said: float | None) -> bool:
    """Whether people should hear of another end; one that moves with every key that is pressed they need not."""
    if until is None or said is None:
        return until is not said
    return abs(until - said) >= UNTIL_S


class Progress:
    """Training loss since the last report, and speed in the time that was not exposed."""

    def __init__(self, exposure: ExposedTime) -> None:
        self._exposure = exposure
        self.restart()

    def restart(self) -> None:
        """Forget what is not reported."""
        self.losses: list[float] = []
        self.tokens = 0
        self._since, self._exposed_s = time.monotonic(), self._exposure.seconds

    def add(self, loss: float, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    def due(self) -> bool:
        return time.monotonic() - self._since >= PROGRESS_S

    def event(self, trainer: Trainer, learning_rate: float, steps: int) -> InnerProgressed:
        """What happened since the last call, of `steps` in the round; starts anew."""
        exposed_s = self._exposure.seconds - self._exposed_s
        seconds = max(time.monotonic() - self._since - exposed_s, 1e-6)
        event = InnerProgressed(
            round=trainer.round_in_training, step=trainer.step_in_round, steps=steps,
            loss=sum(self.losses) / len(self.losses), tokens=self.tokens,
            tokens_per_s=round(self.tokens / seconds, 1), learning_rate=learning_rate,
        )  # fmt: skip
        self.restart()
        return event
