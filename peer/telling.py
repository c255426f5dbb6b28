"""What a peer says of itself: its state and why, and how the inner steps go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.events import AlertRaised, Event, InnerProgressed, PeerStateChanged

if TYPE_CHECKING:
    from peer.train.trainer import Trainer

PROGRESS_S = 1.0


@dataclass
class Session:
    """Where events go, and whether somebody asked this peer to leave."""

    emit: Callable[[Event], None]
    stopping: bool = False
    building: bool = False
    """The model is being built: a signal need not wait for that."""
    state: str = ""
    why: str = ""

    def say(self, state: str, why: str) -> None:
        """Say what this peer does and why, once per change."""
        if (state, why) != (self.state, self.why):
            self.state, self.why = state, why
            self.emit(PeerStateChanged(state=state, why=why))

    def warn(self, code: str, text: str) -> None:
        """Tell a person something they should know."""
        self.emit(AlertRaised(level="warning", code=code, text=text))

    def left(self) -> bool:
        return self.stopping


@dataclass
class Progress:
    """Training loss and speed since the last report."""

    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    since: float = field(default_factory=time.monotonic)

    def add(self, loss: float, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    def due(self) -> bool:
        return time.monotonic() - self.since >= PROGRESS_S

    def event(self, trainer: Trainer, learning_rate: float) -> InnerProgressed:
        """What happened since the last call; starts anew."""
        seconds = max(time.monotonic() - self.since, 1e-6)
        event = InnerProgressed(
            round=trainer.anchor.round, step=trainer.step_in_round, steps=trainer.steps_in_round,
            loss=sum(self.losses) / len(self.losses), tokens=self.tokens,
            tokens_per_s=round(self.tokens / seconds, 1), learning_rate=learning_rate,
        )  # fmt: skip
        self.losses, self.tokens, self.since = [], 0, time.monotonic()
        return event
