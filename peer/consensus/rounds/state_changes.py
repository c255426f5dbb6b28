"""The typed fields of a peer's state, so that mypy finds a misspelt field or a wrong type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from peer.consensus.protocol.block import Block, ContributionHeader, Delegate, Roster, Stuck, Vote
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.messages import Heartbeat, MeanData, PartData, Prepare, RowDispute
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.state import (
    Acceptor,
    Attempts,
    CoordinatorState,
    FetchState,
    Mean,
    MemberState,
    Misconduct,
    Proposal,
    SyncProgress,
)
from peer.consensus.rounds.timeouts import Deadlines


class StateChanges(TypedDict, total=False):
    """Each field of `State` by its name and type."""

    rules: Rules
    head: ChainHead
    ancestors: Mapping[bytes, int]
    acceptor: Acceptor
    trail: tuple[ChainEntry, ...]
    deadlines: Deadlines
    ready_at: Mapping[str, float]
    header: ContributionHeader | None
    sits_out: bool
    resumed_at: float
    progress: float
    first_progress: tuple[float, float] | None
    train_s: int
    expected_by: Mapping[str, float]
    freeze_asked_at: float | None
    unanswered: Prepare | None
    postponed: tuple[Prepare, float] | None
    leaving: bool
    offered: ContributionHeader | None
    own: Mapping[int, PartNorms]
    measured_at: float
    submitted_at: float
    began_at: float
    stood_at: float
    last_progress_at: float
    ballot_at: float
    said_at: float
    state_digest: bytes
    lead: CoordinatorState | None
    exchange: MemberState | None
    past: MemberState | None
    silent: Mapping[str, int]
    mute: tuple[str, ...]
    seen_lying: Mapping[str, Misconduct]
    early: tuple[tuple[str, PartData | MeanData], ...]
    proposals: Mapping[bytes, Proposal]
    votes: Mapping[tuple[int, bytes], Mapping[str, Vote]]
    checks: Mapping[tuple[int, bytes], Mapping[str, Vote]]
    prepared: Mapping[tuple[int, bytes], Mapping[str, Vote]]
    checked_at: float
    faults: Mapping[Mean, str]
    checking: Mapping[Mean, float]
    shown: Mapping[tuple[str, tuple[bytes, int, int]], tuple[str, RowDispute]]
    wrong: frozenset[str]
    forwarded: frozenset[tuple[int, str]]
    objections: Mapping[str, tuple[tuple[bytes, int, int], float]]
    unproven: Mapping[str, int]
    unseen: tuple[int, bytes] | None
    roster: Roster
    alone_since: float
    stucks: Mapping[str, Stuck]
    stuck_said_at: float
    organiser_at: float
    spoke_at: Mapping[str, float]
    voted_at: Mapping[str, float]
    decided: tuple[int, bytes] | None
    attempts: Attempts
    dead_ballots: frozenset[int]
    equivocators: frozenset[str]
    quarantined: frozenset[str]
    held: Mapping[bytes, int]
    afar: frozenset[bytes]
    wanted: FetchState
    blocks: tuple[Block, ...]
    last: ChainHead | None
    block_source: str
    voters: frozenset[str]
    strangers: Mapping[str, tuple[float, float]]
    heard: Mapping[str, tuple[Heartbeat, float]]
    unreachable: Mapping[str, float]
    strangers_told_at: float
    yielded_at: float
    alerted_at: float
    asked: Mapping[str, tuple[bytes, float]]
    told: Mapping[str, tuple[bytes, float]]
    refused_sources: Mapping[str, float]
    outbid: int
    skipped: int
    delegates: tuple[Delegate, ...]
    in_step: bool
    applied_round: int
    catch_up: SyncProgress | None
