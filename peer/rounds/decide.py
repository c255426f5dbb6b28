"""The voter: promise, check, hold the bytes, vote, count, and move to the next anchor.

Safety lives here. A voter writes what it promised and accepted before it says so, votes only for
what it holds on disk, and moves only on the votes of a quorum of the electorate written in the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peer.rounds.messages import MeanSent, Nack, PartSent, Prepare, Promise, Propose, Voted
from peer.rounds.names import Keys, coordinator, pack, quorum
from peer.rounds.state import Acceptor, Commit, Head, Persist, Proposal, RequestFreeze, State
from peer.rounds.turn import Turn
from peer.rounds.update import (
    MAX_SKIPPED,
    VOID,
    WEIGHT_ONE,
    Block,
    Pledge,
    Update,
    Vote,
    givers,
    token_weights,
)  # fmt: skip

HALF = 0.5
PROPOSALS_KEPT = 4
VOTES_KEPT = 16


def on_frozen(turn: Turn, pledge: Pledge) -> None:
    """The trainer's contribution for this anchor is on disk; from now on I am ready."""
    if pledge.anchor != turn.state.head.anchor or turn.state.pledge is not None:
        return
    signed = replace(pledge, peer=turn.me, leaving=pledge.leaving or turn.state.leaving).signed(turn.rules.keys)
    unanswered = turn.state.unanswered
    turn.set(pledge=signed, frozen_at=turn.now, freeze_asked_at=None, unanswered=None)
    turn.moved()
    turn.say_head()
    if unanswered is not None:
        on_prepare(turn, turn.owner(unanswered.place.ballot), unanswered)


# ---- promise ----


def on_prepare(turn: Turn, sender: str, message: Prepare) -> None:
    ballot, acceptor = message.place.ballot, turn.state.acceptor
    if sender != turn.owner(ballot):
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
    turn.send((sender,), Promise(message.place, turn.my_pledge(), acceptor.accepted))


def _newcomer(state: State) -> bool:
    """Who is not in step yet is no member; a voter answers all the same, for its vote needs no tensors."""
    return not state.in_step and state.rules.me not in state.head.electorate


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
    if any(rival.ballot == place.ballot and name != digest for name, rival in turn.state.proposals.items()):
        return  # the coordinator equivocates: its first proposal is the one of this ballot
    if not turn.rules.keys.verify(sender, "propose", pack((place.packed(), digest)), message.signature):
        return
    known = turn.state.proposals.get(digest)
    if known is None and not valid(turn.state, update):
        return
    proposal = Proposal(place.ballot, update, message.signature)
    if known is None or known.ballot != place.ballot:
        turn.moved()
        turn.phase("commit", place.ballot)
    turn.set(proposals=_room(turn.state) | {digest: proposal})
    if turn.state.decided is None:
        _vote_if_held(turn, proposal)


def look(turn: Turn) -> None:
    """Vote for the newest proposal, and commit what is decided, as soon as the bytes are here."""
    if turn.state.decided is not None:
        _commit_if_held(turn)
        return
    least = max(0, turn.state.acceptor.promised)
    proposals = [item for item in turn.state.proposals.values() if item.ballot >= least]
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
    if missing or turn.me not in state.head.electorate or not fits(state, update):
        return
    digest, before = update.digest, state.acceptor.accepted
    if before is not None and before[0] == proposal.ballot and before[1] != digest:
        return
    acceptor = replace(state.acceptor, promised=proposal.ballot, accepted=(proposal.ballot, digest))
    if acceptor != state.acceptor:
        turn.do(Persist(acceptor, update))
        turn.set(acceptor=acceptor)
    vote = Vote(turn.me, state.head.instance, proposal.ballot, digest, proposal.signature).signed(turn.rules.keys)
    members = (pledge.peer for pledge in update.members)
    turn.send((*state.head.electorate, *members), Voted(turn.place(proposal.ballot), vote))


def missing_parts(state: State, update: Update) -> list[bytes]:
    """Digests of the parts that this peer must still fetch."""
    return sorted({part for part in update.parts if part != VOID and part not in state.held})


def fits(state: State, update: Update) -> bool:
    """Whether the bytes that are here have the sizes of the parts they are to stand for."""
    sizes = zip(update.parts, state.rules.part_bytes, strict=True)
    return all(state.held.get(part, size) == size for part, size in sizes if part != VOID)


def valid(state: State, update: Update) -> bool:
    """Whether an update may follow my head: computed from its contents, nobody is taken at their word."""
    head, rules = state.head, state.rules
    names = [pledge.peer for pledge in update.members]
    count = len(rules.parts)
    return (
        update.parent == head.anchor
        and update.round == head.round + 1
        and update.weight == head.weight + len(names)
        and update.coordinator == coordinator(head.anchor, head.electorate, update.ballot)
        and names == sorted(set(names))
        and sum(name in head.electorate for name in names) >= quorum(head.electorate)
        and all(pledge.anchor == head.anchor and pledge.genuine(rules.keys) for pledge in update.members)
        and len(update.parts) == len(update.contributors) == count
        and any(part != VOID for part in update.parts)
        and _contributors_valid(update)
        and _weights_valid(update, rules.tokens_cap)
        and _elect_valid(head, update)
    )


def _contributors_valid(update: Update) -> bool:
    gave = givers(update.members)
    return all(
        bits & ~gave == 0 and (bits == 0) == (part == VOID)
        for part, bits in zip(update.parts, update.contributors, strict=True)
    )


def _weights_valid(update: Update, tokens_cap: int) -> bool:
    """My own table differs by at most 1: `exp` is not the same in every library."""
    mine = token_weights(update.members, tokens_cap)
    return len(update.weights) == 1 and all(
        abs(theirs - own) <= 1 and 0 <= theirs <= WEIGHT_ONE
        for theirs, own in zip(update.weights[0], mine, strict=True)
    )


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
    if vote.ballot != message.place.ballot or not vote_valid(state.head, vote, turn.rules.keys):
        return
    votes = _without_oldest(state, vote.voter)
    turn.set(votes={**votes, key: {**votes.get(key, {}), vote.voter: vote}})
    if vote.update in state.proposals:
        turn.moved()
    if turn.state.decided is None and len(turn.state.votes[key]) >= quorum(state.head.electorate):
        turn.set(decided=key)
        _commit_if_held(turn)


def _without_oldest(state: State, voter: str) -> dict[tuple[int, bytes], Mapping[str, Vote]]:
    """The votes, less the oldest of a voter that has VOTES_KEPT of them: honest ones vote once in a few ballots."""
    votes = dict(state.votes)
    mine = sorted(key for key, voters in votes.items() if voter in voters)
    if len(mine) >= VOTES_KEPT and mine[0] != state.decided:
        left = {peer: vote for peer, vote in votes.pop(mine[0]).items() if peer != voter}
        if left:
            votes[mine[0]] = left
    return votes


def vote_valid(head: Head, vote: Vote, keys: Keys) -> bool:
    """A voter of my head's electorate signed it, and so did the coordinator of its ballot."""
    if vote.instance != head.instance or vote.voter not in head.electorate:
        return False
    leader = coordinator(head.anchor, head.electorate, vote.ballot)
    proposed = pack(((head.anchor, vote.instance, vote.ballot), vote.update))
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
    advance(turn, Block(proposal.update, certificate))


def advance(turn: Turn, block: Block) -> None:
    """Move to the next anchor: on disk first, then to the trainer, then say so."""
    state, update = turn.state, block.update
    head = state.head.after(update)
    anchor = head.anchor
    awaited = frozenset(part for later in state.blocks for part in later.update.parts)
    turn.do(Commit(block, head, awaited))
    turn.set(
        head=head, ancestors={**state.ancestors, anchor: head.round}, acceptor=Acceptor(anchor, head.instance),
        pledge=None, progress=0.0, freeze_asked_at=None, unanswered=None, state_digest=b"", lead=None, exchange=None,
        early=(), proposals={}, votes={}, decided=None, wanted=state.wanted.only(awaited),
        held={digest: size for digest, size in state.held.items() if digest in awaited},
    )  # fmt: skip
    turn.moved()
    if state.in_step:
        turn.say_head()  # who catches up says where it is once that is computed


def certified(state: State, block: Block) -> bool:
    """Whether the votes of a quorum of my head's electorate stand behind this block."""
    digest = block.update.digest
    voters = {vote.voter for vote in block.votes if vote.update == digest}
    same_ballot = len({vote.ballot for vote in block.votes}) == 1
    enough = len(voters) == len(block.votes) >= quorum(state.head.electorate)
    return enough and same_ballot and all(vote_valid(state.head, vote, state.rules.keys) for vote in block.votes)
