"""What `peer watch` prints of a run: lines of nobody, with rounds and penalties as its chain tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.layout import cut
from peer.schema.events import Event, EventLine, PeerStarted, PeerStateChanged, ReportReceived
from peer.tools.watch.verified_chain import commit_events
from tests.peer.consensus.rounds.build import HEAD, block, header, update

ROUND_S = 30.0


def rounds_told(count: int) -> list[list[Event]]:
    """What `peer watch` prints of each of so many rounds: p1 gave nothing in the first, and all gave in the others."""
    return [round_told(number) for number in range(1, count + 1)]


def round_told(number: int) -> list[Event]:
    missing = number == 1
    second = header("p1", root=b"", tokens=0, steps=0) if missing else header("p1")
    members = (header("p0"), second, header("p2"))
    contributors = (0b101 if missing else 0b111,) * 3
    made = update(members=members, contributors=contributors)
    step = ChainEntry(HEAD, block(replace(made, round=number)))
    return list(commit_events(step, cut((2, 2, 1), 2), lambda anchor: b"\x01"))


def lines_of(events: Sequence[tuple[float, Event]]) -> list[EventLine]:
    return [EventLine(seq=seq, t=1000.0 + t, run="tiny", peer="", event=event) for seq, (t, event) in enumerate(events)]


def watched(rounds: int = 3) -> list[EventLine]:
    """Two rounds are caught up with, the others come live, each after 30 s."""
    events: list[tuple[float, Event]] = [
        (0.0, PeerStateChanged(state="JOINING", why="looking for the run")),
        (0.5, PeerStarted(name="watch", version="0.2", rounds=40)),
        *((1.0, ReportReceived(about=f"p{n}", round=2, ready=False, tokens=0, steps=5, name=f"peer-{n}",
                               loss=2.0 + n, tokens_per_s=50.0)) for n in range(3)),
        (2.0, PeerStateChanged(state="SYNCING", why="round 0 of 2 is checked")),
    ]  # fmt: skip
    for number, told_events in enumerate(rounds_told(rounds)):
        t = 2.5 if number < 2 else 3.0 + (number - 1) * ROUND_S
        events += [(t, event) for event in told_events]
        if number == 1:
            events.append((3.0, PeerStateChanged(state="READY", why="watching: every round is checked as it comes")))
    return lines_of(events)
