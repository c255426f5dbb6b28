"""How a run is trained on one device: found once by a dry run, remembered beside what it was measured on.

The run fixes how many sequences an inner step reads, and their order. How many of them are on the device at a time
(the micro-batch), and which attention kernel computes them, is the volunteer's: inner steps are private, so the last
bits of a step may differ between devices, as they do anyway. What peers agree on, the outer step, does not see it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dht.atomic_files import write_atomic

FILE = "fit.json"
VERSION = 1
MORE = 1.25
"""Where so many times the memory is free that was free then, a larger micro-batch may have room: it is tried again."""
SPARE = 0.9
"""Share of the free memory that is planned with: allocators leave gaps."""


@dataclass(frozen=True, kw_only=True)
class TuneKey:
    """What a fit was measured on. It holds for nothing else."""

    run: str
    """Hash of the spec."""
    device: str
    """As `settings.device` says it."""
    name: str
    """Of the hardware."""
    torch: str
    homefires: str


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a dry run found to be fastest of what has room."""

    basis: TuneKey
    sequences: int
    """Of a micro-batch."""
    attention: str = ""
    """As transformers calls it; empty: its own choice."""
    precision: str = "float32"
    """For people: the spec says which, or leaves it to the device."""
    step_s: float
    """Of a whole inner step, as many micro-batches as it takes."""
    tokens_per_s: float
    fixed_bytes: int = 0
    """At the peak, whatever the micro-batch; 0 where the device does not count (a CPU)."""
    sequence_bytes: int = 0
    """At the peak, for each sequence of the micro-batch."""
    free_bytes: int = 0
    """On the device when it was found, 0 where the device does not count: a game may have had the rest."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"v": VERSION, **asdict(self)}, allow_nan=False)


def from_json(text: str) -> Tuned | None:
    """The inverse of `Tuned.to_json`; None for anything else, which is then measured anew."""
    try:
        values: dict[str, Any] = json.loads(text)
        if values.pop("v") != VERSION:
            return None
        fit = Tuned(**{**values, "basis": TuneKey(**values["basis"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    counted = (fit.sequences, fit.fixed_bytes, fit.sequence_bytes, fit.free_bytes, fit.step_s, fit.tokens_per_s)
    return fit if all(isinstance(each, int | float) for each in counted) and fit.sequences >= 1 else None


def recall(directory: Path, basis: TuneKey, free_bytes: int = 0) -> Tuned | None:
    """What was found in this folder on the same device, with the same versions, for the same run.

    Not if much more memory is free now than was then; `free_bytes` is 0 where that is not known.
    """
    try:
        fit = from_json((directory / FILE).read_text())
    except (OSError, UnicodeDecodeError):
        return None
    if fit is None or fit.basis != basis:
        return None
    return None if fit.free_bytes and free_bytes > MORE * fit.free_bytes else fit


def remember(directory: Path, fit: Tuned) -> None:
    """Replaces what was there. Raises DiskFull."""
    write_atomic(directory / FILE, (fit.to_json() + "\n").encode())


def room_for(fit: Tuned, free_bytes: int) -> int:
    """Sequences of a micro-batch for which there is room, by halving what was found; at least 1.

    `free_bytes` counts what this process itself would give back.
    """
    sequences = fit.sequences
    if not fit.sequence_bytes:
        return sequences
    while sequences > 1 and fit.fixed_bytes + sequences * fit.sequence_bytes > SPARE * free_bytes:
        sequences = (sequences + 1) // 2
    return sequences
