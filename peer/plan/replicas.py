"""Peers whose replica is not one process on one device: sharded over devices, or cut into stages over peers.

Each is turned into peers of the simple kind, with the steps and lines that it comes to, so that one formula of a round
serves all. No run of today is made so: these are for whoever asks whether it would pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from peer.plan.coefficients import Coefficients
from peer.plan.machines import Machine, Swarm
from peer.plan.network import Matrix, Network
from peer.plan.pipeline import Stage, balanced, cut_bytes, pipeline_step_s
from peer.plan.round import step_seconds
from peer.plan.shape import Shape, memory_of
from peer.plan.sharding import hierarchical, zero3
from peer.plan.strategy import Strategy
from peer.spec import RunSpec


def sharded_machines(
    shape: Shape, spec: RunSpec, swarm: Swarm, given: Coefficients, chosen: Strategy
) -> Swarm:  # fmt: skip
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
    return replace(swarm, machines=machines)


def as_replicas(
    shape: Shape, spec: RunSpec, swarm: Swarm, given: Coefficients, stages: int
) -> tuple[Shape, Swarm]:  # fmt: skip
    """(what one peer averages, the replicas as peers): consecutive peers of the swarm make a pipeline.

    A stage is averaged with the same stage of the others, over the slowest line of each replica.
    """
    replicas = [range(first, first + stages) for first in range(0, len(swarm), stages)]
    machines = tuple(_replica(shape, spec, swarm, given, peers) for peers in replicas)
    delay_s = np.array([[_between(swarm.network.delay_s, one, other) for other in replicas] for one in replicas])
    slowest = -np.array(
        [[_between(-swarm.network.bandwidth_bps, one, other) for other in replicas] for one in replicas]
    )
    network = Network(names=tuple(machine.name for machine in machines), delay_s=delay_s, bandwidth_bps=slowest)
    largest = tuple(shape.layers[at] for at in range(len(shape.layers)) if at * stages // len(shape.layers) == 0)
    return replace(shape, layers=largest), replace(swarm, machines=machines, network=network)


def _between(matrix: Matrix, one: Sequence[int], other: Sequence[int]) -> float:
    """The largest entry between peers of the same stage of two replicas."""
    return float(max(matrix[mine, theirs] for mine, theirs in zip(one, other, strict=True)))


def _replica(shape: Shape, spec: RunSpec, swarm: Swarm, given: Coefficients, peers: Sequence[int]) -> Machine:
    machines = [swarm.machines[peer] for peer in peers]
    micro = spec.inner.accumulation
    seconds = [step_seconds(shape, spec, machine, given, swarm) / micro / shape.blocks for machine in machines]
    stages: Sequence[Stage] = balanced(shape, seconds)
    message = cut_bytes(shape, spec.inner.sequences, spec.model.context)
    transfer_s = swarm.network.transfer_s(message)
    cuts = [float(transfer_s[one, other] + transfer_s[other, one]) for one, other in pairwise(peers)]
    first = machines[0]
    return Machine(
        name=f"{first.name}+{len(peers) - 1}", step_s=pipeline_step_s(stages, cuts, micro),
        upload_mbps=min((m.upload_mbps for m in machines if m.upload_mbps), default=0.0),
        download_mbps=min((m.download_mbps for m in machines if m.download_mbps), default=0.0), region=first.region,
    )  # fmt: skip
