"""What a planner may choose: how a round is made. Everything else of a spec stays as its organiser wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from peer.consensus.codec.codec import Codec
from peer.planning.plan.model_shape import ModelShape
from peer.schema.spec import RunSpec

DILOCO_STEPS = 500
"""The H that DiLoCo chose among 50 to 2,000 (arXiv:2311.08105)."""
SLACK = 3.0
"""A deadline of the spec is at least this many times the predicted time; the waits that a run learns are shorter."""


Overlap = Literal["none", "layerwise", "streaming"]
Pace = Literal["steps", "speed", "time"]
Wire = Literal["float32", "float16", "int8", "int4", "sparse"]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to make rounds."""

    steps: int
    """Inner steps per round (H)."""
    overlap: Overlap = "none"
    fragments: int = 1
    wire: Wire = "int4"
    sequences: int = 8
    """The number of sequences per micro-batch."""
    accumulation: int = 1
    """The number of micro-batches per inner step."""
    pace: Pace = "steps"

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for strategies that differ only in codec and micro-batches."""
        return self.steps, self.overlap, self.fragments, self.pace

    @property
    def micro(self) -> tuple[int, int]:
        """How a batch is divided; a device's memory depends on nothing else, not on H, overlap, fragments or codec."""
        return self.sequences, self.accumulation

    def words(self) -> str:
        """H 250 by speed · streaming · int4 · …"""
        by = "" if self.pace == "steps" else f" by {self.pace}"
        parts = [f"H {self.steps}{by}", self.overlap, self.wire, f"{self.accumulation} × {self.sequences} sequences"]
        parts += [f"{self.fragments} fragments"] if self.fragments > 1 else []
        return " · ".join(parts)


def strategy_of(spec: RunSpec) -> Strategy:
    return Strategy(
        steps=spec.round.steps, overlap=spec.round.overlap, fragments=spec.round.fragments, wire=spec.codec.wire,
        sequences=spec.inner.sequences, accumulation=spec.inner.accumulation, pace=spec.round.pace,
    )  # fmt: skip


def with_strategy(spec: RunSpec, chosen: Strategy) -> RunSpec:
    """The spec with the chosen strategy, and with the values that must follow from it. Deadlines stay."""
    keep = max(spec.round.keep_rounds, chosen.fragments + 1 if chosen.fragments > 1 else 1)
    inner = replace(spec.inner, sequences=chosen.sequences, accumulation=chosen.accumulation)
    table = replace(
        spec.round, steps=chosen.steps, overlap=chosen.overlap, fragments=chosen.fragments, pace=chosen.pace,
        keep_rounds=keep, snapshot_rounds=max(spec.round.snapshot_rounds, keep),
    )  # fmt: skip
    return replace(spec, inner=inner, round=table, codec=replace(spec.codec, wire=chosen.wire))


def with_deadlines(spec: RunSpec, *, exchange_s: float, ready_spread_s: float) -> RunSpec:
    """The spec with its longest waits raised to at least `SLACK` times what a plan predicts.

    `exchange_s` is the longer of the two exchanges; `ready_spread_s` is how much later than the first the last peer is
    ready. No wait becomes shorter. `max_train_s` stays, since a plan keeps to it.
    """
    table = spec.round
    table = replace(
        table, exchange_s=max(table.exchange_s, float(math.ceil(SLACK * exchange_s))),
        gather_s=max(table.gather_s, float(math.ceil(SLACK * ready_spread_s))),
    )  # fmt: skip
    return replace(spec, round=table)


@cache
def bytes_per_parameter(wire: str) -> float:
    """Bytes on the wire for one copy of a parameter, averaged over both directions."""
    codec, elements = Codec(wire), 1 << 20
    return (codec.part_bytes(elements) + codec.of_means.part_bytes(elements)) / 2 / elements


# ---- what it is worth ----

PERPLEXITY_PER_20H = 1.029
"""H = 1,000 instead of 50 raises the perplexity by 2.9 % (arXiv:2311.08105, figure 4)."""
FINEST_STEPS = 50
"""A smaller H gained nothing there."""
PERPLEXITY_DELAYED = 1.005
"""Ten steps of delay raise the loss by less than 0.2 % (arXiv:2501.18512, figures 8 and 9), which is half a percent
of the perplexity at a loss of 2.6 nats. Ours is one number for any delay: a longer delay was not measured."""

TWICE_THE_BYTES = 1.005
"""The gain in tokens per second for which twice the bytes of int4 are worth it. A preference of ours."""

GB_PRICE = 0.001
"""The share of the tokens per second that a gigabyte a day costs, sent and received by each peer. A terabyte a
month, which many lines allow, costs 3 %. A preference of ours."""

Quality = Callable[[Strategy, float], float]
"""Called with a strategy and the inner steps that its fastest peer makes per round: H, or more while a round is
overdue."""


def quality(chosen: Strategy, steps: float) -> float:
    """What a token is worth, relative to those of the same peers at H = 50 without overlap: the inverse ratio of the
    perplexities.

    All codecs lose the same: four bits lost nothing, neither there (figure 11) nor here
    (`tests/benchmarks/results/quality.md`), but volunteers pay for bytes. A percent of perplexity counts as a percent
    of tokens per second. All this is a preference, not a law.
    """
    twice = max(0.0, math.log2(bytes_per_parameter(chosen.wire) / bytes_per_parameter("int4")))
    apart = max(1.0, steps * chosen.fragments / FINEST_STEPS)
    ratio: float = PERPLEXITY_PER_20H ** (math.log(apart) / math.log(20))
    delayed = PERPLEXITY_DELAYED if chosen.overlap == "streaming" else 1.0
    bytes_ratio: float = TWICE_THE_BYTES**twice
    return 1.0 / (ratio * delayed * bytes_ratio)


def fits_layers(shape: ModelShape, chosen: Strategy) -> bool:
    """Whether there are at least as many layers as fragments."""
    return chosen.fragments <= len(shape.layers)
