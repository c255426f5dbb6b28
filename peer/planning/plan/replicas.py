"""A model that is cut into stages over several peers: what a stage sends, holds and computes."""

from __future__ import annotations

from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.cluster_cost import room_of_stage
from peer.planning.plan.model_shape import ModelShape, stage_bytes
from peer.schema.spec import RunSpec

HALF_BYTES = 2


def work_of(shape: ModelShape, spec: RunSpec, stages: int, fastest_s: float) -> StageWorkload:
    """What a stage of this model sends, needs and computes; `fastest_s` is the duration of an inner step on the
    fastest peer alone."""
    whole = spec.inner.accumulation * cut_bytes(shape, spec.inner.sequences, spec.model.context)
    return StageWorkload(
        stages=stages, stage_bytes=stage_bytes(shape, spec, stages), cut_bytes=whole,
        sync_steps=spec.round.steps, stage_memory_bytes=room_of_stage(shape, spec, stages),
        compute_s=fastest_s / stages, micro_batches=spec.inner.accumulation,
    )  # fmt: skip


def cut_bytes(shape: ModelShape, sequences: int, context: int) -> float:
    """The bytes of the activations of one micro-batch at a cut, in 16 bit; the same amount comes back as gradients
    (AMP, arXiv:2210.07297)."""
    return HALF_BYTES * sequences * context * shape.width
