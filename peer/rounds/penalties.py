"""What a round takes from whom, and why: rows that everybody computes alike from the update and the head before it.

A penalty is a record, not an instruction: its effect is in the contributors and the weights already.
Each lasts for one round.

    ABSENT   in the electorate, and did not answer: nothing of it counts
    LATE     had nothing ready, or some reducers closed before its parts came: the share of parts that counts
    STALE    what it offers was learned rounds ago: the discount on its tokens
"""

from __future__ import annotations

from peer.rounds.state import Head
from peer.rounds.update import VOID, WEIGHT_ONE, Penalty, Update, discount

ABSENT, LATE, STALE = "ABSENT", "LATE", "STALE"


def due(head: Head, update: Update, max_staleness: int) -> tuple[Penalty, ...]:
    """The penalties of an update that follows `head`, in order of peers and codes; its own are not looked at."""
    until = update.round + 1
    found = [(peer, ABSENT, 0, until, b"") for peer in _absent(head, update)]
    for index, member in enumerate(update.members):
        came, parts = _came(update, index)
        if came < parts:
            found.append((member.peer, LATE, WEIGHT_ONE * came // parts, until, b""))
        counts = discount(member.staleness, max_staleness)
        if member.root and counts < WEIGHT_ONE:
            found.append((member.peer, STALE, counts, until, b""))
    return tuple(sorted(found))


def explain(penalty: Penalty, update: Update) -> str:
    """The evidence in plain words."""
    peer, code, *_ = penalty
    index = next((i for i, member in enumerate(update.members) if member.peer == peer), None)
    if index is None:
        return "did not answer"
    member = update.members[index]
    if code == STALE:
        return f"{member.staleness} rounds old"
    if not member.root:
        return "had nothing ready"
    came, parts = _came(update, index)
    return f"{came} of {parts} parts came in time"


def _absent(head: Head, update: Update) -> set[str]:
    """Voters who are no members. Who has just left (a member of the last round, not elected again) owes nothing."""
    left = set(head.members) - set(update.elect)
    return set(head.electorate) - {member.peer for member in update.members} - left


def _came(update: Update, index: int) -> tuple[int, int]:
    """In how many of the parts that are not void this member counts, and how many there are."""
    agreed = [bits for part, bits in zip(update.parts, update.contributors, strict=True) if part != VOID]
    return sum(bits >> index & 1 for bits in agreed), len(agreed)
