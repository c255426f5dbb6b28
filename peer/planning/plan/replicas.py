"""A model that is cut into stages over several peers: what a stage sends, holds and computes, and what a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some consecutive blocks on one peer."""

    blocks: int
    micro_s: float
    """Forward and backward of one micro-batch."""


def cut_bytes(shape: ModelShape, sequences: int, context: int) -> float:
    """Activations of one micro-batch at a cut, in 16 bit; as much comes back as gradients (AMP, arXiv:2210.07297)."""
    return HALF_BYTES * sequences * context * shape.width


def pipeline_step_s(stages: Sequence[Stage], cut_s: Sequence[float], micro_batches: int) -> float:
    """AMP's T = Σ e + Σ c + (B − 1) · max e (arXiv:2210.07297): fill, then the slowest stage sets the pace.

    `cut_s` is of each cut, both ways of one micro-batch. A cut that is slower than every stage sets the pace instead,
    which AMP leaves out and DT-FM's overlapped streams do not (arXiv:2206.01288, section 2): ours takes the larger.
    """
    assert len(cut_s) == len(stages) - 1
    assert micro_batches >= 1
    slowest = max([stage.micro_s for stage in stages] + list(cut_s))
    return sum(stage.micro_s for stage in stages) + sum(cut_s) + (micro_batches - 1) * slowest
