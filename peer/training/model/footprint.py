"""The size of a run's model, and the memory that a peer needs for it."""

from __future__ import annotations

from peer.planning.plan.model_shape import MemoryFootprint, memory_of, shape_of
from peer.planning.plan.run_needs import memory_words, needs_of, traffic_words
from peer.schema.byte_text import format_bytes
from peer.schema.peak_memory import PLAIN, Rung
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec


def size_of(
    spec: RunSpec, sequences: int = 0, *, bfloat16: bool | None = None, rung: Rung = PLAIN
) -> MemoryFootprint:  # fmt: skip
    """By formula, as `memory_of`: no model is built. Raises BadSpec."""
    return memory_of(shape_of(spec), spec, sequences, bfloat16=bfloat16, rung=rung)


def describe(spec: RunSpec) -> str:
    """One paragraph on the run's model, for people. Raises BadSpec."""
    size, needs = size_of(spec), needs_of(spec, PeerSettings().chain_bytes)
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    frozen = f", {format_bytes(size.frozen_bytes)} for the model beside them" if size.frozen_bytes else ""
    optimizer = "AdamW" if spec.inner.optimizer == "adamw" else "Muon"
    of_what = f"{spec.model.architecture} with {_short(size.parameters)} parameters"
    if spec.start is not None:
        of_what = f"{_short(size.parameters)} parameters {'beside' if spec.adapter else 'of'} {spec.start.model}"
    return (
        f"{spec.run.name}: {of_what}, context {spec.model.context}, {spec.model.tokenizer} tokens. A peer needs about "
        f"{memory_words(needs)}: on the device {format_bytes(size.training_bytes)} for parameters, gradients and "
        f"{optimizer}{frozen}, and {format_bytes(size.activation_bytes)} for activations. An inner step reads "
        f"{tokens:,} tokens; a round is {spec.round.steps} inner steps, after which {traffic_words(needs)}."
    )


def _short(count: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return str(count)
