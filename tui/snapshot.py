"""What is known of a swarm, folded from event lines: `snapshot = fold(snapshot, line)`.

One pure reducer behind the plain log, the demo's verdict and `status --json`: no clock, no files,
no order assumed between the lines of different peers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from peer.events import (
    AlertRaised,
    Evaluated,
    InnerProgressed,
    InviteIssued,
    Line,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    RoundStarted,
    TransferProgressed,
)

MAX_ALERTS = 16
"""Alerts of one peer that are kept, the newest last."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One peer's word that anchor `round` exists: the chain's digest and the hash of θ and m (hex)."""

    round: int
    digest: str
    state: str


@dataclass(frozen=True, kw_only=True)
class PeerView:
    """One peer. `reports` is False for a peer that is known only from what others received of it."""

    peer: str
    name: str = ""
    reports: bool = False
    device: str = ""
    parameters: int = 0
    state: str = ""
    why: str = ""
    round: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_s: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    commits: tuple[Commit, ...] = ()
    """By round. A peer that changed over to another branch has committed anew: what came before does not count."""
    alerts: tuple[str, ...] = ()
    transfer: TransferProgressed | None = None
    """What it is receiving in order to catch up."""
    stopped: bool = False
    exit_code: int = 0

    @property
    def label(self) -> str:
        """The name its volunteer chose, or the last letters of its id."""
        return self.name or self.peer[-8:]

    def has_committed(self, event: RoundCommitted) -> bool:
        """Whether this peer stands on the same anchor or behind it."""
        known = next((commit for commit in reversed(self.commits) if commit.round <= event.round), None)
        return known is not None and (known.round, known.digest) == (event.round, event.digest)


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """The whole swarm as these event lines tell it. `round` is the latest anchor that any peer committed."""

    run: str = ""
    peers: Mapping[str, PeerView] = field(default_factory=lambda: MappingProxyType({}))
    round: int = 0
    losses: tuple[tuple[int, float], ...] = ()
    """(round, held-out nats per token) of evaluated anchors, by round."""
    tokens_of: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Trained by the members of each committed round together; of two branches, what was said later."""
    penalties: tuple[PenaltyImposed, ...] = ()
    """Those that last now, in the order in which they were told."""
    started_t: float | None = None
    last_t: float | None = None
    invite: str = ""

    @property
    def reporting(self) -> list[PeerView]:
        """The peers whose own lines were read, in the order in which they appeared."""
        return [view for view in self.peers.values() if view.reports]

    @property
    def bytes_sent(self) -> int:
        """Upload of all reporting peers in the committed rounds."""
        return sum(view.bytes_sent for view in self.reporting)

    @property
    def tokens(self) -> int:
        """Trained in all committed rounds."""
        return sum(self.tokens_of.values())

    @property
    def seconds(self) -> float:
        """From the first line to the last."""
        return (self.last_t or 0.0) - (self.started_t or 0.0)

    def label(self, peer: str) -> str:
        """A short name for a peer id."""
        view = self.peers.get(peer)
        return view.label if view else peer[-8:]


def fold(swarm: Swarm, line: Line) -> Swarm:
    """The swarm after one more line."""
    swarm = replace(
        swarm,
        run=swarm.run or line.run,
        started_t=line.t if swarm.started_t is None else min(swarm.started_t, line.t),
        last_t=line.t if swarm.last_t is None else max(swarm.last_t, line.t),
    )
    match line.event:
        case ReportReceived() as event:
            return _fold_hearsay(swarm, event)
        case InviteIssued(invite=invite):
            return replace(swarm, invite=invite)
    before = swarm.peers.get(line.peer, PeerView(peer=line.peer))
    view = _fold_peer(replace(before, reports=True), line)
    return _fold_swarm(_with_peer(swarm, view), line)


def to_json(swarm: Swarm) -> dict[str, Any]:
    """What `status --json` prints, without the history of commits."""
    peers = []
    for view in swarm.peers.values():
        row = dataclasses.asdict(view)
        commits = row.pop("commits")
        peers.append(row | {"last_commit": commits[-1] if commits else None})
    return {
        "run": swarm.run,
        "round": swarm.round,
        "losses": [list(pair) for pair in swarm.losses],
        "tokens": swarm.tokens,
        "penalties": [dataclasses.asdict(penalty) for penalty in swarm.penalties],
        "bytes_sent": swarm.bytes_sent,
        "started_t": swarm.started_t,
        "last_t": swarm.last_t,
        "peers": peers,
    }


def _with_peer(swarm: Swarm, view: PeerView) -> Swarm:
    return replace(swarm, peers=MappingProxyType({**swarm.peers, view.peer: view}))


def _fold_hearsay(swarm: Swarm, event: ReportReceived) -> Swarm:
    view = swarm.peers.get(event.about, PeerView(peer=event.about))
    if view.reports:
        return swarm
    state = "GONE" if event.leaving else "READY" if event.ready else "TRAINING"
    name = event.name or view.name
    return _with_peer(swarm, replace(view, name=name, round=event.round, step=event.steps, state=state))


def _fold_peer(view: PeerView, line: Line) -> PeerView:
    match line.event:
        case PeerStarted() as event:
            # A second start in one directory is a new process: nothing it did before holds any more.
            fresh = PeerView(peer=view.peer, reports=True)
            return replace(fresh, name=event.name, device=event.device, parameters=event.parameters, state="JOINING")
        case PeerStateChanged() as event:
            transfer = view.transfer if event.state == "SYNCING" else None
            return replace(view, state=event.state, why=event.why, transfer=transfer)
        case TransferProgressed() as event:
            return replace(view, transfer=event)
        case RoundStarted() as event:
            return replace(view, round=event.round, step=0, steps=event.steps)
        case InnerProgressed() as event:
            return replace(
                view,
                round=event.round,
                step=event.step,
                steps=event.steps,
                loss=event.loss,
                tokens_per_s=event.tokens_per_s,
            )
        case RoundCommitted() as event:
            commit = Commit(round=event.round, digest=event.digest, state=event.state)
            earlier = tuple(known for known in view.commits if known.round < event.round)
            return replace(
                view,
                round=event.round,
                commits=(*earlier, commit),
                bytes_sent=view.bytes_sent + event.bytes_sent,
                bytes_received=view.bytes_received + event.bytes_received,
            )
        case AlertRaised() as event:
            return replace(view, alerts=(*view.alerts, f"{event.level}: {event.text}")[-MAX_ALERTS:])
        case PeerStopped() as event:
            return replace(view, state="GONE", why=event.why, stopped=True, exit_code=event.exit_code)
        case _:
            return view


def _fold_swarm(swarm: Swarm, line: Line) -> Swarm:
    match line.event:
        # Every member reports the same round: its tokens count once.
        case RoundCommitted() as event:
            newest = max(view.commits[-1].round for view in swarm.reporting if view.commits)
            tokens_of = MappingProxyType({**swarm.tokens_of, event.round: event.tokens})
            lasting = tuple(penalty for penalty in swarm.penalties if penalty.until_round > newest)
            return replace(swarm, round=newest, tokens_of=tokens_of, penalties=lasting)
        # Every member tells it; and who catches up tells what is over.
        case PenaltyImposed() as event if event.until_round > swarm.round and event not in swarm.penalties:
            return replace(swarm, penalties=(*swarm.penalties, event))
        case Evaluated() as event if event.loss is not None:
            known = {round: loss for round, loss in swarm.losses if round != event.round}
            return replace(swarm, losses=tuple(sorted((known | {event.round: event.loss}).items())))
        case _:
            return swarm
