"""What the reducer of a part does in either attempt: see whose bytes these are, and average them."""

from __future__ import annotations

from peer.protocol import merkle
from peer.protocol.block import MAX_SKIPPED, VOID
from peer.protocol.encoding import digest_of
from peer.protocol.messages import MeanData, PartData
from peer.rounds.interface import ReducePart
from peer.rounds.state import MemberState
from peer.rounds.transition import Transition


def giver_of(turn: Transition, exchange: MemberState, sender: str, message: PartData) -> int | None:
    """Index of the member that pledged these bytes as this part; None if nobody did."""
    sizes = turn.rules.bytes_in(exchange.round)
    if message.part >= len(sizes) or len(message.payload) != sizes[message.part]:
        return None
    giver = message.giver or sender
    index = next((i for i, pledge in enumerate(exchange.members) if pledge.peer == giver), None)
    if index is None or not exchange.members[index].root:
        return None
    root, leaf = exchange.members[index].root, digest_of(message.payload)
    return index if merkle.proves(root, leaf, message.part, message.path, len(sizes)) else None


def weights(turn: Transition, exchange: MemberState, part: int, contributors: int) -> tuple[int, ...]:
    """What each member weighs in a mean of these contributors: 0 for the others. Not all 0 if there is a mean."""
    row = _row(turn, exchange, part)
    return tuple(weight if contributors >> index & 1 else 0 for index, weight in enumerate(row))


def _row(turn: Transition, exchange: MemberState, part: int) -> tuple[int, ...]:
    assert exchange.judgement is not None, "parts are reduced after TABLE"
    return exchange.judgement.weights[turn.fragment.rows[part]]


def direction(turn: Transition, part: int) -> bytes:
    """Digest of the last committed mean of a part; void if there is none, or I came later.

    It is that of the newest round that averaged the same fragment.
    """
    trail, fragments = turn.state.trail, turn.rules.fragments
    return trail[-fragments].block.update.parts[part] if len(trail) >= fragments else VOID


def reduce(turn: Transition, exchange: MemberState, part: int, contributors: int, attempt: int = 0) -> None:
    """Average this part, unless nothing of what is here counts: then it becomes void, or is rolled back."""
    table = weights(turn, exchange, part, contributors)
    if not any(table):
        return
    assert exchange.judgement is not None
    row, fragments = turn.fragment.rows[part], turn.rules.fragments
    if exchange.judgement.pulls[row] and len(turn.state.trail) < fragments <= turn.state.head.round:
        return  # the last committed mean is needed, and I joined after it
    chosen = [index for index, weight in enumerate(table) if weight]
    names = tuple(exchange.members[index].peer for index in chosen)
    shares = tuple(table[index] for index in chosen)
    missing = sum(_row(turn, exchange, part)) - sum(shares)
    turn.do(
        ReducePart(
            exchange.place, part, contributors, names, shares, attempt, missing,
            exchange.judgement.scales[row], exchange.judgement.pulls[row], direction(turn, part),
        )
    )  # fmt: skip


def keep_early(turn: Transition, sender: str, message: PartData | MeanData) -> None:
    """Streams of different peers are not ordered among each other: a part may overtake its START or its REDO.

    What is kept is bounded by the bytes of two contributions, whoever sends it.
    """
    state, sizes = turn.state, turn.part_bytes if isinstance(message, PartData) else turn.mean_bytes
    known = sender in state.electorate or sender in state.heard
    fits = message.part < len(sizes) and len(message.payload) == sizes[message.part]
    if not known or not fits or not 0 <= message.place.ballot - state.acceptor.promised <= MAX_SKIPPED:
        return
    if len(state.early) < 2 * len(sizes) and (sender, message) not in state.early:
        turn.set(early=(*state.early, (sender, message)))
