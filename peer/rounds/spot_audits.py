"""The coordinator of a ballot in which parts are audited: auditors say what a part comes to; who is right is computed.

In a round without lies an auditor's word comes as soon as the mean, and nothing else is sent. Where the two
differ the auditor shows the bytes that it counted, which are bound to roots that their givers signed, and the
coordinator counts itself: it believes neither.
"""

from __future__ import annotations

from dataclasses import replace

from peer.protocol.messages import MeanData, ShowInputs
from peer.rounds import reassignment, timeouts
from peer.rounds.state import BallotPhase, CoordinatorState, MemberState
from peer.rounds.transition import Transition


def on_verdict(turn: Transition, sender: str, verdict: MeanData) -> None:
    """What an auditor says a part comes to; about the contributors that the reducer signed, and once."""
    lead, exchange = turn.state.lead, turn.state.exchange
    if lead is None or exchange is None or lead.stage is not BallotPhase.REDUCING or verdict.place != exchange.place:
        return
    part = verdict.part
    if part in lead.verdicts or not exchange.again.auditors.get(part) == verdict.reducer == sender:
        return
    if verdict.contributors == exchange.listed.get(part) and verdict.genuine(turn.rules.keys):
        turn.set(lead=replace(lead, verdicts={**lead.verdicts, part: verdict}))


def look(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> None:
    """Have what auditors say proved, and put means right that are wrong."""
    for part in _disputed(lead, exchange):
        mean, own = exchange.means[part], exchange.again.means.get(part)
        if own is not None and own.digest == mean.digest:
            _disbelieve(turn, part)
        elif own is not None:
            reassignment.misdeclared(turn, mean, own)
            turn.set(exchange=replace(exchange, means={**exchange.means, part: own}))
        elif part not in lead.disputes:
            until = turn.now + timeouts.at(turn.state, lead.ballot).exchange_s / 2
            turn.set(lead=replace(lead, disputes={**lead.disputes, part: until}))
            reassignment.compute(turn, part, mean.contributors)
            turn.send((lead.verdicts[part].reducer,), ShowInputs(exchange.place, part))
        elif turn.now >= lead.disputes[part]:
            _disbelieve(turn, part)
        if turn.state.lead is not None and turn.state.exchange is not None:
            lead, exchange = turn.state.lead, turn.state.exchange


def awaited(turn: Transition, lead: CoordinatorState, exchange: MemberState) -> bool:
    """Every mean is here: whether an auditor may still change one of them."""
    if _disputed(lead, exchange):
        return True
    ignored = lead.disbelieved | set(exchange.reducers) - set(lead.norms)
    means, auditors = exchange.means, exchange.again.auditors
    silent = [
        part
        for part, auditor in auditors.items()
        if part in means and not means[part].attempt and part not in lead.verdicts and auditor not in ignored
    ]
    if not silent:
        return False
    if lead.verdicts_until is None:
        until = turn.now + timeouts.at(turn.state, lead.ballot).ack_s
        turn.set(lead=replace(lead, verdicts_until=until))
        return True
    return turn.now < lead.verdicts_until


def _disputed(lead: CoordinatorState, exchange: MemberState) -> list[int]:
    """Parts of which a mean is here that is not what its auditor says."""
    return [
        part
        for part, verdict in lead.verdicts.items()
        if part in exchange.means and not exchange.means[part].attempt and part not in lead.repaired
        and exchange.means[part].digest != verdict.digest and verdict.reducer not in lead.disbelieved
    ]  # fmt: skip


def _disbelieve(turn: Transition, part: int) -> None:
    """It could not prove what it said: for the rest of this round its word counts no more."""
    lead = turn.state.lead
    assert lead is not None
    auditor = lead.verdicts[part].reducer
    turn.set(lead=replace(lead, disbelieved=lead.disbelieved | {auditor}))
    turn.alert("warning", "AUDIT", f"{auditor} doubts the mean of part {part} and cannot prove it")
