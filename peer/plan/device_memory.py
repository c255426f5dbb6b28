"""What a device must hold: of a whole model, of its share of a sharded one, or of some blocks of a pipeline."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from peer.plan.model_shape import MemoryFootprint, ModelShape, memory_of
from peer.plan.pipelined_replica import stage_layers
from peer.plan.sharded_replica import hierarchical, zero3
from peer.plan.strategy import Strategy, with_strategy
from peer.spec import RunSpec


def device_bytes(shape: ModelShape, spec: RunSpec, chosen: Strategy) -> float:
    """Of each device that holds a replica; of a pipeline that is cut evenly, what the fullest stage needs."""
    if chosen.stages > 1:
        even = -(-shape.blocks // chosen.stages)
        return max(stage_device_bytes(shape, spec, chosen, stage, even) for stage in (0, chosen.stages - 1))
    return _on_each(shape, memory_of(shape, with_strategy(spec, chosen)), chosen)


def stage_device_bytes(shape: ModelShape, spec: RunSpec, chosen: Strategy, stage: int, blocks: int) -> float:
    """Of each device of the peer that holds so many blocks as this stage of a pipeline.

    1F1B: behind a stage there are as many micro-batches at work as stages, itself included. The output head is with the
    last stage; if it is tied to the embedding, that stage holds a copy of it.
    """
    memory, stages = memory_of(shape, with_strategy(spec, chosen)), chosen.stages
    is_last = stage == stages - 1
    counts = [0] * stages
    counts[stage] = blocks
    if is_last:
        counts[0] = shape.blocks - blocks
    layers = stage_layers(shape, stage, counts)
    head = shape.vocabulary * shape.width
    copied = head if is_last and shape.before and layers[-1] != head else 0
    at_work = min(chosen.accumulation, stages - stage)
    activations = at_work * blocks / shape.blocks * (memory.activations - memory.logits)
    held = replace(
        memory, training=memory.training * (sum(layers) + copied) / shape.parameters,
        activations=activations + (memory.logits if is_last else 0.0),
    )  # fmt: skip
    return _on_each(replace(shape, layers=layers), held, chosen)


def most_blocks(shape: ModelShape, spec: RunSpec, chosen: Strategy, stage: int, room_bytes: float) -> int:
    """How many blocks a peer whose devices have so much memory can hold as this stage; 0 if none."""
    return bisect_right(
        range(1, shape.blocks + 1), room_bytes,
        key=lambda blocks: stage_device_bytes(shape, spec, chosen, stage, blocks),
    )  # fmt: skip


def _on_each(shape: ModelShape, memory: MemoryFootprint, chosen: Strategy) -> float:
    if chosen.shards == 1:
        return memory.device
    if chosen.inner_shards == 1:
        return zero3(shape, memory, chosen.shards, chosen.accumulation).device_bytes
    return hierarchical(shape, memory, chosen.shards, chosen.inner_shards, chosen.accumulation).device_bytes
