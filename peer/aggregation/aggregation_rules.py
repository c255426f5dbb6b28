"""What a run holds a contribution to: `[judge]` of the spec."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AggregationRules:
    """Fields, defaults and ranges are those of `peer.spec.AggregationTable`, which explains each."""

    reducer: str = "edit"
    warmup_rounds: int = 10
    alpha: float = 0.1
    threshold: float = 3.0
    deviation_floor: float = 0.5
    temperature: float = 4.0
    floor: float = 0.1
    clip: float = 3.0
    rejections: int = 3
    cooldown_rounds: int = 8


MEAN_ONLY = AggregationRules(reducer="mean")
"""By tokens alone."""
