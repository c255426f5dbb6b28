"""A peer to sit beside: the first part of a recording, seen from one of its peers, with a control that remembers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from peer.node.control.client import Reply
from peer.schema.events import Event, EventLine, PeerStarted, RoundForecast, RoundStalled, parse_line
from tests.tui.dashboard.canned import Canned
from tests.tui.fake_control import FakePeer
from tui.swarm.reducer import apply, apply_all
from tui.swarm.snapshot import SwarmState

LATE_ADVICE = "min_step_s is 2 s: with 1.4 s its part would be there in time"
RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"


class Remembering:
    """The control socket of `peer`. With a `reply` that is the answer to all but `status`, and nothing is done."""

    def __init__(self, peer: FakePeer) -> None:
        self.peer = peer
        self.takes = frozenset({"status", "pause", "resume", "finish", "leave", "set", "snooze"})
        self.reply: Reply | None = None

    @property
    def asked(self) -> list[str]:
        """Every command but `status`."""
        return [cmd for cmd, _ in self.peer.asked]

    def request(self, cmd: str, **fields: Any) -> Reply:
        if self.reply is not None and cmd != "status":
            self.peer.asked.append((cmd, fields))
            return self.reply
        row = self.peer.answer(cmd, fields)
        return Reply(ok=row.pop("ok"), error=row.pop("error", ""), fields=MappingProxyType(row))


class Attached(Canned):
    """What the dashboard of `name` shows after `count` lines of the recording and then `events` of its own."""

    title = "peer peer-2 in runs/micro"

    def __init__(self, *, name: str = "peer-2", count: int = 700, events: Sequence[Event] = ()) -> None:
        lines = recorded()[:count]
        me = next(line.peer for line in lines if isinstance(line.event, PeerStarted) and line.event.name == name)
        self._last = lines[-1]
        super().__init__(apply_all(SwarmState(), lines), me=me)
        self.now_s = self._last.t
        for event in events:
            self.tell(event)
        self.limited = FakePeer(now=self.now_s, tell=self.tell)
        self.remembering = Remembering(self.limited)
        self.control = self.remembering

    def tell(self, event: Event) -> None:
        """One more event of its own."""
        self.swarm = apply(
            self.swarm, EventLine(seq=10_000, t=self.now_s, run=self._last.run, peer=self.me, event=event)
        )

    def time(self, now_s: float) -> float:
        return self.now_s


@cache
def recorded() -> tuple[EventLine, ...]:
    """The recording's lines, by time."""
    lines = [parse_line(text) for text in RECORDING.read_text().splitlines()]
    return tuple(sorted((line for line in lines if line is not None), key=lambda line: line.t))


def foretelling(late_s: float | None, advice: str = "") -> Attached:
    """peer-2 beside its forecast of the round that it trains for."""
    source = Attached()
    mine = source.swarm.peers[source.me]
    source.tell(
        RoundForecast(
            round=mine.round + 1, expected_s=62.0, low_s=55.0, high_s=71.0, took_s=61.0, foretold_s=60.0,
            late_s=late_s, advice=advice,
        )
    )  # fmt: skip
    return source


def stalling(*, rule: str = "TIME") -> Attached:
    """peer-2, whose round stands still because of what peer-1 sent, or because peer-1 is missing."""
    source = Attached()
    round = source.swarm.round
    author = next(peer for peer, view in source.swarm.peers.items() if view.name == "peer-1")
    cause = (
        f"{rule} refuses what peer-1 ({author[-6:]}) sent: it is dated 40 s ahead of this machine's clock"
        if rule
        else "1 of 2 voters answered"
    )
    source.tell(
        RoundStalled(
            round=round, ballots=3, rule=rule, about=author if rule else "",
            why=f"round {round + 1} stands still after 3 ballots: {cause}",
        )
    )  # fmt: skip
    return source
