"""The voter: promise, check, hold the bytes, vote, count, and move to the next anchor.

Safety lives here. A voter writes what it promised and accepted before it says so, votes only for
what it holds on disk, and moves only on the votes of a quorum of the electorate written in the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peer.rounds import deadlines, judging, penalties, proofs, reports, takeover
from peer.rounds.effects import Commit, Persist, RequestFreeze
from peer.rounds.messages import MeanSent, Nack, PartSent, Place, Prepare, Promise, Propose, Voted
from peer.rounds.names import coordinator, instance_of, pack, quorum
from peer.rounds.state import Acceptor, Dispute, Head, Proposal, Rules, State, Step
from peer.rounds.turn import Turn
from peer.rounds.update import (
    MAX_SKIPPED,
    VOID,
    Block,
    Pledge,
    Update,
    Vote,
    givers,
)  # fmt: skip

HALF = 0.5
PROPOSALS_KEPT = 4
CLOCKS_DIFFER_S = 5.0
"""How far the clocks of honest peers may be apart."""
VOTES_KEPT = 16
ACCEPTORS_PER_ROUND = 4
"""On average: of the chain's instance, of takeovers, of a branch that was left."""


def on_frozen(turn: Turn, pledge: Pledge) -> None:
    """The trainer's contribution for this anchor is on disk; from now on I am ready."""
    if pledge.anchor != turn.state.head.anchor or turn.state.pledge is not None:
        return
    leaving = pledge.leaving or turn.state.leaving
    signed = replace(pledge, peer=turn.me, leaving=leaving, reports=reports.fresh(turn)).signed(turn.rules.keys)
    unanswered = turn.state.unanswered
    turn.set(pledge=signed, frozen_at=turn.now, freeze_asked_at=None, unanswered=None)
    turn.moved()
    turn.say_head()
    if unanswered is not None:
        on_prepare(turn, turn.owner(unanswered.place.ballot), unanswered)


def on_paused(turn: Turn, pledge: Pledge) -> None:
    """I make no more steps for this anchor: I keep my vote, hold nobody up and hurry nobody."""
    if pledge.anchor != turn.state.head.anchor:
        return
    turn.set(resumed_at=float("inf"))
    if turn.state.pledge is None:
        turn.set(sits_out=True)
        on_frozen(turn, pledge)


def on_resumed(turn: Turn) -> None:
    """I train again. What I gave for this anchor stays; who gave nothing may still give something."""
    state = turn.state
    if not state.sits_out or state.pledge is None:
        return
    if state.pledge.root:
        turn.set(resumed_at=turn.now)
        return
    turn.set(sits_out=False, pledge=None, frozen_at=turn.now)  # a ballot of mine that goes on measures from here
    turn.say_head()


# ---- promise ----


def on_prepare(turn: Turn, sender: str, message: Prepare) -> None:
    if message.place.instance != turn.state.instance and not takeover.enters(turn, sender, message):
        return
    ballot, acceptor = message.place.ballot, turn.state.acceptor
    if sender != turn.owner(ballot) or sender in turn.state.banned | turn.state.quarantined:
        return
    if ballot - acceptor.promised > MAX_SKIPPED or _newcomer(turn.state):
        return
    if ballot < acceptor.promised:
        turn.send((sender,), Nack(message.place, acceptor.promised))
        return
    if _freezing_first(turn):
        turn.set(unanswered=message)
        return
    if ballot > acceptor.promised:
        acceptor = replace(acceptor, promised=ballot)
        turn.do(Persist(acceptor))
        turn.set(acceptor=acceptor, lead=None, exchange=None, early=_still_early(turn.state, ballot))
        turn.moved()
        turn.phase("group", ballot)
    turn.send((sender,), Promise(message.place, turn.my_pledge(), acceptor.accepted, _accepted_elsewhere(turn.state)))


def _accepted_elsewhere(state: State) -> tuple[int, bytes] | None:
    """What I accepted for this anchor in another instance, in the chain's own one if there; it may be decided."""
    found = [
        (not other.electorate, *other.accepted)
        for other in state.acceptors.values()
        if other.anchor == state.head.anchor and other.accepted is not None
    ]
    return max(found)[1:] if found else None


def _newcomer(state: State) -> bool:
    """Who is not in step yet is no member; a voter answers all the same, for its vote needs no tensors."""
    return not state.in_step and state.rules.me not in state.electorate


def _freezing_first(turn: Turn) -> bool:
    """A peer still training freezes if half the round is over, and answers then; the coordinator waits `ack_s`."""
    state = turn.state
    if state.pledge is not None or state.progress < HALF:
        return False
    if state.freeze_asked_at is None:
        turn.set(freeze_asked_at=turn.now)
        turn.do(RequestFreeze())
        return True
    return turn.now - state.freeze_asked_at < turn.rules.ack_s / 2


def _still_early(state: State, ballot: int) -> tuple[tuple[str, PartSent | MeanSent], ...]:
    return tuple((peer, message) for peer, message in state.early if message.place.ballot >= ballot)


# ---- vote ----


def on_propose(turn: Turn, sender: str, message: Propose) -> None:
    place, update = message.place, message.update
    ahead = place.ballot - turn.state.acceptor.promised
    if not 0 <= ahead <= MAX_SKIPPED or sender != turn.owner(place.ballot):
        return
    digest = update.digest
    if place.ballot in turn.state.dead_ballots or not proofs.signed(turn, place, digest, message.signature):
        return
    if proofs.look_for_another(turn, place, digest, message.signature):
        return
    known = turn.state.proposals.get(digest)
    # What is known from another instance, or from its digest alone, was not held against the rules of this one.
    if (known is None or known.ballot < 0) and not _follows_from_what_is_signed(turn, sender, update):
        return
    reports.look_at_proposed(turn, update)
    proposal = Proposal(place.ballot, update, message.signature)
    if known is None or known.ballot != place.ballot:
        turn.moved()
        turn.phase("commit", place.ballot)
    turn.set(proposals=_room(turn.state) | {digest: proposal})
    if turn.state.decided is None:
        _vote_if_held(turn, proposal)


def _follows_from_what_is_signed(turn: Turn, coordinator: str, update: Update) -> bool:
    """Whether a proposal may follow my head; one that is not as everybody computes it is held against its author."""
    if _fault_of_place(turn.state, update) or not timely(turn, update):
        return False
    fault = fault_of_tables(turn.state.head, update, turn.rules)
    if fault:
        reports.catch(turn, coordinator, -1, f"it proposed an update that cannot be: {fault}")
    return not fault


def look(turn: Turn) -> None:
    """Vote for the newest proposal, and commit what is decided, as soon as the bytes are here."""
    if turn.state.blocks:
        return  # what follows my head is decided, and is being fetched together with what follows that
    if turn.state.decided is not None:
        _commit_if_held(turn)
        return
    least = max(0, turn.state.acceptor.promised)
    dead = turn.state.dead_ballots
    proposals = [item for item in turn.state.proposals.values() if item.ballot >= least and item.ballot not in dead]
    if not proposals:
        return
    held = [item for item in proposals if not missing_parts(turn.state, item.update)]
    newest = max(held or proposals, key=lambda proposal: proposal.ballot)
    if turn.state.acceptor.accepted != (newest.ballot, newest.update.digest):
        _vote_if_held(turn, newest)


def _room(state: State) -> dict[bytes, Proposal]:
    """The proposals that must stay, and of the others those next in turn: a new one always finds room."""
    named = (state.acceptor.accepted, state.decided)
    keep = {state.lead.update} if state.lead else set()
    keep |= {name[1] for name in named if name is not None}
    others = sorted(
        (item.ballot, digest)
        for digest, item in state.proposals.items()
        if digest not in keep and item.ballot >= state.acceptor.promised
    )
    keep |= {digest for _, digest in others[:PROPOSALS_KEPT]}
    return {digest: item for digest, item in state.proposals.items() if digest in keep}


def _vote_if_held(turn: Turn, proposal: Proposal) -> None:
    state, update = turn.state, proposal.update
    missing = missing_parts(state, update)
    if missing and not state.blocks:
        members = (pledge.peer for pledge in update.members)
        turn.fetch(missing, (turn.owner(proposal.ballot), *members), on_their_way=True)
    if missing or turn.me not in state.electorate or not fits(state, update):
        return
    digest, before = update.digest, state.acceptor.accepted
    if before is not None and before[0] == proposal.ballot and before[1] != digest:
        return
    acceptor = replace(state.acceptor, promised=proposal.ballot, accepted=(proposal.ballot, digest))
    if acceptor != state.acceptor:
        turn.do(Persist(acceptor, update))
        turn.set(acceptor=acceptor)
    vote = Vote(turn.me, state.instance, proposal.ballot, digest, proposal.signature).signed(turn.rules.keys)
    members = (pledge.peer for pledge in update.members)
    turn.send((*state.electorate, *members), Voted(turn.place(proposal.ballot), vote))


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


def valid(state: State, update: Update) -> bool:
    """Whether an update may follow my head: computed from its contents, nobody is taken at their word."""
    return not fault_of_update(state, update)


def fault_of_update(state: State, update: Update) -> str:
    """The first rule that an update after my head breaks, in words; empty if it may follow."""
    shared = state.rules.shared
    if shared is None:
        return _fault_of_update(state, update)
    key = ("update", state.head.anchor, state.instance)
    return shared.once(key, (update,), lambda: _fault_of_update(state, update))


def _fault_of_update(state: State, update: Update) -> str:
    return _fault_of_place(state, update) or fault_of_tables(state.head, update, state.rules)


def _fault_of_place(state: State, update: Update) -> str:
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


def fault_of_tables(head: Head, update: Update, rules: Rules) -> str:
    """The same for what everybody computes alike from the pledges, the measurements and the parts."""
    fault = judging.fault_of_measurements(rules, head, update.members, update.ballot, update.measured)
    if fault:
        return fault
    judgement = judging.judgement_of(rules, head, update.members, update.measured)
    if (update.weights, update.scales, update.pulls) != judging.table_of(judgement):
        return "its weights are not those that its measurements give"
    if update.records != judgement.records:
        return "its records do not follow from those before"
    if not _contributors_valid(update, rules):
        return "its contributors do not fit its parts, pledges and weights"
    if update.penalties != penalties.due(rules, head, update, judgement.findings):
        return "its penalties are not those that are due"
    return "" if _elect_valid(head, update) else "its electorate does not follow from its members and those before"


def pledged(state: State, pledge: Pledge) -> bool:
    """Whether its author signed it for my anchor, and names data that the run has: cursors are kept for ever."""
    shards = state.rules.shards
    exist = all(shard < shards and first <= last for shard, first, last in pledge.ranges)
    return pledge.anchor == state.head.anchor and exist and pledge.genuine(state.rules.keys)


def timely(turn: Turn, update: Update) -> bool:
    """Not dated ahead of my clock; with `min_round_s` this bounds how fast anybody can make a chain heavy."""
    return turn.rules.min_round_s == 0 or update.time <= turn.now + turn.rules.wall_offset_s + CLOCKS_DIFFER_S


def may_be_over(turn: Turn, head: Head, block: Block) -> bool:
    """Whether those who took over can have waited, by my clock: a block that is not firm comes no earlier than that."""
    if not block.electorate:
        return True
    return turn.now + turn.rules.wall_offset_s >= head.time + turn.rules.takeover_s - CLOCKS_DIFFER_S


def _majority_of(voters: tuple[str, ...], names: list[str]) -> bool:
    """A coordinator that leaves out most of those who decide is not followed."""
    return sum(name in voters for name in names) >= quorum(voters)


def _contributors_valid(update: Update, rules: Rules) -> bool:
    """Members gave what is in a mean, and it counts; a part is rolled back only if nothing of its layer counts."""
    gave, listed = givers(update.members), judging.listed(update.measured)
    rows = rules.fragment(update.round - 1).rows
    for part, (name, bits) in enumerate(zip(update.parts, update.contributors, strict=True)):
        row = judging.row_for(update.weights, rows[part])
        counted = any(weight for index, weight in enumerate(row) if bits >> index & 1)
        refused = 0 if any(row) else listed.get(part, 0)
        if bits & ~gave or (bits != refused if name == VOID else not counted):
            return False
    return True


def _elect_valid(head: Head, update: Update) -> bool:
    """Members that stay are in; members of the last round may be, unless they said they leave."""
    leaving = {pledge.peer for pledge in update.members if pledge.leaving}
    stayed = {pledge.peer for pledge in update.members} - leaving
    elect = set(update.elect)
    if list(update.elect) != sorted(elect):
        return False
    if not stayed:
        return elect == leaving
    return stayed <= elect <= (stayed | set(head.members)) - leaving


# ---- decide ----


def on_vote(turn: Turn, message: Voted) -> None:
    vote, state = message.vote, turn.state
    key = (vote.ballot, vote.update)
    if vote.voter in state.votes.get(key, {}) or state.decided not in (None, key):
        return
    if vote.ballot != message.place.ballot or vote.ballot in state.dead_ballots or not vote_valid(state, vote):
        return
    if proofs.look_for_another(turn, message.place, vote.update, vote.proposal_signature):
        return
    votes = _without_oldest(state, vote.voter)
    turn.set(votes={**votes, key: {**votes.get(key, {}), vote.voter: vote}})
    if vote.update in state.proposals:
        turn.moved()
    if turn.state.decided is None and len(turn.state.votes[key]) >= quorum(state.electorate):
        turn.set(decided=key)
        look(turn)


def _without_oldest(state: State, voter: str) -> dict[tuple[int, bytes], Mapping[str, Vote]]:
    """The votes, less the oldest of a voter that has VOTES_KEPT of them: honest ones vote once in a few ballots."""
    votes = dict(state.votes)
    mine = sorted(key for key, voters in votes.items() if voter in voters)
    if len(mine) >= VOTES_KEPT and mine[0] != state.decided:
        left = {peer: vote for peer, vote in votes.pop(mine[0]).items() if peer != voter}
        if left:
            votes[mine[0]] = left
    return votes


def vote_valid(state: State, vote: Vote) -> bool:
    """A voter of this instance signed it, and so did the coordinator of its ballot."""
    if vote.instance != state.instance or vote.voter not in state.electorate:
        return False
    anchor, keys = state.head.anchor, state.rules.keys
    leader = coordinator(anchor, state.electorate, vote.ballot)
    proposed = pack(((anchor, vote.instance, vote.ballot), vote.update))
    return vote.genuine(keys) and keys.verify(leader, "propose", proposed, vote.proposal_signature)


def _commit_if_held(turn: Turn) -> None:
    state = turn.state
    assert state.decided is not None
    votes = state.votes[state.decided]
    proposal = state.proposals.get(state.decided[1])
    if proposal is None:
        turn.fetch({state.decided[1]}, votes)
        return
    missing = missing_parts(state, proposal.update)
    if missing:
        turn.fetch(missing, votes, on_their_way=True)
        return
    certificate = tuple(vote for _, vote in sorted(votes.items()))
    advance(turn, Block(proposal.update, certificate, state.acceptor.electorate))


def advance(turn: Turn, block: Block) -> None:
    """Move to the next anchor: on disk first, then to the trainer, then say so."""
    state, update = turn.state, block.update
    head = state.head.after(update)
    anchor = head.anchor
    awaited = frozenset(part for later in state.blocks for part in later.update.parts)
    trail = (*state.trail, Step(state.head, block))[-state.rules.keep_rounds :]
    turn.do(Commit(block, head, awaited))
    turn.set(
        ancestors={**state.ancestors, anchor: head.round}, trail=trail, wanted=state.wanted.only(awaited), branch=None,
        past=state.exchange, disputes=_late_disputes(state),
        held={digest: size for digest, size in state.held.items() if digest in awaited},
    )  # fmt: skip
    stand_at(turn, head)
    if state.in_step:
        turn.say_head()  # who catches up says where it is once that is computed


def _late_disputes(state: State) -> dict[tuple[Place, str], Dispute]:
    """Those of the exchange that ends here may still be settled."""
    place = state.exchange.place if state.exchange is not None else None
    return {key: dispute for key, dispute in state.disputes.items() if key[0] == place}


def stand_at(turn: Turn, head: Head) -> None:
    """Begin at this anchor, with all that I promised there if I have been there before."""
    state = turn.state
    # Also those of a branch that was left: who comes back there must not vote a second time. A takeover in which
    # nothing was accepted is over.
    others = {**state.acceptors, state.acceptor.instance: state.acceptor}
    kept = [(name, other) for name, other in others.items() if not other.electorate or other.accepted is not None]
    others = dict(kept[-ACCEPTORS_PER_ROUND * state.rules.keep_rounds :])
    acceptor = others.pop(head.instance, None) or Acceptor(head.anchor, head.instance)
    turn.set(
        head=head, acceptor=acceptor, acceptors=others, voters=state.voters.union(head.electorate),
        pledge=None, progress=0.0, freeze_asked_at=None,
        unanswered=None, state_digest=b"", lead=None, exchange=None, early=(), proposals={}, votes={}, decided=None,
        deadlines=deadlines.learn([step.block.update for step in state.trail], state.rules), ready_at={},
        sits_out=False, resumed_at=float("inf"), dead_ballots=frozenset(),
    )  # fmt: skip
    turn.moved()


def follows(state: State, head: Head, block: Block) -> bool:
    """Whether a block may follow `head`: whoever decides stands behind it, and every field is what it must be.

    Of `state` only the rules count.
    """
    return not fault_of_block(state, head, block)


def fault_of_block(state: State, head: Head, block: Block) -> str:
    """The first reason why a block may not follow `head`, in words; empty if it may. Else as `follows`."""
    rules = state.rules
    if block.electorate and (rules.takeover_s == 0 or block.electorate == head.electorate):
        return "it is decided by others than the electorate, which this run does not allow"
    if _decided_too_early(rules, head, block):
        return "it is decided by others than the electorate, who cannot have waited for that as long as they must"
    instance = instance_of(head.anchor, block.electorate) if block.electorate else head.instance
    at_head = replace(state, head=head, acceptor=Acceptor(head.anchor, instance, electorate=block.electorate))
    return _fault_of_votes(at_head, block) or fault_of_update(at_head, block.update)


def _decided_too_early(rules: Rules, head: Head, block: Block) -> bool:
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
