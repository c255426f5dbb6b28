"""Room for a run on a device: whether there is any, and how a model is trained for which there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dht.errors import BadInput, MemoryFull
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import AlertRaised
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec

if TYPE_CHECKING:
    import torch

    from peer.planning.plan.home_cost import WayToTrain

ENOUGH = 0.75
"""Who has so much of a whole device tries, whatever the estimate is."""


def require_room(spec: RunSpec, device: torch.device, *, again: bool, shares: int = 1) -> None:
    """Raises MemoryFull where others leave the device no room for the weights; `again`, after an attempt that found
    none, for training with one sequence. BadInput for a device that is smaller than the weights. `shares`: of so many
    devices that share the model."""
    from peer.node.host.device import MAKE_ROOM, free_bytes, total_bytes
    from peer.planning.plan.run_needs import needs_of
    from peer.schema.byte_text import format_bytes

    whole = total_bytes(device)
    if not whole:
        return
    needs = needs_of(spec, chain_bytes=0)
    weights, needed = needs.weights / shares, needs.least_device / shares
    if whole < weights:
        raise BadInput(
            f"{device} has {format_bytes(whole)}, and the weights of {spec.run.name} alone take "
            f"{format_bytes(weights)}; choose another device with --devices{other_ways(spec, whole)}, or join a run "
            "with a smaller model"
        )
    free, least = free_bytes(device), min(needed, ENOUGH * whole) if again else weights
    if free < least:
        aside = other_ways(spec, free) if needed > whole else ""
        raise MemoryFull(
            f"others use {device}: {format_bytes(free)} of {format_bytes(whole)} free, about {format_bytes(needed)} "
            f"needed; {MAKE_ROOM}{aside}"
        )


def other_ways(spec: RunSpec, room_bytes: float) -> str:
    """What its owner may do where a run has no room on a device of so much: the rest of a sentence, empty where nothing
    helps."""
    return "".join(f", or --set {way.setting} for {way.in_words()}" for way in ways_for(spec, room_bytes))


def ways_for(spec: RunSpec, room_bytes: float) -> Sequence[WayToTrain]:
    """The ways to train on a device of so much with the main memory that is free now, the fastest first."""
    from peer.node.host.processes import available_bytes
    from peer.planning.plan.home_cost import ways_without_room
    from peer.planning.plan.model_shape import shape_of
    from peer.planning.plan.run_needs import needs_of

    return ways_without_room(shape_of(spec), spec, room_bytes, available_bytes() - needs_of(spec, 0).main)


def needs_others(spec: RunSpec, settings: PeerSettings) -> bool:
    """Whether this home holds neither the whole model, with what its owner or `with_main_memory` chose, nor is told to
    do something else than to look for others, and a run lets homes find each other: one that anybody may join, with a
    model that can be cut. Raises BadInput if no device works."""
    from peer.node.host.device import choose_devices
    from peer.planning.plan.cluster_cost import no_cluster

    if settings.stages or settings.offload or spec.admission.policy != "open" or no_cluster(spec):
        return False
    devices = choose_devices(settings.devices)
    return len(devices) == 1 and not _holds(spec, settings, devices[0]) and _may_be_cut(spec)


def _holds(spec: RunSpec, settings: PeerSettings, device: torch.device) -> bool:
    """Whether the device, or its main memory, holds the whole model. On a processor that is told no figure, what an
    owner allows and what is free count; a home that cannot offer even a stage is left to train as it can."""
    from peer.node.host.device import total_bytes
    from peer.node.host.processes import available_bytes
    from peer.parallel.cluster.home_offer import main_room_bytes
    from peer.planning.plan.home_cost import FROM_MAIN_MEMORY
    from peer.planning.plan.run_needs import PROCESS_BYTES, needs_of

    needs, whole = needs_of(spec, chain_bytes=0), total_bytes(device)
    if whole:
        return whole >= ENOUGH * needs.least_device or any(
            way.setting == FROM_MAIN_MEMORY for way in ways_for(spec, whole)
        )
    room = main_room_bytes(available_bytes(), settings)
    return room <= 0 or needs.least_device + needs.main - PROCESS_BYTES <= room


def _may_be_cut(spec: RunSpec) -> bool:
    from peer.parallel.pipeline.stage_model import require_cuttable

    try:
        require_cuttable(spec)
    except BadInput:
        return False
    return True


def with_main_memory(
    spec: RunSpec, settings: PeerSettings, device: torch.device, session: Reporter, *, again: bool
) -> PeerSettings:  # fmt: skip
    """The settings with `offload`, as a plan recommends to a home that is alone, where a GPU could never hold the run
    and main memory can; that is said once, unless `again`. What has room without it is still tried first."""
    from peer.node.host.device import total_bytes
    from peer.planning.plan.home_cost import FROM_MAIN_MEMORY
    from peer.planning.plan.run_needs import needs_of
    from peer.schema.byte_text import format_bytes

    whole, needed = total_bytes(device), needs_of(spec, chain_bytes=0).least_device
    if settings.offload or device.type == "cpu" or not 0 < whole < needed:
        return settings
    ways = ways_for(spec, whole)
    aside = next((way for way in ways if way.setting == FROM_MAIN_MEMORY), None)
    if aside is None:
        return settings
    others = [f"; or --set {way.setting} for {way.in_words()}" for way in ways if way is not aside]
    text = (
        f"{device} has {format_bytes(whole)} and the run needs about {format_bytes(needed)}: what it cannot hold is "
        f"trained with {aside.in_words()}{''.join(others)}"
    )
    if not again:
        session.emit(AlertRaised(level="info", code="OFFLOAD", text=text))
    return replace(settings, offload=True)
