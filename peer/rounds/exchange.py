"""A member: send my parts to their reducers, reduce the parts that are mine, send the means to all."""

from __future__ import annotations

from dataclasses import replace

from peer.rounds import merkle
from peer.rounds.layout import assign
from peer.rounds.messages import MeanSent, Norms, PartSent, Start, Table, Want
from peer.rounds.names import digest_of
from peer.rounds.state import Exchange, Keep, Reduce, Reduced, SendMean, SendParts, Store
from peer.rounds.turn import Turn
from peer.rounds.update import MAX_SKIPPED, Pledge, givers, token_weights

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
    reducers = assign(
        turn.rules.parts,
        [pledge.peer for pledge in message.pledges],
        [pledge.bandwidth_bps for pledge in message.pledges],
        place.anchor,
        place.ballot,
    )
    closes_at = turn.now + turn.rules.exchange_s
    exchange = Exchange(
        place=place, members=message.pledges, reducers=reducers, closes_at=closes_at, repeat_at=closes_at,
        received={part: 0 for part, reducer in enumerate(reducers) if reducer == turn.me},
    )  # fmt: skip
    early = state.early
    turn.set(exchange=exchange, early=())
    turn.moved()
    turn.phase("send", place.ballot, closes_at)
    _send_parts(turn, exchange)
    for peer, overtaken in early:
        _replay(turn, peer, overtaken)
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
        parts = tuple(part for part, owner in enumerate(exchange.reducers) if owner == reducer)
        turn.do(SendParts(reducer, exchange.place, parts))
    if exchange.received:
        index = exchange.members.index(mine)
        received = {part: 1 << index for part in exchange.received}
        turn.set(exchange=replace(exchange, received=received))


# ---- judge ----


def on_part(turn: Turn, sender: str, message: PartSent) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place:
        _keep_early(turn, sender, message)
        return
    if exchange.closed or exchange.received.get(message.part) is None:
        return
    index = next((i for i, pledge in enumerate(exchange.members) if pledge.peer == sender), None)
    if index is None or exchange.received[message.part] >> index & 1:
        return
    if len(message.payload) != turn.rules.part_bytes[message.part]:
        return
    root, leaf = exchange.members[index].root, digest_of(message.payload)
    if not root or not merkle.proves(root, leaf, message.part, message.path, len(turn.rules.parts)):
        return
    turn.do(Keep(exchange.place, sender, message.part, message.payload))
    received = {**exchange.received, message.part: exchange.received[message.part] | 1 << index}
    turn.set(exchange=replace(exchange, received=received))
    _close_if_complete(turn)


def _keep_early(turn: Turn, sender: str, message: PartSent | MeanSent) -> None:
    """Streams of different peers are not ordered among each other: a part may overtake its START.

    What is kept is bounded by the bytes of two contributions, whoever sends it.
    """
    state, sizes = turn.state, turn.rules.part_bytes
    known = sender in state.head.electorate or sender in state.heard
    fits = message.part < len(sizes) and len(message.payload) == sizes[message.part]
    if not known or not fits or not 0 <= message.place.ballot - state.acceptor.promised <= MAX_SKIPPED:
        return
    if len(state.early) < 2 * len(sizes) and (sender, message) not in state.early:
        turn.set(early=(*state.early, (sender, message)))


def _replay(turn: Turn, sender: str, message: PartSent | MeanSent) -> None:
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
    turn.set(exchange=replace(exchange, tabled=True, closed=True))
    turn.moved()
    turn.phase("reduce", message.place.ballot)
    mine = next((norms for norms in message.norms if norms.reducer == turn.me), None)
    if mine is None or not mine.genuine(turn.rules.keys):
        return
    weights = token_weights(exchange.members, turn.rules.tokens_cap)
    for part, received in mine.received:
        chosen = [index for index in range(len(exchange.members)) if received >> index & 1]
        names = tuple(exchange.members[index].peer for index in chosen)
        shares = tuple(weights[index] for index in chosen)
        if not any(shares):
            continue  # nobody gave this part, or only who trained on nothing: it becomes void
        turn.do(Reduce(exchange.place, part, received, names, shares))


def on_reduced(turn: Turn, event: Reduced) -> None:
    exchange = turn.state.exchange
    turn.set(held={**turn.state.held, event.digest: turn.rules.part_bytes[event.part]})
    if exchange is None or exchange.place != event.place:
        return
    mean = MeanSent(event.place, 0, event.part, turn.me, event.contributors, event.digest, b"")
    mean = mean.signed(turn.rules.keys)
    turn.set(exchange=replace(exchange, means={**exchange.means, event.part: mean}))
    others = tuple(pledge.peer for pledge in exchange.members if pledge.peer != turn.me)
    if others:
        turn.do(SendMean(others, mean))


def on_mean(turn: Turn, sender: str, message: MeanSent) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place:
        _keep_early(turn, sender, message)
        return
    if message.part in exchange.means or message.part >= len(exchange.reducers):
        return
    if exchange.reducers[message.part] != message.reducer or not message.genuine(turn.rules.keys):
        return
    if not message.contributors or message.contributors & ~givers(exchange.members):
        return
    if len(message.payload) != turn.rules.part_bytes[message.part] or digest_of(message.payload) != message.digest:
        return
    bare = replace(message, payload=b"")
    turn.set(exchange=replace(exchange, means={**exchange.means, message.part: bare}))
    if message.digest not in turn.state.held:
        turn.do(Store(message.digest, message.payload))


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
