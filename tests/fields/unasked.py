"""What is not said in an undisturbed round, said all the same: as it would be if there were a reason for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peer.consensus.protocol.encoding import Keys, digest_of, pack
from peer.consensus.protocol.messages import (
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    MeanConflict,
    MeanData,
    Message,
    Nack,
    NormDispute,
    NormTable,
    ObjectData,
    Promise,
    Reassign,
    ShowInputs,
    VoteCast,
)
from peer.consensus.rounds.state import State

OBJECT = b"an object that nobody has asked for"


@dataclass(frozen=True, slots=True)
class Unasked:
    """What is made beside a message of which kind."""

    beside: type[Message]
    make: Callable[[State, Keys, Any], Message | None]


def _nack(state: State, keys: Keys, said: Promise) -> Nack:
    return Nack(said.place, said.place.ballot + 1)


def _get_means(state: State, keys: Keys, said: NormTable) -> GetMeans:
    return GetMeans(said.place, (0, 1))


def _reassign(state: State, keys: Keys, said: NormTable) -> Reassign | None:
    """Part 0 by somebody who has not reduced it."""
    exchange = state.exchange
    if exchange is None:
        return None
    return Reassign(said.place, ((0, next(name for name in exchange.names if name != exchange.reducers[0])),))


def _show_inputs(state: State, keys: Keys, said: NormTable) -> ShowInputs:
    return ShowInputs(said.place, 0)


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


def _mean_conflict(state: State, keys: Keys, said: VoteCast) -> MeanConflict | None:
    """About a mean of its own, which is what the others have."""
    exchange = state.exchange
    own: list[MeanData] = [] if exchange is None else [
        mean for mean in exchange.means.values() if mean.reducer == state.rules.me
    ]  # fmt: skip
    return MeanConflict(said.place, own[0]) if own else None


def _norm_dispute(state: State, keys: Keys, said: VoteCast) -> NormDispute | None:
    """About the first row of somebody else, which is right."""
    measured = () if state.exchange is None else state.exchange.measured
    others = [item for item in measured if item.reducer != state.rules.me and item.rows]
    return NormDispute(said.place, others[0], others[0].rows[0].layer) if others else None


UNASKED: dict[type[Message], Unasked] = {
    Nack: Unasked(Promise, _nack),
    GetMeans: Unasked(NormTable, _get_means),
    Reassign: Unasked(NormTable, _reassign),
    ShowInputs: Unasked(NormTable, _show_inputs),
    GetObjects: Unasked(VoteCast, _get_objects),
    ObjectData: Unasked(VoteCast, _object_data),
    GetBlocks: Unasked(VoteCast, _get_blocks),
    Blocks: Unasked(VoteCast, _blocks),
    EquivocationProof: Unasked(VoteCast, _equivocation),
    MeanConflict: Unasked(VoteCast, _mean_conflict),
    NormDispute: Unasked(VoteCast, _norm_dispute),
}
"""By kind. The others are said in every round."""
