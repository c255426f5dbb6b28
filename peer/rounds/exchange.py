"""A member: send my parts to their reducers, reduce the parts that are mine, send the means to all."""

from __future__ import annotations

from dataclasses import replace

from peer.rounds import again, deadlines, parts
from peer.rounds.effects import Keep, Reduced, SendMean, SendParts, Store
from peer.rounds.layout import assign
from peer.rounds.messages import MeanSent, Norms, PartSent, Start, Table, Want
from peer.rounds.names import digest_of
from peer.rounds.state import Again, Exchange
from peer.rounds.turn import Turn
from peer.rounds.update import Pledge, givers

REPEAT_S = 1.0


def look(turn: Turn) -> None:
    """Close when the time for parts is over; repeat norms that nobody answered."""
    exchange = turn.state.exchange
    if exchange is None or exchange.tabled:
        return
    if not exchange.closed and turn.now >= exchange.closes_at:
        _close(turn, exchange)
    elif exchange.closed and turn.now >= exchange.repeat_at:
        turn.set(exchange=replace(exchange, repeat_at=turn.now + REPEAT_S))
        _send_norms(turn, exchange)


# ---- send ----


def on_start(turn: Turn, sender: str, message: Start) -> None:
    state, place = turn.state, message.place
    if sender != turn.owner(place.ballot) or place.ballot != state.acceptor.promised:
        return
    if state.exchange is not None and state.exchange.place == place:
        return
    if not _sound(turn, message.pledges):
        return
    names = [pledge.peer for pledge in message.pledges]
    bandwidths = [pledge.bandwidth_bps for pledge in message.pledges]
    reducers = assign(turn.rules.parts, names, bandwidths, place.anchor, place.ballot)
    auditors = again.draw_auditors(turn, place, names, reducers)
    closes_at = turn.now + deadlines.at(state, place.ballot).exchange_s
    exchange = Exchange(
        place=place, members=message.pledges, reducers=reducers, closes_at=closes_at, repeat_at=closes_at,
        began_at=turn.now,
        received={part: 0 for part, reducer in enumerate(reducers) if reducer == turn.me},
        again=Again(auditors=auditors, received={part: 0 for part, peer in auditors.items() if peer == turn.me}),
    )  # fmt: skip
    turn.set(exchange=exchange)
    turn.moved()
    turn.phase("send", place.ballot, closes_at)
    _send_parts(turn, exchange)
    replay_early(turn)
    _close_if_complete(turn)


def _sound(turn: Turn, pledges: tuple[Pledge, ...]) -> bool:
    """Genuine pledges for this anchor, sorted, each peer once, mine among them as I signed it."""
    names = [pledge.peer for pledge in pledges]
    if names != sorted(set(names)) or turn.me not in names:
        return False
    mine = pledges[names.index(turn.me)]
    if mine.root not in (b"", turn.my_pledge().root):
        return False
    return all(pledge.anchor == turn.state.head.anchor and pledge.genuine(turn.rules.keys) for pledge in pledges)


def _send_parts(turn: Turn, exchange: Exchange) -> None:
    mine = next(pledge for pledge in exchange.members if pledge.peer == turn.me)
    if not mine.root:
        return
    for reducer in dict.fromkeys(exchange.reducers):
        theirs = tuple(part for part, owner in enumerate(exchange.reducers) if owner == reducer)
        turn.do(SendParts(reducer, exchange.place, theirs))
    if exchange.received:
        index = exchange.members.index(mine)
        received = {part: 1 << index for part in exchange.received}
        turn.set(exchange=replace(exchange, received=received))
    again.send_parts(turn, exchange.again.auditors)


# ---- judge ----


def on_part(turn: Turn, sender: str, message: PartSent) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place:
        parts.keep_early(turn, sender, message)
    elif message.attempt:
        again.on_part(turn, sender, message)
    elif not exchange.closed and message.part in exchange.received:
        _take_part(turn, exchange, sender, message)


def _take_part(turn: Turn, exchange: Exchange, sender: str, message: PartSent) -> None:
    index = parts.giver_of(turn, exchange, sender, message)
    if index is None or exchange.received[message.part] >> index & 1:
        return
    giver = exchange.members[index].peer
    turn.do(Keep(exchange.place, giver, message.part, message.payload, message.path))
    received = {**exchange.received, message.part: exchange.received[message.part] | 1 << index}
    turn.set(exchange=replace(exchange, received=received, part_at={**exchange.part_at, giver: turn.now}))
    _close_if_complete(turn)


def replay_early(turn: Turn) -> None:
    """Take what overtook a START or REDO that is here now; what it is still too early for is kept on."""
    early = turn.state.early
    turn.set(early=())
    for sender, message in early:
        if isinstance(message, PartSent):
            on_part(turn, sender, message)
        else:
            on_mean(turn, sender, message)


def _close_if_complete(turn: Turn) -> None:
    exchange = turn.state.exchange
    assert exchange is not None
    all_of_them = givers(exchange.members)
    if not exchange.closed and all(received == all_of_them for received in exchange.received.values()):
        _close(turn, exchange)


def _close(turn: Turn, exchange: Exchange) -> None:
    """No more parts: what is not here now is not in the mean."""
    turn.set(exchange=replace(exchange, closed=True, repeat_at=turn.now + REPEAT_S))
    turn.phase("judge", exchange.place.ballot)
    _send_norms(turn, exchange)


def _send_norms(turn: Turn, exchange: Exchange) -> None:
    if not exchange.received:
        return
    norms = Norms(exchange.place, turn.me, tuple(sorted(exchange.received.items())))
    turn.send((turn.owner(exchange.place.ballot),), norms.signed(turn.rules.keys))


# ---- reduce ----


def on_table(turn: Turn, sender: str, message: Table) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place or exchange.tabled:
        return
    if sender != turn.owner(message.place.ballot):
        return
    turn.moved()
    turn.phase("reduce", message.place.ballot)
    listed = _listed(turn, exchange, message)
    turn.set(exchange=replace(exchange, tabled=True, tabled_at=turn.now, closed=True, listed=listed))
    for part in exchange.received:
        if part in listed:
            parts.reduce(turn, exchange, part, listed[part] & exchange.received[part])
    again.on_table(turn)


def _listed(turn: Turn, exchange: Exchange, table: Table) -> dict[int, int]:
    """Contributors of each part, from genuine norms of its reducer for this ballot."""
    genuine = (norms for norms in table.norms if norms.place == exchange.place and norms.genuine(turn.rules.keys))
    return {
        part: received
        for norms in genuine
        for part, received in norms.received
        if part < len(exchange.reducers) and exchange.reducers[part] == norms.reducer
    }


def on_reduced(turn: Turn, event: Reduced) -> None:
    exchange = turn.state.exchange
    turn.set(held={**turn.state.held, event.digest: turn.rules.part_bytes[event.part]})
    if exchange is None or exchange.place != event.place:
        return
    if event.attempt:
        again.on_reduced(turn, event)
        return
    mean = MeanSent(event.place, 0, event.part, turn.me, event.contributors, event.digest, b"")
    mean = mean.signed(turn.rules.keys)
    turn.set(exchange=replace(exchange, means={**exchange.means, event.part: mean}))
    others = tuple(pledge.peer for pledge in exchange.members if pledge.peer != turn.me)
    if others:
        turn.do(SendMean(others, mean))


def on_mean(turn: Turn, sender: str, message: MeanSent) -> None:
    """The first mean of a part that comes is taken, but for one of a repair, which the coordinator asked for."""
    exchange, part = turn.state.exchange, message.part
    if exchange is None or exchange.place != message.place:
        parts.keep_early(turn, sender, message)
        return
    if part >= len(exchange.reducers) or (part in exchange.means and exchange.means[part].attempt >= message.attempt):
        return
    if message.attempt and part not in exchange.again.redo:
        parts.keep_early(turn, sender, message)
        return
    reducer = exchange.again.redo[part] if message.attempt else exchange.reducers[part]
    if reducer != message.reducer or not message.genuine(turn.rules.keys) or not _agrees(exchange, message):
        return
    if len(message.payload) != turn.rules.part_bytes[part] or digest_of(message.payload) != message.digest:
        return
    bare = replace(message, payload=b"")
    mean_at = {**exchange.mean_at, message.reducer: turn.now}
    turn.set(exchange=replace(exchange, means={**exchange.means, part: bare}, mean_at=mean_at))
    if message.digest not in turn.state.held:
        turn.do(Store(message.digest, message.payload))
    again.compare(turn, part)


def _agrees(exchange: Exchange, mean: MeanSent) -> bool:
    """Members gave what is in it, and its reducer said so before."""
    bits = mean.contributors
    listed = bits if mean.attempt else exchange.listed.get(mean.part, bits)
    return bits == listed and bits != 0 and bits & ~givers(exchange.members) == 0


def on_want(turn: Turn, sender: str, message: Want) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place or sender == turn.me:
        return
    if sender != turn.owner(message.place.ballot):
        return
    for part in dict.fromkeys(message.parts):
        mean = exchange.means.get(part)
        if mean is not None and mean.digest in turn.state.held:
            turn.do(SendMean((sender,), mean))
