"""What the reducer of a part does in either attempt: see whose bytes these are, and average them."""

from __future__ import annotations

from peer.rounds import merkle
from peer.rounds.effects import Reduce
from peer.rounds.messages import MeanSent, PartSent
from peer.rounds.names import digest_of
from peer.rounds.state import Exchange
from peer.rounds.turn import Turn
from peer.rounds.update import MAX_SKIPPED, token_weights


def giver_of(turn: Turn, exchange: Exchange, sender: str, message: PartSent) -> int | None:
    """Index of the member that pledged these bytes as this part; None if nobody did."""
    if message.part >= len(turn.rules.parts) or len(message.payload) != turn.rules.part_bytes[message.part]:
        return None
    giver = message.giver or sender
    index = next((i for i, pledge in enumerate(exchange.members) if pledge.peer == giver), None)
    if index is None or not exchange.members[index].root:
        return None
    root, leaf = exchange.members[index].root, digest_of(message.payload)
    return index if merkle.proves(root, leaf, message.part, message.path, len(turn.rules.parts)) else None


def weights(turn: Turn, exchange: Exchange, contributors: int) -> tuple[int, ...]:
    """What each member weighs in a mean of these contributors: 0 for the others. Not all 0 if there is a mean."""
    table = _table(turn, exchange)
    return tuple(weight if contributors >> index & 1 else 0 for index, weight in enumerate(table))


def _table(turn: Turn, exchange: Exchange) -> tuple[int, ...]:
    return token_weights(exchange.members, turn.rules.tokens_cap, turn.rules.max_staleness)


def reduce(turn: Turn, exchange: Exchange, part: int, contributors: int, attempt: int = 0) -> None:
    """Average this part, unless only who trained on nothing gave it: then it becomes void."""
    table = weights(turn, exchange, contributors)
    if not any(table):
        return
    chosen = [index for index in range(len(table)) if contributors >> index & 1]
    names = tuple(exchange.members[index].peer for index in chosen)
    shares = tuple(table[index] for index in chosen)
    missing = sum(_table(turn, exchange)) - sum(shares)
    turn.do(Reduce(exchange.place, part, contributors, names, shares, attempt, missing))


def keep_early(turn: Turn, sender: str, message: PartSent | MeanSent) -> None:
    """Streams of different peers are not ordered among each other: a part may overtake its START or its REDO.

    What is kept is bounded by the bytes of two contributions, whoever sends it.
    """
    state, sizes = turn.state, turn.rules.part_bytes
    known = sender in state.electorate or sender in state.heard
    fits = message.part < len(sizes) and len(message.payload) == sizes[message.part]
    if not known or not fits or not 0 <= message.place.ballot - state.acceptor.promised <= MAX_SKIPPED:
        return
    if len(state.early) < 2 * len(sizes) and (sender, message) not in state.early:
        turn.set(early=(*state.early, (sender, message)))
