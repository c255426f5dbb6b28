"""What I have caught others at, and what I tell of it (the protocol, §5, *Reports*).

A peer reports whom it caught in its signed pledges, for some rounds; `judging.caught` says what follows. One
kind of lie convinces everybody who hears of it, so it is passed on: two signed means of one part.
"""

from __future__ import annotations

from dataclasses import replace

from peer.events import PenaltyImposed
from peer.protocol.accusations import MeanConflict
from peer.protocol.block import MAX_EVIDENCE, MAX_REPORTS, VOID, Update
from peer.protocol.block import Report as Reported
from peer.protocol.messages import BallotId, MeanData
from peer.rounds.interface import Tell
from peer.rounds.state import MISDECLARED, MemberState, Misconduct
from peer.rounds.transition import Transition

REPORT_ROUNDS = 4
"""For so many rounds a peer repeats what it has caught another at: not all pledges come in time."""


def catch(turn: Transition, peer: str, layer: int, evidence: str) -> None:
    """Remember that a peer lied, and say so once a round."""
    state = turn.state
    round = state.head.round
    if peer in state.seen_lying and state.seen_lying[peer].round == round:
        return
    evidence = evidence[:MAX_EVIDENCE]
    turn.set(seen_lying={**state.seen_lying, peer: Misconduct(round, evidence)})
    turn.do(
        Tell(
            PenaltyImposed(
                about=peer, code=MISDECLARED, layer="" if layer < 0 else str(layer), evidence=evidence, factor=0.0,
                until_round=round + 2,
            )
        )
    )  # fmt: skip
    turn.alert("error", MISDECLARED, f"{peer} lied in round {round}: {evidence}")


def fresh(turn: Transition) -> tuple[Reported, ...]:
    """What my pledge for this anchor reports."""
    oldest = turn.state.head.round - REPORT_ROUNDS
    found = sorted(turn.state.seen_lying.items(), key=lambda item: -item[1].round)
    return tuple(sorted((peer, seen.evidence) for peer, seen in found[:MAX_REPORTS] if seen.round >= oldest))


def exchange_at(turn: Transition, place: BallotId) -> MemberState | None:
    """The exchange that a message is about: the one that goes on, or the last one that was committed."""
    for exchange in (turn.state.exchange, turn.state.past):
        if exchange is not None and exchange.place == place:
            return exchange
    return None


# ---- two means of one part ----


def look_at_proposed(turn: Transition, update: Update) -> None:
    """Show everybody the means that I got which are not those that are proposed, unless they were reduced again."""
    exchange = turn.state.exchange
    if exchange is None or exchange.place.ballot != update.ballot or len(update.parts) != len(exchange.reducers):
        return
    others = [pledge.peer for pledge in exchange.members if pledge.peer != turn.me]
    told = set(exchange.told)
    for part, mean in exchange.means.items():
        odd = update.parts[part] not in (VOID, mean.digest) and not mean.attempt and part not in exchange.again.redo
        if odd and mean.reducer not in told and mean.reducer != turn.me:
            told.add(mean.reducer)
            turn.send(others, MeanConflict(exchange.place, mean))
    turn.set(exchange=replace(exchange, told=frozenset(told)))


def on_conflict(turn: Transition, sender: str, message: MeanConflict) -> None:
    """Compare a mean that another got with the one that I got of the same reducer; both are signed."""
    theirs = message.mean
    exchange = exchange_at(turn, message.place)
    if exchange is None or theirs.place != message.place or theirs.part not in exchange.means:
        return
    mine = exchange.means[theirs.part]
    alike = (mine.reducer, mine.attempt, mine.basis) == (theirs.reducer, theirs.attempt, theirs.basis)
    if not alike or mine.digest == theirs.digest:
        return
    if theirs.reducer in exchange.told_of or not theirs.genuine(turn.rules.keys):
        return
    _note(turn, exchange, theirs.reducer)
    layer = turn.rules.fragment(exchange.round).parts[mine.part].layer
    catch(turn, mine.reducer, layer, f"two means of part {mine.part}: {_short(mine)} and {_short(theirs)}")
    turn.send((sender,), MeanConflict(message.place, mine))


def _note(turn: Transition, exchange: MemberState, peer: str) -> None:
    """A peer is convicted once by one exchange."""
    noted = replace(exchange, told_of=exchange.told_of | {peer})
    if turn.state.exchange is exchange:
        turn.set(exchange=noted)
    else:
        turn.set(past=noted)


def _short(mean: MeanData) -> str:
    return mean.digest.hex()[:12]
