"""When less than a quorum is left: they seal what they have, and the organiser lets them go on without the others.

A voter that has heard no quorum for `restart_s` signs `Stuck`: on disk before it is said, it votes no more in this
instance, and shows what it has accepted there. From these the organiser's key makes a `Restart`, one for an anchor and
number. If one of them has accepted an update, the newest of those is decided; if none has, they are the electorate of
a new instance after the same anchor.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block, Restart, Stuck
from peer.consensus.protocol.electorate import quorum, restarts_alone
from peer.consensus.protocol.messages import Restarted, StuckSaid
from peer.consensus.protocol.refusals import BLOCK
from peer.consensus.rounds import timeouts
from peer.consensus.rounds.interface import PersistAcceptor
from peer.consensus.rounds.state import Acceptor, Attempts
from peer.consensus.rounds.transition import Transition

REPEAT_S = 5.0


def poll(turn: Transition) -> None:
    """Seal, say so again, and as the organiser sign."""
    state, rules = turn.state, turn.rules
    if not rules.restart_s or rules.holds is not None or state.blocks or state.decided is not None:
        return
    if state.acceptor.restarts and state.acceptor.restarts[-1].value is not None:
        return
    alone = _in_sight(turn) < quorum(state.electorate)
    turn.set(alone_since=min(state.alone_since, turn.now) if alone else inf)
    waited = turn.now - turn.state.alone_since >= rules.restart_s and _hears_the_organiser(turn)
    dead = len(state.stucks) > len(state.electorate) - quorum(state.electorate)
    if turn.me in state.electorate and state.acceptor.stuck is None and (waited or dead):
        _seal(turn)
    if state.acceptor.stuck is not None and turn.now >= state.stuck_said_at + REPEAT_S:
        _say(turn)
    if turn.me == rules.organiser:
        sign_if_due(turn)


def _in_sight(turn: Transition) -> int:
    return len(turn.state.electorate) - len(timeouts.silent_voters(turn.state, turn.now))


def _hears_the_organiser(turn: Transition) -> bool:
    """Who seals must be able to go on: without the organiser nobody could, though all came back."""
    said = turn.state.heard.get(turn.rules.organiser)
    return turn.me == turn.rules.organiser or (said is not None and turn.now - said[1] < timeouts.SILENT_S)


def _seal(turn: Transition) -> None:
    mine = turn.state.acceptor
    stuck = Stuck(turn.me, mine.anchor, turn.state.head.number + 1, mine.accepted, mine.certificate).signed(
        turn.rules.keys
    )
    mine = replace(mine, stuck=stuck)
    turn.emit(PersistAcceptor(mine))
    turn.set(acceptor=mine, lead=None, stucks={**turn.state.stucks, turn.me: stuck})
    turn.alert(
        "warning", "STUCK", f"no quorum was heard for {turn.rules.restart_s:.0f} s: the organiser is asked to go on"
    )
    _say(turn)


def _say(turn: Transition) -> None:
    stuck = turn.state.acceptor.stuck
    assert stuck is not None
    turn.set(stuck_said_at=turn.now)
    to = dict.fromkeys((turn.rules.organiser, *turn.state.electorate))
    turn.send((peer for peer in to if peer != turn.me), StuckSaid(stuck))


def on_stuck(turn: Transition, sender: str, message: StuckSaid) -> None:
    """Known by its signature, whoever passes it on; who is behind is told how it went on."""
    stuck, state = message.stuck, turn.state
    if stuck.anchor != state.head.anchor:
        return
    if stuck.number <= state.head.number or (
        state.acceptor.restarts and state.acceptor.restarts[-1].number == stuck.number
    ):
        tell(turn, sender)
        return
    fault = validation.fault_of_stuck(turn.rules, state.head, stuck)
    if fault:
        turn.refuse(sender, BLOCK, fault)
        return
    turn.set(stucks={**state.stucks, stuck.voter: stuck})


def tell(turn: Transition, peer: str) -> None:
    """How those went on who stand at my anchor."""
    for restart in turn.state.acceptor.restarts:
        turn.send((peer,), Restarted(restart))


def sign_if_due(turn: Transition, *, forced: bool = False) -> None:
    """With those who have sent it, once nobody else who is heard may still; fewer than are safe only if a person says
    so."""
    state = turn.state
    voters, came = state.electorate, state.stucks
    silent = timeouts.silent_voters(state, turn.now)
    awaited = [peer for peer in voters if peer not in came and peer not in silent]
    first_at = min((turn.now, state.stuck_at)) if came else inf
    turn.set(stuck_at=first_at)
    if not came or (awaited and turn.now - first_at < timeouts.SILENT_S and not forced):
        return
    if not forced and not restarts_alone(len(voters), len(came)):
        return
    number = state.head.number + 1
    restart = Restart(state.head.anchor, number, tuple(came[peer] for peer in sorted(came)), forced).signed(
        turn.rules.keys
    )
    on_restart(turn, turn.me, Restarted(restart))
    turn.send((peer for peer in voters if peer != turn.me), Restarted(restart))


def on_restart(turn: Transition, sender: str, message: Restarted) -> None:
    """On disk before anybody acts on it; the organiser's own before it is sent."""
    restart, state = message.restart, turn.state
    known = state.acceptor.restarts
    if restart.anchor != state.head.anchor or restart.number != state.head.number + 1 or restart in known:
        return
    if known and known[-1].number == restart.number:
        turn.alert("error", "TWO_RESTARTS", f"the organiser signed two Restarts of round {state.head.round + 1}")
        return
    fault = validation.fault_of_restart(turn.rules, state.head, restart)
    if fault:
        turn.refuse(sender, BLOCK, fault)
        return
    if restart.value is not None:
        mine = replace(state.acceptor, restarts=(*known, restart))
        turn.emit(PersistAcceptor(mine))
        turn.set(acceptor=mine, lead=None, exchange=None)
        return
    head = state.head.restarted(restart)
    mine = Acceptor(head.anchor, head.instance, restarts=(*known, restart))
    turn.emit(PersistAcceptor(mine))
    turn.set(
        head=head, acceptor=mine, lead=None, exchange=None, early=(), checks={}, prepared={}, votes={}, proposals={},
        decided=None, dead_ballots=frozenset(), skipped=0, postponed=None, unanswered=None, unseen=None, stucks={},
        ballot_at=-inf, attempts=Attempts(), alone_since=inf, stuck_at=inf, voters=state.voters.union(head.electorate),
    )  # fmt: skip
    turn.moved()
    turn.say_head()
    turn.alert("warning", "RESTART", f"round {head.round + 1} goes on with {', '.join(head.electorate)}")


def block_if_decided(turn: Transition) -> Block | None:
    """What a Restart has decided, as soon as its bytes are here."""
    state = turn.state
    restarts = state.acceptor.restarts
    if not restarts or restarts[-1].value is None:
        return None
    _, digest = restarts[-1].value
    sources = [stuck.voter for stuck in restarts[-1].stuck if stuck.accepted is not None]
    sources += [vote.voter for vote in restarts[-1].certificate]
    proposal = state.proposals.get(digest)
    missing = {digest} if proposal is None else turn.missing(proposal.update)
    if missing:
        if not set(missing) <= set(state.wanted.digests):
            turn.fetch(missing, sources)
        return None
    assert proposal is not None
    return Block(proposal.update, restarts[-1].certificate, restarts)
