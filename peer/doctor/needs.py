"""What a run needs of a machine, from its spec: memory of the device, main memory, disk."""

from __future__ import annotations

from dataclasses import dataclass

from dht.errors import BadInput
from peer.plan.model_shape import memory_of, shape_of
from peer.spec import RunSpec

PROCESS_BYTES = 800 << 20
"""Resident memory of a peer whose model is small: torch, transformers, hivemind and their tables, in both processes."""
SNAPSHOT_BYTES = 8
"""Per parameter: θ and m, float32. Two are kept, and a third is written before the oldest goes."""
CHECKPOINT_BYTES = 28
"""Per parameter, with AdamW: θ, m, balance, start, local parameters and two moments. Two are kept, one is written."""
KEPT = 2


@dataclass(frozen=True, kw_only=True)
class RunNeeds:
    """In bytes."""

    parameters: int
    device: int
    """On the training device with the spec's own micro-batch: an estimate, see
    `peer.plan.model_shape.MemoryFootprint`."""
    least_device: int
    """The same with one sequence at a time."""
    main: int
    """Resident beside the device; on a CPU `device` comes on top."""
    least_disk: int
    """Without which nothing can be written: snapshots and checkpoints."""
    disk: int
    """With the chain at its quota."""


def needs_of(spec: RunSpec, chain_bytes: int) -> RunNeeds:
    """Of a peer of this run that keeps so many bytes of updates. Raises BadSpec for a model that cannot be built."""
    parameters, training, activations, main = _memory(spec)
    least_disk = (KEPT + 1) * (SNAPSHOT_BYTES + CHECKPOINT_BYTES) * parameters
    return RunNeeds(
        parameters=parameters, device=round(training + activations),
        least_device=round(training + activations / spec.inner.sequences), main=round(PROCESS_BYTES + main),
        least_disk=least_disk, disk=least_disk + chain_bytes,
    )  # fmt: skip


def _memory(spec: RunSpec) -> tuple[int, float, float, float]:
    """(parameters, training, activations, main), by formula if the planner has one, else from the model itself."""
    try:
        shape = shape_of(spec)
    except BadInput:
        from peer.model.footprint import size_of

        counted = size_of(spec)
        main = counted.anchor_bytes + counted.encoded_bytes
        return counted.parameters, counted.training_bytes, counted.activation_bytes, main
    memory = memory_of(shape, spec)
    return shape.parameters, memory.training, memory.activations, memory.anchor + memory.encoded
