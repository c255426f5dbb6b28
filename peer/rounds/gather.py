"""The coordinator between START and PROPOSE: collect norms, publish them, collect means, void what nobody can give."""

from __future__ import annotations

from dataclasses import replace

from peer.rounds.messages import Norms, Table, Want
from peer.rounds.propose import abort, make_update, propose
from peer.rounds.state import Lead, Stage
from peer.rounds.turn import Turn
from peer.rounds.update import givers


def on_norms(turn: Turn, sender: str, norms: Norms) -> None:
    lead, exchange = turn.state.lead, turn.state.exchange
    if lead is None or exchange is None or lead.stage is not Stage.GATHERING or norms.place != exchange.place:
        return
    if norms.reducer != sender or not norms.genuine(turn.rules.keys):
        return
    assigned = [part for part, reducer in enumerate(exchange.reducers) if reducer == sender]
    if [part for part, _ in norms.received] != assigned:
        return
    if any(received & ~givers(exchange.members) for _, received in norms.received):
        return
    turn.set(lead=replace(lead, norms={**lead.norms, sender: norms}))
    look_at_norms(turn, lead)


def look_at_norms(turn: Turn, lead: Lead) -> None:
    lead, exchange = turn.state.lead or lead, turn.state.exchange
    if exchange is None or exchange.place.ballot != lead.ballot:
        return
    if len(lead.norms) < len(set(exchange.reducers)) and turn.now < lead.until:
        return
    expected = frozenset(part for norms in lead.norms.values() for part, received in norms.received if received)
    if not expected:
        abort(turn, "no part of anybody arrived")
        return
    until = turn.now + turn.rules.exchange_s
    turn.set(lead=replace(lead, stage=Stage.REDUCING, expected=expected, until=until))
    table = Table(exchange.place, tuple(norms for _, norms in sorted(lead.norms.items())))
    turn.send((pledge.peer for pledge in exchange.members), table)


def look_at_means(turn: Turn, lead: Lead) -> None:
    exchange, held = turn.state.exchange, turn.state.held
    if exchange is None or exchange.place.ballot != lead.ballot:
        return
    missing = [part for part in lead.expected if part not in exchange.means or exchange.means[part].digest not in held]
    if not missing:
        propose(turn, lead, make_update(turn, exchange))
    elif turn.now >= lead.until and not lead.wanted:
        turn.set(lead=replace(lead, wanted=True, until=turn.now + turn.rules.ack_s))
        turn.send((pledge.peer for pledge in exchange.members), Want(exchange.place, tuple(sorted(missing))))
    elif turn.now >= lead.until and len(missing) == len(lead.expected):
        abort(turn, "no mean of any part arrived")
    elif turn.now >= lead.until:
        propose(turn, lead, make_update(turn, exchange))
