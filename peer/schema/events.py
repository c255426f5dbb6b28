"""Everything a peer reports: one JSON object per line, the only output of training.

The dashboard, the plain log, ``status``, the tests and the simulator read the same lines:
``{"v":1,"seq":…,"t":…,"run":"…","peer":"…","type":"…",…}``. `t` is Unix time in seconds, `seq` counts from 0 in one
peer. A reader skips types and fields that it does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from peer.schema.event_fields import (
    DECODER,
    GPU_FIGURES,
    NARROWER,
    Reader,
    finite,
    read_count,
    read_list,
    read_text,
    read_time,
    reader_of,
    remembering,
)
from peer.schema.event_fields import MAX_LINE_BYTES as MAX_LINE_BYTES
from peer.schema.event_fields import event_files as event_files
from peer.schema.event_fields import printable as printable
from peer.schema.event_fields import read_raw_lines as read_raw_lines

VERSION = 1
RENAMED_TYPES = {"DistancesTold": "RoundTripsReported", "DeviceTold": "DeviceReported"}
"""Words of older clients and recordings, by which the same is said today: read, never written."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `type` on the wire is the name of the class."""

    registry: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.registry[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class PeerStarted(Event):
    """A process began: which client, model and device; `rounds` is the length of the run, 0 if it has none.

    `device` is a short word for all of `devices` (empty in lines of older clients), each of which trains as one rank;
    in words, `sharding` is how they share the model and `trains` the run. `settings` are the volunteer's own, by name.
    """

    name: str
    version: str
    device: str = ""
    parameters: int = 0
    directory: str = ""
    rounds: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    sharding: str = ""
    trains: str = ""


@dataclass(frozen=True, kw_only=True)
class PeerIntroduced(Event):
    """What a peer is called, the first that it says; with `trains`, in words, once it has the spec of its run."""

    name: str
    trains: str = ""


@dataclass(frozen=True, kw_only=True)
class InviteIssued(Event):
    """A bootstrap node is reachable under this invite."""

    invite: str


@dataclass(frozen=True, kw_only=True)
class BoardSeen(Event):
    """A bootstrap node sees `present` peers, most of them at anchor `round`, or waits for `missing` more to begin."""

    present: int
    round: int | None = None
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class PeerStateChanged(Event):
    """What this peer does (JOINING, SYNCING, TRAINING, READY, AVERAGING, PAUSED, GONE), and why; `until`: Unix time."""

    state: str
    why: str
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class InnerProgressed(Event):
    """Inner steps made in this round, with the mean training loss (nats per token) since the last event.

    `step` goes beyond `steps` (H) while a round is overdue. A loss that is not a number is read as None.
    """

    round: int
    step: int
    steps: int
    loss: float | None
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
    """The round moved on: submit, prepare, exchange, reduce, commit, apply. `RoundStarted` says that it trains.

    `deadline` is Unix time or None; `coordinator` is the peer that leads this ballot.
    """

    round: int
    phase: str
    deadline: float | None = None
    ballot: int = 0
    coordinator: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportReceived(Event):
    """What another peer says of itself in its signed head record.

    `loss` is its last training loss, `evaluated` the newest held-out loss that it measured, of anchor
    `evaluated_round` (nats per token), `device_gb` the memory of its GPU in 10⁹ bytes, 0 if it says none. Only who
    reads the board (`watch`) hears these four and the speed.
    """

    about: str
    round: int
    ready: bool
    tokens: int
    steps: int
    name: str = ""
    leaving: bool = False
    loss: float | None = None
    evaluated: float | None = None
    evaluated_round: int = 0
    tokens_per_s: float = 0.0
    device_gb: float = 0.0


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
    pseudo-gradient (L2, of the whole model), `tokens` what the members trained together, `given` those of each
    member that count, `outcomes` what the round counted for each peer that it speaks of (see
    `peer.consensus.credit.outcomes`; both empty in lines of older clients), `uplinks` the bits per second that members
    say they can send, if they know; bytes are those of this peer's link in this round, `exposed_s` the seconds of the
    round in which this peer could make no inner step, `void` the number of parts nobody could give.
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
    given: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    uplinks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundForecast(Event):
    """What the round that leads to anchor `round` is expected to take here, beside what the one before took.

    Nine of ten such rounds lie between `low_s` and `high_s`. `foretold_s` is what had been expected of the round
    that is over, None if nothing was, and `took_s` what it took. `late_s` says by how much this peer's part will miss
    what the others wait for, negative if it will be in time, None if that is not known yet; `advice` is what its owner
    can do about it, in words, or empty. `run_left_s`: from its beginning to the run's end, if there is one.
    """

    round: int
    expected_s: float
    low_s: float
    high_s: float
    took_s: float
    foretold_s: float | None = None
    late_s: float | None = None
    advice: str = ""
    run_left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundAborted(Event):
    """A try of this round ended without a decision; nothing changed, and it is tried again."""

    round: int
    ballot: int
    why: str


@dataclass(frozen=True, kw_only=True)
class MessageRefused(Event):
    """What `about` sent towards anchor `round` + 1 breaks `rule`, one of `peer.consensus.protocol.refusals`; `why` in
    words. Told once for each anchor, peer and rule."""

    round: int
    about: str
    rule: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RoundStalled(Event):
    """So many ballots of this round came to nothing, or none can begin; `why` in words. Its commit ends that.
    `rule` and `about` are those of the message that was refused; empty if none was: `why` says what is missing."""

    round: int
    ballots: int
    rule: str
    about: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Held-out loss of anchor `round` (None: no number), nats per token, in this `precision`; of a mix the mean."""

    round: int
    loss: float | None
    tokens: int
    by_source: dict[str, float] = field(default_factory=dict)
    precision: str = "float32"


@dataclass(frozen=True, kw_only=True)
class SampleWritten(Event):
    """How anchor `round` continues one of the run's prompts, the likeliest token each time; each in one line."""

    round: int
    prompt: str
    text: str


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
    takes of `disk_quota_bytes`. `upload_bps` is how fast this peer can send, in bits per second, as far as it is known;
    0 before that.
    """

    addresses: list[str]
    reach: str
    bytes_sent: int
    bytes_received: int
    peers: list[dict[str, Any]]
    disk_bytes: int = 0
    disk_quota_bytes: int = 0
    upload_bps: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundTripsReported(Event):
    """Another peer says how long its round trips to others take: seconds by peer id, exponential means."""

    about: str
    rtt_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DeviceReported(Event):
    """Another member says how much memory its GPU has, in 10⁹ bytes. Said again only if that changes."""

    about: str
    device_gb: float


@dataclass(frozen=True, kw_only=True)
class DeviceMeasured(Event):
    """What training takes of this machine now. A figure that the machine does not give is None.

    Of several GPUs each figure is that of the one nearest to its limit, and `gpus` has a row for each: its `device`, as
    torch names it, and the same figures.
    """

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
    gpus: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ClusterFormed(Event):
    """Told by every home of a cluster when it begins to train: whose lead it is, and what each home holds.

    `stages` has a row for each in model order: its `peer`, the numbers of its `first` and `last` layer, and `layers` in
    words."""

    epoch: int
    lead: str
    stages: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StagesMeasured(Event):
    """Told by a lead at the end of a round: what the newest inner step of its cluster took.

    `stages` has a row for each in model order: its `peer`, and of one micro-batch `compute_s`, forward and backward,
    and `wire_bytes` that it sends on.
    """

    step_s: float
    stages: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten(Event):
    """A checkpoint of anchor `round` is on disk."""

    round: int
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SettingsChanged(Event):
    """The volunteer's own settings, by name, after any of them changed."""

    settings: dict[str, Any]


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
class EventLine:
    """One line of an event stream: the event with its envelope."""

    seq: int
    t: float
    run: str
    peer: str
    event: Event


def format_line(line: EventLine) -> str:
    """One JSON object without a line break. Numbers that JSON lacks (NaN, ±inf) become null."""
    head = {
        "v": VERSION, "seq": line.seq, "t": round(line.t, 3), "run": line.run, "peer": line.peer,
        "type": type(line.event).__name__,
    }  # fmt: skip
    return json.dumps(head | finite(dataclasses.asdict(line.event)), separators=(",", ":"), allow_nan=False)


def parse_line(text: str) -> EventLine | None:
    """The event in a line; None for a type or version that this client does not know.

    Raises ValueError for a line that is not an event. Unknown fields are ignored. What is returned can be trusted:
    each field has its type, numbers are finite, counts are not negative, and texts are printable (a control,
    format or escape character becomes U+FFFD), since much of it was said by other peers.
    """
    try:
        return _read_row(DECODER.decode(text))
    except (TypeError, KeyError) as error:
        raise ValueError(f"an event lacks a field or has a wrong one: {error}: {text[:80]!r}") from error
    except RecursionError as error:
        raise ValueError("not an event: nested too deeply") from error


def _read_row(row: Any) -> EventLine | None:
    if not isinstance(row, dict) or "type" not in row or "v" not in row:
        raise ValueError(f"not an event: {str(row)[:80]!r}")
    kind = row["type"]
    kind = RENAMED_TYPES.get(kind, kind) if type(kind) is str else kind
    if row["v"] != VERSION or type(kind) is not str or kind not in Event.registry:
        return None
    values = {name: read(row[name]) for name, read in _readers_of(kind) if name in row}
    return EventLine(
        seq=read_count(row["seq"]), t=read_time(row["t"]), run=read_text(row["run"]), peer=read_text(row["peer"]),
        event=Event.registry[kind](**values),
    )  # fmt: skip


def read_line(raw: bytes) -> EventLine | None:
    """Like `parse_line`, with None for a line that is cut off or malformed, too: it is to be skipped and counted."""
    try:
        return parse_line(raw.decode("utf-8", "replace"))
    except ValueError:
        return None


def read_lines(path: Path) -> Iterator[EventLine | None]:
    """Every line of a file but empty ones; None for each that cannot be read. Raises OSError."""
    return map(read_line, read_raw_lines(path))


def read_events(directory: Path) -> Iterator[EventLine]:
    """Every readable line of a run directory, oldest first: events.jsonl.2, events.jsonl.1, events.jsonl.

    A line that is cut off (the peer is writing it, or its machine lost power) is skipped.
    """
    return (line for path in event_files(directory) for line in read_lines(path) if line is not None)


@cache
def _readers_of(kind: str) -> tuple[tuple[str, Reader], ...]:
    hints = get_type_hints(Event.registry[kind])
    names = [each.name for each in dataclasses.fields(Event.registry[kind])]
    return tuple((name, _SPECIAL.get(name) or reader_of(hints[name])) for name in names)


def _read_penalty(value: Any) -> dict[str, Any]:
    """A row of `RoundCommitted.penalties`: the fields of a PenaltyImposed."""
    return {name: read(value[name]) for name, read in _readers_of("PenaltyImposed")}


def _read_gpu(value: Any) -> dict[str, Any]:
    """A row of `DeviceMeasured.gpus`."""
    figures = {name: read(value[name]) for name, read in _readers_of("DeviceMeasured") if name in GPU_FIGURES}
    return {"device": read_text(value["device"]), **figures}


_SPECIAL: dict[str, Reader] = {
    **NARROWER,
    "penalties": remembering(partial(read_list, _read_penalty)),
    "gpus": partial(read_list, _read_gpu),
}
"""By the name of the field: those of which the type says too little."""
