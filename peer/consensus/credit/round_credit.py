"""What a decided update tells people: weights, norms, tokens and penalties, from its bytes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from peer.consensus.credit.outcomes import outcomes
from peer.consensus.protocol.block import VOID, WEIGHT_ONE, Update
from peer.consensus.protocol.layout import Part
from peer.consensus.protocol.norms import declared_norm, row_for
from peer.schema.events import PenaltyImposed, RoundCommitted

NO_CAP = 1 << 63
"""On the tokens of a header that count."""


@dataclass(frozen=True, kw_only=True)
class LocalCosts:
    """What a round was for the peer that tells of it; it is not in the chain, so whoever looks on has none."""

    bytes_sent: int = 0
    bytes_received: int = 0
    round_s: float = 0.0
    exposed_s: float = 0.0


def summarize(
    update: Update, anchor: bytes, state: bytes, parts: Sequence[Part], *, fragments: int,
    tokens_cap: int, layers: Sequence[str] = (), cost: LocalCosts | None = None,
) -> tuple[RoundCommitted, list[PenaltyImposed]]:  # fmt: skip
    """What people hear of a decided round: the round, and the penalties that it imposed.

    `anchor` is the one it leads to, `state` the digest of its bits, empty where nobody tells it. `parts` are those that
    the round averages, of a model in so many fragments; of a header `tokens_cap` count at most.
    """
    cost = cost or LocalCosts()
    imposed, weights = penalties_of(update, layers), weights_of(update, parts)
    committed = RoundCommitted(
        round=update.round, digest=anchor.hex(), state=state.hex(), group=[header.peer for header in update.members],
        weights=weights, penalties=[asdict(penalty) for penalty in imposed], tokens=tokens_of(update, fragments),
        bytes_sent=cost.bytes_sent, bytes_received=cost.bytes_received, round_s=round(cost.round_s, 3),
        exposed_s=round(cost.exposed_s, 3), void=update.parts.count(VOID), norms=norms_of(update),
        given=tokens_counted(update, weights, tokens_cap, fragments), outcomes=outcomes_of(update, weights),
        uplinks={header.peer: header.bandwidth_bps for header in update.members if header.bandwidth_bps},
    )  # fmt: skip
    return committed, imposed


def penalties_of(update: Update, layers: Sequence[str] = ()) -> list[PenaltyImposed]:
    """What people are told about the penalties of a decided round; `layers` are the names of the model's layers."""
    return [
        PenaltyImposed(
            about=peer, code=code, layer=layer_name(layer, layers), evidence=evidence,
            factor=round(factor / WEIGHT_ONE, 4), until_round=until_round,
        )
        for peer, code, factor, until_round, layer, evidence in update.penalties
    ]  # fmt: skip


def outcomes_of(update: Update, weights: Mapping[str, int]) -> dict[str, str]:
    """What a decided round, in which members weighed this, counted for everybody that it speaks of."""
    gave = {header.peer for header in update.members if header.root}
    return outcomes([header.peer for header in update.members], weights, penalties_of(update), gave)


def tokens_of(update: Update, fragments: int) -> int:
    """Tokens of one round behind an update: a header counts those since the turn of its fragment before."""
    return sum(header.tokens for header in update.members) // fragments


def tokens_counted(update: Update, weights: Mapping[str, int], tokens_cap: int, fragments: int) -> dict[str, int]:
    """Tokens of one round that count for each member: those that it pledged, where anything of it weighs in `weights`.

    More than `tokens_cap` count for nobody, as in the weights; else as `tokens_of`.
    """
    return {
        header.peer: min(header.tokens, tokens_cap) // fragments if weights[header.peer] else 0
        for header in update.members
    }


def weights_of(update: Update, parts: Sequence[Part]) -> dict[str, int]:
    """What each member weighed in all that the round averages, over 65,536: its `parts` count by their elements.

    A part that came too late weighs nothing for whoever gave it, and nobody weighs more for that.
    """
    sums = [0] * len(update.members)
    rows = {layer: row for row, layer in enumerate(sorted({part.layer for part in parts}))}
    for part, contributors in zip(parts, update.contributors, strict=True):
        row = row_for(update.weights, rows[part.layer])
        for index, weight in enumerate(row):
            sums[index] += part.size * weight * (contributors >> index & 1)
    whole = sum(part.size for part in parts)
    return {header.peer: weighed // whole for header, weighed in zip(update.members, sums, strict=True)}


def norms_of(update: Update) -> dict[str, float]:
    """The L2 norm of each member's pseudo-gradient over all that the round averages, as it has declared it."""
    return {header.peer: declared_norm(header, len(update.parts)) for header in update.members if header.norms}


def layer_name(layer: int, layers: Sequence[str]) -> str:
    """What a layer is called; its number if that is not known, nothing for the whole model."""
    if layer < 0:
        return ""
    return layers[layer] if layer < len(layers) else str(layer)
