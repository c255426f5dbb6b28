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
"""The weight of a member who is all of a round."""
USUAL_ROUNDS = 16
"""So many of the newest rounds say how long a round takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point of a curve: when, in which round, after how many tokens of the whole run, and the value."""

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
    """A penalty as it was told first, by the update of `imposed_in` or by a member after that round."""

    t: float
    imposed_in: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A committed round, once for all peers that report it.

    `weights` are over 65,536 by member, `norms` the measured L2 norm of each member's pseudo-gradient, `counted` the
    tokens that it counted for each peer and `tokens` their sum, `outcomes` what it counted as
    (`peer.consensus.credit.outcomes`). `round_s` lasts from when the round before was first told, or is what the teller
    measured; 0 if that is not known. `exposed_s` is the mean of all `reporters`, bytes are their sum; a watcher knows
    neither, and is none. `aborted` counts the tries that ended without
    a decision.
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
    """Told when it happened, not by a peer that was catching up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """One line of the log. `level` is info, warning or error; `code` a short name of what kind it is."""

    t: float
    level: str
    peer: str
    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedAnchor:
    """One peer's word that anchor `round` exists: the chain's digest and the hash of θ and m (hex)."""

    round: int
    digest: str
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StageView:
    """One stage of a cluster. Figures are of one micro-batch, lately; None where nothing was measured yet."""

    peer: str
    layers: str
    """In words."""
    compute_s: float | None = None
    wire_bytes: float | None = None


@dataclass(kw_only=True)
class PeerView:
    """One peer. `reports` is False for a peer that is known only from what others received of it.

    It is changed by `tui.swarm.builder` alone, which copies it first: a snapshot stays as it was.
    """

    peer: str
    name: str = ""
    reports: bool = False
    version: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    directory: str = ""
    device: str = ""
    """A short word for all of its devices."""
    devices: tuple[str, ...] = ()
    """Each of which trains as one rank; empty where a peer does not say."""
    sharding: str = ""
    """How they share the model, in words."""
    lead: str = ""
    """Of the cluster that it works in; empty for everybody else, a lead too."""
    stages: tuple[StageView, ...] = ()
    """Of the cluster that it leads, in model order, its own first."""
    step_s: float | None = None
    """Of the whole cluster, lately."""
    parameters: int = 0
    trains: str = ""
    """What the run is, in words."""
    state: str = ""
    why: str = ""
    until: float | None = None
    """Until when its state lasts (Unix time), if it said so."""
    round: int = 0
    step: int = 0
    steps: int = 0
    phase: str = ""
    """Of the round, since its training ended; empty while it trains."""
    deadline: float | None = None
    """Of the phase (Unix time)."""
    coordinator: str = ""
    """Who leads this try of the round."""
    ballot: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    upload_bps: int = 0
    """Bits per second that it pledged it can send; 0: not known."""
    device_gb: float = 0.0
    """Memory of its GPU in 10⁹ bytes, as others heard it say; 0: not known."""
    distances: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Round trips to others in seconds, by peer id, as it has told."""
    learning_rate: float | None = None
    bytes_sent: int = 0
    """In committed rounds, as it has told."""
    bytes_received: int = 0
    commits: list[CommittedAnchor] = field(default_factory=list)
    """By round, the newest ones. A peer that changed over to another branch has committed anew: what came before
    does not count."""
    accepted: int = 0
    """Committed rounds in which what it gave counted, and came in time."""
    late: int = 0
    """Committed rounds in which it came late, or with old work."""
    idle: int = 0
    """Committed rounds in which it had nothing ready: it was paused, or had just come."""
    rejected: int = 0
    """Committed rounds in which it counted nothing, for what was measured of it."""
    missed: int = 0
    """Committed rounds in which it was expected and did not answer."""
    norm: float | None = None
    """Of its pseudo-gradient, as last measured."""
    tokens: int = 0
    """Of it in committed rounds, as its chain counted them; in lines of older clients, as far as it said."""
    tokens_now: int = 0
    """Trained by it since the last anchor that it was a member of, for the next one."""
    tokens_ahead: int = 0
    """Trained by it for the anchor after that, while the round is being agreed."""
    norms: list[Point] = field(default_factory=list)
    losses: list[Point] = field(default_factory=list)
    speeds: list[Point] = field(default_factory=list)
    """Tokens per second."""
    learning_rates: list[Point] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """What it did when, the newest last."""
    started_t: float | None = None
    evaluated: Point | None = None
    """The held-out loss that others heard it tell last, which counts once its round is committed."""
    seen_t: float | None = None
    """Its last sign of life: its own line, or what another received of it."""
    alerts: list[str] = field(default_factory=list)
    transfer: TransferProgressed | None = None
    """What it is receiving in order to catch up."""
    transfers: Mapping[str, TransferProgressed] = field(default_factory=lambda: MappingProxyType({}))
    """The last word on each kind of transfer: updates, snapshot."""
    network: NetworkMeasured | None = None
    network_t: float | None = None
    """When that was measured."""
    ups: list[Point] = field(default_factory=list)
    """Bytes per second that it sent, between two measurements."""
    downs: list[Point] = field(default_factory=list)
    """Bytes per second that it received."""
    device_figures: DeviceMeasured | None = None
    forecast: RoundForecast | None = None
    """What it said last of the round to come."""
    stalled: RoundStalled | None = None
    """Why the round that it is in comes to nothing, until its next commit."""
    board: BoardSeen | None = None
    """What an organiser's node counts, which is itself no peer of the run; None for everybody else."""
    stopped: bool = False
    exit_code: int = 0

    @property
    def label(self) -> str:
        """The name its volunteer chose, or the last letters of its id."""
        return self.name or self.peer[-8:]

    @property
    def committed(self) -> int:
        """The newest anchor that it stands on; of a peer that does not report, where it says it is."""
        if self.commits:
            return self.commits[-1].round
        return self.round

    @property
    def homes(self) -> int:
        """How many train what counts as this peer's."""
        return max(1, len(self.stages))

    def has_committed(self, event: RoundCommitted) -> bool:
        """Whether this peer stands on the same anchor or behind it."""
        known = next((commit for commit in reversed(self.commits) if commit.round <= event.round), None)
        return known is not None and (known.round, known.digest) == (event.round, event.digest)


@dataclass(frozen=True, kw_only=True)
class SwarmState:
    """The whole swarm as these event lines tell it. `round` is the latest anchor that any peer committed."""

    run: str = ""
    peers: Mapping[str, PeerView] = field(default_factory=lambda: MappingProxyType({}))
    narrator: PeerView | None = None
    """Who tells of the swarm and is nobody in it, as a watcher is; its chain counts."""
    round: int = 0
    rounds: int = 0
    """The length of the run, 0 if it has none or nobody said."""
    source_losses: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """Likewise of each source of a mix, by its name; empty for a run on one source."""
    tokens: int = 0
    """Counted by all committed rounds, for all peers; of two branches, what was said later."""
    bytes_sent: int = 0
    """By all reporting peers in the committed rounds."""
    bytes_received: int = 0
    penalty_log: tuple[PenaltyRecord, ...] = ()
    """Every penalty once, the newest last."""
    history: tuple[Round, ...] = ()
    """The newest committed rounds, by number."""
    aborted: tuple[tuple[int, int], ...] = ()
    """(round, ballot) of each try since the last anchor that ended without a decision."""
    samples: tuple[SampleWritten, ...] = ()
    """How anchors continue the run's prompts, the newest last."""
    evaluations: tuple[Point, ...] = ()
    """Held-out loss in nats per token."""
    training: tuple[Point, ...] = ()
    """Mean training loss of the reporting peers when each round was committed."""
    speeds: tuple[Point, ...] = ()
    """Tokens per second of all members together, per committed round."""
    entries: tuple[LogEntry, ...] = ()
    """The log, the newest last."""
    skipped: int = 0
    """Lines that could not be read: cut off, malformed, of a newer version or of an unknown type."""
    started_t: float | None = None
    last_t: float | None = None

    @property
    def reporting(self) -> list[PeerView]:
        """The peers whose own lines were read, in the order in which they appeared."""
        return [view for view in self.peers.values() if view.reports]

    @property
    def stalled(self) -> RoundStalled | None:
        """Why the newest round comes to nothing, as the first peer that is there says; None if nobody says so."""
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
        """The penalties that last now, whoever told them."""
        return tuple(penalty for penalty in self.penalty_log if penalty.until_round > self.round)

    @cached_property
    def active_penalties_of(self) -> Mapping[str, tuple[PenaltyRecord, ...]]:
        """The same by whom they are about."""
        told: dict[str, list[PenaltyRecord]] = {}
        for penalty in self.lasting:
            told.setdefault(penalty.about, []).append(penalty)
        return MappingProxyType({about: tuple(penalties) for about, penalties in told.items()})

    @cached_property
    def usual_round_s(self) -> float:
        """Median of the last rounds whose time is known; 0 without one."""
        known = [view.round_s for view in self.history[-USUAL_ROUNDS:] if view.round_s > 0]
        return statistics.median(known) if known else 0.0

    def sources_in_words(self, round: int) -> str:
        """Held-out loss of each source at a round, and how far it is from the first one; empty if none is known."""
        first, known = next(iter(self.source_losses), (0, {}))[1], dict(self.source_losses).get(round, {})
        return ", ".join(f"{name} {loss:.3f} ({loss - first.get(name, loss):+.3f})" for name, loss in known.items())

    def label(self, peer: str) -> str:
        view = self.peers.get(peer)
        return view.label if view else peer[-8:]

    def behind(self, peer: str) -> int:
        """Rounds that a peer is behind the newest committed anchor; 0 for one that nothing is known of."""
        view = self.peers.get(peer)
        return max(0, self.round - view.committed) if view else 0


def labels_of(swarm: SwarmState) -> dict[str, str]:
    """A label for each peer id, no two alike as long as ids differ in their last letters."""
    times = Counter(view.label for view in swarm.peers.values())
    return {
        peer: view.label if times[view.label] == 1 else f"{view.label} ({peer[-6:]})"
        for peer, view in swarm.peers.items()
    }
