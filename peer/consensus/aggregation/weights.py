"""Weights of one layer from its accepted norms: EDiT's penalty (arXiv:2412.07210, §3.3) or centered clipping.

    w ∝ share · exp(−max(1, G / usual G) / T) · min(1, limit / G)        G: norm over steps^⅝

The temperature T is relative to the usual norm, because exp(−G) alone is uniform for small models and winner-take-all
for large norms. The exponential is `decimal`'s, which is correctly rounded and so the same on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from math import isfinite, sqrt

from peer.consensus.aggregation import outliers
from peer.consensus.aggregation.evidence import (
    ANOMALY,
    CLIPPED,
    WEIGHT_ONE,
    WHOLE_MODEL,
    AggregationRules,
    Contributor,
    LayerFinding,
    LayerNorms,
)
from peer.consensus.aggregation.outliers import ENOUGH, ScreenedLayer, lower_median

_EXACTLY = Context(prec=25, traps=[])
_EXP_ONE = 1 << 32
_FARTHEST = 64.0
"""exp(−64) is nothing in units of `_EXP_ONE`."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: integers over 65,536, and what was found while weighing."""

    weights: tuple[int, ...]
    pull: int = 0
    faults: tuple[LayerFinding, ...] = ()


def weigh(
    standards: AggregationRules,
    index: int,
    screened: ScreenedLayer,
    shares: Sequence[int],
    agreement: Mapping[int, int],
) -> LayerWeights:
    """The weights of layer `index`. `agreement` are factors over 65,536 of members that count less in the whole model.

    All refused: zeros, which roll the layer back. Nothing measured of anybody: by shares.
    """
    members = screened.standing + screened.unmeasured
    if screened.refused_all or not members:
        return LayerWeights((0,) * len(shares))
    if standards.rule == "centered-clip" and screened.usual is not None:
        return _centered(standards, index, screened, shares)
    limit = _limit(standards, screened)
    softmax = _softmax(standards, screened)
    clips = {member: _clip(screened.sizes[member], limit) for member in members}
    factors = [0] * len(shares)
    for member in members:
        factors[member] = softmax[member] * int(WEIGHT_ONE * clips[member]) * agreement.get(member, WEIGHT_ONE)
    return LayerWeights(integer_weights(shares, factors), faults=_clipped(index, screened, clips, limit))


def _limit(standards: AggregationRules, screened: ScreenedLayer) -> float | None:
    """Largest norm over steps^⅝ of one contribution that counts in full."""
    by_histories, full = outliers.ceiling(screened.swarm, standards), screened.full
    if full is None or (by_histories is not None and screened.is_told_by_two):
        return by_histories
    return standards.clip * full


def _clip(size: float | None, limit: float | None) -> float:
    return 1.0 if size is None or limit is None or size <= limit else limit / size


TOLD = 0.5
"""A contribution of which the limit leaves less than this is told of as clipped."""


def _clipped(
    index: int, screened: ScreenedLayer, clips: Mapping[int, float], limit: float | None
) -> tuple[LayerFinding, ...]:
    return tuple(
        LayerFinding(
            member,
            CLIPPED,
            index,
            1 / clip if clip else float("inf"),
            clip,
            f"norm {screened.sizes[member]:.4g} where {limit:.4g} counts in full",
        )
        for member, clip in clips.items()
        if clip < TOLD
    )


FORGIVEN = 1.5
"""Times the usual norm that a member's own history excuses: whose text is unlike the others' has larger norms."""


def _softmax(standards: AggregationRules, screened: ScreenedLayer) -> dict[int, int]:
    """exp((least r − r) / T) over `_EXP_ONE`, where r is a norm over what is usual, at least 1; equal for all where
    nothing is.

    What is usual is the lower median of the group (of two the larger), or more for a member whose own history is
    larger. A member without a measurement counts as having the usual norm.
    """
    members, usual = screened.standing + screened.unmeasured, screened.full
    if usual is None:
        return dict.fromkeys(members, 1)
    telling = [member for member in screened.standing if member not in screened.newcomers]
    drift = outliers.drift(
        [screened.sizes[member] for member in telling], [screened.histories[member] for member in telling], standards
    )
    ratios = {}
    for member in members:
        size, history = screened.sizes[member], screened.histories[member]
        own = history.mean * drift if history.count >= standards.warmup_rounds else usual
        # Nobody gains by a smaller norm, or by more steps behind it than there were.
        ratios[member] = 1.0 if size is None else max(1.0, size / min(max(own, usual), FORGIVEN * usual))
    least = min(ratios.values())
    return {member: _exp((ratio - least) / standards.temperature) for member, ratio in ratios.items()}


def _exp(distance: float) -> int:
    """⌊exp(−distance) · `_EXP_ONE`⌋."""
    if distance > _FARTHEST:
        return 0
    return int(_EXACTLY.multiply(_EXACTLY.exp(Decimal(-distance)), Decimal(_EXP_ONE)))


# ---- centered clipping ----


def _centered(standards: AggregationRules, index: int, screened: ScreenedLayer, shares: Sequence[int]) -> LayerWeights:
    """Centered clipping (Karimireddy et al. 2021, arXiv:2012.10333, algorithm 2, one iteration) around the last mean v.

        mean = v + Σ wᵢ cᵢ (xᵢ − v) = Σ wᵢ cᵢ xᵢ + (1 − Σ wᵢ cᵢ) v,    cᵢ = min(1, τ / |xᵢ − v|),    τ = median |xᵢ − v|

    Half of the members are clipped a little in every round, so only those are told who are `clip` times too far.
    """
    distances = {member: _distance(screened, member) for member in screened.standing}
    radius = lower_median(list(distances.values()))
    clips = {
        member: 1.0 if distance <= radius or radius == 0 else radius / distance
        for member, distance in distances.items()
    }
    members = screened.standing + screened.unmeasured
    row = integer_weights([share if member in members else 0 for member, share in enumerate(shares)])
    weights = tuple(int(weight * clips.get(member, 1.0)) for member, weight in enumerate(row))
    faults = tuple(
        LayerFinding(
            member, CLIPPED, index, 1 / clip if clip else float("inf"), clip,
            f"{distances[member]:.4g} away from the last mean where {radius:.4g} counts in full",
        )
        for member, clip in clips.items() if clip * standards.clip < 1
    )  # fmt: skip
    return LayerWeights(weights, sum(row) - sum(weights), faults)


def _distance(screened: ScreenedLayer, member: int) -> float:
    """|x − v| from norms and inner product; |x| where there is no v."""
    norm, dot, direction = screened.layer.norms[member], screened.layer.dots[member], screened.layer.heading
    assert norm is not None, "who stands was measured"
    if dot is None or direction is None:
        return norm
    reach = norm * direction
    inner = min(max(dot, -reach), reach)  # a larger one is a lie
    return sqrt(max(0.0, norm * norm - 2 * inner + direction * direction))


# ---- the combination ----


def scale(standards: AggregationRules, screened: ScreenedLayer, weighed: LayerWeights) -> int:
    """What the layer's mean is multiplied by, so that its norm is at most what the histories allow.

    The norm is bounded from the members' norms by the triangle inequality, so no peer must see the whole mean.
    """
    limit = outliers.ceiling(screened.swarm, standards)
    members = [member for member, weight in enumerate(weighed.weights) if weight]
    if limit is None or not members:
        return WEIGHT_ONE
    total = weighed.pull * (screened.layer.heading or 0.0)
    for member in members:
        total += weighed.weights[member] * _norm(screened, member)
    bound = total / (sum(weighed.weights) + weighed.pull)
    limit *= lower_median([screened.powers_of_steps[member] for member in members])
    return WEIGHT_ONE if bound <= limit else int(WEIGHT_ONE * (limit / bound))


def _norm(screened: ScreenedLayer, member: int) -> float:
    """What was measured, else what is usual."""
    norm = screened.layer.norms[member]
    return norm if norm is not None else screened.swarm.mean * screened.powers_of_steps[member]


LEAST = 0.2
"""Share of the usual cosine below which a contribution is refused."""
FULL = 0.5
"""Share of the usual cosine from which on it counts in full: the spread of honest peers costs them nothing."""


def agreements(
    counted: Iterable[int], newcomers: Collection[int], layers: Sequence[LayerNorms]
) -> tuple[dict[int, int], tuple[LayerFinding, ...]]:
    """Factors over 65,536 of the members in `counted`, and who is refused.

    No factors while nothing usual can be told: without a last mean, with fewer than three members that can be compared,
    or where the median cosine is not positive. `newcomers` do not tell it.
    """
    cosines = _cosines(counted, layers)
    usual = _usual([cosine for member, cosine in cosines.items() if member not in newcomers])
    if len(cosines) < ENOUGH or usual is None:
        return {}, ()
    factors = {member: _factor(cosine / usual) for member, cosine in cosines.items()}
    faults = tuple(
        LayerFinding(
            member, ANOMALY, WHOLE_MODEL, float("inf"), 0.0,
            f"cosine {cosine:.3f} with the last mean where {usual:.3f} is usual",
        )
        for member, cosine in cosines.items() if factors[member] == 0
    )  # fmt: skip
    return factors, faults


LEAST_OF_NEWCOMERS = 0.05
"""Share of the voters' usual cosine below which a newcomer's contribution is refused: noise has none, work has. Of
fewer steps than theirs less is asked, by the root: most of what a few steps do is chance."""
TELLING = 0.3
"""A usual cosine from which on no honest newcomer is below that share. Late in a run steps are mostly chance: voters'
cosines come down to 0, and those of honest newcomers, of other data, lie on both sides of it."""
AGAINST = 0.1
"""There only a cosine is refused that is as far below 0 as the usual one is above it, or as this."""
CHANCE = 4.0
"""Standard deviations of the cosine of noise, which is 1/√elements: within so many a contribution is no work."""


def untrained(
    claims: Sequence[Contributor], voters: Collection[int], newcomers: Iterable[int], layers: Sequence[LayerNorms]
) -> tuple[LayerFinding, ...]:
    """Newcomers whose contributions are noise, or do not point where training leads as far as those of voters do."""
    usual = _usual(list(_cosines(voters, layers).values()))
    if usual is None:
        return ()
    steps = lower_median([claims[member].steps for member in sorted(voters)])
    return tuple(
        LayerFinding(
            member, ANOMALY, WHOLE_MODEL, float("inf"), 0.0,
            f"cosine {cosine:.3f} with the last mean where the voters have {usual:.3f}: untrained",
        )
        for member, cosine in _cosines(newcomers, layers).items()
        if abs(cosine) < CHANCE / sqrt(sum(layer.elements for layer in layers if _is_told(member, layer)))
        or cosine < _least_of_newcomers(usual, claims[member].steps / max(1, steps))
    )  # fmt: skip


def _least_of_newcomers(usual: float, share_of_steps: float) -> float:
    if usual < TELLING:
        return -max(usual, AGAINST)
    return LEAST_OF_NEWCOMERS * usual * min(1.0, sqrt(share_of_steps))


def _cosines(members: Iterable[int], layers: Sequence[LayerNorms]) -> dict[int, float]:
    return {member: cosine for member in sorted(members) if (cosine := _cosine(member, layers)) is not None}


def _usual(cosines: Sequence[float]) -> float | None:
    """Lower median of the positive ones; None where that of all is not positive."""
    if not cosines or lower_median(cosines) <= 0:
        return None
    return lower_median([cosine for cosine in cosines if cosine > 0])


def _factor(share_of_usual: float) -> int:
    if share_of_usual <= 0 or share_of_usual < LEAST:
        return 0
    return int(WEIGHT_ONE * min(1.0, share_of_usual / FULL))


def _cosine(member: int, layers: Sequence[LayerNorms]) -> float | None:
    """Over all layers of which a norm, an inner product and a last mean are known; None if that is nothing."""
    inner, square, direction_square = 0.0, 0.0, 0.0
    for layer in layers:
        norm, dot, direction = layer.norms[member], layer.dots[member], layer.heading
        if not _is_told(member, layer) or norm is None or dot is None or direction is None:
            continue
        inner += dot
        square += norm * norm
        direction_square += direction * direction
    reach = sqrt(square) * sqrt(direction_square)
    if not isfinite(inner) or not 0 < reach < float("inf"):
        return None
    return min(1.0, max(-1.0, inner / reach))


def _is_told(member: int, layer: LayerNorms) -> bool:
    """Whether this layer's norm, inner product and last mean are known."""
    norm, dot = layer.norms[member], layer.dots[member]
    return norm is not None and dot is not None and layer.heading is not None and isfinite(norm) and isfinite(dot)


def integer_weights(shares: Sequence[int], factors: Sequence[int] = ()) -> tuple[int, ...]:
    """⌊65,536 · share · factor / their sum⌋; the sum of the row is 65,536 at most.

    `factors` are what the judge leaves of each share, in any unit; without them all are equal. Whoever would count
    nothing only because its share is tiny gets 1, which the others give in proportion; whoever would because of its
    factor (less than half of the largest) gets 0.
    """
    factors = factors or (1,) * len(shares)
    products = [share * factor for share, factor in zip(shares, factors, strict=True)]
    total, most = sum(products), max(factors, default=0)
    among = sum(share for share, factor in zip(shares, factors, strict=True) if factor)
    least = WEIGHT_ONE - len(shares)  # what is left to share out if everybody is raised to 1
    raised = [
        product > 0 and product * least < total and share * least < among and 2 * factor >= most
        for product, share, factor in zip(products, shares, factors, strict=True)
    ]
    rest = WEIGHT_ONE - sum(raised)
    return tuple(
        1 if tiny else rest * product // total if product else 0 for tiny, product in zip(raised, products, strict=True)
    )
