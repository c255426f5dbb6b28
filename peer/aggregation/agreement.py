"""Who points where the run is going: weights by agreement with the last committed mean.

FOLB (Nguyen et al., arXiv:2007.13137, §IV) weighs a device by the inner product of its gradient with the global one.
Here the size of a contribution is judged by its norm, so its direction counts by the cosine with the last mean, over
the whole model. Where all agree alike this changes nothing. Data that is rare points elsewhere, too: the price of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, sqrt

from peer.aggregation.evidence import LayerNorms
from peer.aggregation.findings import ANOMALY, WHOLE_MODEL, LayerFinding
from peer.aggregation.integer_rows import WEIGHT_ONE
from peer.aggregation.z_test import ENOUGH, lower_median

LEAST = 0.2
"""Share of the usual cosine below which a contribution is refused."""
FULL = 0.5
"""Share of the usual cosine from which on it counts in full: the spread of honest peers costs them nothing."""


def agreements(counted: Iterable[int], layers: Sequence[LayerNorms]) -> tuple[dict[int, int], tuple[LayerFinding, ...]]:
    """Factors over 65,536 of the members in `counted`, and who is refused.

    No factors while nothing usual can be told: without a last mean, with fewer than three members that can be compared,
    or where the median cosine is not positive.
    """
    cosines = {member: cosine for member in counted if (cosine := _cosine(member, layers)) is not None}
    if len(cosines) < ENOUGH or lower_median(list(cosines.values())) <= 0:
        return {}, ()
    usual = lower_median([cosine for cosine in cosines.values() if cosine > 0])
    factors = {member: _factor(cosine / usual) for member, cosine in cosines.items()}
    faults = tuple(
        LayerFinding(
            member, ANOMALY, WHOLE_MODEL, float("inf"), 0.0,
            f"cosine {cosine:.3f} with the last mean where {usual:.3f} is usual",
        )
        for member, cosine in cosines.items() if factors[member] == 0
    )  # fmt: skip
    return factors, faults


def _factor(share_of_usual: float) -> int:
    if share_of_usual <= 0 or share_of_usual < LEAST:
        return 0
    return int(WEIGHT_ONE * min(1.0, share_of_usual / FULL))


def _cosine(member: int, layers: Sequence[LayerNorms]) -> float | None:
    """Over all layers of which a norm, an inner product and a last mean are known; None if that is nothing."""
    inner, square, direction_square = 0.0, 0.0, 0.0
    for layer in layers:
        norm, dot, direction = layer.norms[member], layer.dots[member], layer.heading
        if norm is None or dot is None or direction is None or not isfinite(norm) or not isfinite(dot):
            continue
        inner += dot
        square += norm * norm
        direction_square += direction * direction
    reach = sqrt(square) * sqrt(direction_square)
    if not isfinite(inner) or not 0 < reach < float("inf"):
        return None
    return min(1.0, max(-1.0, inner / reach))
