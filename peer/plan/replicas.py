"""Replicas that are not one process on one device: sharded over the devices of a peer, or cut into stages over peers.

Each is turned into a peer of the simple kind, with the steps and lines that it comes to, so that one formula of a round
serves all. No run of today is made so: these are for whoever asks whether it would pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from peer.placement.layout_search import Effort
from peer.placement.pairwise_network import Matrix, Network
from peer.placement.place import place
from peer.placement.stage_workload import StageWorkload
from peer.plan.coefficients import Coefficients
from peer.plan.device_memory import most_blocks
from peer.plan.model_shape import ModelShape, memory_of, stage_bytes
from peer.plan.peer_set import Machine, PeerSet
from peer.plan.pipelined_replica import Stage, balanced, cut_bytes, have_room, pipeline_step_s, stage_layers
from peer.plan.round_cost import step_seconds
from peer.plan.sharded_replica import hierarchical, zero3
from peer.plan.strategy import Strategy
from peer.spec import RunSpec

EFFORT = Effort(evaluations=4_000, patience=20, shaken=0)
"""Less than `homefires place` takes: a plan places once for each number of stages. Of 48 peers in eight regions such
layouts cost at most 0.1 % more than with five times as many evaluations."""

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


def sharded_machines(
    shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients, chosen: Strategy
) -> PeerSet:  # fmt: skip
    """The same peers, each computing on several devices that talk to each other."""
    memory, many = memory_of(shape, spec), chosen.shards
    if chosen.inner_shards > 1:
        sharded = hierarchical(shape, memory, many, chosen.inner_shards, chosen.accumulation)
    else:
        sharded = zero3(shape, memory, many, chosen.accumulation)

    def step_s(machine: Machine) -> float:
        rate = machine.device_gbps * 1e9 / 8
        compute_s = step_seconds(shape, spec, machine, given, swarm) / many
        return sharded.step_s(compute_s, rate, rate)

    machines = tuple(replace(machine, step_s=step_s(machine)) for machine in swarm.machines)
    return replace(swarm, machines=machines, of_parts=True)


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
                known[room] = most_blocks(shape, spec, chosen, *room)
    return [[known[stage, room_bytes[peer]] for stage, peer in enumerate(peers)] for peers in pipelines]


def all_fit(shape: ModelShape, rooms: Rooms) -> bool:
    """Whether each pipeline holds the model."""
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
