"""What a tracker plots of a run: one figure for each peer, name and round, out of the event log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dht.errors import BadInput
from peer.consensus.protocol.block import WEIGHT_ONE
from peer.schema.events import (
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    RoundCommitted,
    SampleWritten,
    event_files,
    read_events,
)


@dataclass(frozen=True)
class TrackedNumber:
    """`t` is Unix time in seconds."""

    t: float
    value: float


@dataclass(frozen=True)
class PeerFigures:
    """By name and round; of several in one round the last one counts."""

    numbers: dict[tuple[str, int], TrackedNumber] = field(default_factory=dict)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)

    def note(self, line: EventLine) -> None:
        for name, round, value in numbers_of(line.peer, line.event):
            if value is not None:
                self.numbers[name, round] = TrackedNumber(line.t, value)
        if isinstance(line.event, SampleWritten):
            self.texts[f"sample/{line.event.prompt}", line.event.round] = line.event.text


def numbers_of(me: str, event: Event) -> Iterator[tuple[str, int, float | None]]:
    """(name, round, value) of what `me` reports. Losses are in nats per token."""
    match event:
        case InnerProgressed(round=round):
            yield "loss/training", round, event.loss
            yield "learning rate", round, event.learning_rate
            yield "tokens per second", round, event.tokens_per_s
        case Evaluated(round=round):
            yield "loss/held out", round, event.loss
            for source, loss in event.by_source.items():
                yield f"loss/held out: {source}", round, loss
        case RoundCommitted(round=round):
            yield "round/seconds", round, event.round_s
            yield "round/idle seconds", round, event.exposed_s
            yield "round/members", round, len(event.group)
            yield "round/tokens", round, event.tokens
            yield "round/bytes sent", round, event.bytes_sent
            yield "round/bytes received", round, event.bytes_received
            yield "round/penalties", round, len(event.penalties)
            yield "mine/weight", round, event.weights.get(me, 0) / WEIGHT_ONE
            yield "mine/norm", round, event.norms.get(me)


def read_figures(directory: Path) -> dict[str, PeerFigures]:
    """Of the peer in a folder, or of all in the folders below it, by peer id. Raises BadInput if there is none."""
    below = sorted(each.parent for each in directory.glob("*/events.jsonl"))
    folders = [directory] if event_files(directory) else below
    found = figures_in(line for folder in folders for line in read_events(folder))
    if not found:
        raise BadInput(f"{directory} holds no events of a peer; name the folder of one, or one of several")
    return found


def figures_in(lines: Iterable[EventLine]) -> dict[str, PeerFigures]:
    found: dict[str, PeerFigures] = {}
    for line in lines:
        found.setdefault(line.peer, PeerFigures()).note(line)
    return {peer: figures for peer, figures in found.items() if figures.numbers or figures.texts}
