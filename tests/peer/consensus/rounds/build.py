"""Rules, heads, headers, updates and certificates of a small run, for tests that look at one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from peer.consensus.aggregation.aggregate import AggregationResult
from peer.consensus.aggregation.evidence import MEAN_ONLY, AggregationRules
from peer.consensus.protocol import merkle, norms, penalties
from peer.consensus.protocol.block import Block, ContributionHeader, Update, Vote
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.head import ChainHead, genesis_anchor
from peer.consensus.protocol.layout import Part, divide
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.rules import Rules
from peer.consensus.protocol.validation import check_update, tenures_due
from peer.consensus.rounds.machine import begin
from peer.consensus.rounds.state import State
from peer.testing.memory_peer import ModelKeys

NAMES = ("p0", "p1", "p2")
PART_BYTES = (8, 8, 4)
PARTS = tuple(Part(index, 2 * index, size // 4) for index, size in enumerate(PART_BYTES))
HEAD = ChainHead(anchor=genesis_anchor(b"r" * 32, NAMES, b""), round=0, weight=0, electorate=NAMES, members=NAMES)
PAYLOADS = (b"first 8.", b"then 8..", b"last")
"""Encoded means of the three parts."""
STATE = digest_of(b"outer state at HEAD")
NORMS = norms.declare(divide(PARTS, 1)[0], dict.fromkeys(range(len(PARTS)), norms.PartNorms(1.0)))
"""Every layer of every contribution has the norm 1."""


def rules(me: str, aggregation: AggregationRules = MEAN_ONLY) -> Rules:
    return Rules(
        me=me, keys=ModelKeys(me), parts=PARTS, part_bytes=PART_BYTES, gather_s=3.0, ack_s=1.0, exchange_s=2.0,
        stagger_s=1.0, tokens_cap=10**9, aggregation=aggregation,
    )  # fmt: skip


def state_of(me: str, **changes: Any) -> State:
    return replace(begin(rules(me), HEAD, 0.0), **{"state_digest": STATE, **changes})


def fault_of(state: State, item: Update) -> str:
    """Why a voter in this state refuses an update."""
    return check_update(state.rules, state.head, item)


def place(ballot: int = 0) -> BallotId:
    return BallotId(HEAD.anchor, HEAD.instance, ballot)


def owner(ballot: int = 0) -> str:
    return HEAD.leader(ballot)


def part_of(peer: str, part: int) -> bytes:
    """What `peer` contributes to `part`."""
    return (f"{peer}-{part}" * 4).encode()[: PART_BYTES[part]]


def leaves_of(peer: str) -> list[bytes]:
    return [digest_of(part_of(peer, part)) for part in range(len(PARTS))]


@cache
def root_of(peer: str) -> bytes:
    return merkle.root(leaves_of(peer))


def header(peer: str, **changes: Any) -> ContributionHeader:
    """A genuine header of `peer` for HEAD; `changes` come before the signature."""
    plain = ContributionHeader(peer, HEAD.anchor, root_of(peer), 100, 10, 0, False, ((0, 0, 5),), norms=NORMS)
    if not changes.get("root", b"r"):
        changes = {"norms": b"", **changes}
    return replace(plain, **changes).signed(ModelKeys(peer))


@cache
def genuine() -> tuple[ContributionHeader, ...]:
    """The headers of all."""
    return tuple(header(name) for name in NAMES)


@cache
def judged(coordinator: str, aggregation: AggregationRules) -> AggregationResult:
    """What it makes of them, if it is honest."""
    return norms.judgement_of(rules(coordinator, aggregation), HEAD, genuine())


def update(
    ballot: int = 0,
    members: tuple[ContributionHeader, ...] | None = None,
    *,
    aggregation: AggregationRules = MEAN_ONLY,
    **changes: Any,
) -> Update:
    """The update that an honest coordinator of `ballot` would propose after HEAD."""
    theirs = rules(owner(ballot), aggregation)
    judgement = norms.judgement_of(theirs, HEAD, members) if members else judged(owner(ballot), aggregation)
    members = members or genuine()
    weights, scales, pulls = norms.table_of(judgement)
    plain = Update(
        parent=HEAD.anchor,
        round=1,
        time=0,
        members=members,
        elect=tuple(member.peer for member in members),
        parts=tuple(digest_of(payload) for payload in PAYLOADS),
        contributors=(0b111, 0b011, 0b101),
        weights=weights,
        penalties=(),
        weight=len(members),
        ballot=ballot,
        coordinator=owner(ballot),
        scales=scales,
        pulls=pulls,
        records=judgement.records,
        state=STATE,
    )
    changed = replace(plain, **changes)
    if not {"tenures", "weights"} & changes.keys() and len(changed.parts) == len(changed.contributors):
        changed = replace(changed, tenures=tenures_due(theirs, HEAD, changed))
    if "penalties" in changes or len(changed.parts) != len(changed.contributors):
        return changed
    return replace(changed, penalties=penalties.due(theirs, HEAD, changed, judgement.findings))


def proposal_signature(item: Update, ballot: int = 0) -> bytes:
    return ModelKeys(owner(ballot)).sign("propose", pack((place(ballot).packed(), item.digest)))


def vote(voter: str, item: Update, ballot: int = 0, **changes: Any) -> Vote:
    """A genuine vote; `changes` come before the signature."""
    plain = Vote(voter, HEAD.instance, ballot, item.digest, proposal_signature(item, ballot))
    return replace(plain, **changes).signed(ModelKeys(voter))


def block(item: Update | None = None, voters: tuple[str, ...] = NAMES[:2]) -> Block:
    chosen = item or update()
    return Block(chosen, tuple(vote(name, chosen) for name in voters))
