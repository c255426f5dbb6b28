"""Homes that hold a model together: what each needs, sends and computes, how fast they are, and why some models are for
no cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peer.planning.placement.block_shares import (
    FLIGHTS_PER_STAGE,
    FLYING_BYTES,
    RECOMPUTED,
    WIRE_BYTES,
    BlockLayout,
    Dealing,
    StageHome,
    deal_blocks,
    stage_room_bytes,
)
from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.model_shape import ModelShape, memory_of, peak_of, stage_bytes
from peer.planning.plan.peer_set import HOME_FLOPS
from peer.schema.settings import MOST_STAGES
from peer.schema.spec import RunSpec

HALF_BYTES = 2
COPIED_BYTES = 10
"""The bytes per parameter of a copy that others train: values and gradients, and a quarter more."""
ONE_WAY_S = 0.02
"""The assumed time from one home to another."""
UNCUT = frozenset({"gpt2", "opt"})
"""Architectures that add positions to what enters, so every stage would."""


@dataclass(frozen=True, kw_only=True)
class ClusterForecast:
    """The forecast for several homes that train one copy of a model, one stage each."""

    homes: int
    tokens_per_s: float


def layout_of(shape: ModelShape, spec: RunSpec) -> BlockLayout:
    """What the dealing of blocks needs to know of a model: for each layer also what micro-batches of one sequence take
    there (`peer.schema.peak_memory`), since a stage computes all of its blocks again on the way back. In an adapter's
    model, the first layer and the last hold the frozen matrices that lie outside of the blocks.

    Besides, a stage keeps the values that flights brought and took with them, encoded: in a cluster of eight homes
    about as much as one block's inside.
    """
    blocks = tuple(range(shape.before, shape.before + shape.blocks))
    matrix, needs = shape.vocabulary * shape.width, peak_of(shape, spec, 1, bfloat16=None)
    inside = needs.blocks / shape.blocks
    taken = [
        needs.copies * size / shape.parameters + inside * (number in blocks) for number, size in enumerate(shape.layers)
    ]
    taken[-1] += needs.logits
    each_stage = inside + shape.unpacked_bytes
    if shape.frozen_bytes:
        per_block = (shape.frozen_matrix_parameters - matrix) / shape.blocks
        of_matrix = float(shape.frozen_matrix_bytes)
        frozen = (shape.frozen_bytes - of_matrix * (1 if shape.is_tied else 2)) / shape.blocks
        return BlockLayout(
            sizes=shape.layers, blocks=blocks, width=shape.width, each_stage_bytes=each_stage,
            beside_bytes=_at_ends([frozen + more for more in taken], of_matrix, of_matrix),
            multiplied=_at_ends([per_block] * shape.blocks, 0, matrix),
        )  # fmt: skip
    if not shape.is_tied:
        return BlockLayout(
            sizes=shape.layers, blocks=blocks, width=shape.width, beside_bytes=tuple(taken),
            each_stage_bytes=each_stage,
        )  # fmt: skip
    work = BlockLayout(sizes=shape.layers, blocks=blocks, width=shape.width).work
    return BlockLayout(
        sizes=shape.layers, blocks=blocks, width=shape.width, tied=matrix, each_stage_bytes=each_stage,
        beside_bytes=_at_ends(taken, 0, COPIED_BYTES * matrix), multiplied=_at_ends(work, 0, matrix),
    )  # fmt: skip


def _at_ends(values: Sequence[float], first: float, last: float) -> tuple[float, ...]:
    """The values with so much added to the first and to the last."""
    return (values[0] + first, *values[1:-1], values[-1] + last) if len(values) > 1 else (values[0] + first + last,)


def room_of_stage(shape: ModelShape, spec: RunSpec, stages: int) -> float:
    """The bytes that a device needs for one of `stages` stages of whole blocks; for one stage, the whole model with one
    sequence at a time."""
    if stages == 1:
        return memory_of(shape, spec, sequences=1).device_bytes
    return stage_room_bytes(layout_of(shape, spec), stages)


def fewest_stages(shape: ModelShape, spec: RunSpec, rooms_bytes: Sequence[float], least: int = 1) -> int | None:
    """The smallest number of stages, from `least` on, for which as many of these devices each have room; None if there
    is none. A cluster has at most MOST_STAGES."""
    for stages in range(least, min(shape.blocks, len(rooms_bytes), MOST_STAGES) + 1):
        needed = room_of_stage(shape, spec, stages)
        if sum(room >= needed for room in rooms_bytes) >= stages:
            return stages
    return None


def smallest_cluster(shape: ModelShape, spec: RunSpec, room_bytes: float, upload_bps: float) -> ClusterForecast | None:
    """The forecast for the smallest cluster of homes alike that can hold the model, with `room_bytes` on the device of
    each; it forms by the dealing of its lead. None if there is none."""
    if room_bytes <= 0 or no_cluster(spec):
        return None
    homes = fewest_stages(shape, spec, [room_bytes] * shape.blocks, least=2)
    if homes is None:
        return None
    speed = HOME_FLOPS / shape.flops_per_token(spec.model.context)
    alike = StageHome(tokens_per_s=speed, room_bytes=room_bytes, upload_bps=upload_bps)
    found = cluster_of(shape, spec, [alike] * homes)
    assert found is not None, "they were counted so that they have room"
    return found


OneWay = Callable[[int, int], float]
"""The seconds from one home of a sequence to another."""


def _one_way_s(one: int, other: int) -> float:
    return ONE_WAY_S


def cluster_of(
    shape: ModelShape, spec: RunSpec, homes: Sequence[StageHome], one_way_s: OneWay = _one_way_s
) -> ClusterForecast | None:
    """The forecast for a cluster of all these homes, the first of which leads; None if the model does not fit."""
    dealt = deal_blocks(layout_of(shape, spec), homes, len(homes))
    return None if dealt is None else forecast_of(shape, spec, homes, dealt, one_way_s)


def forecast_of(
    shape: ModelShape, spec: RunSpec, homes: Sequence[StageHome], dealt: Dealing, one_way_s: OneWay = _one_way_s
) -> ClusterForecast:
    """The forecast for a cluster of homes, the first of which leads, with layers as dealt."""
    layout = layout_of(shape, spec)
    lead, last = homes[0], homes[dealt.order[-1]]
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    exchange_s = _passing_s(HALF_BYTES * layout.tied, lead) + _passing_s(WIRE_BYTES * layout.tied, last)
    if len(dealt.order) == 1:
        return ClusterForecast(homes=1, tokens_per_s=dealt.tokens_per_s)
    step_s = flights_s(layout, spec, dealt, homes, one_way_s) + exchange_s
    return ClusterForecast(homes=len(dealt.order), tokens_per_s=tokens / step_s)


def flights_s(
    layout: BlockLayout, spec: RunSpec, dealt: Dealing, homes: Sequence[StageHome], one_way_s: OneWay = _one_way_s
) -> float:
    """The seconds in which all flights of a step go through two stages or more, and back.

    A step is synchronous, so the pipeline fills and drains in each: T = Σ e + Σ c + (B − 1) · slowest (AMP,
    arXiv:2210.07297), where lines overlap with computing. The slowest is a stage, a line, or what the flights that are
    under way at a time leave of a round trip.
    """
    stages, whole = len(dealt.order), spec.inner.sequences * spec.inner.accumulation
    sequences = min(spec.inner.sequences, -(-whole // (FLIGHTS_PER_STAGE * stages)))
    flights, tokens = -(-whole // sequences), sequences * spec.model.context
    flight_bytes = tokens * layout.width * WIRE_BYTES
    computing_s = _computing_s(layout, tokens, dealt, homes)
    to_one_s = [_passing_s(flight_bytes, homes[home]) for home in dealt.order]
    passing_s = [to_one_s[0], *(2 * each_s for each_s in to_one_s[1:-1]), to_one_s[-1]]
    around_s = sum(computing_s) + sum(passing_s) + 2 * sum(one_way_s(*pair) for pair in pairwise(dealt.order))
    at_once = FLIGHTS_PER_STAGE * stages + (stages - 1) * FLYING_BYTES // flight_bytes
    return around_s + (flights - 1) * max(*computing_s, *passing_s, around_s / at_once)


def _computing_s(
    layout: BlockLayout, tokens: int, dealt: Dealing, homes: Sequence[StageHome]
) -> list[float]:  # fmt: skip
    """The seconds of each stage for a flight of so many tokens. The last one computes its forward pass once."""
    known = [home.tokens_per_s for home in homes if home.tokens_per_s]
    usual, bounds = sum(known) / len(known) if known else math.inf, (*dealt.starts, len(layout.sizes))
    shares = [sum(layout.work[first:end]) / sum(layout.work) for first, end in pairwise(bounds)]
    alone_s = [
        tokens * share / (homes[home].tokens_per_s or usual) for home, share in zip(dealt.order, shares, strict=True)
    ]
    return [*(RECOMPUTED * each_s for each_s in alone_s[:-1]), alone_s[-1]]


def _passing_s(count_bytes: float, home: StageHome) -> float:
    """The seconds for which the line of a home carries so many bytes."""
    return 8 * count_bytes / home.upload_bps if home.upload_bps else 0.0


def no_cluster(spec: RunSpec) -> str:
    """Why no cluster can train this run, as far as its spec tells; empty if one can."""
    if spec.model.architecture not in UNCUT:
        return ""
    return f"models of the architecture {spec.model.architecture} cannot be cut into stages; whole peers train this run"


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
