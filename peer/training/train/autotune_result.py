"""The result of a dry run on a peer's devices, and the micro-batch that fits there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from peer.schema.peak_memory import Rung

VERSION = 1

SPARE = 0.9
"""Share of the free memory that is planned with: allocators leave gaps."""


@dataclass(frozen=True, kw_only=True)
class TuneKey:
    """What a dry run was made on. Its result is valid for nothing else."""

    run: str
    """Hash of the spec."""
    device: str
    """As `settings.devices` says it; several with spaces between them."""
    name: str
    """Of the hardware."""
    torch: str
    homefires: str
    sharding: str = "auto"
    """How its owner lets several devices share the model, see `peer.schema.settings`; likewise `offload` and
    `compile`."""
    offload: bool = False
    compile: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The fastest configuration that fits, found by a dry run."""

    basis: TuneKey
    sequences: int
    """Sequences of a micro-batch, on all devices together."""
    attention: str = ""
    """As transformers calls it; empty: its own choice."""
    precision: str = "float32"
    """For people: the spec says which, or leaves it to the device."""
    step_s: float
    """Seconds of a whole inner step with all its micro-batches."""
    tokens_per_s: float
    fixed_bytes: int = 0
    """At the peak, whatever the micro-batch; 0 where the device does not count (a CPU)."""
    sequence_bytes: int = 0
    """At the peak, for each sequence of the micro-batch."""
    free_bytes: int = 0
    """Free on the device at the time; 0 if the device does not count. Another program may have had the rest."""
    sharding: str = ""
    """How ranks share the model, as `peer.planning.plan.sharding_strategy` says it; empty: one device holds all of
    it."""
    group: int = 0
    offloads: bool = False
    speeds: tuple[float, ...] = ()
    """Of the ranks, relative; empty: alike."""
    most: tuple[int, ...] = ()
    """Sequences of a micro-batch that fit on each rank; empty: unknown."""
    recomputes: bool = False
    """Whether the backward pass computes blocks again, whose inside found no memory."""
    compiled: bool = False
    """Whether blocks are compiled: then every micro-batch has as many rows."""
    eight_bits: bool = False
    """Whether AdamW's moments take a byte each, where nothing else had room; it learns a little differently."""
    half_gradients: bool = False
    """And their gradients two, where that had no room either."""

    @property
    def rung(self) -> Rung:
        return Rung(
            compiled=self.compiled, recomputes=self.recomputes, eight_bits=self.eight_bits,
            half_gradients=self.half_gradients,
        )  # fmt: skip

    def to_json(self) -> str:
        return json.dumps({"v": VERSION, **asdict(self)}, allow_nan=False)


def from_json(text: str) -> Tuned | None:
    """The inverse of `Tuned.to_json`; None for any other text, and then a dry run is made again."""
    try:
        values: dict[str, Any] = json.loads(text)
        if values.pop("v") != VERSION:
            return None
        by_rank = {name: tuple(values.get(name, ())) for name in ("speeds", "most")}
        fit = Tuned(**{**values, **by_rank, "basis": TuneKey(**values["basis"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    counted = (
        fit.sequences, fit.fixed_bytes, fit.sequence_bytes, fit.free_bytes, fit.step_s, fit.tokens_per_s, fit.group,
        *fit.speeds, *fit.most,
    )  # fmt: skip
    return fit if all(isinstance(each, int | float) for each in counted) and fit.sequences >= 1 else None


def room_for(fit: Tuned, free_bytes: int) -> int:
    """Sequences of a micro-batch that fit, found by halving; at least 1. `free_bytes` includes what this process
    itself would free."""
    sequences = fit.sequences
    if not fit.sequence_bytes:
        return sequences
    while sequences > 1 and fit.fixed_bytes + sequences * fit.sequence_bytes > SPARE * free_bytes:
        sequences = (sequences + 1) // 2
    return sequences
