"""Whether a block, an update, a vote may follow a head: computed from their contents, nobody is taken at their word.

Nothing here sends or changes anything, so that auditors, watchers and credit ask the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from peer.consensus.protocol import bounds, norms, penalties
from peer.consensus.protocol.block import VOID, Block, ContributionHeader, Tenure, Update, Vote, givers
from peer.consensus.protocol.electorate import coordinator, instance_of, quorum
from peer.consensus.protocol.encoding import Keys, pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import elect_follows, tenures_after, trusted
from peer.consensus.protocol.refusals import HEADER
from peer.consensus.protocol.rules import Rules, computed_once

CLOCKS_DIFFER_S = 5.0
"""How far the clocks of honest peers may be apart."""
MADE_S = 60.0
"""An update that is proposed in its own ballot is no older: who dates it long ago brings the next takeover forward."""


def check_block(rules: Rules, head: ChainHead, block: Block) -> str:
    """The first reason why a block may not follow `head`, in words; empty if it may.

    It may if a majority of those who decide stands behind it, and every field is what it must be.
    """
    if block.electorate and (rules.takeover_s == 0 or block.electorate == head.electorate):
        return "it is decided by others than the electorate, which this run does not allow"
    if not trusted(head).issuperset(block.electorate):
        return "it is decided by peers that have not earned a vote"
    if _decided_too_early(rules, head, block):
        return "it is decided by others than the electorate, who cannot have waited for that as long as they must"
    voters = block.electorate or head.electorate
    return fault_of_votes(rules.keys, head, block) or check_update(rules, head, voters, block.update)


def _decided_too_early(rules: Rules, head: ChainHead, block: Block) -> bool:
    """Whether a takeover is dated before anybody may take over.

    What those who took over finished for the electorate keeps its date: a majority of that pledged itself to it.
    """
    update = block.update
    finished = _majority_of(head.electorate, [header.peer for header in update.members])
    return bool(block.electorate) and not finished and update.time < head.time + rules.takeover_s - CLOCKS_DIFFER_S


def fault_of_votes(keys: Keys, head: ChainHead, block: Block) -> str:
    """Why the votes of a block do not decide it for those whom it names, or whom `head` names; empty if they do."""
    electorate, digest = block.electorate or head.electorate, block.update.digest
    for vote in block.votes:
        if not vote_valid(keys, head, electorate, vote):
            return f"the vote of {vote.voter} is not a voter's genuine one"
    if any(vote.update != digest for vote in block.votes):
        return "its votes are for another update"
    voters = {vote.voter for vote in block.votes}
    if len(voters) < len(block.votes) or len({vote.ballot for vote in block.votes}) > 1:
        return "its votes are not from different peers in one ballot"
    needed = quorum(electorate)
    return "" if len(voters) >= needed else f"it has {len(voters)} of the {needed} votes that it needs"


def vote_valid(keys: Keys, head: ChainHead, electorate: tuple[str, ...], vote: Vote) -> bool:
    """A voter of this instance signed it, and so did the coordinator of its ballot."""
    instance = head.instance if electorate == head.electorate else instance_of(head.anchor, electorate)
    if vote.voter not in electorate or vote.instance != instance:
        return False
    leader = coordinator(head.anchor, electorate, vote.ballot)
    proposed = pack(((head.anchor, vote.instance, vote.ballot), vote.update))
    return vote.genuine(keys) and keys.verify(leader, "propose", proposed, vote.proposal_signature)


@computed_once
def check_update(rules: Rules, head: ChainHead, electorate: tuple[str, ...], update: Update) -> str:
    """The first rule that an update breaks which `electorate` decides after `head`, in words; empty if it may follow.

    Computed from its contents: nobody is taken at their word.
    """
    return fault_of_place(rules, head, electorate, update) or fault_of_tables(rules, head, update)


def fault_of_place(rules: Rules, head: ChainHead, electorate: tuple[str, ...], update: Update) -> str:
    """Whether it is about this head, this model, and decided by whom it may be."""
    names = [header.peer for header in update.members]
    if (update.parent, update.round) != (head.anchor, head.round + 1):
        return "it does not follow the block before"
    if update.weight != head.weight + len(names):
        return f"its W is {update.weight}, where {head.weight} and {len(names)} members make another"
    if update.time < head.time + rules.min_round_s:
        return "it is dated too early"
    if names != sorted(set(names)) or update.coordinator not in names:
        return "its members are not in order, or its coordinator is none of them"
    if not any(_majority_of(voters, names) for voters in (head.electorate, electorate)):
        return "its members are no majority of those who decide"
    if all(
        coordinator(head.anchor, voters, update.ballot) != update.coordinator
        for voters in (head.electorate, electorate)
    ):
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


def _majority_of(voters: tuple[str, ...], names: list[str]) -> bool:
    """A coordinator that leaves out most of those who decide is not followed."""
    return sum(name in voters for name in names) >= quorum(voters)


def fault_of_header(rules: Rules, head: ChainHead, header: ContributionHeader) -> tuple[str, str]:
    """Why a header cannot be counted after `head`: the rule that it breaks, and how; empty if it can."""
    if header.anchor != head.anchor:
        return HEADER, "it is for another anchor"
    if not header.genuine(rules.keys):
        return HEADER, "it is not signed by its author"
    return bounds.fault_of_header(rules, header)


def fault_of_tables(rules: Rules, head: ChainHead, update: Update) -> str:
    """The same for what everybody computes alike from the headers, the measurements and the parts."""
    fault = norms.fault_of_measurements(rules, head, update.members, update.ballot, update.measured)
    if fault:
        return fault
    judgement = norms.judgement_of(rules, head, update.members, update.measured)
    if (update.weights, update.scales, update.pulls) != norms.table_of(judgement):
        return "its weights are not those that its measurements give"
    if update.records != judgement.records:
        return "its records do not follow from those before"
    if not _contributors_valid(update, rules):
        return "its contributors do not fit its parts, headers and weights"
    if update.penalties != penalties.due(rules, head, update, judgement.findings):
        return "its penalties are not those that are due"
    if update.tenures != tenures_due(rules, head, update):
        return "its tenures do not follow from those before"
    return "" if elect_follows(head, update) else "its electorate does not follow from its members and those before"


def tenures_due(rules: Rules, head: ChainHead, update: Update) -> tuple[Tenure, ...]:
    """Who has earned a vote once this update follows `head`."""
    return tenures_after(head, update, rules.fragment(head.round).rows, norms.caught(head, update.members))


def _contributors_valid(update: Update, rules: Rules) -> bool:
    """Members gave what is in a mean, and it counts; a part is rolled back only if nothing of its layer counts."""
    gave, listed = givers(update.members), norms.listed(update.measured)
    rows = rules.fragment(update.round - 1).rows
    for part, (name, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
        row = norms.row_for(update.weights, rows[part])
        counted = any(weight for index, weight in enumerate(row) if bits >> index & 1)
        refused = 0 if any(row) else listed.get(part, 0)
        if bits & ~gave or (bits != refused if name == VOID else not counted):
            return False
    return True


def timely(wall_s: float, time: int) -> bool:
    """Not dated ahead of my clock: nothing could follow it. With `min_round_s` this bounds how fast anybody can make a
    chain heavy."""
    return time <= wall_s + CLOCKS_DIFFER_S


def may_be_over(rules: Rules, wall_s: float, head: ChainHead, block: Block) -> bool:
    """Whether those who took over can have waited, by my clock: a block that is not firm comes no earlier than that."""
    return not block.electorate or wall_s >= head.time + rules.takeover_s - CLOCKS_DIFFER_S


def needed_parts(rules: Rules, update: Update) -> tuple[bytes, ...]:
    """Digests of the parts of which this peer must hold the bytes, voids among them."""
    if rules.holds is None:
        return update.parts
    parts = zip(update.parts, rules.fragment(update.round - 1).parts, strict=True)
    return tuple(digest for digest, part in parts if part.layer in rules.holds)


def missing_parts(held: Collection[bytes], needed: Iterable[bytes]) -> list[bytes]:
    """Those of the `needed` ones that whoever holds these bytes must still fetch."""
    return sorted({part for part in needed if part != VOID and part not in held})


def fits(rules: Rules, held: Mapping[bytes, int], update: Update) -> bool:
    """Whether the bytes that are here have the sizes of the parts they are to stand for."""
    sizes = zip(update.parts, part_bytes(rules, update), strict=True)
    return all(held.get(part, size) == size for part, size in sizes if part != VOID)


def part_bytes(rules: Rules, update: Update) -> tuple[int, ...]:
    """Encoded sizes of the means in an update."""
    return rules.means_in(update.round - 1)
