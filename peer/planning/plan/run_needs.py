"""What a run needs of a machine, in figures and in the words with which every command tells them."""

from __future__ import annotations

from dataclasses import dataclass

from peer.planning.plan.disk_use import disk_of
from peer.planning.plan.model_shape import MemoryFootprint, memory_of, shape_of
from peer.planning.plan.peer_set import MAX_MEMBERS, Machine, uniform_peers
from peer.planning.plan.round_traffic import traffic_of
from peer.schema.byte_text import format_bytes
from peer.schema.model_layers import FLOAT32_BYTES
from peer.schema.spec import RunSpec

PROCESS_BYTES = 800 << 20
"""Resident memory of a peer whose model is small: torch, transformers, hivemind and their tables, in both processes."""
HOME = Machine(name="a home")


@dataclass(frozen=True, kw_only=True)
class RunNeeds:
    """In bytes."""

    parameters: int
    weights: int
    """On the training device, without which nothing can be computed: all of the model, in bytes."""
    device: int
    """On the training device with the spec's own micro-batch: an estimate, see
    `MemoryFootprint`."""
    least_device: int
    """The same with one sequence at a time."""
    main: int
    """Resident beside the device; on a CPU `device` comes on top."""
    least_disk: int
    """Without which nothing can be written: snapshots and checkpoints."""
    disk: int
    """With updates and contributions, and a snapshot and a checkpoint on their way."""
    peers: int
    """For so many peers holds what a round sends."""
    round_bytes: float
    """That each of them sends in a round, and takes in as many."""


def needs_of(spec: RunSpec, chain_bytes: int) -> RunNeeds:
    """Of a peer of this run that keeps so many bytes of updates."""
    shape = shape_of(spec)
    memory = memory_of(shape, spec)
    disk = disk_of(shape.parameters, memory.training_bytes, spec, chain_bytes)
    peers = peers_of(spec)
    start = 0 if spec.start is None else FLOAT32_BYTES * spec.model_layers.parameters
    return RunNeeds(
        parameters=shape.parameters, weights=FLOAT32_BYTES * shape.parameters + memory.frozen_bytes,
        device=memory.device_bytes,
        least_device=memory_of(shape, spec, sequences=1).device_bytes,
        main=main_bytes(memory),
        least_disk=disk.least + start, disk=disk.peak + start,
        peers=peers, round_bytes=traffic_of(shape, spec, uniform_peers(peers, HOME)).up_bytes,
    )  # fmt: skip


def peers_of(spec: RunSpec) -> int:
    """For how many peers a run is foretold, where nobody says more: as many as found it, and two at least."""
    return min(MAX_MEMBERS, max(2, spec.run.founders))


def main_bytes(memory: MemoryFootprint) -> int:
    """In main memory, beside a device that trains: what a peer holds of the model, and the peer itself."""
    return PROCESS_BYTES + memory.anchor_bytes + memory.encoded_bytes


def memory_words(needs: RunNeeds) -> str:
    return f"{format_bytes(needs.device)} on the device that trains, {format_bytes(needs.main)} beside"


def traffic_words(needs: RunNeeds) -> str:
    return f"each of {needs.peers} peers sends {format_bytes(needs.round_bytes)}, and takes in as much"
