"""What is not said in an undisturbed round, said all the same: as it would be if there were a reason for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peer.consensus.protocol.block import Restart, Roster, Stuck
from peer.consensus.protocol.encoding import Keys, digest_of, pack
from peer.consensus.protocol.messages import (
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    Message,
    Nack,
    ObjectData,
    Objection,
    Promise,
    Reassign,
    Restarted,
    RosterSaid,
    RowDispute,
    Start,
    StuckSaid,
    VoteCast,
)
from peer.consensus.rounds.soundness import means_of
from peer.consensus.rounds.state import State

OBJECT = b"an object that nobody has asked for"


@dataclass(frozen=True, slots=True)
class Unasked:
    """What is made beside a message of which kind."""

    beside: type[Message]
    make: Callable[[State, Keys, Any], Message | None]


def _nack(state: State, keys: Keys, said: Promise) -> Nack:
    return Nack(said.place, said.place.ballot + 1)


def _get_means(state: State, keys: Keys, said: Start) -> GetMeans:
    return GetMeans(said.place, (0, 1))


def _reassign(state: State, keys: Keys, said: Start) -> Reassign | None:
    """Part 0 by somebody who has not reduced it."""
    exchange = state.exchange
    if exchange is None:
        return None
    return Reassign(said.place, ((0, next(name for name in exchange.names if name != exchange.reducers[0])),))


def _get_objects(state: State, keys: Keys, said: VoteCast) -> GetObjects:
    return GetObjects(tuple(sorted(state.held)) or (said.vote.update,))


def _object_data(state: State, keys: Keys, said: VoteCast) -> ObjectData:
    return ObjectData(digest_of(OBJECT), OBJECT)


def _get_blocks(state: State, keys: Keys, said: VoteCast) -> GetBlocks:
    return GetBlocks((state.head.anchor, *(step.before.anchor for step in reversed(state.trail))))


def _blocks(state: State, keys: Keys, said: VoteCast) -> Blocks:
    return Blocks(tuple(step.block for step in state.trail))


def _equivocation(state: State, keys: Keys, said: VoteCast) -> EquivocationProof:
    """Of the update that it votes for, and of one that nobody has proposed."""
    other = digest_of(b"another")
    signature = keys.sign("propose", pack((said.place.packed(), other)))
    return EquivocationProof(said.place, (said.vote.update, said.vote.proposal_signature), (other, signature))


def _means(state: State, said: VoteCast) -> list[tuple[bytes, int, int]]:
    """(digest, part, contributors) of what it votes about."""
    known = state.proposals.get(said.vote.update)
    return [] if known is None else [mean[:3] for mean in means_of(known.update, known.basis)]


def _row_dispute(state: State, keys: Keys, said: VoteCast) -> RowDispute | None:
    """About a mean in which its row is right, with bytes that it has not pledged."""
    means = _means(state, said)
    if not means:
        return None
    digest, part, bits = means[0]
    return RowDispute(said.place, part, digest, bits, (), bytes(8))


def _objection(state: State, keys: Keys, said: VoteCast) -> Objection | None:
    """Nothing is wrong, and no proof follows."""
    means = _means(state, said)
    return Objection(said.place, means[0][1], means[0][0], means[0][2]) if means else None


def _stuck(state: State, keys: Keys, said: VoteCast) -> StuckSaid:
    head, mine = state.head, state.acceptor
    plain = Stuck(state.rules.me, head.anchor, head.electorate, head.number + 1, mine.accepted, mine.certificate)
    return StuckSaid(plain.signed(keys))


def _restarted(state: State, keys: Keys, said: VoteCast) -> Restarted:
    """In the organiser's place."""
    stuck = _stuck(state, keys, said).stuck
    return Restarted(Restart(stuck.anchor, stuck.number, (stuck,), forced=True).signed(keys))


def _roster_said(state: State, keys: Keys, said: VoteCast) -> RosterSaid:
    """Likewise: nobody is known but itself."""
    me = state.rules.me
    others = tuple(peer for peer in state.electorate if peer != me)
    return RosterSaid(Roster(state.roster.number + 1, (me,), others).signed(keys))


UNASKED: dict[type[Message], Unasked] = {
    Nack: Unasked(Promise, _nack),
    GetMeans: Unasked(Start, _get_means),
    Reassign: Unasked(Start, _reassign),
    GetObjects: Unasked(VoteCast, _get_objects),
    ObjectData: Unasked(VoteCast, _object_data),
    GetBlocks: Unasked(VoteCast, _get_blocks),
    Blocks: Unasked(VoteCast, _blocks),
    EquivocationProof: Unasked(VoteCast, _equivocation),
    RowDispute: Unasked(VoteCast, _row_dispute),
    Objection: Unasked(VoteCast, _objection),
    StuckSaid: Unasked(VoteCast, _stuck),
    Restarted: Unasked(VoteCast, _restarted),
    RosterSaid: Unasked(VoteCast, _roster_said),
}
"""By kind. The others are said in every round."""
