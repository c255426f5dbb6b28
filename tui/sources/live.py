"""Peers of this machine as a source: their event files, followed while they write."""

from __future__ import annotations

from pathlib import Path

from dht.errors import BadInput
from peer.node.control.client import ControlClient
from peer.node.telemetry.event_tail import EventTail
from peer.schema.events import event_files
from tui.folders import frozen_process, is_locked
from tui.sources.source import PeerCommands
from tui.swarm.reducer import apply_all, freeze, lose
from tui.swarm.snapshot import PeerView, SwarmState

SLICE = 250
"""The maximal number of lines that one `advance` processes, so that the screen does not have to wait."""
BACKLOG_SLICE = 5000
LOCK_EVERY_S = 1.0
"""The interval between two looks at whether the peer is still there."""


class LiveSource:
    """The events of a peer's run directory, of a demo's folder, or of a single file with several peers. A single
    peer accepts commands."""

    playback = None

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            files, several = [path], True
        elif event_files(path):
            files, several = [path / "events.jsonl"], not (path / "run").exists()  # as a demo leaves it
        else:
            folders = sorted(path.glob("*/events.jsonl"))
            files, several = folders or [path / "events.jsonl"], bool(folders)
        self._tails = [EventTail(file) for file in files]
        self._title = f"in {path}" if path.is_dir() else path.name
        self._lock = None if several else path / "run" / "lock"
        self.control: PeerCommands | None = None if several else ControlClient(path)
        self.me = ""
        self.ended = ""
        self._swarm = SwarmState()
        self._looked_s = float("-inf")
        self._frozen: dict[str, int] = {}
        """The process of each peer that was stopped by a signal."""

    @property
    def title(self) -> str:
        if self._lock is None:
            return f"peers {self._title}"
        return f"peer {self._swarm.label(self.me)} {self._title}" if self.me else f"peer {self._title}"

    def open(self) -> None:
        """Read everything that is there. Raises BadInput for a file that cannot be read."""
        while self._take(BACKLOG_SLICE):
            pass

    def advance(self, now_s: float) -> SwarmState:
        """The swarm with everything written until now. A long backlog is processed in parts, one per call."""
        caught_up = not self._take(SLICE)
        if caught_up and abs(now_s - self._looked_s) >= LOCK_EVERY_S:
            self._looked_s = now_s
            self._look_after_peers(now_s)
        return freeze(self._swarm, self._frozen) if self._frozen else self._swarm

    def time(self, now_s: float) -> float:
        return now_s

    def close(self) -> None:
        for tail in self._tails:
            tail.close()

    def _take(self, limit: int) -> bool:
        """Process new lines. Returns whether there may be more."""
        try:
            batches = [tail.take(limit) for tail in self._tails]
        except OSError as error:
            raise BadInput(f"{error.filename}: {error.strerror}; the events of a peer cannot be read") from error
        lines = [line for batch in batches for line in batch]
        if len(batches) > 1:
            lines.sort(key=lambda line: line.t if line is not None else 0.0)
        if lines:
            self._swarm = apply_all(self._swarm, lines)
        if lines and self._lock is not None and self._swarm.reporting:
            self.me = self._swarm.reporting[-1].peer  # the newest: a folder may have been given another key
        return any(len(batch) == limit for batch in batches)

    def _look_after_peers(self, now_s: float) -> None:
        """Report peers that ended without a word, and note when no more events will come."""
        if self._silent() and self._take(SLICE):
            return  # what it wrote just before it let go of its lock comes first
        silent = self._silent()
        for view in silent:
            if view.state != "GONE":
                self._swarm = lose(self._swarm, view.peer, now_s)
        found = {view.peer: frozen_process(self._lock_of(view)) for view in self._swarm.reporting if not view.stopped}
        self._frozen = {peer: process for peer, process in found.items() if process is not None}
        views = [self._swarm.peers[view.peer] for view in self._swarm.reporting]
        if any(not view.stopped and view.peer not in {each.peer for each in silent} for view in views):
            self.ended = ""
        elif len(views) == 1:
            self.ended = f"it stopped: {views[0].why}" if views[0].stopped else views[0].why
        elif views:
            self.ended = "every peer has stopped"

    def _silent(self) -> list[PeerView]:
        """Peers that did not report their end, and do not hold the lock of their directory."""
        return [view for view in self._swarm.reporting if not view.stopped and not self._is_there(view)]

    def _is_there(self, view: PeerView) -> bool:
        lock = self._lock_of(view)
        return is_locked(lock) or (self._lock is None and (not view.directory or not lock.exists()))

    def _lock_of(self, view: PeerView) -> Path:
        return self._lock or Path(view.directory) / "run" / "lock"
