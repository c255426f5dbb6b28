"""Rules, heads, pledges, updates and certificates of a small run, for tests that look at one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peer.rounds import merkle, penalties
from peer.rounds.layout import Part
from peer.rounds.machine import begin
from peer.rounds.messages import Place
from peer.rounds.names import coordinator, digest_of, genesis_anchor, pack
from peer.rounds.state import Head, Rules, State
from peer.rounds.update import Block, Pledge, Update, Vote, token_weights
from peer.testing.integers import ModelKeys

NAMES = ("p0", "p1", "p2")
PART_BYTES = (8, 8, 4)
PARTS = tuple(Part(index, 2 * index, size // 4) for index, size in enumerate(PART_BYTES))
HEAD = Head(anchor=genesis_anchor(b"r" * 32, NAMES, b""), round=0, weight=0, electorate=NAMES, members=NAMES)
PAYLOADS = (b"first 8.", b"then 8..", b"last")
"""Encoded means of the three parts."""


def rules(me: str) -> Rules:
    return Rules(
        me=me, keys=ModelKeys(me), parts=PARTS, part_bytes=PART_BYTES, gather_s=3.0, ack_s=1.0, exchange_s=2.0,
        stagger_s=1.0, tokens_cap=10**9,
    )  # fmt: skip


def state_of(me: str, **changes: Any) -> State:
    return replace(begin(rules(me), HEAD, 0.0), **changes)


def place(ballot: int = 0) -> Place:
    return Place(HEAD.anchor, HEAD.instance, ballot)


def owner(ballot: int = 0) -> str:
    return coordinator(HEAD.anchor, HEAD.electorate, ballot)


def part_of(peer: str, part: int) -> bytes:
    """What `peer` contributes to `part`."""
    return (f"{peer}-{part}" * 4).encode()[: PART_BYTES[part]]


def leaves_of(peer: str) -> list[bytes]:
    return [digest_of(part_of(peer, part)) for part in range(len(PARTS))]


def pledge(peer: str, **changes: Any) -> Pledge:
    """A genuine pledge of `peer` for HEAD; `changes` come before the signature."""
    plain = Pledge(peer, HEAD.anchor, merkle.root(leaves_of(peer)), 100, 10, 0, False, ((0, 0, 5),))
    return replace(plain, **changes).signed(ModelKeys(peer))


def update(ballot: int = 0, members: tuple[Pledge, ...] | None = None, **changes: Any) -> Update:
    """The update that an honest coordinator of `ballot` would propose after HEAD."""
    members = members or tuple(pledge(name) for name in NAMES)
    plain = Update(
        parent=HEAD.anchor, round=1, time=0, members=members, elect=tuple(member.peer for member in members),
        parts=tuple(digest_of(payload) for payload in PAYLOADS), contributors=(0b111, 0b011, 0b001),
        weights=(token_weights(members, 10**9, 8),), penalties=(), weight=len(members), ballot=ballot,
        coordinator=owner(ballot),
    )  # fmt: skip
    changed = replace(plain, **changes)
    if "penalties" in changes or len(changed.parts) != len(changed.contributors):
        return changed
    return replace(changed, penalties=penalties.due(HEAD, changed, 8))


def proposal_signature(item: Update, ballot: int = 0) -> bytes:
    return ModelKeys(owner(ballot)).sign("propose", pack((place(ballot).packed(), item.digest)))


def vote(voter: str, item: Update, ballot: int = 0, **changes: Any) -> Vote:
    """A genuine vote; `changes` come before the signature."""
    plain = Vote(voter, HEAD.instance, ballot, item.digest, proposal_signature(item, ballot))
    return replace(plain, **changes).signed(ModelKeys(voter))


def block(item: Update | None = None, voters: tuple[str, ...] = NAMES[:2]) -> Block:
    chosen = item or update()
    return Block(chosen, tuple(vote(name, chosen) for name in voters))
