"""A vote is earned: which peers may vote, and how the electorate grows.

A newcomer contributes at once, but peer ids cost nothing. So it may vote only after its contributions were accepted in
VOTES_AFTER rounds, and in one round the electorate grows by at most a share of its size. What a peer says about itself,
such as the digest of its state, counts for nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from peer.consensus.protocol.block import MAX_TENURES, VOID, ContributionHeader, Roster, Tenure, Update
from peer.consensus.protocol.electorate import majority
from peer.consensus.protocol.encoding import digest

if TYPE_CHECKING:
    from peer.consensus.protocol.head import ChainHead

SEATS = 42
"""Voters at most: of MAX_MEMBERS a third stays free for guests, who are drawn by lot each round."""
VOTES_AFTER = 8
"""Rounds in which a newcomer's contribution was accepted before it votes."""
GROWTH = 8
"""The electorate grows by one in so many at a time, and by one at least."""
FORGOTTEN_AFTER = 64
"""Rounds after which a peer that was in none of them is a newcomer again."""


def trusted(head: ChainHead) -> frozenset[str]:
    """The peers that have earned a vote at `head`, whether or not they are let in already."""
    return frozenset(head.electorate).union(_earned(head.tenures))


def _earned(tenures: Sequence[Tenure]) -> frozenset[str]:
    return frozenset(tenure.peer for tenure in tenures if tenure.accepted >= VOTES_AFTER)


def tenures_after(
    head: ChainHead, update: Update, rows: Sequence[int], convicted: Collection[str]
) -> tuple[Tenure, ...]:
    """The tenures of all peers once `update` follows `head`; the update's own tenures are not looked at. `rows`
    gives the row of weights of each part. A peer that is convicted of a lie has earned nothing."""
    known = {tenure.peer: tenure for tenure in head.tenures if update.round - tenure.seen <= FORGOTTEN_AFTER}
    known |= {
        peer: replace(known.get(peer, Tenure(peer, 0, head.round, head.round)), accepted=VOTES_AFTER)
        for peer in head.electorate
    }
    for index, header in enumerate(update.members):
        before = known.get(header.peer, Tenure(header.peer, 0, 0))
        counted = _is_accepted(update, rows, index)
        if counted or header.peer in head.electorate:
            accepted = min(VOTES_AFTER, before.accepted + counted)
            known[header.peer] = Tenure(header.peer, accepted, update.round, before.led)
    had_turn = {update.coordinator, *head.order[: update.ballot]}
    known = {
        peer: replace(tenure, led=update.round) if peer in had_turn or peer not in head.electorate else tenure
        for peer, tenure in known.items()
    }
    left = (tenure for tenure in known.values() if tenure.peer not in convicted)
    voters_first = sorted(
        left, key=lambda tenure: (tenure.peer not in head.electorate, -tenure.accepted, -tenure.seen, tenure.peer)
    )
    first = voters_first[:MAX_TENURES]
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
    head: ChainHead, members: Sequence[ContributionHeader], tenures: Sequence[Tenure], roster: Roster
) -> tuple[str, ...]:
    """The electorate after an update of `members`, by its `tenures`: sorted. A voter leaves by its own word, or if
    it is no member and more than half of all voters say in their headers that they do not hear it, so that no
    coordinator can send anybody away. Peers in quarantine are out at once. If all voters leave, members that stay
    and whose contributions were accepted take over; if there is none, the electorate does not change."""
    leaving = {header.peer for header in members if header.leaving}
    here = {header.peer for header in members} - leaving - set(roster.out)
    voters = set(head.electorate)
    stayed = here & (_earned(tenures) | voters)
    if not stayed:
        heirs = here & {tenure.peer for tenure in tenures if tenure.accepted}
        return tuple(sorted(_with_few_strangers(heirs, voters, roster) or leaving & voters or voters))
    words = Counter(peer for header in members if header.peer in voters for peer in header.away)
    gone = {peer for peer, count in words.items() if count >= majority(head.electorate)}
    absent = voters - here - leaving - gone - set(roster.out)
    back = stayed - voters & set(roster.known)
    newcomers = sorted(stayed - voters - back, key=lambda peer: digest(head.lot, peer))
    found = sorted(back)[: max(0, SEATS - len(voters & stayed | absent))]
    room = min(max(1, len(voters) // GROWTH), SEATS - len(voters & stayed | absent) - len(found))
    elected = stayed & voters | absent | {*found, *newcomers[: max(0, room)]}
    return tuple(sorted(_with_few_strangers(elected, voters, roster) or voters))


def _with_few_strangers(elected: Collection[str], voters: Collection[str], roster: Roster) -> set[str]:
    """Peers that the organiser does not know hold at most ⌊(n − 1)/3⌋ of n seats, also when others leave, so that
    whoever stays longest owns nothing. Present voters come first."""
    if not roster.known:
        return set(elected)
    known = set(elected).intersection(roster.known)
    strangers = sorted(set(elected) - known, key=lambda peer: (peer not in voters, digest("stranger", peer)))
    return known | set(strangers[: max(0, (len(known) - 1) // 2)])


def elect_follows(head: ChainHead, update: Update) -> bool:
    """Whether an update's electorate is the computed one: nobody has a say in it."""
    return update.elect == next_electorate(head, update.members, update.tenures, update.roster)
