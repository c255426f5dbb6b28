"""Whether a block, an update, a vote may follow a head: computed from their contents, nobody is taken at their word.

Nothing here sends or changes anything, so that auditors, watchers and credit ask the same.
"""

from __future__ import annotations

from dataclasses import replace

from peer.protocol import norms, penalties
from peer.protocol.block import VOID, Block, ContributionHeader, Update, Vote, givers
from peer.protocol.electorate import coordinator, instance_of, quorum
from peer.protocol.encoding import pack
from peer.rounds.state import Acceptor, ChainHead, Rules, State
from peer.rounds.transition import Transition

CLOCKS_DIFFER_S = 5.0
"""How far the clocks of honest peers may be apart."""


def follows(state: State, head: ChainHead, block: Block) -> bool:
    """Whether a block may follow `head`: whoever decides stands behind it, and every field is what it must be.

    Of `state` only the rules count.
    """
    return not check_block(state, head, block)


def check_block(state: State, head: ChainHead, block: Block) -> str:
    """The first reason why a block may not follow `head`, in words; empty if it may. Else as `follows`."""
    rules = state.rules
    if block.electorate and (rules.takeover_s == 0 or block.electorate == head.electorate):
        return "it is decided by others than the electorate, which this run does not allow"
    if _decided_too_early(rules, head, block):
        return "it is decided by others than the electorate, who cannot have waited for that as long as they must"
    instance = instance_of(head.anchor, block.electorate) if block.electorate else head.instance
    at_head = replace(state, head=head, acceptor=Acceptor(head.anchor, instance, electorate=block.electorate))
    return _fault_of_votes(at_head, block) or check_update(at_head, block.update)


def _decided_too_early(rules: Rules, head: ChainHead, block: Block) -> bool:
    """Whether a takeover is dated before anybody may take over.

    What those who took over finished for the electorate keeps its date: a majority of that pledged itself to it.
    """
    update = block.update
    finished = _majority_of(head.electorate, [pledge.peer for pledge in update.members])
    return bool(block.electorate) and not finished and update.time < head.time + rules.takeover_s - CLOCKS_DIFFER_S


def _fault_of_votes(state: State, block: Block) -> str:
    digest = block.update.digest
    for vote in block.votes:
        if not vote_valid(state, vote):
            return f"the vote of {vote.voter} is not a voter's genuine one"
    if any(vote.update != digest for vote in block.votes):
        return "its votes are for another update"
    voters = {vote.voter for vote in block.votes}
    if len(voters) < len(block.votes) or len({vote.ballot for vote in block.votes}) > 1:
        return "its votes are not from different peers in one ballot"
    needed = quorum(state.electorate)
    return "" if len(voters) >= needed else f"it has {len(voters)} of the {needed} votes that it needs"


def vote_valid(state: State, vote: Vote) -> bool:
    """A voter of this instance signed it, and so did the coordinator of its ballot."""
    if vote.instance != state.instance or vote.voter not in state.electorate:
        return False
    anchor, keys = state.head.anchor, state.rules.keys
    leader = coordinator(anchor, state.electorate, vote.ballot)
    proposed = pack(((anchor, vote.instance, vote.ballot), vote.update))
    return vote.genuine(keys) and keys.verify(leader, "propose", proposed, vote.proposal_signature)


def valid(state: State, update: Update) -> bool:
    """Whether an update may follow my head: computed from its contents, nobody is taken at their word."""
    return not check_update(state, update)


def check_update(state: State, update: Update) -> str:
    """The first rule that an update after my head breaks, in words; empty if it may follow."""
    shared = state.rules.shared
    if shared is None:
        return _fault_of_update(state, update)
    key = ("update", state.head.anchor, state.instance)
    return shared.once(key, (update,), lambda: _fault_of_update(state, update))


def _fault_of_update(state: State, update: Update) -> str:
    return fault_of_place(state, update) or fault_of_tables(state.head, update, state.rules)


def fault_of_place(state: State, update: Update) -> str:
    """Whether it is about this head, this model, and decided by whom it may be."""
    head, rules = state.head, state.rules
    names = [pledge.peer for pledge in update.members]
    if (update.parent, update.round) != (head.anchor, head.round + 1):
        return "it does not follow the block before"
    if update.weight != head.weight + len(names):
        return f"its W is {update.weight}, where {head.weight} and {len(names)} members make another"
    if update.time < head.time + rules.min_round_s:
        return "it is dated too early"
    if names != sorted(set(names)) or update.coordinator not in names:
        return "its members are not in order, or its coordinator is none of them"
    if not any(_majority_of(voters, names) for voters in (head.electorate, state.electorate)):
        return "its members are no majority of those who decide"
    forged = [pledge.peer for pledge in update.members if not pledged(state, pledge)]
    if forged:
        return f"the pledge of {forged[0]} is not signed by it for this anchor, or names data that the run has not"
    if not len(update.parts) == len(update.contributors) == len(part_bytes(rules, update)) or not any(
        update.contributors
    ):
        return "its parts are not those of the model"
    return ""


def _majority_of(voters: tuple[str, ...], names: list[str]) -> bool:
    """A coordinator that leaves out most of those who decide is not followed."""
    return sum(name in voters for name in names) >= quorum(voters)


def pledged(state: State, pledge: ContributionHeader) -> bool:
    """Whether its author signed it for my anchor, and names data that the run has: cursors are kept for ever."""
    shards = state.rules.shards
    exist = all(shard < shards and first <= last for shard, first, last in pledge.ranges)
    return pledge.anchor == state.head.anchor and exist and pledge.genuine(state.rules.keys)


def fault_of_tables(head: ChainHead, update: Update, rules: Rules) -> str:
    """The same for what everybody computes alike from the pledges, the measurements and the parts."""
    fault = norms.fault_of_measurements(rules, head, update.members, update.ballot, update.measured)
    if fault:
        return fault
    judgement = norms.judgement_of(rules, head, update.members, update.measured)
    if (update.weights, update.scales, update.pulls) != norms.table_of(judgement):
        return "its weights are not those that its measurements give"
    if update.records != judgement.records:
        return "its records do not follow from those before"
    if not _contributors_valid(update, rules):
        return "its contributors do not fit its parts, pledges and weights"
    if update.penalties != penalties.due(rules, head, update, judgement.findings):
        return "its penalties are not those that are due"
    return "" if _elect_valid(head, update) else "its electorate does not follow from its members and those before"


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


def _elect_valid(head: ChainHead, update: Update) -> bool:
    """Members that stay are in; members of the last round may be, unless they said they leave."""
    leaving = {pledge.peer for pledge in update.members if pledge.leaving}
    stayed = {pledge.peer for pledge in update.members} - leaving
    elect = set(update.elect)
    if list(update.elect) != sorted(elect):
        return False
    if not stayed:
        return elect == leaving
    return stayed <= elect <= (stayed | set(head.members)) - leaving


def timely(turn: Transition, update: Update) -> bool:
    """Not dated ahead of my clock; with `min_round_s` this bounds how fast anybody can make a chain heavy."""
    return turn.rules.min_round_s == 0 or update.time <= turn.now + turn.rules.wall_offset_s + CLOCKS_DIFFER_S


def may_be_over(turn: Transition, head: ChainHead, block: Block) -> bool:
    """Whether those who took over can have waited, by my clock: a block that is not firm comes no earlier than that."""
    if not block.electorate:
        return True
    return turn.now + turn.rules.wall_offset_s >= head.time + turn.rules.takeover_s - CLOCKS_DIFFER_S


def missing_parts(state: State, update: Update) -> list[bytes]:
    """Digests of the parts that this peer must still fetch."""
    return sorted({part for part in update.parts if part != VOID and part not in state.held})


def fits(state: State, update: Update) -> bool:
    """Whether the bytes that are here have the sizes of the parts they are to stand for."""
    sizes = zip(update.parts, part_bytes(state.rules, update), strict=True)
    return all(state.held.get(part, size) == size for part, size in sizes if part != VOID)


def part_bytes(rules: Rules, update: Update) -> tuple[int, ...]:
    """Encoded sizes of the means in an update."""
    return rules.means_in(update.round - 1)
