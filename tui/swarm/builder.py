"""A snapshot while lines are folded in: peers are copied before they are changed, and the whole is frozen once."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from peer.schema.events import SampleWritten
from tui.swarm.snapshot import CommittedAnchor, LogEntry, PeerView, PenaltyRecord, Point, SwarmState
from tui.swarm.timeline import PEER_POINTS, add_point

MAX_PEERS = 1024
"""Beyond this number, peers that do not report themselves are forgotten, the longest silent first."""
MAX_ENTRIES = 2000
MAX_ENTRY_TEXT = 500
MAX_PENALTIES = 1024
MAX_ROUNDS = 512
MAX_LOSSES = 4096
MAX_SAMPLES = 64

PEER_LISTS = ("commits", "norms", "losses", "speeds", "learning_rates", "spans", "alerts", "ups", "downs")


def copy_peer(view: PeerView) -> PeerView:
    view = copy(view)
    for name in PEER_LISTS:
        setattr(view, name, list(getattr(view, name)))
    return view


class SnapshotBuilder:
    """A `SwarmState` that can be changed. `peers` contains unchanged peers without copying them."""

    def __init__(self, swarm: SwarmState) -> None:
        self._before = swarm
        self.peers = dict(swarm.peers)
        self._copied: set[str] = set()
        self._narrator = swarm.narrator
        self.run, self.round, self.rounds = swarm.run, swarm.round, swarm.rounds
        self.tokens, self.skipped = swarm.tokens, swarm.skipped
        self.started_t, self.last_t = swarm.started_t, swarm.last_t
        self.bytes_sent, self.bytes_received = swarm.bytes_sent, swarm.bytes_received
        self.source_losses = dict(swarm.source_losses)
        self.samples: tuple[SampleWritten, ...] = swarm.samples
        self.history = {view.round: view for view in swarm.history}
        self.penalty_log = list(swarm.penalty_log)
        self.aborted = swarm.aborted
        self.evaluated = {point.round: point for point in swarm.evaluations}
        self.training = list(swarm.training)
        self.speeds = list(swarm.speeds)
        self.entries = list(swarm.entries)
        self._told: dict[tuple[str, str, str, int], PenaltyRecord] | None = None
        self._commits: dict[tuple[int, str, str], CommittedAnchor] = {}

    def peer(self, peer: str) -> PeerView:
        """A peer that may be changed; a new one if it was not known."""
        if peer not in self._copied or peer not in self.peers:
            self.peers[peer] = copy_peer(self.peers.get(peer) or PeerView(peer=peer))
            self._copied.add(peer)
        return self.peers[peer]

    def label(self, peer: str) -> str:
        """What people call this peer; its id if it is not known."""
        known = self.peers.get(peer)
        return peer if known is None else known.label

    @property
    def narrator(self) -> PeerView:
        """The narrator of the swarm, which is not a member and has no id."""
        if self._narrator is None or self._narrator is self._before.narrator:
            self._narrator = copy_peer(self._narrator or PeerView(peer=""))
        return self._narrator

    def commit(self, round: int, digest: str, state: str) -> CommittedAnchor:
        """Returns one shared object for the same commit of all peers."""
        key = (round, digest, state)
        return self._commits.setdefault(key, CommittedAnchor(round=round, digest=digest, state=state))

    def tell(self, penalty: PenaltyRecord) -> PenaltyRecord:
        """Add a penalty to the log. If it was reported before, returns the penalty that is there already."""
        if self._told is None:
            self._told = {penalty_key(known): known for known in self.penalty_log}
        known = self._told.setdefault(penalty_key(penalty), penalty)
        if known is penalty:
            self.penalty_log.append(penalty)
        return known

    def note(self, t: float, level: str, peer: str, code: str, text: str) -> None:
        short = text if len(text) <= MAX_ENTRY_TEXT else f"{text[: MAX_ENTRY_TEXT - 1]}…"
        self.entries.append(LogEntry(t=t, level=level, peer=peer, code=code, text=short))

    def plot(self, points: list[Point], t: float, round: int, value: float, limit: int = PEER_POINTS) -> None:
        """Add a point to a curve, at the present number of the run's tokens."""
        add_point(points, Point(t=t, round=round, tokens=self.tokens, value=value), limit)

    def freeze(self) -> SwarmState:
        if len(self.peers) > MAX_PEERS:
            heard = [(known.seen_t or 0.0, key) for key, known in self.peers.items() if not known.reports]
            for _, key in islice(sorted(heard), len(self.peers) - MAX_PEERS):
                del self.peers[key]
        return replace(
            self._before, narrator=self._narrator,
            run=self.run, peers=MappingProxyType(self.peers), round=self.round, rounds=self.rounds, tokens=self.tokens,
            bytes_sent=self.bytes_sent, bytes_received=self.bytes_received,
            source_losses=tuple(sorted(self.source_losses.items(), key=lambda item: item[0])[-MAX_LOSSES:]),
            samples=self.samples[-MAX_SAMPLES:], penalty_log=tuple(self.penalty_log[-MAX_PENALTIES:]),
            history=tuple(self.history[round] for round in sorted(self.history)), aborted=self.aborted,
            evaluations=self._evaluations(), training=tuple(self.training), speeds=tuple(self.speeds),
            entries=tuple(self.entries[-MAX_ENTRIES:]), skipped=self.skipped, started_t=self.started_t,
            last_t=self.last_t,
        )  # fmt: skip

    def _evaluations(self) -> tuple[Point, ...]:
        """The held-out losses by round: the first one, from which progress is measured, and the newest."""
        points = tuple(self.evaluated[round] for round in sorted(self.evaluated))
        return points if len(points) <= MAX_LOSSES else (points[0], *points[1 - MAX_LOSSES :])


def penalty_key(penalty: PenaltyRecord) -> tuple[str, str, str, int]:
    """The key of a penalty, equal for all peers that report it."""
    return penalty.about, penalty.code, penalty.layer, penalty.until_round
