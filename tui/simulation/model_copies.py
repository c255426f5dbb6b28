"""What peers can make of a model that some of them cannot hold: alone, from main memory, or several together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dht.errors import BadInput
from peer.planning.placement.block_shares import StageHome
from peer.planning.placement.place import QUICK, place
from peer.planning.plan.cluster_cost import cluster_of, fewest_stages, no_cluster, work_of
from peer.planning.plan.home_cost import offload_tokens_per_s
from peer.planning.plan.peer_set import on_one_device
from peer.planning.plan.planning_problem import PlanningProblem
from peer.planning.plan.round_cost import step_seconds, step_tokens
from peer.planning.plan.strategy import strategy_of
from peer.schema.byte_text import format_bytes
from tui.text.units import count


@dataclass(frozen=True, kw_only=True)
class ModelCopies:
    """One way to hold the model, for all peers that can use it."""

    words: str
    peers: int
    tokens_per_s: float
    """The speed while they train; the communication of a round costs the same for all ways."""
    homes: int = 1
    """The number of homes that hold one copy together."""
    pipelines: tuple[tuple[str, ...], ...] = ()
    """For clusters: the names of the homes, stage by stage, the lead first."""


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """The options for peers of which some cannot hold the model."""

    whole: ModelCopies
    """The peers that can hold the whole model."""
    others: tuple[ModelCopies, ...]
    """The ways for the other peers, the fastest first."""


def options_of(question: PlanningProblem) -> CopyOptions:
    """The options by forecasts; clusters are laid out by `peer.planning.placement`."""
    spec = question.spec
    whole = spec.inner.sequences * spec.inner.accumulation
    least = replace(strategy_of(spec), sequences=1, accumulation=whole)
    machines, tokens = question.swarm.machines, step_tokens(spec)
    holds = [
        question.held_bytes(least, machine) <= room
        for machine, room in zip(machines, question.room_bytes, strict=True)
    ]  # fmt: skip
    speeds = [tokens / step_s for step_s, held in zip(question.step_s, holds, strict=True) if held]
    rest = [peer for peer, held in enumerate(holds) if not held]
    # The model beside which an adapter is trained lies on one device.
    asked = (_from_main_memory, _clusters) if spec.adapter is None else ()
    others = [ways for ways in (each(question, rest) for each in asked) if ways is not None]
    return CopyOptions(
        whole=ModelCopies(words="the whole model on the device", peers=len(speeds), tokens_per_s=sum(speeds)),
        others=tuple(sorted(others, key=lambda ways: -ways.tokens_per_s)),
    )  # fmt: skip


def _flops(question: PlanningProblem, peers: list[int]) -> list[float]:
    """The FLOP/s that training reaches on one device of each peer."""
    spec, alone = question.spec, on_one_device(question.swarm)
    step = step_tokens(spec) * question.shape.flops_per_token(spec.model.context)
    return [
        step / step_seconds(question.shape, spec, alone.machines[peer], question.given, alone) for peer in peers
    ]  # fmt: skip


def _from_main_memory(question: PlanningProblem, peers: list[int]) -> ModelCopies | None:
    found = [
        offload_tokens_per_s(question.shape, question.spec, question.room_bytes[peer], flops=flops)
        for peer, flops in zip(peers, _flops(question, peers), strict=True)
    ]
    able = [each for each in found if each is not None]
    if not able:
        return None
    main = format_bytes(max(each.main_bytes for each in able))
    words = f"layers from main memory, with {main} of it besides what a round takes (offload=yes)"
    return ModelCopies(words=words, peers=len(able), tokens_per_s=sum(each.tokens_per_s for each in able))


def _clusters(question: PlanningProblem, peers: list[int]) -> ModelCopies | None:
    """Clusters of the smallest number of homes that can hold the model; as many clusters as are fastest in total."""
    spec, shape, swarm = question.spec, question.shape, on_one_device(question.swarm)
    if no_cluster(spec):
        return None
    rooms, flops = [question.room_bytes[peer] for peer in peers], _flops(question, peers)
    stages = fewest_stages(shape, spec, rooms, least=2)
    if stages is None:
        return None
    fastest = max(flops)
    step_s = step_tokens(spec) * shape.flops_per_token(spec.model.context) / fastest
    try:
        layout = place(
            swarm.network.only(peers).both_ways(), work_of(shape, spec, stages, step_s), memory_bytes=rooms,
            speeds=[each / fastest for each in flops], fewer=True, effort=QUICK,
        )  # fmt: skip
    except BadInput:
        return None
    per_token = shape.flops_per_token(spec.model.context)
    homes = [
        StageHome(tokens_per_s=speed / per_token, room_bytes=room, upload_bps=swarm.machines[peer].upload_bps)
        for peer, room, speed in zip(peers, rooms, flops, strict=True)
    ]
    forecasts = [cluster_of(shape, spec, [homes[at] for at in pipeline]) for pipeline in layout.pipelines]
    made = [each for each in forecasts if each is not None]
    words = f"{count(len(made), 'cluster')} of {stages} homes (stages={stages})"
    names = tuple(tuple(layout.names[at] for at in pipeline) for pipeline in layout.pipelines)
    return ModelCopies(
        words=words, peers=stages * len(made), tokens_per_s=sum(each.tokens_per_s for each in made), homes=stages,
        pipelines=names,
    )  # fmt: skip
