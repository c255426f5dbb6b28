"""Reduces a part again after its reducer died, stalled, or made a false mean.

The coordinator names the new reducer in `Reassign`; every member sends its bytes once more, to that peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from peer.consensus.protocol import norms
from peer.consensus.protocol.block import MAX_SKIPPED, VOID, ContributionHeader, givers
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.messages import BallotId, MeanData, PartData, Reassign
from peer.consensus.rounds import timeouts
from peer.consensus.rounds.interface import BufferPart, MeasurePart, PartReduced, ReducePart, SendMean, SendParts
from peer.consensus.rounds.state import MemberState
from peer.consensus.rounds.transition import Transition

ORDERS_MOST = 2
"""Of one ballot: for means that do not come, and for false ones. No more are obeyed, so nobody can be kept sending."""
ROOM_BYTES = 16 << 20
"""What a member keeps for repairs, or two contributions if that is more."""
Early = tuple[tuple[str, PartData | MeanData], ...]
"""What came before its Start or Reassign, and of whom."""


# ---- in either attempt ----


def weights(turn: Transition, exchange: MemberState, part: int, contributors: int) -> tuple[int, ...]:
    """What each member weighs in a mean of these contributors, and 0 for the others. Not all are 0 if there is a
    mean."""
    row = _row(turn, exchange, part)
    return tuple(weight if contributors >> index & 1 else 0 for index, weight in enumerate(row))


def _row(turn: Transition, exchange: MemberState, part: int) -> tuple[int, ...]:
    return exchange.judgement.weights[turn.fragment.rows[part]]


def direction(turn: Transition, part: int) -> bytes:
    """Digest of the last committed mean of a part, from the newest round that averaged the same fragment; void if there
    is none, or if I came later."""
    trail, fragments = turn.state.trail, turn.rules.fragments
    return trail[-fragments].block.update.parts[part] if len(trail) >= fragments else VOID


def reduce(turn: Transition, exchange: MemberState, part: int, contributors: int, attempt: int = 0) -> None:
    """Average this part; if nothing that is here counts, it becomes void, or is rolled back."""
    table = weights(turn, exchange, part, contributors)
    if not any(table):
        return
    row, fragments = turn.fragment.rows[part], turn.rules.fragments
    if exchange.judgement.pulls[row] and len(turn.state.trail) < fragments <= turn.state.head.round:
        return  # the last committed mean is needed, and I joined after it
    chosen = [index for index, weight in enumerate(table) if weight]
    behind = [index for index in range(len(exchange.members)) if contributors >> index & 1]
    turn.emit(
        ReducePart(
            exchange.place, part, contributors, tuple(exchange.names[index] for index in chosen),
            tuple(table[index] for index in chosen), attempt,
            missing_weight(turn, exchange.members, _row(turn, exchange, part), contributors),
            exchange.judgement.scales[row], exchange.judgement.pulls[row], direction(turn, part),
            tuple(exchange.names[index] for index in behind),
            tuple(norms.declared_of_part(exchange.members[index], part) for index in behind),
        )
    )  # fmt: skip


def missing_weight(
    turn: Transition, members: Sequence[ContributionHeader], weights: Sequence[int], contributors: int
) -> int:
    """The weight of members that offered a part and are not behind its mean. Newcomers do not count: otherwise one that
    pledges and gives nothing would make every mean smaller."""
    believed = trusted(turn.state.head)
    return sum(
        weight
        for index, weight in enumerate(weights)
        if not contributors >> index & 1 and members[index].peer in believed
    )


def keep_early(turn: Transition, sender: str, message: PartData | MeanData) -> None:
    """Streams of different peers are not ordered among each other: a part may arrive before its Start or its Reassign.

    What is kept is bounded by the bytes of two contributions, whoever sends it. So that no peer can use up all of it,
    peers that the chain does not name make room first, then the peer that takes up most of it.
    """
    state, sizes = turn.state, turn.part_bytes if isinstance(message, PartData) else turn.mean_bytes
    known = sender in state.electorate or sender in state.heard or sender in _delegates_lately(turn)
    row_bytes = 0 if isinstance(message, PartData) else turn.rules.row_bytes * message.contributors.bit_count()
    fits = message.part < len(sizes) and len(message.payload) == sizes[message.part] + row_bytes
    if isinstance(message, MeanData) and not message.payload:  # a home of mine says that it is there
        known = fits = any(sender == peer for *_, peer in state.delegates) and message.part < len(sizes)
    if not known or not fits or not 0 <= message.place.ballot - state.acceptor.promised <= MAX_SKIPPED:
        return
    if (sender, message) not in state.early:
        early = (*state.early, (sender, message))
        turn.set(early=early if len(early) <= 2 * len(sizes) else _without_one(turn, early))


def _without_one(turn: Transition, early: Early) -> Early:
    """Less the last of a sender that others are kept before."""
    counts, named = Counter(peer for peer, _ in early), turn.state.named
    last = max(counts, key=lambda peer: (peer not in named, counts[peer]))
    place = max(index for index, (peer, _) in enumerate(early) if peer == last)
    return early[:place] + early[place + 1 :]


def _delegates_lately(turn: Transition) -> frozenset[str]:
    """The delegates that the members of the last round named."""
    if not turn.state.trail:
        return frozenset()
    return frozenset(
        peer for header in turn.state.trail[-1].block.update.members for *_, peer in header.delegates
    )  # fmt: skip


# ---- in the second ----


def poll(turn: Transition) -> None:
    """Reduce what is here when the time for a repair is over."""
    exchange = turn.state.exchange
    if exchange is not None:
        for part, reducer in exchange.again.redo.items():
            if reducer == turn.me:
                _reduce_if_ready(turn, part)


# ---- who does it ----


def reassignment_order(place: BallotId, part: int, names: Iterable[str]) -> list[str]:
    """The order in which members reduce a part again, which all peers compute alike."""
    return sorted(names, key=lambda peer: digest(place.anchor, place.ballot, part, peer))


# ---- give ----


def send_parts(turn: Transition, reducers: Mapping[int, str]) -> None:
    """Send my bytes of these parts to those who reduce them a second time."""
    exchange = _exchange(turn)
    index = exchange.names.index(turn.me)
    if not exchange.members[index].root:
        return
    for reducer in sorted(set(reducers.values())):
        theirs = tuple(part for part in sorted(reducers) if reducers[part] == reducer)
        turn.emit(SendParts(reducer, exchange.place, theirs, attempt=1))
    received = exchange.again.received
    own = {
        part: received[part] | 1 << index
        for part, reducer in reducers.items()
        if reducer == turn.me == exchange.holder_of(turn.rules, index, part)  # a delegate's part comes, as others' do
    }
    _change(turn, received={**received, **own})


def on_redo(turn: Transition, sender: str, message: Reassign) -> bool:
    """Give parts to the peers that reduce them in another's place, which may include me. Returns whether this was an
    order."""
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place or sender != turn.owner(message.place.ballot):
        return False
    again, new = exchange.again, _new_orders(turn, exchange, message)
    if not new or again.orders >= ORDERS_MOST:
        return False
    mine = [part for part, reducer in new.items() if reducer == turn.me]
    waits = timeouts.at(turn.state, message.place.ballot)
    replaced = {exchange.reducers[part] for part in new}
    in_vain = all(
        timeouts.is_gone(turn.state, peer, turn.now) or timeouts.is_hurried(turn.state, peer) for peer in replaced
    )
    _change(
        turn, redo={**again.redo, **new}, orders=again.orders + 1,
        replaced=again.replaced | replaced,
        received={**dict.fromkeys(mine, 0), **again.received},
        closes_at=turn.now + waits.exchange_s / 2, replaced_until=turn.now + (0.0 if in_vain else waits.ack_s),
    )  # fmt: skip
    turn.ballot_moved()
    send_parts(turn, new)
    for part in mine:
        if part in again.means:
            _announce(turn, again.means[part])
        else:
            _reduce_if_ready(turn, part)
    return True


def _new_orders(turn: Transition, exchange: MemberState, message: Reassign) -> dict[int, str]:
    """Each part once in a ballot, and to another member than before; to me only as many as there is memory for."""
    again, sizes = exchange.again, turn.part_bytes
    names = {header.peer for header in exchange.members}
    room_bytes = max(ROOM_BYTES, 2 * sum(sizes))
    room_bytes -= len(names) * sum(sizes[part] for part, reducer in again.redo.items() if reducer == turn.me)
    new: dict[int, str] = {}
    for part, reducer in message.parts:
        if part >= len(sizes) or part in again.redo or reducer not in names or reducer == exchange.reducers[part]:
            continue
        room_bytes -= len(names) * sizes[part] if reducer == turn.me else 0
        if room_bytes >= 0 or reducer != turn.me:
            new.setdefault(part, reducer)
    return new


# ---- take and reduce ----


def on_part(turn: Transition, sender: str, message: PartData) -> None:
    """A part of the ballot in which I am, for a second reduction."""
    exchange = _exchange(turn)
    again, part = exchange.again, message.part
    index = exchange.giver_of(turn.rules, sender, message)
    if index is None:
        return
    if part not in again.received:
        keep_early(turn, sender, message)
        return
    taken = exchange.taken.get(part, 0)
    if part in again.started or (again.received[part] | taken) >> index & 1:
        return
    giver = exchange.members[index].peer
    turn.set(exchange=replace(exchange, taken={**exchange.taken, part: taken | 1 << index}))
    turn.emit(BufferPart(exchange.place, giver, part, message.payload, message.path))
    turn.emit(MeasurePart(exchange.place, giver, part, message.payload))


def on_measured(turn: Transition, part: int, index: int, *, is_as_declared: bool) -> None:
    """Without this check its mean, with a row larger than was declared, would be held against me."""
    exchange = _exchange(turn)
    again = exchange.again
    if part in again.started or not exchange.taken.get(part, 0) >> index & 1:
        return
    if is_as_declared:
        _change(turn, received={**again.received, part: again.received[part] | 1 << index})
    else:
        refused = {**exchange.refused, part: exchange.refused.get(part, 0) | 1 << index}
        turn.set(exchange=replace(exchange, refused=refused))
    _reduce_if_ready(turn, part)


def _reduce_if_ready(turn: Transition, part: int) -> None:
    exchange = _exchange(turn)
    again, received = exchange.again, exchange.again.received[part]
    if part in again.started or not received:
        return
    if again.redo.get(part) != turn.me or _awaits_others(turn, exchange, received | exchange.refused.get(part, 0)):
        return
    _change(turn, started=again.started | {part})
    reduce(turn, exchange, part, received, attempt=1)


def _awaits_others(turn: Transition, exchange: MemberState, received: int) -> bool:
    """Whether to wait for others that give. Members that were replaced are not waited for as long, since they are dead
    or late; members that have left are not waited for at all."""
    again = exchange.again
    unlikely = again.replaced
    if turn.now < again.replaced_until:
        unlikely = frozenset(peer for peer in unlikely if turn.has_left(peer))
    awaited = givers(exchange.members) & ~received
    awaited &= ~sum(1 << i for i, header in enumerate(exchange.members) if header.peer in unlikely)
    return bool(awaited) and turn.now < again.closes_at


# ---- tell ----


def on_reduced(turn: Transition, event: PartReduced) -> None:
    """A repaired part goes to all members."""
    exchange = _exchange(turn)
    again = exchange.again
    mean = MeanData(
        event.place, 1, event.part, turn.me, event.contributors, event.digest, b"", basis=exchange.basis
    )  # fmt: skip
    mean = mean.signed(turn.rules.keys)
    _change(turn, means={**again.means, event.part: mean})
    _announce(turn, mean)


def _announce(turn: Transition, mean: MeanData) -> None:
    exchange = _exchange(turn)
    turn.set(exchange=replace(exchange, means={**exchange.means, mean.part: mean}))
    others = tuple(peer for peer in exchange.holders_of(turn.rules, mean.part) if peer != turn.me)
    if others:
        turn.emit(SendMean(others, mean))


def _exchange(turn: Transition) -> MemberState:
    assert turn.state.exchange is not None
    return turn.state.exchange


def _change(turn: Transition, **changes: Any) -> None:
    exchange = _exchange(turn)
    turn.set(exchange=replace(exchange, again=replace(exchange.again, **changes)))
