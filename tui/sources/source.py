"""Where a dashboard gets its snapshot from, and which commands it may send: protocols, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from peer.node.control.client import Reply
from tui.swarm.snapshot import SwarmState

if TYPE_CHECKING:
    from tui.sources.replay import RecordingSource


class PeerCommands(Protocol):
    """The control socket of a peer."""

    @property
    def takes(self) -> frozenset[str]:
        """The commands that it does not always refuse."""

    def request(self, cmd: str, **fields: Any) -> Reply:
        """Send `status`, `pause`, `resume`, `finish`, `leave`, `snooze` or `set` and wait for the answer.

        `snooze` has `minutes`, `set` has `values` (by name of a setting).

        Blocks until a time-out: call it in a thread. A peer that is not there is a reply that is not ok.
        """


class EventSource(Protocol):
    """Where event lines come from, folded."""

    @property
    def title(self) -> str:
        """What is watched, in words: `peer alice in DIR`, `recording demo.jsonl`."""

    @property
    def me(self) -> str:
        """The id of the volunteer's own peer, empty if there is none."""

    @property
    def control(self) -> PeerCommands | None:
        """None if nothing can be commanded."""

    @property
    def playback(self) -> RecordingSource | None:
        """What moves its playhead; None if it is live."""

    @property
    def ended(self) -> str:
        """Empty while it goes on, or why nothing more will come."""

    def open(self) -> None:
        """Begin. May block (a big file is read): call it in a thread. Raises BadInput."""

    def advance(self, now_s: float) -> SwarmState:
        """The swarm with all that has come until now (Unix time); cheap, never blocks."""

    def time(self, now_s: float) -> float:
        """The time (Unix seconds) that screens show: now, or where the playhead is."""

    def close(self) -> None:
        """Let go of files and processes."""
