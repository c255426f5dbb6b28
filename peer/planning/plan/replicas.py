"""Replicas that are not one peer: models that are cut into stages over several.

Each is turned into a peer of the simple kind, with the steps and lines that it comes to, so that one formula of a round
serves all. Such a replica is a cluster, which its peers form themselves: these are for whoever asks whether it pays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from peer.planning.placement.layout_search import Effort
from peer.planning.placement.pairwise_network import Matrix, Network
from peer.planning.placement.place import place
from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.coefficients import Coefficients
from peer.planning.plan.model_shape import ModelShape, memory_of, stage_bytes
from peer.planning.plan.peer_set import Machine, PeerSet
from peer.planning.plan.round_cost import step_seconds
from peer.planning.plan.strategy import Strategy, with_strategy
from peer.schema.spec import RunSpec

EFFORT = Effort(evaluations=4_000, patience=20, shaken=0)
"""Less than `homefires place` takes: a plan places once for each number of stages. Of 48 peers in eight regions such
layouts cost at most 0.1 % more than with five times as many evaluations."""

HALF_BYTES = 2

Pipelines = tuple[tuple[int, ...], ...]
"""M pipelines of K peers, stage by stage; peers count from 0 as in the swarm."""
Rooms = Sequence[Sequence[int]]
"""How many blocks each of them has memory for."""


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """What a strategy makes of some peers."""

    shape: ModelShape
    """What one peer averages."""
    swarm: PeerSet
    """The replicas, each as one peer."""
    pipelines: Pipelines = ()
    """Which peers each of them spans; empty if none spans any."""
    blocks: tuple[tuple[int, ...], ...] = ()
    """How many each of these peers holds."""


# ---- pipelines ----


def work_of(shape: ModelShape, spec: RunSpec, stages: int, fastest_s: float) -> StageWorkload:
    """What a stage of this model sends, holds and computes; `fastest_s` is an inner step of the fastest peer alone."""
    whole = spec.inner.accumulation * cut_bytes(shape, spec.inner.sequences, spec.model.context)
    return StageWorkload(
        stages=stages, stage_bytes=stage_bytes(shape, spec, stages), cut_bytes=whole,
        sync_steps=spec.round.steps, stage_memory_bytes=memory_of(shape, spec).device / stages,
        compute_s=fastest_s / stages, micro_batches=spec.inner.accumulation,
    )  # fmt: skip


def pipelines_of(shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients, stages: int) -> Pipelines:
    """Who makes a pipeline with whom, in which order, by the lines between them and their speeds (`placement.place`).

    All peers take part: `stages` divides their number. Memory is no matter here: a stage is cut to what a peer holds.
    """
    step_s = [step_seconds(shape, spec, machine, given, swarm) for machine in swarm.machines]
    work = work_of(shape, spec, stages, min(step_s))
    speeds = [min(step_s) / each for each in step_s]
    return place(swarm.network.both_ways(), work, speeds=speeds, effort=EFFORT).pipelines


def dealt(room_bytes: Sequence[float], stages: int) -> Pipelines:
    """Peers dealt out by memory, there and back, so that pipelines of so many hold about as much each.

    The largest of a pipeline is its first stage, which holds the most micro-batches, and the embedding.
    """
    order = sorted(range(len(room_bytes)), key=lambda peer: (-room_bytes[peer], peer))
    count = len(order) // stages
    rows = [order[stage * count : (stage + 1) * count][:: -1 if stage % 2 else 1] for stage in range(stages)]
    return tuple(zip(*rows, strict=True))


def rooms_of(
    shape: ModelShape, spec: RunSpec, chosen: Strategy, pipelines: Pipelines, room_bytes: Sequence[float]
) -> Rooms:  # fmt: skip
    """How many blocks each peer of each pipeline can hold; `room_bytes` is what the devices of each peer have."""
    known: dict[tuple[int, float], int] = {}
    for peers in pipelines:
        for stage, peer in enumerate(peers):
            room = (stage, room_bytes[peer])
            if room not in known:
                known[room] = max_layers(shape, spec, chosen, *room)
    return [[known[stage, room_bytes[peer]] for stage, peer in enumerate(peers)] for peers in pipelines]


def all_fit(shape: ModelShape, rooms: Rooms) -> bool:
    return all(have_room(shape, each) for each in rooms)


def as_replicas(
    shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients, pipelines: Pipelines,
    rooms: Rooms,
) -> Replicas:  # fmt: skip
    """Each pipeline as one peer, its blocks shared out by speed as far as memory allows.

    A stage is averaged with the same stage of the others, over the slowest line of each replica; what one peer averages
    is the stage of the most layers. Raises ValueError where a pipeline has no room.
    """
    cuts = [_cut(shape, spec, swarm, given, *each) for each in zip(pipelines, rooms, strict=True)]
    machines = tuple(_replica(shape, spec, swarm, peers, stages) for peers, stages in zip(pipelines, cuts, strict=True))
    delay_s = np.array([[_between(swarm.network.delay_s, one, other) for other in pipelines] for one in pipelines])
    slowest = -np.array(
        [[_between(-swarm.network.bandwidth_bps, one, other) for other in pipelines] for one in pipelines]
    )
    network = Network(names=tuple(machine.name for machine in machines), delay_s=delay_s, bandwidth_bps=slowest)
    blocks = tuple(tuple(stage.blocks for stage in stages) for stages in cuts)
    averaged = [stage_layers(shape, stage, counts) for counts in blocks for stage in range(len(counts))]
    largest = max(averaged, key=lambda layers: (len(layers), sum(layers)))
    return Replicas(
        shape=replace(shape, layers=largest), swarm=replace(swarm, machines=machines, network=network, of_parts=True),
        pipelines=pipelines, blocks=blocks,
    )  # fmt: skip


def _between(matrix: Matrix, one: Sequence[int], other: Sequence[int]) -> float:
    """The largest entry between peers of the same stage of two replicas."""
    return float(max(matrix[mine, theirs] for mine, theirs in zip(one, other, strict=True)))


def _cut(
    shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients, peers: Sequence[int], room: Sequence[int]
) -> tuple[Stage, ...]:  # fmt: skip
    each = [step_seconds(shape, spec, swarm.machines[peer], given, swarm) for peer in peers]
    return balanced(shape, [step_s / spec.inner.accumulation / shape.blocks for step_s in each], room)


def _replica(
    shape: ModelShape, spec: RunSpec, swarm: PeerSet, peers: Sequence[int], stages: Sequence[Stage]
) -> Machine:
    machines = [swarm.machines[peer] for peer in peers]
    transfer_s = swarm.network.transfer_s(cut_bytes(shape, spec.inner.sequences, spec.model.context))
    cuts = [float(transfer_s[one, other] + transfer_s[other, one]) for one, other in pairwise(peers)]
    first = machines[0]
    return Machine(
        name=f"{first.name}+{len(peers) - 1}",
        step_s=pipeline_step_s(stages, cuts, spec.inner.accumulation),
        upload_mbps=min((m.upload_mbps for m in machines if m.upload_mbps), default=0.0),
        download_mbps=min((m.download_mbps for m in machines if m.download_mbps), default=0.0),
        region=first.region,
    )


# ---- a model over several peers ----


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some consecutive blocks on one peer."""

    blocks: int
    micro_s: float
    """Forward and backward of one micro-batch."""


def balanced(
    shape: ModelShape, seconds_per_block: Sequence[float], most_blocks: Sequence[int] | None = None
) -> tuple[Stage, ...]:  # fmt: skip
    """Blocks shared out so that the slowest stage is as fast as it can be; each stage has one at least.

    `seconds_per_block` is of each peer, for one micro-batch; `max_layers` is what each has memory for. The greedy
    choice is optimal for equal blocks: each next block goes where it ends first, of those who have room. Raises
    ValueError for fewer blocks than peers, and for less room than blocks.
    """
    peers = len(seconds_per_block)
    room = [shape.blocks] * peers if most_blocks is None else most_blocks
    if shape.blocks < peers:
        raise ValueError(f"{shape.blocks} blocks cannot be cut into {peers} stages")
    if not have_room(shape, room):
        raise ValueError(f"{shape.blocks} blocks do not fit on peers that hold {', '.join(map(str, room))}")
    blocks = [1] * peers
    for _ in range(shape.blocks - peers):
        free = [peer for peer in range(peers) if blocks[peer] < room[peer]]
        blocks[min(free, key=lambda peer: (blocks[peer] + 1) * seconds_per_block[peer])] += 1
    return tuple(
        Stage(blocks=count, micro_s=count * each) for count, each in zip(blocks, seconds_per_block, strict=True)
    )


def have_room(shape: ModelShape, most_blocks: Sequence[int]) -> bool:
    """Whether all blocks fit on peers that hold so many each, with one on every peer."""
    return min(most_blocks) >= 1 and sum(most_blocks) >= shape.blocks


def stage_layers(shape: ModelShape, stage: int, blocks: Sequence[int]) -> tuple[int, ...]:
    """Parameters of the layers of one stage of a model that is cut into so many blocks each.

    What comes before the first block is with the first stage, what comes after the last one with the last.
    """
    first = shape.before + sum(blocks[:stage])
    last = first + blocks[stage]
    is_last = stage == len(blocks) - 1
    return shape.layers[first if stage else 0 : len(shape.layers) if is_last else last]


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


# ---- what a device must hold ----


def device_bytes(shape: ModelShape, spec: RunSpec, chosen: Strategy) -> float:
    """Of each device that holds a replica; of a pipeline that is cut evenly, what the fullest stage needs."""
    if chosen.stages > 1:
        even = -(-shape.blocks // chosen.stages)
        return max(stage_device_bytes(shape, spec, chosen, stage, even) for stage in (0, chosen.stages - 1))
    return memory_of(shape, with_strategy(spec, chosen)).device


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
    return held.device


def max_layers(shape: ModelShape, spec: RunSpec, chosen: Strategy, stage: int, room_bytes: float) -> int:
    """How many blocks a peer whose devices have so much memory can hold as this stage; 0 if none."""
    return bisect_right(
        range(1, shape.blocks + 1), room_bytes,
        key=lambda blocks: stage_device_bytes(shape, spec, chosen, stage, blocks),
    )  # fmt: skip
