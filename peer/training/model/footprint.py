"""The size of a run's model, and the memory that a peer needs for it."""

from __future__ import annotations

from peer.planning.plan.model_shape import MemoryFootprint, memory_of, shape_of
from peer.schema.spec import RunSpec


def size_of(spec: RunSpec) -> MemoryFootprint:
    """By formula: no model is built. Raises BadSpec."""
    return memory_of(shape_of(spec), spec)


def describe(spec: RunSpec) -> str:
    """One paragraph on the run's model, for people. Raises BadSpec."""
    size = size_of(spec)
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    frozen = f"{_bytes(size.frozen_bytes)} for the model beside them, " if size.frozen_bytes else ""
    optimizer = "AdamW" if spec.inner.optimizer == "adamw" else "Muon"
    of_what = f"{spec.model.architecture} with {_short(size.parameters)} parameters"
    if spec.start is not None:
        of_what = f"{_short(size.parameters)} parameters {'beside' if spec.adapter else 'of'} {spec.start.model}"
    return (
        f"{spec.run.name}: {of_what}, context "
        f"{spec.model.context}, {spec.model.tokenizer} tokens. A peer needs about {_bytes(size.total_bytes)}: "
        f"{_bytes(size.training_bytes)} for parameters, gradients and {optimizer}, {frozen}"
        f"{_bytes(size.activation_bytes)} for activations, {_bytes(size.anchor_bytes)} for anchor and "
        f"residual, {_bytes(size.encoded_bytes)} for encoded "
        f"parts. An inner step reads {tokens:,} tokens; a round is {spec.round.steps} inner steps, after which each "
        f"peer sends about {_bytes(size.encoded_bytes // 3)} twice over."
    )


def _short(count: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return str(count)


def _bytes(count: int) -> str:
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count} B"
