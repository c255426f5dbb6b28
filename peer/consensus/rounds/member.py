"""A member of a round: it pledges its contribution, sends parts to their reducers, reduces its own parts, and sends
means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf, sqrt

from peer.consensus.protocol import bounds, norms, validation
from peer.consensus.protocol.block import ContributionHeader, givers
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import GetMeans, MeanData, PartData, Start
from peer.consensus.protocol.refusals import HEADER, MEMBERS, NORMS
from peer.consensus.rounds import acceptor, reassignment, soundness, timeouts
from peer.consensus.rounds.interface import (
    BufferPart,
    MeasureOwn,
    MeasurePart,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    SendMean,
    SendParts,
    StoreObject,
)
from peer.consensus.rounds.state import MemberState
from peer.consensus.rounds.transition import Transition

MEASURE_S = 5.0
"""After so long another home is asked again what a part of mine comes to."""
DECLARED_WITHIN = 1e-3
"""Of the square of a norm: what sums in another order may differ by."""
SMALLEST = 1e-30
"""Squares that are taken for zero."""


def poll(turn: Transition) -> None:
    """Close when the time for parts is over."""
    exchange = turn.state.exchange
    if exchange is None or exchange.closed:
        return
    until = min(exchange.closes_at, _done_with_others_at(turn, exchange))
    if turn.now >= until or _only_the_gone_are_missing(turn, exchange):
        _close(turn, exchange)


# ---- pledge ----


def on_submitted(turn: Transition, header: ContributionHeader) -> None:
    """The trainer's contribution for this anchor is on disk; I am ready once its norms are measured."""
    state = turn.state
    if header.anchor != state.head.anchor or state.header is not None or turn.rules.holds is not None:
        return
    if state.offered is not None and state.offered.root:
        return
    turn.set(offered=bounds.within(turn.rules, header), own={})
    if header.root:
        _measure(turn, range(len(turn.fragment.parts)))
    else:
        _pledge(turn)


def _measure(turn: Transition, parts: Iterable[int]) -> None:
    turn.set(measured_at=turn.now)
    for part in parts:
        turn.emit(MeasureOwn(turn.state.head.anchor, part, reassignment.direction(turn, part)))


def measure_again(turn: Transition) -> None:
    """Measure again what was found on disk at the start, and what lies with other homes of mine, which may not have
    heard."""
    state, offered = turn.state, turn.state.offered
    if offered is None or not offered.root or state.header is not None or turn.now < state.measured_at + MEASURE_S:
        return
    begins = state.measured_at == float("-inf")
    _measure(
        turn,
        (
            index for index, part in enumerate(turn.fragment.parts)
            if index not in state.own and (begins or offered.holder_of(part.layer) != turn.me)
        ),
    )  # fmt: skip


def on_own_measured(turn: Transition, event: OwnMeasured) -> None:
    """With the figures of all parts the header is complete."""
    state, offered = turn.state, turn.state.offered
    if event.anchor != state.head.anchor or state.header is not None or offered is None or not offered.root:
        return
    turn.set(own={**state.own, event.part: event.figures})
    if len(turn.state.own) == len(turn.fragment.parts):
        turn.set(offered=replace(offered, norms=norms.declare(turn.fragment, turn.state.own)))
        _pledge(turn)


def _pledge(turn: Transition) -> None:
    """From now on I am ready."""
    state, offered = turn.state, turn.state.offered
    assert offered is not None
    mine = replace(
        offered, peer=turn.me, leaving=offered.leaving or state.leaving, reports=turn.reports_lately(),
        away=timeouts.away(state, turn.now),
    )  # fmt: skip
    unanswered = state.unanswered
    turn.set(
        header=mine.signed(turn.rules.keys), offered=None, own={}, submitted_at=turn.now, freeze_asked_at=None,
        unanswered=None,
    )  # fmt: skip
    turn.moved()
    turn.say_head()
    if unanswered is not None:
        acceptor.on_prepare(turn, turn.owner(unanswered.place.ballot), unanswered, was_due=True)


def on_paused(turn: Transition, header: ContributionHeader) -> None:
    """I make no more steps for this anchor: I keep my vote, hold nobody up and hurry nobody."""
    if header.anchor != turn.state.head.anchor or turn.rules.holds is not None:
        return
    turn.set(resumed_at=float("inf"))
    if turn.state.header is None:
        turn.set(sits_out=True)
        on_submitted(turn, header)


def on_resumed(turn: Transition) -> None:
    """I train again. What I gave for this anchor stays; if I gave nothing I may still do so."""
    state = turn.state
    if not state.sits_out or state.header is None:
        return
    if state.header.root:
        turn.set(resumed_at=turn.now)
        return
    turn.set(sits_out=False, header=None, submitted_at=turn.now)  # a ballot of mine that goes on measures from here
    turn.say_head()


# ---- send ----


def on_start(turn: Transition, sender: str, message: Start) -> None:
    state, place = turn.state, message.place
    if sender != turn.owner(place.ballot) or place.ballot != state.acceptor.promised:
        return
    if state.exchange is not None and state.exchange.place == place:
        return
    if not _sound(turn, sender, message.headers):
        return
    reducers = norms.shard_owners(turn.rules, state.head, message.headers, place.ballot)
    turn.set(deadlines=timeouts.by_lines(state, message.headers))
    closes_at = turn.now + timeouts.at(turn.state, place.ballot).exchange_s
    exchange = MemberState(
        place=place, round=state.head.round, members=message.headers, reducers=reducers, closes_at=closes_at,
        began_at=turn.now, basis=norms.inputs_digest_of(message.headers),
        judgement=norms.judgement_of(turn.rules, state.head, message.headers),
        received={part: 0 for part, reducer in enumerate(reducers) if reducer == turn.me},
    )  # fmt: skip
    turn.set(exchange=exchange)
    turn.ballot_moved()
    turn.phase("exchange", place.ballot, closes_at)
    _send_parts(turn, exchange)
    replay_early(turn)
    _close_if_complete(turn)


def _sound(turn: Transition, coordinator: str, headers: tuple[ContributionHeader, ...]) -> bool:
    """Genuine headers for this anchor, sorted, each peer once, with mine as I signed it."""
    names = [header.peer for header in headers]
    if names != sorted(set(names)) or turn.me not in names:
        turn.refuse(coordinator, MEMBERS, "its members are not in order, or this peer is none of them")
        return False
    mine = headers[names.index(turn.me)]
    if mine.root not in (b"", turn.my_root):
        turn.refuse(coordinator, MEMBERS, "it has a header of this peer that this peer did not sign")
        return False
    author, rule, why = _first_fault(turn, headers)
    if rule == HEADER:
        turn.refuse(coordinator, HEADER, f"the header of {author} cannot be counted: {why}")
    elif rule:
        turn.refuse(author, rule, why)
    return not rule


def _first_fault(turn: Transition, headers: tuple[ContributionHeader, ...]) -> tuple[str, str, str]:
    """The first peer whose header cannot be counted, the rule that it breaks, and how; empty if all can be."""

    def find() -> tuple[str, str, str]:
        for header in headers:
            rule, why = validation.fault_of_header(turn.rules, turn.state.head, header)
            if rule:
                return header.peer, rule, why
        return "", "", ""

    if turn.rules.shared is None:
        return find()
    return turn.rules.shared.once(("headers", turn.state.head.anchor), (headers,), find)


def _send_parts(turn: Transition, exchange: MemberState) -> None:
    mine = next(header for header in exchange.members if header.peer == turn.me)
    if not mine.root:
        return
    for reducer in dict.fromkeys(exchange.reducers):
        theirs = tuple(part for part, owner in enumerate(exchange.reducers) if owner == reducer)
        turn.emit(SendParts(reducer, exchange.place, theirs))
    for part in exchange.received:
        if mine.holder_of(turn.fragment.parts[part].layer) == turn.me:  # else it comes, as those of others
            turn.emit(MeasurePart(exchange.place, turn.me, part, b""))


# ---- take ----


def on_part(turn: Transition, sender: str, message: PartData) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place:
        reassignment.keep_early(turn, sender, message)
    elif message.attempt:
        reassignment.on_part(turn, sender, message)
    elif not exchange.closed and message.part in exchange.received:
        _take_part(turn, exchange, sender, message)


def _take_part(turn: Transition, exchange: MemberState, sender: str, message: PartData) -> None:
    """Keep a part and have it measured. If it is not what its sender pledged, no other bytes are waited for in its
    place."""
    part, taken = message.part, exchange.taken.get(message.part, 0)
    awaited = [index for index in exchange.spoken_for(turn.rules, sender, part) if not taken >> index & 1]
    if not awaited:
        return
    index = exchange.giver_of(turn.rules, sender, message)
    if index is not None and taken >> index & 1:
        return
    now_taken = taken | sum(1 << i for i in (awaited if index is None else [index]))
    exchange = replace(exchange, taken={**exchange.taken, part: now_taken})
    turn.set(exchange=exchange)
    if index is None:
        refused = {**exchange.refused, part: exchange.refused.get(part, 0) | now_taken & ~taken}
        turn.set(exchange=replace(exchange, refused=refused))
        _close_if_complete(turn)
        return
    giver = exchange.names[index]
    turn.emit(BufferPart(exchange.place, giver, part, message.payload, message.path))
    turn.emit(MeasurePart(exchange.place, giver, part, message.payload))


def on_measured(turn: Transition, event: PartMeasured) -> None:
    """A part that I reduce counts from now on, unless its contributor declared another norm for it."""
    exchange, part = turn.state.exchange, event.part
    if exchange is None or exchange.place != event.place:
        return
    index = exchange.index_of(event.giver)
    if index is None:
        return
    if part in exchange.again.received:
        as_declared = _is_as_declared(turn, exchange.members[index], part, event.square)
        reassignment.on_measured(turn, part, index, is_as_declared=as_declared)
        return
    if exchange.closed or part not in exchange.received:
        return
    is_here = event.giver == turn.me == exchange.holder_of(turn.rules, index, part)
    if not is_here and not exchange.taken.get(part, 0) >> index & 1:
        return  # measured for an exchange of this place that was left meanwhile
    part_at = exchange.part_at if event.giver == turn.me else {**exchange.part_at, event.giver: turn.now}
    exchange = replace(exchange, part_at=part_at)
    if _is_as_declared(turn, exchange.members[index], part, event.square):
        exchange = replace(exchange, received={**exchange.received, part: exchange.received[part] | 1 << index})
    else:
        exchange = replace(exchange, refused={**exchange.refused, part: exchange.refused.get(part, 0) | 1 << index})
    turn.set(exchange=exchange)
    _close_if_complete(turn)


def _is_as_declared(turn: Transition, header: ContributionHeader, part: int, square: float) -> bool:
    """Whether a part has the declared norm. A contribution that is not finite is declared as such, and weighs
    nothing."""
    said = norms.declared_square(header, part)
    if not 0.0 <= said < inf:
        return True
    if abs(square - said) <= said * DECLARED_WITHIN + SMALLEST:
        return True
    why = f"its part {part} has the norm {sqrt(max(0.0, square)):.4g}, and it declares {sqrt(said):.4g}"
    turn.refuse(header.peer, NORMS, why)
    return False


def replay_early(turn: Transition) -> None:
    """Handle what arrived before a Start or Reassign that is here now; keep what is still too early."""
    early = turn.state.early
    turn.set(early=())
    for sender, message in early:
        if isinstance(message, PartData):
            on_part(turn, sender, message)
        elif message.payload:
            on_mean(turn, sender, message)
        else:
            size = turn.rules.object_bytes(turn.state.head.round, message.part, message.contributors)
            on_delegates_mean(turn, sender, message.digest, size, message)


def _close_if_complete(turn: Transition) -> None:
    exchange = turn.state.exchange
    assert exchange is not None
    if exchange.closed:
        return
    wanted = givers(exchange.members) & ~timeouts.silent_bits(turn.state, exchange.names)
    if _has_come(exchange, wanted):
        _close(turn, exchange)


def _only_the_gone_are_missing(turn: Transition, exchange: MemberState) -> bool:
    gone = timeouts.gone_bits(turn.state, exchange.names, turn.now)
    wanted = givers(exchange.members) & ~gone & ~timeouts.silent_bits(turn.state, exchange.names)
    return bool(gone) and _has_come(exchange, wanted)


def _has_come(exchange: MemberState, wanted: int) -> bool:
    """Whether every part of these members (bits) is here, or was refused."""
    return all((bits | exchange.refused.get(part, 0)) & wanted == wanted for part, bits in exchange.received.items())


def _done_with_others_at(turn: Transition, exchange: MemberState) -> float:
    """When parts of newcomers, and of voters that were silent, are no longer waited for once those of all steady voters
    are here."""
    steady = timeouts.steady(turn.state)
    voters = [(index, header.peer) for index, header in enumerate(exchange.members) if header.peer in steady]
    wanted = givers(exchange.members) & sum(1 << index for index, _ in voters)
    if not _has_come(exchange, wanted):
        return inf
    came_at = [exchange.part_at[peer] for _, peer in voters if peer in exchange.part_at]
    hurried = sum(1 << index for index, peer in enumerate(exchange.names) if timeouts.is_hurried(turn.state, peer))
    is_all = _has_come(exchange, givers(exchange.members) & ~hurried)
    return timeouts.others_until(exchange.began_at, came_at, exchange.closes_at - exchange.began_at if is_all else inf)


def _close(turn: Transition, exchange: MemberState) -> None:
    """Accept no more parts: what is not here now is not in the mean."""
    turn.set(exchange=replace(exchange, closed=True))
    if exchange.received:
        _remember_who_gave(turn, exchange)
    turn.phase("reduce", exchange.place.ballot)
    for part, contributors in exchange.received.items():
        reassignment.reduce(turn, turn.state.exchange or exchange, part, contributors)


def _remember_who_gave(turn: Transition, exchange: MemberState) -> None:
    givers = {header.peer: index for index, header in enumerate(exchange.members) if header.root}
    came = {peer for peer, index in givers.items() if all(bits >> index & 1 for bits in exchange.received.values())}
    turn.set(silent=timeouts.silent_after(turn.state, givers, came, givers if turn.now >= exchange.closes_at else ()))


def remember_who_reduced(turn: Transition) -> None:
    """At the end of a round: whose means did not come to me in the whole time for them, whoever else reduced them."""
    exchange = turn.state.exchange
    if exchange is None:
        return
    means, others = exchange.means, set(exchange.reducers) - {turn.me}
    late = {owner for part, owner in enumerate(exchange.reducers) if part not in means or means[part].reducer != owner}
    until = exchange.began_at + timeouts.reduced_s(timeouts.at(turn.state, exchange.place.ballot))
    turn.set(silent=timeouts.silent_after(turn.state, others, others - late, others if turn.now >= until else ()))


# ---- reduce ----


def on_reduced(turn: Transition, event: PartReduced) -> None:
    exchange, round = turn.state.exchange, turn.state.ancestors.get(event.place.anchor)
    if round is None:
        return  # its branch was left meanwhile
    size = turn.rules.object_bytes(round, event.part, event.contributors)
    turn.set(held={**turn.state.held, event.digest: size}, afar=turn.state.afar - {event.digest})
    if exchange is None or exchange.place != event.place:
        return
    if event.attempt:
        reassignment.on_reduced(turn, event)
        return
    mean = MeanData(
        event.place, 0, event.part, turn.me, event.contributors, event.digest, b"", basis=exchange.basis
    )  # fmt: skip
    mean = mean.signed(turn.rules.keys)
    turn.set(exchange=replace(exchange, means={**exchange.means, event.part: mean}))
    others = tuple(peer for peer in exchange.holders_of(turn.rules, event.part) if peer != turn.me)
    if others:
        turn.emit(SendMean(others, mean))


def on_mean(turn: Transition, sender: str, message: MeanData) -> None:
    """Accept the first mean of a part, or the one of a repair that the coordinator asked for."""
    exchange, part = _awaiting(turn, sender, message), message.part
    if exchange is None:
        return
    size = turn.rules.object_bytes(turn.state.head.round, part, message.contributors)
    if len(message.payload) != size or digest_of(message.payload) != message.digest:
        return
    if not turn.rules.finite(message.payload[: turn.mean_bytes[part]]):
        _refuse_mean(turn, message)
        return
    _take_mean(turn, exchange, message)
    if message.digest not in turn.state.held or message.digest in turn.state.afar:
        turn.emit(StoreObject(message.digest, message.payload))


def _awaiting(turn: Transition, sender: str, message: MeanData) -> MemberState | None:
    """The exchange to which this mean belongs, if its reducer's signature is right; a mean that is too early is
    kept."""
    exchange, part = turn.state.exchange, message.part
    if exchange is None or exchange.place != message.place:
        reassignment.keep_early(turn, sender, message)
        return None
    if part >= len(exchange.reducers) or (part in exchange.means and exchange.means[part].attempt >= message.attempt):
        return None
    if message.attempt and part not in exchange.again.redo:
        reassignment.keep_early(turn, sender, message)
        return None
    reducer = exchange.again.redo[part] if message.attempt else exchange.reducers[part]
    if reducer != message.reducer or not message.genuine(turn.rules.keys) or not _agrees(exchange, message):
        return None
    return exchange


def _take_mean(turn: Transition, exchange: MemberState, message: MeanData) -> None:
    bare = replace(message, payload=b"")
    mean_at = {**exchange.mean_at, message.reducer: turn.now}
    turn.set(exchange=replace(exchange, means={**exchange.means, message.part: bare}, mean_at=mean_at))


def on_delegates_mean(turn: Transition, worker: str, digest: bytes, size: int, mean: MeanData) -> None:
    """A mean came to a home of mine, which has checked its bytes and holds them."""
    parts = turn.fragment.parts
    if mean.place.anchor != turn.state.head.anchor or mean.payload or mean.part >= len(parts) or mean.digest != digest:
        return
    if size != turn.rules.object_bytes(turn.state.head.round, mean.part, mean.contributors) or not keeps_for_me(
        turn, worker, parts[mean.part].layer
    ):
        return
    exchange = _awaiting(turn, worker, mean)
    if exchange is None:
        return
    _take_mean(turn, exchange, mean)
    if digest not in turn.state.held:
        turn.set(held={**turn.state.held, digest: size}, afar=turn.state.afar | {digest})
        turn.arrived(digest)


def keeps_for_me(turn: Transition, worker: str, layer: int) -> bool:
    """Whether it is the home of mine with this layer, now or in the present round."""
    exchange = turn.state.exchange
    index = exchange.index_of(turn.me) if exchange is not None else None
    then = exchange.members[index].delegates if exchange is not None and index is not None else ()
    return any(first <= layer <= last and peer == worker for first, last, peer in (*turn.state.delegates, *then))


def _refuse_mean(turn: Transition, mean: MeanData) -> None:
    """Refuse a mean that is not finite: an honest reducer leaves such contributions out. The part is reduced again."""
    if mean.reducer not in turn.state.seen_lying:
        layer = turn.fragment.parts[mean.part].layer
        soundness.catch(turn, mean.reducer, layer, f"its mean of part {mean.part} has numbers that are not finite")


def _agrees(exchange: MemberState, mean: MeanData) -> bool:
    """Whether the contributors of the mean are members that gave the part."""
    return mean.contributors != 0 and mean.contributors & ~givers(exchange.members) == 0


def on_want(turn: Transition, sender: str, message: GetMeans) -> None:
    exchange = turn.state.exchange
    if exchange is None or exchange.place != message.place or sender == turn.me:
        return
    if sender != turn.owner(message.place.ballot):
        return
    for part in dict.fromkeys(message.parts):
        mean = exchange.means.get(part)
        if mean is not None and mean.digest in turn.state.held:
            turn.emit(SendMean((sender,), mean))  # itself: a delegate of its own may be what it is missing them for
