"""Judging a round: from what was measured of each contribution to the weights of the means (the protocol, §5, step 6).

Nothing here is a matter of opinion: every peer that has the same records, claims and norms computes the same integers,
so the judgement stands in the update and is checked by every voter.

    replays → norms one by one (screening) → direction → weights per layer (weighing) → bound of the mean → memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from peer.aggregation import history_update
from peer.aggregation import weights as weighing
from peer.aggregation.aggregation_rules import AggregationRules
from peer.aggregation.evidence import Contributor, LayerNorms
from peer.aggregation.findings import Finding, LayerFinding, findings_of
from peer.aggregation.outliers import ScreenedLayer, screen, swarm_history
from peer.aggregation.peer_history import MAX_ROOTS, PeerHistory
from peer.aggregation.weights import agreements

__all__ = ["AggregationResult", "Finding", "judge"]


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """The decision on a round. All integers are over 65,536."""

    weights: tuple[tuple[int, ...], ...]
    """One row per layer, in the order of the claims; a row of zeros rolls the layer back."""
    scales: tuple[int, ...]
    """Per layer: the combined mean is multiplied by it."""
    pulls: tuple[int, ...]
    """Per layer: the weight of the last committed mean in the mean (centered clip)."""
    findings: tuple[Finding, ...]
    """Sorted; at most one per peer and code."""
    records: tuple[PeerHistory, ...]
    """After this round, sorted by peer; none for `mean`."""


def judge(
    standards: AggregationRules,
    round: int,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    layers: Sequence[LayerNorms],
    roots: int = MAX_ROOTS,
) -> AggregationResult:
    """Judges what the members of `round` gave, by the records of the round before. Norms may be any float.

    Of each member the newest `roots` contributions are remembered, to know a replay.
    """
    if standards.reducer == "mean":
        return replace(_judged(_lenient(standards), round, (), claims, layers, roots), records=())
    return _judged(standards, round, records, claims, layers, roots)


def _lenient(standards: AggregationRules) -> AggregationRules:
    """By shares, whatever the norms: only what is no number is refused."""
    return replace(standards, floor=0.0, clip=inf, temperature=inf)


def _judged(
    standards: AggregationRules,
    round: int,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    layers: Sequence[LayerNorms],
    roots: int,
) -> AggregationResult:
    replays = history_update.replays(records, claims)
    replayed = {fault.member for fault in replays}
    counted = frozenset(
        member for member, claim in enumerate(claims) if claim.root and claim.share and member not in replayed
    )
    screened = _screen(standards, records, claims, layers, counted)
    suspects = frozenset(fault.member for item in screened for fault in item.faults if fault.outlier)
    if suspects:
        screened = _screen(standards, records, claims, layers, counted, suspects)
    factors, strangers = agreements(sorted(counted), layers) if standards.reducer == "agreement" else ({}, ())
    refused = {fault.member for fault in strangers}
    left = [item.without(refused) for item in screened]
    shares = [claim.share for claim in claims]
    weighed = [weighing.weigh(standards, index, item, shares, factors) for index, item in enumerate(left)]
    faults: list[LayerFinding] = [*replays, *strangers]
    for item, weights in zip(screened, weighed, strict=True):
        faults += item.faults + weights.faults
    return AggregationResult(
        weights=tuple(item.weights for item in weighed),
        scales=tuple(weighing.scale(standards, item, weights) for item, weights in zip(left, weighed, strict=True)),
        pulls=tuple(item.pull for item in weighed),
        findings=findings_of(faults, [claim.peer for claim in claims], len(layers)),
        records=history_update.after(standards, round, records, claims, screened, refused, roots),
    )


def _screen(
    standards: AggregationRules,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    layers: Sequence[LayerNorms],
    counted: frozenset[int],
    suspects: frozenset[int] = frozenset(),
) -> list[ScreenedLayer]:
    own = history_update.own_stats(records, claims, len(layers))
    return [
        screen(
            standards, index, layer, claims, counted, [stats[index] for stats in own],
            swarm_history((record.stats[index] for record in records), standards), suspects,
        )
        for index, layer in enumerate(layers)
    ]  # fmt: skip
