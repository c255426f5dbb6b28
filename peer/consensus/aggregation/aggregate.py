"""Aggregation of a round: from measurements of each contribution to the weights of the means.

Every peer that has the same records and norms computes the same integers. So the result stands in the update, and
every voter checks it.

    replays → each norm by itself (screening) → direction → weights per layer (weighing) → bound of the mean → records
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from peer.consensus.aggregation import outliers
from peer.consensus.aggregation.evidence import (
    NONFINITE,
    STALE,
    WHOLE_MODEL,
    AggregationRules,
    Contributor,
    Finding,
    LayerFinding,
    LayerNorms,
    findings_of,
)
from peer.consensus.aggregation.outliers import ScreenedLayer, screen, swarm_history
from peer.consensus.aggregation.peer_history import MAX_ROOTS, NOTHING, ROOT_BYTES, NormStats, PeerHistory
from peer.consensus.aggregation.weights import agreements, scale, untrained, weigh

FRESH = 2
"""Rounds for which a peer's norms tell what is usual for it. Norms fall and rise with the learning rate, so whoever was
away for longer begins from the swarm's."""
MAX_AGE = 64
"""Rounds after which a peer that gave nothing is forgotten."""
MAX_RECORDS = 128


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


def aggregate(
    standards: AggregationRules,
    round: int,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    layers: Sequence[LayerNorms],
    roots: int = MAX_ROOTS,
    trusted: Collection[str] = (),
) -> AggregationResult:
    """What becomes of what the members of `round` gave, by the records of the round before. Norms may be any float.

    Of each member the newest `roots` contributions are remembered, to know a replay. What is usual in the swarm is
    told by the records of who is `trusted`, or by all if there are none.
    """
    if standards.rule == "mean":
        return _judged(_lenient(standards), round, (), claims, layers, roots, trusted)
    return _judged(standards, round, records, claims, layers, roots, trusted)


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
    trusted: Collection[str],
) -> AggregationResult:
    again = replays(records, claims)
    replayed = {fault.member for fault in again}
    counted = frozenset(
        member for member, claim in enumerate(claims) if claim.root and claim.share and member not in replayed
    )
    newcomers = _newcomers(claims, counted, trusted)
    fresh = [record for record in records if round - record.seen <= FRESH]
    telling: Sequence[PeerHistory] = [record for record in fresh if record.peer in trusted]
    if len(telling) < outliers.ENOUGH:  # of two one may lie, and old norms tell more than such a one
        telling = [record for record in records if record.peer in trusted] or fresh or records
    screened = _screen(standards, fresh, claims, layers, counted, newcomers, telling)
    elsewhere = frozenset(fault.member for item in screened for fault in item.faults if fault.outlier)
    jumped = outliers.jumps(standards, screened)
    if elsewhere or jumped:
        screened = _screen(standards, fresh, claims, layers, counted, newcomers, telling, elsewhere, jumped)
    factors, strangers = _directions(standards, claims, layers, counted, newcomers)
    refused = {fault.member for fault in strangers}
    left = [item.without(refused) for item in screened]
    shares = [claim.share for claim in claims]
    weighed = [weigh(standards, index, item, shares, factors) for index, item in enumerate(left)]
    faults: list[LayerFinding] = [*again, *strangers]
    for item, weights in zip(screened, weighed, strict=True):
        faults += item.faults + weights.faults
    return AggregationResult(
        weights=tuple(item.weights for item in weighed),
        scales=tuple(scale(standards, item, weights) for item, weights in zip(left, weighed, strict=True)),
        pulls=tuple(item.pull for item in weighed),
        findings=findings_of(faults, [claim.peer for claim in claims], len(layers)),
        records=()
        if standards.rule == "mean"
        else histories_after(standards, round, records, claims, screened, refused, roots),
    )


def _newcomers(claims: Sequence[Contributor], counted: frozenset[int], trusted: Collection[str]) -> frozenset[int]:
    """Who has not earned a vote. What is usual is told by those who have, as long as one of them gives something."""
    found = frozenset(member for member in counted if claims[member].peer not in trusted)
    return found if len(found) < len(counted) else frozenset()


def _directions(
    standards: AggregationRules, claims: Sequence[Contributor], layers: Sequence[LayerNorms],
    counted: frozenset[int], newcomers: frozenset[int],
) -> tuple[dict[int, int], tuple[LayerFinding, ...]]:  # fmt: skip
    """Factors of members whose direction counts against them, and whom it excludes: of a newcomer it is looked at by
    any rule but `mean`, since it is the one thing that takes training."""
    factors, strangers = agreements(counted, newcomers, layers) if standards.rule == "agreement" else ({}, ())
    if standards.rule == "mean":
        return factors, strangers
    refused = {fault.member for fault in strangers}
    return factors, strangers + untrained(claims, counted - newcomers, newcomers - refused, layers)


def _screen(
    standards: AggregationRules,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    layers: Sequence[LayerNorms],
    counted: frozenset[int],
    newcomers: frozenset[int],
    telling: Sequence[PeerHistory],
    elsewhere: frozenset[int] = frozenset(),
    jumped: frozenset[int] = frozenset(),
) -> list[ScreenedLayer]:
    own = own_stats(records, claims, len(layers))
    return [
        screen(
            standards, index, layer, claims, counted, [stats[index] for stats in own],
            swarm_history((record.stats[index] for record in telling), standards), elsewhere, newcomers, jumped,
        )
        for index, layer in enumerate(layers)
    ]  # fmt: skip


def replays(records: Sequence[PeerHistory], claims: Sequence[Contributor]) -> tuple[LayerFinding, ...]:
    """Who gives bytes again that somebody gave in an earlier round."""
    known = {root for record in records for root in _roots(record.roots)}
    return tuple(
        LayerFinding(member, STALE, WHOLE_MODEL, float("inf"), 0.0, "the same bytes as in an earlier round")
        for member, claim in enumerate(claims)
        if claim.root and claim.share and claim.root[:ROOT_BYTES] in known
    )


def own_stats(
    records: Sequence[PeerHistory], claims: Sequence[Contributor], layers: int
) -> list[tuple[NormStats, ...]]:
    """Of each member by layers; nothing for whoever is new."""
    known = {record.peer: record.stats for record in records}
    return [known.get(claim.peer, (NOTHING,) * layers) for claim in claims]


def histories_after(
    standards: AggregationRules,
    round: int,
    records: Sequence[PeerHistory],
    claims: Sequence[Contributor],
    screened: Sequence[ScreenedLayer],
    refused: Collection[int],
    roots: int,
) -> tuple[PeerHistory, ...]:
    """The records after `round`. `refused` are members that were refused for their direction, whatever their norms.

    A root is remembered as soon as something of its bytes was measured: before that they may honestly come again.
    """
    kept = {record.peer: record for record in records if round - record.seen <= MAX_AGE}
    before = own_stats([record for record in records if round - record.seen <= FRESH], claims, len(screened))
    for member, claim in enumerate(claims):
        if not claim.root or all(item.layer.norms[member] is None for item in screened):
            continue
        stats = tuple(
            stat if member in refused else _stat_after(standards, member, stat, layer)
            for stat, layer in zip(before[member], screened, strict=True)
        )
        known = kept[claim.peer].roots if claim.peer in kept else b""
        kept[claim.peer] = PeerHistory(claim.peer, round, stats, _with_root(known, claim.root, roots))
    newest = sorted(kept.values(), key=lambda record: (-record.seen, record.peer))[:MAX_RECORDS]
    return tuple(sorted(newest, key=lambda record: record.peer))


def _stat_after(standards: AggregationRules, member: int, own: NormStats, screened: ScreenedLayer) -> NormStats:
    """A free rider's norm changes nothing: it neither is usual nor makes anything else unusual."""
    size, history = screened.sizes[member], screened.histories[member]
    if size is None:
        return own
    if member in screened.standing:
        return outliers.accepted(outliers.drifted(history, screened.drift), size, standards.alpha).rounded()
    faults = [fault for fault in screened.faults if fault.member == member]
    if any(fault.code == NONFINITE or fault.outlier for fault in faults):
        return outliers.refused(history, size, standards).rounded()
    return own


def _with_root(roots: bytes, root: bytes, most: int) -> bytes:
    """`root` first, and no longer where it was; `most` in all."""
    newest = root[:ROOT_BYTES]
    return b"".join([newest, *(old for old in _roots(roots) if old != newest)][:most])


def _roots(blob: bytes) -> list[bytes]:
    return [blob[start : start + ROOT_BYTES] for start in range(0, len(blob), ROOT_BYTES)]
