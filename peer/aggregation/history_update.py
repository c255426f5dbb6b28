"""What the run remembers after a round: norms that were accepted, refusals, and roots by which a replay is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peer.aggregation import outliers
from peer.aggregation.aggregation_rules import AggregationRules
from peer.aggregation.evidence import Contributor
from peer.aggregation.findings import NONFINITE, STALE, WHOLE_MODEL, LayerFinding
from peer.aggregation.outliers import ScreenedLayer
from peer.aggregation.peer_history import NOTHING, ROOT_BYTES, NormStats, PeerHistory

MAX_AGE = 64
"""Rounds after which a peer that gave nothing is forgotten."""
MAX_RECORDS = 128


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


def after(
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
    before = own_stats(records, claims, len(screened))
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
