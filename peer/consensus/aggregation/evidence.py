"""The inputs and outputs of an aggregation: its rules, who gave how much, the measurements, and the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

LARGEST = 1e18
"""Norms above it are refused like infinite ones: their squares have no float32."""
SMALLEST = 1e-30
"""Norms below it are taken for zero."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """One member of a round."""

    peer: str
    share: int
    """Tokens times discounts; 0 counts nothing."""
    steps: int
    """Inner steps behind the contribution, at least 1, already capped: a norm is held against steps^⅝."""
    root: bytes
    """Merkle root of the encoded parts; empty if it gave nothing."""


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """One layer of the model, by members in the order of the claims. Any figure may be NaN or infinite."""

    norms: tuple[float | None, ...]
    """L2 norm of the decoded layer as it came; None where nothing was measured."""
    dots: tuple[float | None, ...]
    """Inner product with the last committed mean of this layer."""
    direction: float | None
    """L2 norm of that mean; None if there is none yet."""
    elements: int
    """Of the layer."""

    @property
    def heading(self) -> float | None:
        """`direction`, if it is a norm that a model can have."""
        return self.direction if self.direction is not None and 0 <= self.direction <= LARGEST else None


@dataclass(frozen=True, kw_only=True)
class AggregationRules:
    """Fields, defaults and ranges are those of `peer.schema.spec_fields.AggregationTable`, which explains each."""

    rule: str = "edit"
    weigh: str = "read"
    warmup_rounds: int = 10
    alpha: float = 0.6
    threshold: float = 3.0
    deviation_floor: float = 0.15
    temperature: float = 1.4
    floor: float = 0.1
    clip: float = 3.0
    rejections: int = 3
    cooldown_rounds: int = 8


MEAN_ONLY = AggregationRules(rule="mean")
"""By tokens alone."""

WEIGHT_ONE = 65_536

ANOMALY, CLIPPED, NONFINITE, STALE = "ANOMALY", "CLIPPED", "NONFINITE", "STALE"

WHOLE_MODEL = -1


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """What was found against one contribution."""

    peer: str
    code: str
    """ANOMALY, CLIPPED, NONFINITE, or STALE for a replay."""
    layer: int
    """The worst one; -1 for the whole model."""
    factor: int
    """What this leaves of the contribution's weight, over 65,536: the mean over all layers, large or small."""
    evidence: str
    """One line of at most 120 printable ASCII characters."""


@dataclass(frozen=True, slots=True)
class LayerFinding:
    """What was found in one layer."""

    member: int
    code: str
    layer: int
    """-1 for the whole model."""
    severity: float
    """How many times over the limit: the largest is the worst."""
    left: float
    """Share of the layer's weight that is left, 0 to 1."""
    text: str
    outlier: bool = False
    """Whether it fell to z."""


def findings_of(faults: Iterable[LayerFinding], names: Sequence[str], layers: int) -> tuple[Finding, ...]:
    """Sorted, one per peer and code: the worst layer, and in how many layers that was so."""
    ordered = sorted(faults, key=lambda fault: (names[fault.member], fault.code, fault.layer))
    groups = groupby(ordered, key=lambda fault: (names[fault.member], fault.code))
    return tuple(_finding(peer, code, list(group), layers) for (peer, code), group in groups)


def _finding(peer: str, code: str, faults: list[LayerFinding], layers: int) -> Finding:
    if faults[0].layer == WHOLE_MODEL:
        return Finding(peer, code, WHOLE_MODEL, int(WEIGHT_ONE * faults[0].left), faults[0].text)
    lost = 0.0
    for fault in faults:
        lost += 1.0 - fault.left
    worst = max(faults, key=lambda fault: (fault.severity, -fault.layer))
    evidence = f"{worst.text}, in {len(faults)} of {layers} layers"
    return Finding(peer, code, worst.layer, int(WEIGHT_ONE * (layers - lost) / layers), evidence)
