"""What is known about a swarm, folded from event lines by `tui.swarm.reducer`.

Immutable, with every text printable and every number finite, so that a screen can draw what it finds. The dashboard,
the plain log, the demo's verdict and `status --json` read the same snapshot.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from peer.schema.events import (
    BoardSeen,
    DeviceMeasured,
    NetworkMeasured,
    PenaltyImposed,
    RoundCommitted,
    RoundForecast,
    RoundStalled,
    SampleWritten,
    TransferProgressed,
)

WEIGHT_ONE = 65_536
"""The weight of a member that makes up a whole round."""
USUAL_ROUNDS = 16
"""The usual duration of a round is derived from this number of the newest rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point of a curve: time, round, tokens of the whole run so far, and the value."""

    t: float
    round: int
    tokens: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What a peer did from `t` until the `t` of its next span, for the round that leads to anchor `round`.

    Phases: idle, train, submit, prepare, exchange, weigh, reduce, commit, apply, late, failed, paused, sync, gone.
    """

    t: float
    phase: str
    round: int


@dataclass(frozen=True, kw_only=True)
class PenaltyRecord(PenaltyImposed):
    """A penalty as it was first reported, by the update of `imposed_in` or by a member after that round."""

    t: float
    imposed_in: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A committed round, once for all peers that report it.

    `weights` are by member, in 65,536ths; `norms` are the measured L2 norms of each member's pseudo-gradient; `counted`
    are the tokens counted for each peer, and `tokens` is their sum; `outcomes` say how each contribution counted
    (`peer.consensus.credit.outcomes`). `round_s` lasts from the first report of the previous round, or is what the
    teller measured; 0 if that is not known. `exposed_s` is the mean over all `reporters`, and bytes are their sum; a
    watcher knows neither, and does not count as a reporter. `aborted` is the number of attempts that ended without a
    decision.
    """

    round: int
    t: float
    digest: str
    group: tuple[str, ...]
    weights: Mapping[str, int]
    norms: Mapping[str, float]
    tokens: int
    round_s: float
    exposed_s: float
    void: int
    bytes_sent: int
    bytes_received: int
    penalties: tuple[PenaltyRecord, ...]
    aborted: int
    counted: Mapping[str, int]
    outcomes: Mapping[str, str]
    reporters: int
    median_norm: float | None = None
    live: bool = True
    """Whether it was reported when it happened, not by a peer that was catching up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """One line of the log. `level` is info, warning or error; `code` is a short name of its kind."""

    t: float
    level: str
    peer: str
    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedAnchor:
    """A peer's statement that anchor `round` exists: the chain's digest, and the hash of θ and m (hex)."""

    round: int
    digest: str
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StageView:
    """One stage of a cluster. Values are recent ones for one micro-batch; None if they were not measured yet."""

    peer: str
    layers: str
    """The layers in words."""
    compute_s: float | None = None
    wire_bytes: float | None = None


@dataclass(kw_only=True)
class PeerView:
    """One peer. `reports` is False for a peer that is known only from what others received from it.

    Only `tui.swarm.builder` changes it, after copying it: a snapshot stays as it was.
    """

    peer: str
    name: str = ""
    reports: bool = False
    version: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    directory: str = ""
    device: str = ""
    """A short word for all its devices."""
    devices: tuple[str, ...] = ()
    """Its devices, each of which trains as one rank; empty if the peer does not say."""
    sharding: str = ""
    """How the devices share the model, in words."""
    lead: str = ""
    """The lead of the cluster in which it works; empty for all other peers, including leads."""
    stages: tuple[StageView, ...] = ()
    """The stages of the cluster that it leads, in model order, its own first."""
    step_s: float | None = None
    """The recent duration of a step of the whole cluster, in seconds."""
    parameters: int = 0
    trains: str = ""
    """What the run is, in words."""
    state: str = ""
    why: str = ""
    until: float | None = None
    """The end of its state (Unix time), if it reported one."""
    round: int = 0
    step: int = 0
    steps: int = 0
    phase: str = ""
    """The phase of the round since its training ended; empty while it trains."""
    deadline: float | None = None
    """The deadline of the phase (Unix time)."""
    coordinator: str = ""
    """The peer that coordinates this attempt of the round."""
    ballot: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    upload_bps: int = 0
    """The bits per second that it pledged to send; 0: not known."""
    device_gb: float = 0.0
    """The memory of its GPU in 10⁹ bytes, as it told others; 0: not known."""
    distances: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The round trips to others in seconds, by peer id, as it reported."""
    learning_rate: float | None = None
    bytes_sent: int = 0
    """Bytes in committed rounds, as it reported."""
    bytes_received: int = 0
    commits: list[CommittedAnchor] = field(default_factory=list)
    """The newest commits, by round. A peer that switched to another branch has committed again: its earlier commits
    do not count."""
    accepted: int = 0
    """Committed rounds in which its contribution counted and was in time."""
    late: int = 0
    """Committed rounds in which its contribution was late, or old work."""
    idle: int = 0
    """Committed rounds in which it had nothing ready, because it was paused or had just joined."""
    rejected: int = 0
    """Committed rounds in which its contribution was rejected because of a measurement."""
    missed: int = 0
    """Committed rounds in which it was expected and did not answer."""
    norm: float | None = None
    """The last measured norm of its pseudo-gradient."""
    tokens: int = 0
    """Its tokens in committed rounds, as its chain counted them; for older clients, as it reported."""
    tokens_now: int = 0
    """The tokens that it has trained for the next anchor, since the last one of which it was a member."""
    tokens_ahead: int = 0
    """The tokens that it has trained for the anchor after that, while the round is being agreed."""
    norms: list[Point] = field(default_factory=list)
    losses: list[Point] = field(default_factory=list)
    speeds: list[Point] = field(default_factory=list)
    """Tokens per second."""
    learning_rates: list[Point] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """What it did at which time, the newest last."""
    started_t: float | None = None
    evaluated: Point | None = None
    """The last held-out loss that others heard from it; it counts once its round is committed."""
    seen_t: float | None = None
    """Its last sign of life: a line of its own, or something that another peer received from it."""
    alerts: list[str] = field(default_factory=list)
    transfer: TransferProgressed | None = None
    """What it receives in order to catch up."""
    transfers: Mapping[str, TransferProgressed] = field(default_factory=lambda: MappingProxyType({}))
    """The newest event of each kind of transfer: updates, snapshot."""
    network: NetworkMeasured | None = None
    network_t: float | None = None
    """The time of that measurement."""
    ups: list[Point] = field(default_factory=list)
    """The bytes per second that it sent between two measurements."""
    downs: list[Point] = field(default_factory=list)
    """The bytes per second that it received."""
    device_figures: DeviceMeasured | None = None
    forecast: RoundForecast | None = None
    """Its newest forecast of the coming round."""
    stalled: RoundStalled | None = None
    """Why its present round cannot be decided, until its next commit."""
    board: BoardSeen | None = None
    """What an organiser's node counts; it is no peer of the run itself. None for everybody else."""
    seq: int = -1
    """The number of its newest line that was read."""
    stopped: bool = False
    exit_code: int = 0

    @property
    def label(self) -> str:
        """The name that its volunteer chose, or the last letters of its id."""
        return self.name or self.peer[-8:]

    @property
    def committed(self) -> int:
        """Its newest anchor; for a peer that does not report, the one that it states."""
        if self.commits:
            return self.commits[-1].round
        return self.round

    @property
    def homes(self) -> int:
        """The number of homes whose work counts as this peer's."""
        return max(1, len(self.stages))

    def has_committed(self, event: RoundCommitted) -> bool:
        """Whether this peer has committed the same anchor."""
        known = next((commit for commit in reversed(self.commits) if commit.round <= event.round), None)
        return known is not None and (known.round, known.digest) == (event.round, event.digest)


@dataclass(frozen=True, kw_only=True)
class SwarmState:
    """The whole swarm according to these event lines. `round` is the newest anchor that any peer committed."""

    run: str = ""
    peers: Mapping[str, PeerView] = field(default_factory=lambda: MappingProxyType({}))
    narrator: PeerView | None = None
    """Reports about the swarm without being a member, as a watcher does; its chain counts."""
    round: int = 0
    rounds: int = 0
    """The length of the run, 0 if it has none or it is not known."""
    source_losses: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """The held-out losses of each source of a mix, by name; empty for a run with one source."""
    tokens: int = 0
    """The tokens that all committed rounds counted, for all peers; if there are two branches, the later report
    counts."""
    bytes_sent: int = 0
    """The bytes of all reporting peers in committed rounds."""
    bytes_received: int = 0
    penalty_log: tuple[PenaltyRecord, ...] = ()
    """Every penalty once, the newest last."""
    history: tuple[Round, ...] = ()
    """The newest committed rounds, by number."""
    aborted: tuple[tuple[int, int], ...] = ()
    """(round, ballot) of each attempt since the last anchor that ended without a decision."""
    samples: tuple[SampleWritten, ...] = ()
    """How anchors continued the run's prompts, the newest last."""
    evaluations: tuple[Point, ...] = ()
    """Held-out loss in nats per token."""
    training: tuple[Point, ...] = ()
    """The mean training loss of the reporting peers at each commit."""
    speeds: tuple[Point, ...] = ()
    """The tokens per second of all members together, per committed round."""
    entries: tuple[LogEntry, ...] = ()
    """The log, the newest last."""
    skipped: int = 0
    """Lines that could not be read: cut off, malformed, of a newer version or of an unknown type."""
    started_t: float | None = None
    last_t: float | None = None

    @property
    def reporting(self) -> list[PeerView]:
        """The peers whose own lines were read, in order of appearance."""
        return [view for view in self.peers.values() if view.reports]

    @property
    def stalled(self) -> RoundStalled | None:
        """Why the newest round cannot be decided, according to the first present peer that says so; None if no peer
        does."""
        told = (view.stalled for view in self.reporting if view.state != "GONE")
        return next((event for event in told if event is not None and event.round >= self.round), None)

    @cached_property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """(round, held-out nats per token) of evaluated anchors, by round."""
        return tuple((point.round, point.value) for point in self.evaluations)

    @property
    def seconds(self) -> float:
        return (self.last_t or 0.0) - (self.started_t or 0.0)

    @cached_property
    def lasting(self) -> tuple[PenaltyRecord, ...]:
        """The penalties in force, whoever reported them."""
        return tuple(penalty for penalty in self.penalty_log if penalty.until_round > self.round)

    @cached_property
    def active_penalties_of(self) -> Mapping[str, tuple[PenaltyRecord, ...]]:
        """The penalties in force, by the peer that they are about."""
        told: dict[str, list[PenaltyRecord]] = {}
        for penalty in self.lasting:
            told.setdefault(penalty.about, []).append(penalty)
        return MappingProxyType({about: tuple(penalties) for about, penalties in told.items()})

    @cached_property
    def usual_round_s(self) -> float:
        """The median duration of the last rounds with a known duration; 0 if there is none."""
        known = [view.round_s for view in self.history[-USUAL_ROUNDS:] if view.round_s > 0]
        return statistics.median(known) if known else 0.0

    def sources_in_words(self, round: int) -> str:
        """The held-out loss of each source at a round, and its difference from the first one; empty if none is
        known."""
        first, known = next(iter(self.source_losses), (0, {}))[1], dict(self.source_losses).get(round, {})
        return ", ".join(f"{name} {loss:.3f} ({loss - first.get(name, loss):+.3f})" for name, loss in known.items())

    def label(self, peer: str) -> str:
        view = self.peers.get(peer)
        return view.label if view else peer[-8:]

    def behind(self, peer: str) -> int:
        """The number of rounds by which a peer is behind the newest committed anchor; 0 for an unknown peer."""
        view = self.peers.get(peer)
        return max(0, self.round - view.committed) if view else 0


def labels_of(swarm: SwarmState) -> dict[str, str]:
    """A label for each peer id; labels differ if the ids differ in their last letters."""
    times = Counter(view.label for view in swarm.peers.values())
    return {
        peer: view.label if times[view.label] == 1 else f"{view.label} ({peer[-6:]})"
        for peer, view in swarm.peers.items()
    }
