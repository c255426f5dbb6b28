"""A vote is earned: who may vote, own shards and take over, and how the electorate grows.

A newcomer contributes at once, but names cost nothing. So it votes only after its contributions were accepted in
VOTES_AFTER rounds, and of those who have earned a vote no more come in at a time than a share of those who have one.
What a peer says of itself, such as the digest of another's state, counts for nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from peer.consensus.protocol.block import MAX_MEMBERS, MAX_TENURES, VOID, ContributionHeader, Tenure, Update
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.encoding import digest

if TYPE_CHECKING:
    from peer.consensus.protocol.head import ChainHead

VOTES_AFTER = 3
"""Rounds in which a newcomer's contribution was accepted before it votes."""
GROWTH = 3
"""The electorate grows by one in so many at a time, and by one at least."""
FORGOTTEN_AFTER = 64
"""Rounds after which a peer that was in none of them is a newcomer again."""


def trusted(head: ChainHead) -> frozenset[str]:
    """Who has earned a vote at `head`, whether or not it is let in already."""
    return frozenset(head.electorate).union(_earned(head.tenures))


def _earned(tenures: Sequence[Tenure]) -> frozenset[str]:
    return frozenset(tenure.peer for tenure in tenures if tenure.accepted >= VOTES_AFTER)


def tenures_after(
    head: ChainHead, update: Update, rows: Sequence[int], convicted: Collection[str]
) -> tuple[Tenure, ...]:
    """What is known of everybody once `update` follows `head`; its own tenures are not looked at.

    `rows` gives for each part its row of the weights. Who is convicted of a lie has earned nothing.
    """
    known = {tenure.peer: tenure for tenure in head.tenures if update.round - tenure.seen <= FORGOTTEN_AFTER}
    known |= {
        peer: Tenure(peer, VOTES_AFTER, known[peer].seen if peer in known else head.round) for peer in head.electorate
    }
    for index, header in enumerate(update.members):
        before = known.get(header.peer, Tenure(header.peer, 0, 0))
        counted = _is_accepted(update, rows, index)
        if counted or header.peer in head.electorate:
            known[header.peer] = Tenure(header.peer, min(VOTES_AFTER, before.accepted + counted), update.round)
    left = (tenure for tenure in known.values() if tenure.peer not in convicted)
    first = sorted(left, key=lambda tenure: (-tenure.accepted, -tenure.seen, tenure.peer))[:MAX_TENURES]
    return tuple(sorted(first, key=lambda tenure: tenure.peer))


def _is_accepted(update: Update, rows: Sequence[int], index: int) -> bool:
    """Whether a member counts in more than half of the parts that were agreed."""
    agreed = [part for part, name in enumerate(update.parts) if name != VOID]
    weights = update.weights
    counted = sum(
        update.contributors[part] >> index & 1 and weights[rows[part] if len(weights) > 1 else 0][index] > 0
        for part in agreed
    )
    return 2 * counted > len(agreed)


def next_electorate(
    head: ChainHead,
    members: Sequence[ContributionHeader],
    tenures: Sequence[Tenure],
    gone: Collection[str] = (),
) -> tuple[str, ...]:
    """Who votes on what follows an update of `members`, by the `tenures` that it says: sorted.

    Members that have earned it, and the voters that were members of the update before, since one round missed costs
    nobody its vote; but none of those that leave. `gone` are voters who were members then, are not now, and of whom its
    coordinator knows that they have left. Where a majority of the electorate is lost, all who have earned a vote come
    in at once. If all voters leave, those that stay and whose contributions were accepted take over from them.
    """
    leaving = {header.peer for header in members if header.leaving}
    here = {header.peer for header in members} - leaving
    stayed = here & _earned(tenures) | here & set(head.electorate)
    if not stayed:
        heirs = here & {tenure.peer for tenure in tenures if tenure.accepted}
        return tuple(sorted(heirs or leaving & set(head.electorate)))
    newcomers = sorted(stayed - set(head.electorate), key=lambda peer: digest(head.anchor, peer))
    majority = sum(header.peer in head.electorate for header in members) >= quorum(head.electorate)
    room = max(1, len(head.electorate) // GROWTH) if majority else len(newcomers)
    voters = (stayed & set(head.electorate)).union(newcomers[:room])
    earlier = sorted(set(head.members) & set(head.electorate) - set(gone) - leaving - here)
    return tuple(sorted(voters.union(earlier[: MAX_MEMBERS - len(voters)])))


def elect_follows(head: ChainHead, update: Update) -> bool:
    """Whether an update's electorate is the next one; which of the earlier voters have left its coordinator may say."""
    left_out = set(head.members) - set(update.elect)
    return update.elect == next_electorate(head, update.members, update.tenures, left_out)
