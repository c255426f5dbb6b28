"""What was found against a contribution, put into one line per peer and code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from peer.aggregation.integer_rows import WEIGHT_ONE

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
