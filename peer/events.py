"""Everything a peer reports: one JSON object per line, the only output of training.

The dashboard, the plain log, ``status``, the tests and the simulator read the same lines:
``{"v":1,"seq":…,"t":…,"run":"…","peer":"…","type":"…",…}``. `t` is Unix time in seconds,
`seq` counts from 0 in one peer. A reader skips types and fields that it does not know.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `type` on the wire is the name of the class."""

    registry: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.registry[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class PeerStarted(Event):
    """A process began: which client, model and device; `rounds` is the length of the run, 0 if it has none.

    `settings` are the volunteer's own, by name.
    """

    name: str
    version: str
    device: str = ""
    parameters: int = 0
    directory: str = ""
    rounds: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InviteIssued(Event):
    """A bootstrap node is reachable under this invite."""

    invite: str


@dataclass(frozen=True, kw_only=True)
class PeerStateChanged(Event):
    """In words what this peer does and why; `until` is Unix time or None.

    States: JOINING, SYNCING, TRAINING, READY, AVERAGING, LATE, PAUSED, PENALISED, GONE.
    """

    state: str
    why: str
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class InnerProgressed(Event):
    """Inner steps made in this round, with the mean training loss (nats per token) since the last event.

    `step` goes beyond `steps` (H) while a round is overdue.
    """

    round: int
    step: int
    steps: int
    loss: float
    tokens: int
    tokens_per_s: float
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class RoundStarted(Event):
    """Training towards anchor `round` + 1 began; `steps` is H of this round."""

    round: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class PhaseEntered(Event):
    """The round moved on: freeze, group, send, judge, reduce, commit, apply. `RoundStarted` says that it trains.

    `deadline` is Unix time or None; `coordinator` is the peer that leads this ballot.
    """

    round: int
    phase: str
    deadline: float | None = None
    ballot: int = 0
    coordinator: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportReceived(Event):
    """What another peer says of itself in its signed head record."""

    about: str
    round: int
    ready: bool
    tokens: int
    steps: int
    name: str = ""
    leaving: bool = False


@dataclass(frozen=True, kw_only=True)
class PenaltyImposed(Event):
    """A reduction of the weight of `about`. Codes: LATE, STALE, ANOMALY, CLIPPED, NONFINITE, MISDECLARED, ABSENT."""

    about: str
    code: str
    layer: str
    evidence: str
    factor: float
    until_round: int


@dataclass(frozen=True, kw_only=True)
class RoundCommitted(Event):
    """Anchor `round` exists here. `digest` is the chain's, `state` the hash of θ and m (hex).

    `weights` are integers over 65,536 by member, `norms` what the reducers measured of each member's
    pseudo-gradient (L2, of the whole model), `tokens` what the members trained together,
    bytes are those of this peer's link in this round, `exposed_s` the seconds of the round in
    which this peer could make no inner step, `void` the number of parts nobody could give.
    A round lasts from anchor to anchor, so `round_s` covers catching up and measuring too.
    """

    round: int
    digest: str
    state: str
    group: list[str]
    weights: dict[str, int]
    penalties: list[dict[str, Any]]
    tokens: int
    bytes_sent: int
    bytes_received: int
    round_s: float
    exposed_s: float
    void: int = 0
    norms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundAborted(Event):
    """A try of this round ended without a decision; nothing changed, and it is tried again."""

    round: int
    ballot: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Held-out loss of anchor `round` in nats per token."""

    round: int
    loss: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class TransferProgressed(Event):
    """Bytes of a longer transfer that have arrived."""

    what: str
    source: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True)
class NetworkMeasured(Event):
    """This peer's traffic since it started, and who it is connected with.

    `reach` is direct, relayed or empty (not known yet). Each row of `peers` has `peer`, `address`, `relayed`,
    `bytes_sent`, `bytes_received` and `rtt_s` (None if not measured). `disk_bytes` is what the run directory's chain
    takes of `disk_quota_bytes`.
    """

    addresses: list[str]
    reach: str
    bytes_sent: int
    bytes_received: int
    peers: list[dict[str, Any]]
    disk_bytes: int = 0
    disk_quota_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DeviceMeasured(Event):
    """What training takes of this machine now. A figure that the machine does not give is None."""

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    gpu_percent: float | None = None
    vram_used_bytes: int | None = None
    vram_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    fan_percent: float | None = None
    throttled: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(Event):
    """A checkpoint of anchor `round` is on disk."""

    round: int
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class AlertRaised(Event):
    """Something a person should know. `level` is info, warning or error."""

    level: str
    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PeerStopped(Event):
    """The last event of a process."""

    why: str
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of an event stream: the event with its envelope."""

    seq: int
    t: float
    run: str
    peer: str
    event: Event


def format_line(line: Line) -> str:
    """One JSON object without a line break. Numbers that JSON lacks (NaN, ±inf) become null."""
    head = {
        "v": VERSION, "seq": line.seq, "t": round(line.t, 3), "run": line.run, "peer": line.peer,
        "type": type(line.event).__name__,
    }  # fmt: skip
    return json.dumps(head | _finite(dataclasses.asdict(line.event)), separators=(",", ":"), allow_nan=False)


def parse_line(text: str) -> Line | None:
    """The event in a line; None for a type or version that this client does not know.

    Raises ValueError for a line that is not an event. Unknown fields are ignored.
    """
    row = json.loads(text)
    if not isinstance(row, dict) or "type" not in row or "v" not in row:
        raise ValueError(f"not an event: {text[:80]!r}")
    kind = Event.registry.get(row["type"])
    if kind is None or row["v"] != VERSION:
        return None
    known = {field.name for field in dataclasses.fields(kind)}
    try:
        event = kind(**{key: value for key, value in row.items() if key in known})
        return Line(seq=row["seq"], t=row["t"], run=row["run"], peer=row["peer"], event=event)
    except (TypeError, KeyError) as error:
        raise ValueError(f"a {row['type']} event lacks a field: {error}") from error


def read_events(directory: Path) -> Iterator[Line]:
    """Every readable line of a run directory, oldest first: events.jsonl.2, events.jsonl.1, events.jsonl.

    A line that is cut off (the peer is writing it, or its machine lost power) is skipped.
    """
    for path in sorted(directory.glob("events.jsonl*"), key=_age, reverse=True):
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = parse_line(text)
                except ValueError:
                    continue
                if line is not None:
                    yield line


def _age(path: Path) -> int:
    number = re.fullmatch(r"events\.jsonl\.(\d+)", path.name)
    return int(number[1]) if number else 0


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
