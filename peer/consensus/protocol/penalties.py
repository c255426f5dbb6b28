"""Penalties of a round, with reasons: rows that every peer computes alike from the update and the head before it.

A penalty is a record, not an instruction: its effect is already in the contributors, weights and reducers. Each lasts
for one round, except that of a lie.

    ABSENT        in the electorate, but did not answer: nothing of it counts
    LATE          had nothing ready, or its parts came after some reducers closed: the share of parts that counts
    STALE         its contribution was learned rounds ago, or was offered before: the discount on its tokens
    CLIPPED       a larger norm, or more predicted tokens, than count in full: what is left of it
    ANOMALY       a norm or a direction unlike its own before, or unlike the others'
    NONFINITE     not finite numbers
    MISDECLARED   convicted of a lie by more than half of the others: it counts nothing and reduces nothing for a while
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peer.consensus.aggregation.evidence import Finding
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import MAX_EVIDENCE, VOID, WEIGHT_ONE, Penalty, Update, discount
from peer.consensus.protocol.head import MISDECLARED, ChainHead
from peer.consensus.protocol.rules import Rules

ABSENT, LATE, STALE, CLIPPED = "ABSENT", "LATE", "STALE", "CLIPPED"
WHOLE_MODEL = -1


def due(rules: Rules, head: ChainHead, update: Update, findings: Sequence[Finding]) -> tuple[Penalty, ...]:
    """The penalties of an update after `head`, in order of peers and codes; the update's own are not looked at.
    `findings` are those of its judgement. Of two penalties with one code the harder one stands."""
    worst: dict[tuple[str, str], Penalty] = {}
    for penalty in (
        *_of_members(rules, head, update),
        *((one.peer, one.code, one.factor, update.round + 1, one.layer, one.evidence) for one in findings),
        *_of_convicted(rules, head, update),
    ):
        key = penalty[:2]
        if key not in worst or penalty[2] < worst[key][2]:
            worst[key] = penalty
    return tuple(worst[key] for key in sorted(worst))


def _of_members(rules: Rules, head: ChainHead, update: Update) -> Iterator[Penalty]:
    until, learned = update.round + 1, norms.tokens_learned(rules, head, update.members)
    for peer in _absent(head, update):
        yield peer, ABSENT, 0, until, WHOLE_MODEL, "did not answer"
    for index, member in enumerate(update.members):
        came, parts = _came(update, index)
        if came < parts:
            why = f"{came} of {parts} parts came in time" if member.root else "had nothing ready"
            yield member.peer, LATE, WEIGHT_ONE * came // parts, until, WHOLE_MODEL, why
        counts = discount(member.staleness, rules.max_staleness)
        if member.root and counts < WEIGHT_ONE:
            yield member.peer, STALE, counts, until, WHOLE_MODEL, f"{member.staleness} rounds old"
        if member.root and member.tokens > learned[index]:
            why = f"declared {member.tokens:,} predicted tokens, of which {learned[index]:,} count"
            yield member.peer, CLIPPED, WEIGHT_ONE * learned[index] // member.tokens, until, WHOLE_MODEL, why


def _of_convicted(rules: Rules, head: ChainHead, update: Update) -> Iterator[Penalty]:
    """A peer that is convicted now does not count until the cool-down is over; one convicted before, for as long as
    was said then."""
    for peer, reporting in norms.convictions(head, update.members).items():
        if reporting:
            first = next(said for header in update.members for other, said in header.reports if other == peer)
            why = f"{reporting} of {len(update.members)} members caught it: {first}"
            until = update.round + 1 + rules.aggregation.cooldown_rounds
            yield peer, MISDECLARED, 0, until, WHOLE_MODEL, why[:MAX_EVIDENCE]
        else:
            before = next(penalty for penalty in head.convicted if penalty[0] == peer)
            yield before


def _absent(head: ChainHead, update: Update) -> list[str]:
    """Voters that are no members. A peer that has just left (a member of the last round, not elected again) is not
    penalised."""
    left = set(head.members) - set(update.elect)
    return sorted(set(head.electorate) - {member.peer for member in update.members} - left)


def _came(update: Update, index: int) -> tuple[int, int]:
    """In how many of the decided parts this member counts, and how many there are."""
    pairs = zip(update.parts, update.contributors, strict=True)
    agreed = [bits for part, bits in pairs if part != VOID or bits]
    return sum(bits >> index & 1 for bits in agreed), len(agreed)
