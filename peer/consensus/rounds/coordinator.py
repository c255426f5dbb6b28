"""The coordinator: it reserves a ballot, asks the voters, and either finishes what was accepted before or fixes the
list of members.

All other peers only answer. Safety does not depend on this module; progress does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import MAX_MEMBERS
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.messages import Heartbeat, Nack, Prepare, Promise, Propose, Start
from peer.consensus.protocol.refusals import VOTES
from peer.consensus.rounds import collector, soundness, timeouts
from peer.consensus.rounds.collector import REPEAT_S, VOTES_S, abort, propose
from peer.consensus.rounds.interface import PersistAcceptor
from peer.consensus.rounds.state import BallotPhase, CoordinatorState
from peer.consensus.rounds.timeouts import HEARD_S
from peer.consensus.rounds.transition import Transition

ASKED_FOR = 4
"""Times the wait for an answer that a quorum is asked for: by other clocks a ballot's turn may come a little later."""


def poll(turn: Transition) -> None:
    """Do whatever the coordinator's clock, or the bytes that it holds, allow now."""
    lead = turn.state.lead
    if lead is not None and lead.ballot < turn.state.acceptor.promised:
        turn.set(lead=None)
        lead = None
    if lead is None:
        _begin_if_due(turn)
        return
    if turn.now >= lead.repeat_at:
        _repeat(turn, lead)
    match lead.stage:
        case BallotPhase.PREPARING:
            _look_at_promises(turn, lead)
        case BallotPhase.ADOPTING:
            _look_at_adopted(turn, lead)
        case BallotPhase.REDUCING:
            collector.poll_means(turn, lead)
        case BallotPhase.PROPOSING if turn.now >= lead.until:
            abort(turn, f"no quorum voted within {VOTES_S:.0f} s")


# ---- ask ----


def _begin_if_due(turn: Transition) -> None:
    state = turn.state
    if state.header is None or state.decided is not None or turn.me not in state.electorate:
        return
    if state.acceptor.stuck is not None or (state.acceptor.restarts and state.acceptor.restarts[-1].value is not None):
        return
    if not _is_something_given(turn):
        return
    if turn.wall_s < state.head.time + turn.rules.min_round_s:
        turn.tell_if_head_is_ahead()
        return
    ranked = state.head.order
    promised = state.acceptor.promised
    first = max(promised, state.outbid) + 1
    ballot = first + (ranked.index(turn.me) - first) % len(ranked)
    skipped = _skipped_s(turn, ballot)
    if promised < 0 and not skipped:
        due = _all_ready(turn) or turn.now >= timeouts.asks_at(state)
    else:
        asks_at = state.last_progress_at if promised >= 0 else timeouts.asks_at(state)  # its turn comes before mine
        due = turn.now >= max(_given_up_at(turn, state.last_progress_at), asks_at) + skipped
    if due:
        _begin(turn, ballot)


def is_in_turn(turn: Transition, ballot: int) -> bool:
    """Whether I follow a ballot after the one that I promised: not while that one makes progress, and not before those
    whose turn comes first. Otherwise one member that starts ballots in between those of others could stop the round.
    Half a turn early is accepted, since clocks differ."""
    state, early_s = turn.state, turn.rules.stagger_s / 2
    if state.acceptor.promised < 0:
        skipped_s = _skipped_s(turn, ballot)
        if not skipped_s and _all_ready(turn, but_the_lost=True):
            return True
        return turn.now >= timeouts.begins_at(state) + skipped_s - early_s
    due_at = _given_up_at(turn, state.ballot_at) + _skipped_s(turn, ballot)
    return turn.now >= due_at - early_s


def _given_up_at(turn: Transition, moved_at: float) -> float:
    """When the next coordinator in order takes over from the ballot that I promised, which last made progress at
    `moved_at`. Messages of a coordinator that is gone came before, or never will."""
    state, promised = turn.state, turn.state.acceptor.promised
    if promised >= 0 and timeouts.is_gone(state, turn.owner(promised), turn.now):
        return timeouts.lost_at(state, turn.owner(promised))
    abandoned = promised >= 0 and not _may_lead(turn, turn.owner(promised))
    return moved_at + (timeouts.at(state, promised).ack_s if abandoned else timeouts.patience_s(state))


def _skipped_s(turn: Transition, ballot: int) -> float:
    """The time that a ballot leaves to the coordinators between it and the ballot that I promised, each counted
    once."""
    first = turn.state.acceptor.promised + 1
    owners = {turn.owner(other) for other in range(first, min(ballot, first + len(turn.state.electorate)))}
    return turn.rules.stagger_s * sum(_may_lead(turn, owner) for owner in owners)


def _may_lead(turn: Transition, peer: str) -> bool:
    """Whether ballots of this coordinator are waited for: not if it has left, is gone, or is convicted."""
    if turn.has_left(peer) or timeouts.is_gone(turn.state, peer, turn.now):
        return False
    return all(peer != convicted for convicted, *_ in turn.state.head.convicted)


def _all_ready(turn: Transition, *, but_the_lost: bool = False) -> bool:
    """Whether all voters are ready, by what I hear; `but_the_lost` leaves out those of which I hear nothing."""
    heard, anchor = turn.state.heard, turn.state.head.anchor
    return all(
        peer == turn.me
        or (peer in heard and heard[peer][0].anchor == anchor and heard[peer][0].ready)
        or turn.has_left(peer)
        or timeouts.is_gone(turn.state, peer, turn.now)
        or (but_the_lost and timeouts.lost_at(turn.state, peer) <= turn.now)
        for peer in turn.state.electorate
    )


def _is_something_given(turn: Transition) -> bool:
    """Whether a ballot can succeed: while all peers that are here sit out, none begins. Either I give something, or I
    have accepted an update that must be finished, or a peer that was heard lately gives something."""
    state = turn.state
    if turn.my_root or state.acceptor.accepted is not None:
        return True
    return any(
        head.ready and head.tokens and head.anchor == state.head.anchor and turn.now - at < HEARD_S
        and (peer in state.electorate or _same_bits(turn, head)) and not turn.has_left(peer)
        for peer, (head, at) in state.heard.items()
    )  # fmt: skip


def _begin(turn: Transition, ballot: int) -> None:
    turn.skip_to(ballot)
    state = turn.state
    mine = replace(state.acceptor, promised=ballot)
    # A joiner that is slower than the electorate would never be ready in time: it is asked once it is in step,
    # gives what it has or nothing, and from the next round on it is waited for.
    in_step = (peer for peer, (head, at) in state.heard.items() if _same_bits(turn, head) and turn.now - at < HEARD_S)
    voters = (peer for peer in state.electorate if not turn.says_nothing(peer))
    # Whoever takes over is in the electorate itself. And a fragment's first round has no mean before it that a
    # newcomer's work could be held against.
    guests_come = state.head.round >= turn.rules.fragments
    drawn = sorted(in_step, key=lambda peer: digest(state.head.lot, "guest", peer))  # others each round
    guests = (peer for peer in drawn if guests_come and not turn.has_left(peer))
    asked = tuple(dict.fromkeys((*voters, *guests)))[:MAX_MEMBERS]
    lead = CoordinatorState(
        ballot=ballot, stage=BallotPhase.PREPARING, asked=asked, repeat_at=turn.now + REPEAT_S, began_at=turn.now,
        until=turn.now + timeouts.answers_s(state, ballot, turn.now, asked),
    )  # fmt: skip
    turn.emit(PersistAcceptor(mine))
    turn.set(acceptor=mine, lead=lead, exchange=None, early=())
    turn.ballot_begins()
    turn.ballot_moved()
    turn.phase("prepare", ballot, lead.until)
    turn.send(asked, Prepare(turn.place(ballot)))


def _same_bits(turn: Transition, head: Heartbeat) -> bool:
    """Whether a peer stands at my anchor and has computed the same digest."""
    mine = turn.state.state_digest
    return head.anchor == turn.state.head.anchor and head.state == mine != b""


def _repeat(turn: Transition, lead: CoordinatorState) -> None:
    """Send again what may have been lost."""
    turn.set(lead=replace(lead, repeat_at=turn.now + REPEAT_S))
    place = turn.place(lead.ballot)
    if lead.stage is BallotPhase.PREPARING:
        silent = (peer for peer in lead.asked if peer not in lead.promises)
        turn.send(silent, Prepare(place))
    elif lead.stage is BallotPhase.PROPOSING:
        proposal, mine = turn.state.proposals.get(lead.update), turn.state.acceptor
        if proposal is None or proposal.ballot != lead.ballot:
            return  # this peer does not vote for it itself
        # With the second votes of this ballot: one that was lost then costs no ballot.
        certificate = mine.certificate if mine.accepted == (lead.ballot, lead.update) else proposal.certificate
        voted = turn.state.votes.get((lead.ballot, lead.update), {})
        silent = (peer for peer in turn.state.electorate if peer not in voted and peer != turn.me)
        turn.send(silent, Propose(place, proposal.update, proposal.signature, certificate))


def on_nack(turn: Transition, sender: str, message: Nack) -> None:
    lead, ballot = turn.state.lead, message.place.ballot
    if message.promised <= ballot or sender not in turn.state.electorate:
        return
    if sender == turn.owner(ballot) and ballot == turn.state.acceptor.promised:
        turn.ballot_over()  # its coordinator has stepped back
        return
    # Two that follow each other's ballots would else stay below those of a third, who never takes part in theirs. By
    # one cycle at a time, and in answer to a ballot of mine, since nothing proves what a voter has promised.
    most = turn.state.acceptor.promised + len(turn.state.electorate)
    if turn.owner(ballot) == turn.me and ballot <= turn.state.acceptor.promised:
        turn.set(outbid=max(turn.state.outbid, min(message.promised, most)))
    if lead is None or ballot != lead.ballot:
        return
    nacked = lead.nacked | {sender}
    turn.set(lead=replace(lead, nacked=nacked))
    if not turn.are_enough(len(turn.state.electorate) - len(nacked)):
        abort(turn, f"voters have promised ballot {message.promised}")


# ---- choose ----


def on_promise(turn: Transition, sender: str, message: Promise) -> None:
    lead, header = turn.state.lead, message.header
    if lead is None or lead.ballot != message.place.ballot or lead.stage is not BallotPhase.PREPARING:
        return
    if sender not in lead.asked or header.peer != sender:
        return
    rule, fault = validation.fault_of_header(turn.rules, turn.state.head, header)
    if fault:
        turn.refuse(sender, rule, fault)
        turn.set(lead=replace(lead, refused=lead.refused | {sender}))
        poll(turn)
        return
    if message.accepted is not None and not soundness.certified(turn, message.accepted, message.certificate):
        turn.refuse(sender, VOTES, "it says that it accepted what no quorum has checked")
        return
    promised_at = {sender: turn.now, **lead.promised_at}
    turn.set(lead=replace(lead, promises={**lead.promises, sender: message}, promised_at=promised_at))
    poll(turn)


def _look_at_promises(turn: Transition, lead: CoordinatorState) -> None:
    electorate = turn.state.electorate
    lead = turn.state.lead or lead
    answered = sum(peer in lead.promises for peer in electorate)
    missing = [peer for peer in lead.asked if peer not in lead.promises and _is_awaited(turn, lead, peer)]
    complete = all(timeouts.is_gone(turn.state, peer, turn.now) for peer in missing)
    if turn.are_enough(answered) and (complete or turn.now >= lead.until):
        in_full = lead.asked if turn.now >= lead.until else lead.promises.keys()  # of whom some came with nothing
        turn.set(silent=timeouts.silent_after(turn.state, lead.asked, _gave(turn, lead), in_full))
        _choose(turn, lead)
    elif turn.now >= lead.until + ASKED_FOR * timeouts.at(turn.state, lead.ballot).ack_s:
        abort(turn, f"{answered} of {len(electorate)} voters answered")


def _gave(turn: Transition, lead: CoordinatorState) -> set[str]:
    """Those who were not waited for in vain: they answered at once, or with a contribution."""
    at_once = lead.began_at + timeouts.at(turn.state, lead.ballot).ack_s
    return {
        peer for peer, promise in lead.promises.items() if promise.header.root or lead.promised_at[peer] <= at_once
    }  # fmt: skip


def _is_awaited(turn: Transition, lead: CoordinatorState, peer: str) -> bool:
    """A steady voter; a newcomer that must still encode its contribution; and any other that was not silent, or is a
    voter, for a while after the steady ones."""
    steady = timeouts.steady(turn.state)
    if peer in lead.refused:
        return False
    if timeouts.was_silent(turn.state, peer):
        return False
    said, _ = turn.state.heard.get(peer, (None, 0.0))
    must_encode = not timeouts.is_hurried(turn.state, peer) and (said is None or not said.ready)
    if peer in steady or must_encode:
        return True
    if not all(other in lead.promises for other in lead.asked if other in steady):
        return True
    steady_at = [at for other, at in lead.promised_at.items() if other in steady and other != turn.me]
    return turn.now < timeouts.others_until(lead.began_at, steady_at)


def _choose(turn: Transition, lead: CoordinatorState) -> None:
    voters = turn.state.electorate
    accepted = [
        (*promise.accepted, peer)
        for peer, promise in sorted(lead.promises.items())
        if promise.accepted is not None and peer in voters
    ]
    if accepted:
        _adopt(turn, lead, *max(accepted))
        return
    headers = tuple(promise.header for _, promise in sorted(_taken(turn, lead).items()))
    if not collector.is_trained_on(turn, headers):
        abort(turn, "nobody gives anything that it trained on")
        return
    turn.set(deadlines=timeouts.by_lines(turn.state, headers))
    until = turn.now + timeouts.reduced_s(timeouts.at(turn.state, lead.ballot))
    turn.set(lead=replace(lead, stage=BallotPhase.REDUCING, until=until))
    turn.send((header.peer for header in headers), Start(turn.place(lead.ballot), headers))


def _taken(turn: Transition, lead: CoordinatorState) -> Mapping[str, Promise]:
    """The peers that promised, without those in quarantine unless too few voters are left without them."""
    voters, kept_out = turn.state.electorate, turn.state.quarantined
    others = {peer: promise for peer, promise in lead.promises.items() if peer not in kept_out}
    return others if turn.are_enough(sum(peer in others for peer in voters)) else lead.promises


def _adopt(turn: Transition, lead: CoordinatorState, _: int, update: bytes, reporter: str) -> None:
    """Finish, unchanged, an update that may already be decided."""
    known = update in turn.state.proposals
    limits = timeouts.at(turn.state, lead.ballot)
    until = turn.now + (limits.exchange_s if known else limits.ack_s)
    turn.set(lead=replace(lead, stage=BallotPhase.ADOPTING, update=update, until=until))
    if not known:
        turn.fetch({update}, (reporter,))
    poll(turn)


def _look_at_adopted(turn: Transition, lead: CoordinatorState) -> None:
    proposal = turn.state.proposals.get(lead.update)
    if proposal is not None and validation.fits(turn.rules, turn.state.held, proposal.update):
        missing = turn.missing(proposal.update)
        accepted = {peer: said.accepted for peer, said in lead.promises.items() if said.accepted is not None}
        theirs = {peer: ballot for peer, (ballot, update) in accepted.items() if update == lead.update}
        if not missing:
            newest = max(theirs, key=lambda peer: theirs[peer])
            propose(turn, lead, proposal.update, lead.promises[newest].certificate)
            return
        turn.fetch(missing, theirs)
    if turn.now >= lead.until:
        abort(turn, "the bytes of an accepted update did not arrive")
