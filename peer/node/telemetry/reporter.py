"""Where a peer's events go, and its owner's settings and wishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from peer.node.limits.desired_state import DesiredState
from peer.node.limits.policy import Decision
from peer.schema.events import AlertRaised, Event, PeerStateChanged, SettingsChanged
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings


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
    """Called when a link replaces one that has ended."""
    state: str = ""
    why: str = ""
    has_trained: bool = False

    def __post_init__(self) -> None:
        self.chosen.listen(self.wishes.take)

    @property
    def settings(self) -> PeerSettings:
        return self.chosen.settings

    def judge(self, verdict: Decision) -> None:
        self.wishes.judge(verdict)

    def say(self, state: str, why: str, until: float | None = None) -> None:
        """Report what this peer does, why, and when that ends by itself (Unix time)."""
        self.state, self.why = state, why
        self.has_trained |= state == "TRAINING"
        self.emit(PeerStateChanged(state=state, why=why, until=until))

    def change(self, values: Mapping[str, Any]) -> str:
        """Set other settings from now on; see `LiveSettings.change`."""
        note = self.chosen.change(values)
        self.emit(SettingsChanged(settings=asdict(self.chosen.settings)))
        return note

    def warn(self, code: str, text: str) -> None:
        self.emit(AlertRaised(level="warning", code=code, text=text))
