"""A model that is cut into stages over several peers: what a stage sends, holds and computes."""

from __future__ import annotations

from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.model_shape import ModelShape, memory_of, stage_bytes
from peer.schema.spec import RunSpec

HALF_BYTES = 2


def work_of(shape: ModelShape, spec: RunSpec, stages: int, fastest_s: float) -> StageWorkload:
    """What a stage of this model sends, holds and computes; `fastest_s` is an inner step of the fastest peer alone."""
    whole = spec.inner.accumulation * cut_bytes(shape, spec.inner.sequences, spec.model.context)
    return StageWorkload(
        stages=stages, stage_bytes=stage_bytes(shape, spec, stages), cut_bytes=whole,
        sync_steps=spec.round.steps, stage_memory_bytes=memory_of(shape, spec).device_bytes / stages,
        compute_s=fastest_s / stages, micro_batches=spec.inner.accumulation,
    )  # fmt: skip


def cut_bytes(shape: ModelShape, sequences: int, context: int) -> float:
    """Activations of one micro-batch at a cut, in 16 bit; as much comes back as gradients (AMP, arXiv:2210.07297)."""
    return HALF_BYTES * sequences * context * shape.width
