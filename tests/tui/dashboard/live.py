"""A peer to sit beside: the first part of a recording, seen from one of its peers, with a control that remembers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peer.events import Event, Line, PeerStarted, parse_line
from tests.tui.dashboard.canned import Canned
from tui.feed.source import Reply
from tui.fold import fold_all
from tui.snapshot import Swarm

RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"


class Remembering:
    """A control socket whose peer answers `reply` to everything."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.takes = frozenset({"status", "pause", "resume", "finish", "leave"})
        self.reply = Reply(ok=True)

    def request(self, cmd: str, **fields: object) -> Reply:
        self.asked.append(cmd)
        return self.reply


class Attached(Canned):
    """What the dashboard of `name` shows after `count` lines of the recording and then `events` of its own."""

    title = "peer peer-2 in runs/micro"

    def __init__(self, *, name: str = "peer-2", count: int = 700, events: Sequence[Event] = ()) -> None:
        lines = recorded()[:count]
        me = next(line.peer for line in lines if isinstance(line.event, PeerStarted) and line.event.name == name)
        last = lines[-1]
        own = [Line(seq=10_000, t=last.t, run=last.run, peer=me, event=event) for event in events]
        super().__init__(fold_all(Swarm(), [*lines, *own]), me=me)
        self.remembering = Remembering()
        self.control = self.remembering
        self.now_s = last.t

    def time(self, now_s: float) -> float:
        return self.now_s


def recorded() -> list[Line]:
    """The recording's lines, by time."""
    lines = [parse_line(text) for text in RECORDING.read_text().splitlines()]
    return sorted((line for line in lines if line is not None), key=lambda line: line.t)
