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
        """The commands that the peer does not always refuse."""

    def request(self, cmd: str, **fields: Any) -> Reply:
        """Send `status`, `pause`, `resume`, `finish`, `leave`, `snooze` or `set`, and wait for the answer.

        `snooze` has `minutes`, `set` has `values` (by name of a setting). This blocks until a time-out, so it must be
        called in a thread. If the peer is not there, the reply is not ok.
        """


class EventSource(Protocol):
    """A source of event lines, reduced to a swarm."""

    @property
    def title(self) -> str:
        """The source in words: `peer alice in DIR`, `recording demo.jsonl`."""

    @property
    def me(self) -> str:
        """The id of the volunteer's own peer, empty if there is none."""

    @property
    def control(self) -> PeerCommands | None:
        """The peer's control socket; None if no commands can be given."""

    @property
    def playback(self) -> RecordingSource | None:
        """Moves the playhead of a recording; None for a live source."""

    @property
    def ended(self) -> str:
        """Why no more events will come; empty while it goes on."""

    def open(self) -> None:
        """Start reading. May block for a big file, so it must be called in a thread. Raises BadInput."""

    def advance(self, now_s: float) -> SwarmState:
        """The swarm with everything that has arrived until now (Unix time). It is cheap and never blocks."""

    def time(self, now_s: float) -> float:
        """The time (Unix seconds) that screens show: now, or the time of the playhead."""

    def close(self) -> None:
        """Release files and processes."""
