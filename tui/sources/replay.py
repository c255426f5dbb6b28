"""A recorded event file as a source: play, pause, step, scrub."""

from __future__ import annotations

import gc
from bisect import bisect_right
from pathlib import Path
from typing import Self

from dht.errors import BadInput
from peer.schema.events import EventLine, event_files, read_lines
from tui.sources.source import PeerCommands
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState

EVERY = 2500
"""The interval of snapshots in events: a jump has to process no more than these."""
SLICE = 500
"""The maximal number of events that one `advance` processes; at a high speed the playhead waits for them."""
SLOWEST, FASTEST = 0.25, 64.0


class RecordingSource:
    """All lines of a file, of a run directory or of a folder of them, sorted by time. The playhead starts at the
    end.

    With `plays` it starts at the beginning, and plays.
    """

    me = ""
    control: PeerCommands | None = None

    def __init__(self, path: Path, *, plays: bool = False) -> None:
        self._path, self._plays = path, plays
        self.title = f"recording {path.name or path}"
        self.playing = False
        self.speed = 1.0
        """Seconds of the recording per real second."""
        self.position = 0
        self._lines: list[EventLine] = []
        self._times: list[float] = []
        self._snapshots = [SwarmState()]
        """The states after 0, EVERY, 2 EVERY … events."""
        self._swarm = SwarmState()
        self._playhead_t = 0.0
        self._now_s: float | None = None
        """The time at which the playhead was last moved; None while it stands."""

    @property
    def playback(self) -> Self:
        return self

    @property
    def count(self) -> int:
        return len(self._lines)

    @property
    def ended(self) -> str:
        return f"this is the end of {self.title}" if self.count and self.position == self.count else ""

    def open(self) -> None:
        """Read everything. Raises BadInput if there is nothing to read."""
        gc.disable()  # of millions of new objects none is garbage, and looking for it takes as long as reading
        try:
            self._read()
        finally:
            gc.enable()

    def _read(self) -> None:
        skipped = 0
        for path in _find_files(self._path):
            try:
                for line in read_lines(path):
                    if line is None:
                        skipped += 1
                    else:
                        self._lines.append(line)
            except OSError as error:
                raise BadInput(f"{path} cannot be read: {error.strerror}; name a file of event lines") from error
        if not self._lines:
            raise BadInput(f"{self._path} holds no events; name a file that a peer, a demo or --ui json has written")
        self._lines.sort(key=lambda line: line.t)
        self._times = [line.t for line in self._lines]
        self._snapshots = [SwarmState(skipped=skipped)]
        for first in range(0, self.count, EVERY):
            swarm = apply_all(self._snapshots[-1], self._lines[first : first + EVERY])
            if first + EVERY <= self.count:
                self._snapshots.append(swarm)
        self._stand_at(swarm, self.count)
        if self._plays:
            self.toggle()

    def advance(self, now_s: float) -> SwarmState:
        """The swarm at the playhead, which moves with the clock while it plays."""
        if not self.playing:
            return self._swarm
        if self._now_s is not None:
            self._playhead_t += max(0.0, now_s - self._now_s) * self.speed
        self._now_s = now_s
        due = bisect_right(self._times, self._playhead_t)
        target = min(due, self.position + SLICE)
        if target > self.position:
            self._swarm = apply_all(self._swarm, self._lines[self.position : target])
            self.position = target
        if target < due:
            self._playhead_t = self._times[target - 1]
        if self.position == self.count:
            self._pause()
        return self._swarm

    def time(self, now_s: float) -> float:
        return self._playhead_t

    def close(self) -> None:
        self.playing = False

    # ---- playback ----

    def toggle(self) -> None:
        """Play or pause; at the end, play from the beginning."""
        if self.playing:
            self._pause()
            return
        if self.position == self.count:
            self.seek(0)
        self.playing = True

    def step(self, events: int) -> None:
        """Pause, and go forward by this number of events, or back if it is negative."""
        self._pause()
        self.seek(self.position + events)

    def seek(self, position: int) -> None:
        """Go to the position after this number of events, at most to either end."""
        position = min(max(0, position), self.count)
        nearest = min(position // EVERY, len(self._snapshots) - 1)
        swarm, begins = self._snapshots[nearest], nearest * EVERY
        if begins < self.position <= position:
            swarm, begins = self._swarm, self.position
        self._stand_at(apply_all(swarm, self._lines[begins:position]), position)

    def faster(self) -> None:
        self.speed = min(FASTEST, self.speed * 2)

    def slower(self) -> None:
        self.speed = max(SLOWEST, self.speed / 2)

    def _pause(self) -> None:
        self.playing, self._now_s = False, None

    def _stand_at(self, swarm: SwarmState, position: int) -> None:
        self._swarm, self.position = swarm, position
        self._now_s = None
        if self._times:
            self._playhead_t = self._times[max(0, position - 1)]


def _find_files(path: Path) -> list[Path]:
    """The event files for a path. Raises BadInput if there are none."""
    if not path.exists():
        raise BadInput(f"{path} does not exist; name a file of event lines or a peer's folder")
    if not path.is_dir():
        return [path]
    found = event_files(path) or [file for folder in sorted(path.iterdir()) for file in event_files(folder)]
    if not found:
        raise BadInput(f"{path} holds no events of a peer; name a file of event lines or a peer's folder")
    return found
