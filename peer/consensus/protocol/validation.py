"""Whether a block, an update or a vote may follow a head: computed from their contents alone.

Nothing here sends or changes anything, so auditors, watchers and credit use the same checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from peer.consensus.protocol import bounds, norms, penalties
from peer.consensus.protocol.block import (
    VOID,
    Block,
    ContributionHeader,
    Restart,
    Roster,
    Stuck,
    Tenure,
    Update,
    Vote,
    givers,
)
from peer.consensus.protocol.electorate import may_restart, quorum
from peer.consensus.protocol.encoding import Keys, pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import elect_follows, tenures_after
from peer.consensus.protocol.refusals import HEADER, NORMS
from peer.consensus.protocol.rules import Rules, computed_once

CLOCKS_DIFFER_S = 5.0
"""How far the clocks of honest peers may be apart."""
MADE_S = 60.0
"""An update that is proposed in its own ballot is no older."""


def check_block(rules: Rules, head: ChainHead, block: Block) -> str:
    """The first reason, in words, why a block may not follow `head`; empty if it may: a quorum of the electorate
    stands behind it, and every field is right."""
    head, phase, fault = after_restarts(rules.keys, rules.organiser, head, block)
    return (
        fault
        or fault_of_votes(rules.keys, head, block.votes, block.update.digest, phase)
        or check_update(rules, head, block.update)
    )


def fault_of_certificate(
    rules: Rules, head: ChainHead, digest: bytes, votes: tuple[Vote, ...], restarts: tuple[Restart, ...]
) -> str:
    """Why no quorum of the electorate after `head` stands behind the update with this digest; empty if one does."""
    head, phase, fault = _after(rules.keys, rules.organiser, head, restarts, digest)
    return fault or fault_of_votes(rules.keys, head, votes, digest, phase)


def after_restarts(keys: Keys, organiser: str, head: ChainHead, block: Block) -> tuple[ChainHead, int, str]:
    """The head that a block follows if it was restarted, the votes that certify it, and what is wrong with that.
    Restarts that led to `head` are not looked at again: the votes name their instance."""
    return _after(keys, organiser, head, block.restarts, block.update.digest)


def _after(
    keys: Keys, organiser: str, head: ChainHead, restarts: tuple[Restart, ...], digest: bytes
) -> tuple[ChainHead, int, str]:
    for restart in restarts[head.number :]:
        fault = fault_of_restart(keys, organiser, head, restart)
        if fault:
            return head, 2, fault
        if restart.value is not None:
            wrong = restart is not restarts[-1] or restart.value[1] != digest
            return head, 1, "it is not what was decided by restarting" if wrong else ""
        head = head.restarted(restart)
    return head, 2, ""


def fault_of_restart(keys: Keys, organiser: str, head: ChainHead, restart: Restart) -> str:
    """Why the voters that a Restart names may not go on after `head`; empty if they may."""
    if (restart.anchor, restart.number) != (head.anchor, head.number + 1):
        return "it is a restart of something else"
    if not organiser or not keys.verify(organiser, "restart", restart.payload(), restart.signature):
        return "it is a restart that the organiser has not signed"
    if list(restart.electorate) != sorted(set(restart.electorate)):
        return "those who restart are not in order"
    if not restart.forced and not may_restart(head.electorate, head.roster.known, restart.electorate):
        return f"{len(restart.stuck)} of {len(head.electorate)} are too few to restart, or not known to the organiser"
    return next(filter(None, (fault_of_stuck(keys, head, stuck) for stuck in restart.stuck)), "")


def fault_of_stuck(keys: Keys, head: ChainHead, stuck: Stuck) -> str:
    """Why a voter's `Stuck` counts for nothing after `head`; empty if it counts."""
    place = (stuck.anchor, stuck.electorate, stuck.number)
    if place != (head.anchor, head.electorate, head.number + 1) or stuck.voter not in head.electorate:
        return "it is stuck elsewhere"
    if not keys.verify(stuck.voter, "stuck", stuck.payload(), stuck.signature):
        return "it is not signed by who is stuck"
    if stuck.accepted is None:
        return "it has votes for nothing" if stuck.certificate else ""
    ballot, digest = stuck.accepted
    fault = fault_of_votes(keys, head, stuck.certificate, digest, 1, led=False)
    return fault or ("" if stuck.certificate[0].ballot == ballot else "its votes are of another ballot")


def fault_of_votes(
    keys: Keys, head: ChainHead, votes: tuple[Vote, ...], digest: bytes, phase: int, *, led: bool = True
) -> str:
    """Why these votes of a phase do not certify an update; empty if they do. Without `led` it is not checked who
    proposed it, for which all of the head must be known: the voters have checked it."""
    for vote in votes:
        if vote.phase != phase or not vote_valid(keys, head, vote, led=led):
            return f"the vote of {vote.voter} is not a voter's genuine one"
    if any(vote.update != digest for vote in votes):
        return "its votes are for another update"
    voters = {vote.voter for vote in votes}
    if len(voters) < len(votes) or len({vote.ballot for vote in votes}) > 1:
        return "its votes are not from different peers in one ballot"
    return "" if enough(head.electorate, votes) else f"it has {len(voters)} votes of {len(head.electorate)}"


def enough(electorate: tuple[str, ...], votes: Iterable[Vote]) -> bool:
    """A quorum, and nothing less: any two share an honest voter."""
    return len({vote.voter for vote in votes}.intersection(electorate)) >= quorum(electorate)


def vote_valid(keys: Keys, head: ChainHead, vote: Vote, guests: Collection[str] = (), *, led: bool = True) -> bool:
    """Whether a voter of this instance signed it, and the coordinator of its ballot, too."""
    if (vote.voter not in head.electorate and vote.voter not in guests) or vote.instance != head.instance:
        return False
    proposed = pack(((head.anchor, vote.instance, vote.ballot), vote.update))
    return vote.genuine(keys) and (
        not led or keys.verify(head.leader(vote.ballot), "propose", proposed, vote.proposal_signature)
    )


@computed_once
def check_update(rules: Rules, head: ChainHead, update: Update) -> str:
    """The first rule that an update breaks, in words; empty if it may follow `head`. Computed from its contents
    alone."""
    return fault_of_place(rules, head, update) or fault_of_tables(rules, head, update)


def fault_of_place(rules: Rules, head: ChainHead, update: Update) -> str:
    """Whether it is about this head and this model, and was decided by voters that may decide it."""
    names = [header.peer for header in update.members]
    if (update.parent, update.round) != (head.anchor, head.round + 1):
        return "it does not follow the block before"
    if update.weight != head.weight + len(names):
        return f"its W is {update.weight}, where {head.weight} and {len(names)} members make another"
    if update.time < head.time + rules.min_round_s:
        return "it is dated too early"
    if names != sorted(set(names)) or update.coordinator not in names:
        return "its members are not in order, or its coordinator is none of them"
    if update.roster != head.roster and not (
        update.roster.number > head.roster.number and roster_genuine(rules, update.roster)
    ):
        return "its list is neither the one before nor a newer one that the organiser signed"
    here = sum(name in head.electorate for name in names)
    if here < quorum(head.electorate):
        return "its members are too few of those who decide"
    if head.leader(update.ballot) != update.coordinator:
        return "its coordinator is not the one of its ballot"
    for header in update.members:
        _, why = fault_of_header(rules, head, header)
        if why:
            return f"the header of {header.peer} cannot be counted: {why}"
    if not len(update.parts) == len(update.contributors) == len(part_bytes(rules, update)) or not any(
        update.contributors
    ):
        return "its parts are not those of the model"
    return ""


def roster_genuine(rules: Rules, roster: Roster) -> bool:
    return bool(rules.organiser) and rules.keys.verify(rules.organiser, "roster", roster.payload(), roster.signature)


def fault_of_header(rules: Rules, head: ChainHead, header: ContributionHeader) -> tuple[str, str]:
    """Why a header cannot be counted after `head`: the rule that it breaks, and how; empty if it can."""
    if header.anchor != head.anchor:
        return HEADER, "it goes on from another model"
    if not header.genuine(rules.keys):
        return HEADER, "it is not signed by its author"
    if not set(header.away) <= set(head.electorate) - {header.peer}:
        return HEADER, "it does not hear somebody who is no voter, or its author"
    why = norms.fault_of_declared(rules, head, header)
    if why:
        return NORMS, why
    return bounds.fault_of_header(rules, header)


def fault_of_tables(rules: Rules, head: ChainHead, update: Update) -> str:
    """The same for everything that peers compute alike from the headers and the parts."""
    judgement = norms.judgement_of(rules, head, update.members)
    if (update.weights, update.scales, update.pulls) != norms.table_of(judgement):
        return "its weights are not those that its headers give"
    if update.records != judgement.records:
        return "its records do not follow from those before"
    if not _contributors_valid(rules, head.electorate, update):
        return "its contributors do not fit its parts, headers and weights"
    if update.penalties != penalties.due(rules, head, update, judgement.findings):
        return "its penalties are not those that are due"
    if update.tenures != tenures_due(rules, head, update):
        return "its tenures do not follow from those before"
    return "" if elect_follows(head, update) else "its electorate does not follow from its members and those before"


def tenures_due(rules: Rules, head: ChainHead, update: Update) -> tuple[Tenure, ...]:
    """The tenures once this update follows `head`."""
    return tenures_after(head, update, rules.fragment(head.round).rows, norms.convictions(head, update.members))


def _contributors_valid(rules: Rules, electorate: Collection[str], update: Update) -> bool:
    """Whether the contributors of a mean are members that gave the part and count, and enough of the voters; a part is
    rolled back only if nothing of its layer counts."""
    gave, rows = givers(update.members), rules.fragment(update.round - 1).rows
    for part, (name, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
        row = norms.row_for(update.weights, rows[part])
        counted = any(weight for index, weight in enumerate(row) if bits >> index & 1)
        refused = 0 if any(row) else gave
        if bits & ~gave or (bits != refused if name == VOID else not counted):
            return False
        if name != VOID and not is_of_enough(electorate, update.members, bits):
            return False
    return True


def is_of_enough(electorate: Collection[str], members: tuple[ContributionHeader, ...], contributors: int) -> bool:
    """Whether at least half of the voters that give something are behind a mean. So nobody who reduces it, be it a
    coordinator that has all parts reduced again by itself, decides alone whose work counts."""
    voters = sum(1 << index for index, header in enumerate(members) if header.peer in electorate)
    voters &= givers(members)
    return 2 * (voters & contributors).bit_count() >= voters.bit_count()


def timely(wall_s: float, time: int) -> bool:
    """Whether an update is not dated ahead of my clock: nothing could follow it. With `min_round_s` this bounds how
    fast anybody can add rounds to a chain."""
    return time <= wall_s + CLOCKS_DIFFER_S


def needed_parts(rules: Rules, update: Update) -> tuple[bytes, ...]:
    """Digests of the parts whose bytes this peer must hold, with voids."""
    if rules.holds is None:
        return update.parts
    parts = zip(update.parts, rules.fragment(update.round - 1).parts, strict=True)
    return tuple(digest for digest, part in parts if part.layer in rules.holds)


def missing_parts(held: Collection[bytes], needed: Iterable[bytes]) -> list[bytes]:
    """Those of the `needed` digests that a peer with these bytes must still fetch."""
    return sorted({part for part in needed if part != VOID and part not in held})


def fits(rules: Rules, held: Mapping[bytes, int], update: Update) -> bool:
    """Whether the bytes that are here have the sizes of the parts for which they stand."""
    sizes = zip(update.parts, part_bytes(rules, update), strict=True)
    return all(held.get(part, size) == size for part, size in sizes if part != VOID)


def part_bytes(rules: Rules, update: Update) -> tuple[int, ...]:
    """Sizes of the means in an update, each with its rows."""
    round = update.round - 1
    if len(update.contributors) != len(rules.means_in(round)):
        return rules.means_in(round)
    return tuple(rules.object_bytes(round, part, bits) for part, bits in enumerate(update.contributors))
