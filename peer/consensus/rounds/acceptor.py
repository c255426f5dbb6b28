"""The voter: promise, check, store the bytes, vote, count votes, and move to the next anchor.

The protocol is safe because of three rules here. A voter writes what it promised and accepted to disk before it says
so; it votes only for bytes that it holds on disk; and it moves only on the votes of a quorum of the electorate that the
chain names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from peer.consensus.protocol import norms, validation
from peer.consensus.protocol.block import MAX_SKIPPED, Block, ContributionHeader, Update, Vote
from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.messages import BallotId, Nack, Prepare, Promise, Propose, RosterSaid, VoteCast
from peer.consensus.protocol.refusals import MEANS, PLACE, STATE, TABLES, TIME, VOTES
from peer.consensus.rounds import coordinator, member, restart, soundness, timeouts
from peer.consensus.rounds.interface import CommitBlock, PersistAcceptor, RequestSubmit
from peer.consensus.rounds.state import Acceptor, Proposal, State
from peer.consensus.rounds.transition import Transition

HALF = 0.5
POSTPONED_S = 1.5
"""A coordinator that still waits asks again once in a second."""
PROPOSALS_KEPT = 4
VOTES_KEPT = 16


def on_update(turn: Transition, update: Update) -> None:
    """The bytes of a proposal came from a voter: handled as if its coordinator had sent them."""
    for (ballot, digest), votes in turn.state.checks.items():
        if digest == update.digest:
            signature = next(iter(votes.values())).proposal_signature
            certificate = _certificate_of(turn, digest, ballot)
            if update.ballot != ballot and not certificate:
                continue  # that a quorum has checked it before, I have not seen
            on_propose(turn, turn.owner(ballot), Propose(turn.place(ballot), update, signature, certificate))


def _certificate_of(turn: Transition, digest: bytes, before: int) -> tuple[Vote, ...]:
    """The certificate of an earlier ballot of the same update, if I know one."""
    mine = turn.state.acceptor
    is_known = mine.accepted is not None and mine.accepted[1] == digest and mine.accepted[0] < before
    return mine.certificate if is_known else ()


# ---- promise ----


def on_prepare(turn: Transition, sender: str, message: Prepare, *, was_due: bool = False) -> None:
    """Promise a ballot if its turn has come, or had come (`was_due`) when it was asked for before I was ready."""
    if message.place.instance != turn.state.instance:
        restart.tell(turn, sender)
        return
    if turn.state.acceptor.stuck is not None:
        return
    ballot, acceptor = message.place.ballot, turn.state.acceptor
    if sender != turn.owner(ballot) or sender in turn.state.equivocators or turn.rules.holds is not None:
        return
    if sender in turn.state.quarantined:
        # It will not be followed: told so, it does not keep others from the ballots after its own.
        turn.send((sender,), Nack(message.place, max(acceptor.promised, ballot + 1)))
        return
    # Who is not in step yet is no member; a voter answers all the same, for its vote needs no tensors.
    newcomer = not turn.state.in_step and turn.me not in turn.state.electorate
    if ballot - acceptor.promised > MAX_SKIPPED or newcomer:
        return
    if ballot < acceptor.promised:
        turn.send((sender,), Nack(message.place, acceptor.promised))
        return
    if ballot > acceptor.promised and not was_due and not coordinator.is_in_turn(turn, ballot):
        _postpone(turn, message)
        return
    if _freezing_first(turn):
        turn.set(unanswered=message)
        return
    if ballot > acceptor.promised:
        acceptor = replace(acceptor, promised=ballot)
        turn.emit(PersistAcceptor(acceptor))
        turn.skip_to(ballot)
        early = tuple((peer, message) for peer, message in turn.state.early if message.place.ballot >= ballot)
        turn.drop_fetch()
        turn.set(acceptor=acceptor, lead=None, exchange=None, early=early)
        turn.ballot_begins()
        turn.ballot_moved()
        turn.phase("prepare", ballot)
    turn.send((sender,), Promise(message.place, turn.my_header(), acceptor.accepted, acceptor.certificate))


def _postpone(turn: Transition, message: Prepare) -> None:
    known, came_at = turn.state.postponed or (message, turn.now)
    if known.place.ballot >= message.place.ballot or turn.now - came_at > POSTPONED_S:
        turn.set(postponed=(message, turn.now))


def answer_postponed(turn: Transition) -> None:
    """Follow a ballot whose turn has come meanwhile, for example after a ballot of mine that failed, if its coordinator
    still waits."""
    if turn.state.postponed is None:
        return
    message, came_at = turn.state.postponed
    if turn.now - came_at > POSTPONED_S:
        turn.set(postponed=None)
    elif coordinator.is_in_turn(turn, message.place.ballot):
        turn.set(postponed=None)
        on_prepare(turn, turn.owner(message.place.ballot), message)


def _freezing_first(turn: Transition) -> bool:
    """A peer that still trains submits if half of its round is done, and answers then; the coordinator waits
    `ack_s`."""
    state = turn.state
    if state.header is not None or state.progress < HALF:
        return False
    if state.freeze_asked_at is None:
        turn.set(freeze_asked_at=turn.now)
        turn.emit(RequestSubmit())
        return True
    return turn.now - state.freeze_asked_at < turn.rules.ack_s / 2


# ---- vote ----


def on_propose(turn: Transition, sender: str, message: Propose) -> None:
    place, update = message.place, message.update
    ahead = place.ballot - turn.state.acceptor.promised
    if not 0 <= ahead <= MAX_SKIPPED or sender != turn.owner(place.ballot):
        return
    if ahead and not coordinator.is_in_turn(turn, place.ballot):
        return
    digest = update.digest
    if place.ballot in turn.state.dead_ballots:
        return
    if not soundness.signed(turn, place, digest, message.signature):
        turn.refuse(sender, PLACE, "its coordinator did not sign it")
        return
    if soundness.look_for_another(turn, place, digest, message.signature):
        return
    if update.ballot != place.ballot and not message.certificate:
        turn.refuse(sender, PLACE, "it says that it was made in another ballot")  # so it would choose who leads next
        return
    known = turn.state.proposals.get(digest)
    # What is known from another instance, or from its digest alone, was not held against the rules of this one.
    if (known is None or known.ballot < 0) and not _follows_from_what_is_signed(turn, sender, place, update):
        return
    if message.certificate and not soundness.certified(
        turn, (message.certificate[0].ballot, digest), message.certificate
    ):
        turn.refuse(sender, VOTES, "it proposes again what no quorum has checked")
        return
    basis = known.basis if known is not None else norms.inputs_digest_of(update.members)
    proposal = Proposal(place.ballot, update, message.signature, message.certificate, basis)
    if known is None or known.ballot != place.ballot:
        turn.ballot_moved()
        turn.phase("commit", place.ballot)
    turn.set(proposals=_room(turn.state) | {digest: proposal})
    if known is None:
        soundness.check_shown(turn, update.parts)
    if message.certificate and message.certificate[0].ballot == place.ballot:
        key, known_votes = (place.ballot, digest), turn.state.prepared.get((place.ballot, digest), {})
        shown = {vote.voter: vote for vote in message.certificate}
        turn.set(prepared={**turn.state.prepared, key: {**known_votes, **shown}})
    if turn.state.decided is None:
        _vote_if_held(turn, proposal)
        _accept_if_prepared(turn)


def _follows_from_what_is_signed(turn: Transition, coordinator: str, place: BallotId, update: Update) -> bool:
    """Whether a proposal may follow my head. One that differs from what everybody computes is held against its
    author."""
    rules, head = turn.rules, turn.state.head
    misplaced = validation.fault_of_place(rules, head, update)
    if misplaced:
        turn.refuse(coordinator, PLACE, misplaced)
        return False
    if update.ballot == place.ballot and update.roster.number < turn.roster.number:
        turn.refuse(coordinator, PLACE, "it has an older list of the organiser than this peer")
        turn.send((coordinator,), RosterSaid(turn.roster))
        return False
    if not validation.timely(turn.wall_s, update.time):
        turn.refuse(coordinator, TIME, turn.how_far_ahead(update.time))
        return False
    if update.ballot == place.ballot and update.time < turn.wall_s - validation.MADE_S:
        behind_s = turn.wall_s - update.time
        turn.refuse(coordinator, TIME, f"it was made now and is dated {behind_s:.0f} s behind this machine's clock")
        return False
    fault = validation.fault_of_tables(rules, head, update)
    if fault:
        turn.refuse(coordinator, TABLES, fault)
        soundness.catch(turn, coordinator, -1, f"it proposed an update that cannot be: {fault}")
    return not fault


def on_roster(turn: Transition, sender: str, message: RosterSaid) -> None:
    roster = message.roster
    if roster.number > turn.roster.number and validation.roster_genuine(turn.rules, roster):
        turn.set(roster=roster)
        turn.send((peer for peer in turn.state.electorate if peer not in (turn.me, sender)), message)


def poll(turn: Transition) -> None:
    """Vote for the newest proposal, and commit what is decided, as soon as the bytes are here."""
    if turn.state.blocks:
        return  # what follows my head is decided, and is being fetched together with what follows that
    block = restart.block_if_decided(turn)
    if block is not None:
        advance(turn, block)
        return
    if turn.state.decided is not None:
        _commit_if_held(turn)
        return
    least = max(0, turn.state.acceptor.promised)
    dead = turn.state.dead_ballots
    proposals = [item for item in turn.state.proposals.values() if item.ballot >= least and item.ballot not in dead]
    if not proposals:
        return
    held = [item for item in proposals if not turn.missing(item.update)]
    newest = max(held or proposals, key=lambda proposal: proposal.ballot)
    if turn.state.acceptor.checked != (newest.ballot, newest.update.digest):
        _vote_if_held(turn, newest)
    else:
        prepare_if_checked(turn)


def _room(state: State) -> dict[bytes, Proposal]:
    """The proposals that must stay, and those of the others that are next in turn: a new one always finds room."""
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


def _vote_if_held(turn: Transition, proposal: Proposal) -> None:
    state, update = turn.state, proposal.update
    missing = turn.missing(update)
    if missing and not state.blocks:
        members = (header.peer for header in update.members)
        turn.fetch(missing, (turn.owner(proposal.ballot), *members), on_their_way=True)
    votes = (turn.me in state.electorate or state.exchange is not None) and turn.rules.holds is None
    votes = votes and state.acceptor.stuck is None
    if missing or not votes or not validation.fits(turn.rules, state.held, update):
        return
    digest, mine = update.digest, state.acceptor
    is_right = (
        _is_of_my_state(turn, proposal) and _is_sound(turn, proposal) and soundness.asked_for_mine(turn, proposal)
    )
    if not (is_right and _may_follow(mine, proposal)):
        return
    if mine.checked is not None and mine.checked[0] == proposal.ballot and mine.checked[1] != digest:
        return
    mine = replace(mine, promised=proposal.ballot, checked=(proposal.ballot, digest))
    if mine != state.acceptor:
        turn.emit(PersistAcceptor(mine, update))
        turn.set(acceptor=mine, checked_at=turn.now)
    _cast(turn, proposal, phase=0)
    if mine.accepted == mine.checked and turn.me in turn.state.electorate:
        _cast(turn, proposal, phase=1)  # again: they may have been lost
        _cast(turn, proposal, phase=2)
    elif turn.me in state.prepared.get(mine.checked or (0, b""), {}):
        _cast(turn, proposal, phase=1)
    prepare_if_checked(turn)


def _may_follow(mine: Acceptor, proposal: Proposal) -> bool:
    """I follow the update that a quorum has checked as far as I know, unless a quorum has checked another one since."""
    if mine.accepted is None or mine.accepted[1] == proposal.update.digest:
        return True
    return bool(proposal.certificate) and proposal.certificate[0].ballot > mine.accepted[0]


def _is_of_my_state(turn: Transition, proposal: Proposal) -> bool:
    """Whether an update was made by a peer with my digest. A voter that has not computed its own yet votes once it
    has."""
    if proposal.certificate:
        return True
    mine, theirs = turn.state.state_digest, proposal.update.state
    if mine and mine != theirs:
        why = f"it has other bits ({theirs.hex()[:12]}) at round {turn.state.head.round} than this peer"
        turn.refuse(turn.owner(proposal.ballot), STATE, f"{why} ({mine.hex()[:12]})")
    return mine == theirs != b""


def _cast(turn: Transition, proposal: Proposal, phase: int) -> None:
    digest, signature = proposal.update.digest, proposal.signature
    plain = Vote(turn.me, turn.state.instance, proposal.ballot, digest, signature, phase=phase)
    members = (header.peer for header in proposal.update.members)
    cast = VoteCast(turn.place(proposal.ballot), plain.signed(turn.rules.keys))
    turn.send((*turn.state.electorate, *members), cast)


def _is_sound(turn: Transition, proposal: Proposal) -> bool:
    """Whether all means were compared with their rows, and what they say about me with my own bytes."""
    if not turn.rules.row_bytes or proposal.certificate:
        return True  # a quorum has found it so: whoever objects now is too late
    update, faults = proposal.update, turn.state.faults
    wrong, asked = [], False
    for key in soundness.means_of(update, proposal.basis):
        if not soundness.have_checked(turn, update.members, soundness.table_of(update), key):
            asked = True
        elif faults[key]:
            wrong.append(key)
    for key in wrong[:1]:
        why = f"the mean of part {key[1]} ({key[0].hex()[:12]}): {faults[key]}"
        turn.refuse(turn.owner(proposal.ballot), MEANS, why)
    return not asked and not wrong


# ---- decide ----


def on_vote(turn: Transition, sender: str, message: VoteCast) -> None:
    vote, state = message.vote, turn.state
    key = (vote.ballot, vote.update)
    if vote.ballot != message.place.ballot or vote.ballot in state.dead_ballots:
        return
    known = (state.checks, state.prepared, state.votes)[vote.phase]
    if vote.voter in known.get(key, {}):
        return
    update = state.proposals[vote.update].update if vote.update in state.proposals else None
    guests = {header.peer for header in update.members} if update is not None and not vote.phase else set()
    if not validation.vote_valid(turn.rules.keys, state.head, vote, guests):
        turn.refuse(sender, VOTES, "it is no voter's genuine vote")
        return
    if soundness.look_for_another(turn, message.place, vote.update, vote.proposal_signature):
        return
    if vote.voter in state.electorate:
        at = state.voted_at.get(turn.me, turn.now) if vote.voter == turn.me else turn.now
        turn.set(voted_at={**state.voted_at, vote.voter: at})
    kept = _without_oldest(known, vote.voter, state)
    kept = {**kept, key: {**kept.get(key, {}), vote.voter: vote}}
    # Its coordinator has said all with its proposal, and guests are names that cost nothing: each vote that moves a
    # ballot makes the others wait for one patience more.
    moves = vote.voter in state.electorate and vote.voter != turn.owner(vote.ballot)
    if moves and vote.update in state.proposals and vote.ballot == state.acceptor.promised:
        turn.ballot_moved()
    if not vote.phase:
        turn.set(checks=kept)
        if update is not None:
            soundness.show_again(turn, vote.voter, state.proposals[vote.update])
        if vote.voter in state.mute and update is not None:
            _hear_again(turn, key, [header for header in update.members if header.peer == vote.voter])
        if update is None and vote.ballot == state.acceptor.promised and (state.unseen or (-1,))[0] < vote.ballot:
            turn.set(unseen=key)
            fetch_unseen(turn)
        prepare_if_checked(turn)
        return
    if vote.phase == 1:
        turn.set(prepared=kept)
        _accept_if_prepared(turn)
        return
    turn.set(votes=kept)
    if turn.state.decided is None and validation.enough(state.electorate, kept[key].values()):
        turn.set(decided=key)
        poll(turn)


def fetch_unseen(turn: Transition) -> None:
    """Fetch an update that the others vote for and my coordinator keeps from me. I fetch one in the ballot that I
    promised, and never in place of something else; otherwise any voter could keep me busy with updates that do not
    exist."""
    state = turn.state
    if state.unseen is None or state.unseen[0] != state.acceptor.promised or state.header is None:
        return
    if state.unseen[1] not in state.proposals and not state.wanted.digests and not state.blocks:
        turn.fetch({state.unseen[1]}, state.checks.get(state.unseen, ()), on_their_way=True)


def _checked(turn: Transition) -> Proposal | None:
    """The update that I have checked in the present ballot and may still vote for."""
    state, mine = turn.state, turn.state.acceptor
    if mine.checked is None or mine.checked[0] != mine.promised or state.decided is not None or mine.stuck is not None:
        return None
    proposal = state.proposals.get(mine.checked[1])
    here = proposal is not None and proposal.ballot == mine.promised and turn.me in state.electorate
    return proposal if here else None


def prepare_if_checked(turn: Transition) -> None:
    """Vote in phase 1 once all contributors have checked the update, or had time to object. Newcomers are waited for
    once, then not before they have checked an update in time: names cost nothing."""
    state, proposal, key = turn.state, _checked(turn), turn.state.acceptor.checked
    if proposal is None or key is None or turn.me in state.prepared.get(key, {}):
        return
    not_awaited = {*state.checks.get(key, {}), *state.mute}
    silent = [
        header for header in proposal.update.members
        if header.root and header.peer not in not_awaited and not timeouts.is_gone(state, header.peer, turn.now)
    ]  # fmt: skip
    if silent and turn.now < _objected_until(turn, key, silent):
        return
    believed = trusted(state.head)
    mute = (header.peer for header in silent if header.peer not in believed)
    turn.set(mute=(*state.mute, *mute)[-timeouts.SILENT_MOST :])
    if not proposal.certificate and soundness.is_objected_to(turn, proposal):
        return
    means = soundness.means_of(proposal.update, proposal.basis)
    if proposal.certificate or not any(state.faults.get(mean) for mean in means):
        _cast(turn, proposal, phase=1)


def _objected_until(turn: Transition, key: tuple[int, bytes], headers: Sequence[ContributionHeader]) -> float:
    """Until when these have time to check what I have checked."""
    # What a lead says goes to its homes and back before.
    hops = 3 if any(header.delegates for header in headers) else 1
    return turn.state.checked_at + hops * timeouts.at(turn.state, key[0]).ack_s


def _hear_again(turn: Transition, key: tuple[int, bytes], headers: Sequence[ContributionHeader]) -> None:
    """Who gave this has checked a proposal in time: the next one waits for it."""
    if turn.state.acceptor.checked != key or turn.now < _objected_until(turn, key, headers):
        names = [header.peer for header in headers]
        turn.set(mute=tuple(peer for peer in turn.state.mute if peer not in names))


def _accept_if_prepared(turn: Transition) -> None:
    """Vote in phase 2 once a quorum stands behind the update: from now on I follow nothing else, unless a later quorum
    does."""
    state, proposal, key = turn.state, _checked(turn), turn.state.acceptor.checked
    if proposal is None or key is None or state.acceptor.accepted == key:
        return
    votes = tuple(vote for _, vote in sorted(state.prepared.get(key, {}).items()))
    if validation.enough(state.electorate, votes):
        mine = replace(state.acceptor, accepted=key, certificate=votes)
        turn.emit(PersistAcceptor(mine, proposal.update))
        turn.set(acceptor=mine)
        _cast(turn, proposal, phase=2)


def _without_oldest(
    known: Mapping[tuple[int, bytes], Mapping[str, Vote]], voter: str, state: State
) -> dict[tuple[int, bytes], Mapping[str, Vote]]:
    """The votes without the oldest of a voter that has VOTES_KEPT of them: honest ones vote once in a few ballots. Its
    vote in the ballot that I promised stays, so that nobody can cast it twice."""
    votes = dict(known)
    mine = sorted(key for key, voters in votes.items() if voter in voters and key[0] != state.acceptor.promised)
    if len(mine) >= VOTES_KEPT - 1 and mine[0] != state.decided:
        left = {peer: vote for peer, vote in votes.pop(mine[0]).items() if peer != voter}
        if left:
            votes[mine[0]] = left
    return votes


def _commit_if_held(turn: Transition) -> None:
    state = turn.state
    assert state.decided is not None
    votes = state.votes[state.decided]
    proposal = state.proposals.get(state.decided[1])
    if proposal is None:
        turn.fetch({state.decided[1]}, votes)
        return
    missing = turn.missing(proposal.update)
    if missing:
        turn.fetch(missing, votes, on_their_way=True)
        return
    certificate = tuple(vote for _, vote in sorted(votes.items()))
    advance(turn, Block(proposal.update, certificate, state.acceptor.restarts))


def advance(turn: Transition, block: Block) -> None:
    """Move to the next anchor: first on disk, then in the trainer, then tell the others."""
    state, update = turn.state, block.update
    head = state.head.after(update)
    awaited = frozenset(part for later in state.blocks for part in later.update.parts)
    trail = (*state.trail, ChainEntry(state.head, block))[-state.rules.keep_rounds :]
    soundness.check_late(turn, update)
    member.remember_who_reduced(turn)
    turn.emit(CommitBlock(block, head, awaited))
    turn.set(
        ancestors={**state.ancestors, head.anchor: head.round}, trail=trail, wanted=state.wanted.only(awaited),
        past=state.exchange, held={digest: size for digest, size in state.held.items() if digest in awaited},
        afar=state.afar & awaited, deadlines=timeouts.learn([step.block.update for step in trail], state.rules),
        stood_at=turn.now, header=None, offered=None, own={}, measured_at=-inf, progress=0.0, first_progress=None,
        train_s=0, expected_by={}, freeze_asked_at=None, ready_at={}, sits_out=False, resumed_at=inf, state_digest=b"",
        faults={}, checking={}, shown={}, wrong=frozenset(), spoke_at={}, stuck_said_at=-inf,
    )  # fmt: skip
    turn.begin_instance(head, Acceptor(head.anchor, head.instance))
    if state.in_step:
        turn.say_head()  # who catches up says where it is once that is computed
