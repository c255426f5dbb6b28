"""Homes that hold a model together: what each needs, sends and computes, how fast they are, and why some models are for
no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.planning.placement.block_shares import BlockLayout, StageHome, deal_blocks, stage_room_bytes
from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.model_shape import ModelShape, memory_of, stage_bytes
from peer.planning.plan.peer_set import HOME_FLOPS
from peer.schema.settings import MOST_STAGES
from peer.schema.spec import RunSpec

HALF_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class ClusterForecast:
    """The forecast for several homes that train one copy of a model, one stage each."""

    homes: int
    tokens_per_s: float


def layout_of(shape: ModelShape) -> BlockLayout:
    blocks = tuple(range(shape.before, shape.before + shape.blocks))
    return BlockLayout(sizes=shape.layers, blocks=blocks, width=shape.width)


def room_of_stage(shape: ModelShape, spec: RunSpec, stages: int) -> float:
    """The bytes that a device needs for one of `stages` stages of whole blocks; for one stage, the whole model with one
    sequence at a time."""
    if stages == 1:
        return memory_of(shape, spec, sequences=1).device_bytes
    return stage_room_bytes(layout_of(shape), stages)


def fewest_stages(shape: ModelShape, spec: RunSpec, rooms_bytes: Sequence[float], least: int = 1) -> int | None:
    """The smallest number of stages, from `least` on, for which as many of these devices each have room; None if there
    is none. A cluster has at most MOST_STAGES."""
    for stages in range(least, min(shape.blocks, len(rooms_bytes), MOST_STAGES) + 1):
        needed = room_of_stage(shape, spec, stages)
        if sum(room >= needed for room in rooms_bytes) >= stages:
            return stages
    return None


def smallest_cluster(
    shape: ModelShape, spec: RunSpec, room_bytes: float, upload_bps: float, *, flops: float = HOME_FLOPS
) -> ClusterForecast | None:
    """The forecast for the smallest cluster of homes alike that can hold the model, with `room_bytes` on the device of
    each; it forms by the dealing of its lead. None if there is none."""
    if room_bytes <= 0 or no_cluster(shape, spec):
        return None
    homes = fewest_stages(shape, spec, [room_bytes] * shape.blocks, least=2)
    if homes is None:
        return None
    speed = flops / shape.flops_per_token(spec.model.context)
    found = cluster_of(
        shape, [StageHome(tokens_per_s=speed, room_bytes=room_bytes, upload_bps=upload_bps)] * homes
    )  # fmt: skip
    assert found is not None, "they were counted so that they have room"
    return found


def cluster_of(shape: ModelShape, homes: Sequence[StageHome]) -> ClusterForecast | None:
    """The forecast for a cluster of all these homes, the first of which leads; None if the model does not fit."""
    dealt = deal_blocks(layout_of(shape), homes, len(homes))
    return None if dealt is None else ClusterForecast(homes=len(homes), tokens_per_s=dealt.tokens_per_s)


def no_cluster(shape: ModelShape, spec: RunSpec) -> str:
    """Why no cluster can train this run, as far as its spec tells; empty if one can."""
    if spec.adapter is not None:
        return "a run with [adapter] is trained by whole peers, and by no cluster"
    after = shape.layers[shape.before + shape.blocks :]
    if not after or shape.vocabulary * shape.width in after:  # only its size is known, or it has a head of its own
        return ""
    shared = "this model's first and last layer share their weights, which two homes cannot"
    if spec.start is not None:
        return f"{shared}; the model from which this run starts is so, and no setting changes it: whole peers train it"
    return f"{shared}; a run whose spec says model.config.tie_word_embeddings = false can be trained by a cluster"


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
