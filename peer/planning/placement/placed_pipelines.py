"""Pipelines on the peers of a network: the answer of a search, and what bounds it, in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.pairwise_network import Matrix, Network
from peer.planning.placement.pipelines import PipelineLayout
from peer.planning.placement.stage_workload import Indices, PlacementProblem


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One of the links that decide how long a step takes."""

    text: str
    """What this link delays, in words."""
    peers: tuple[int, int]
    seconds: float
    """The seconds of a step that this link alone needs."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A layout of a network's peers. Peers are numbered from 0 as in the network.

    Attributes:
        names: of all peers.
        pipelines: M pipelines of K peers, stage by stage. Rank of a peer: pipeline · K + stage.
        spares: the peers that hold nothing: no pipeline is left for them, or a stage does not fit in their memory.
        cost_s: seconds per step: both terms, and computing if the work has any.
        data_parallel_s: DATAP / H, the seconds that averaging a stage adds to a step.
        pipeline_s: PIPELINEP, the seconds that passing on activations and gradients adds to a step.
        compute_s: the seconds that computing adds to a step, including the time to fill a pipeline: of the slowest
            pipeline in step (H = 1), otherwise the rest of the cost, which comes from the mean pace of the pipelines.
        bounds: the link that bounds DATAP, and the slowest link of each cut between two stages.
        evaluations: the number of layouts that were considered.
        asked: the number of pipelines that was asked for; None: as many as there are devices for.
        note: why there are fewer pipelines than that; empty if there are not.
    """

    names: tuple[str, ...]
    pipelines: tuple[tuple[int, ...], ...]
    spares: tuple[int, ...]
    cost_s: float
    data_parallel_s: float
    pipeline_s: float
    bounds: tuple[Bound, ...]
    compute_s: float = 0.0
    evaluations: int = 0
    asked: int | None = None
    note: str = ""

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """K stages of M peers, pipeline by pipeline."""
        return tuple(zip(*self.pipelines, strict=True))

    @property
    def pace(self) -> float:
        """Steps per second, summed over all pipelines."""
        return len(self.pipelines) / self.cost_s if self.cost_s > 0 else np.inf

    def ranks(self) -> dict[str, int]:
        """The rank by name; spares have none."""
        depth = len(self.pipelines[0])
        return {
            self.names[peer]: number * depth + stage
            for number, pipeline in enumerate(self.pipelines)
            for stage, peer in enumerate(pipeline)
        }

    def explained(self) -> str:
        """The cost, and what limits it: a line for the sum and one for each bound."""
        terms = f"averaging {self.data_parallel_s:.2f} s + pipeline {self.pipeline_s:.2f} s"
        if self.compute_s > 0:
            terms += f" + computing {self.compute_s:.2f} s"
        pipelines, stages = len(self.pipelines), len(self.pipelines[0])
        size = f"{counted(pipelines, 'pipeline')} of {counted(stages, 'stage')}"
        lines = [f"{size}: {self.cost_s:.2f} s per step; {terms}"]
        lines += [self.note] if self.note else []
        lines += [bound.text for bound in self.bounds]
        if self.spares:
            lines.append(f"spare: {', '.join(self.names[peer] for peer in self.spares)}")
        return "\n".join(lines)


def placed(problem: PlacementProblem, network: Network, found: PipelineLayout, evaluations: int) -> Placement:
    scorer, stages_KM = CommunicationCost(problem), np.sort(found.stages_KM, axis=1)
    pipelines_MK = found.stages_KM.T
    exchanges_K = scorer.exchanges(stages_KM[None])[0]
    worst_cuts = [float(hops.max()) for hops in _hops(problem, pipelines_MK)]
    data_parallel_s, pipeline_s = float(exchanges_K.max()), sum(worst_cuts)
    order = np.argsort(pipelines_MK[:, 0])
    peers_MK = problem.peers[pipelines_MK[order]]
    return Placement(
        names=network.names,
        pipelines=tuple(tuple(row) for row in peers_MK.tolist()),
        spares=tuple(sorted(set(range(len(network))) - set(peers_MK.ravel().tolist()))),
        cost_s=found.cost_s, data_parallel_s=data_parallel_s, pipeline_s=pipeline_s,
        compute_s=max(0.0, found.cost_s - data_parallel_s - pipeline_s) if problem.compute_s.any() else 0.0,
        bounds=(_slowest_exchange(problem, network, stages_KM, exchanges_K), *_cuts(problem, network, pipelines_MK)),
        evaluations=evaluations,
    )  # fmt: skip


def _hops(problem: PlacementProblem, pipelines_MK: Indices) -> Matrix:
    """Shape (K − 1, M): seconds of each link between two neighbouring stages."""
    return problem.hop_s[pipelines_MK[:, :-1], pipelines_MK[:, 1:]].T


def _slowest_exchange(problem: PlacementProblem, network: Network, stages_KM: Indices, exchanges_K: Matrix) -> Bound:
    stage = int(exchanges_K.argmax())
    members = stages_KM[stage]
    shares_MM = problem.exchange_s[np.ix_(members, members)]
    waiting = int(shares_MM.sum(axis=1).argmax())
    partner = int(shares_MM[waiting].argmax())
    peers = (int(problem.peers[members[waiting]]), int(problem.peers[members[partner]]))
    link_s = float(shares_MM[waiting, partner])
    if len(members) == 1:
        text = f"averaging: nothing; each stage has one device, {network.names[peers[0]]} holds stage {stage}"
    else:
        text = (
            f"averaging: {network.names[peers[0]]} in stage {stage} needs {exchanges_K[stage]:.2f} s for "
            f"{len(members) - 1} others; most of it, {link_s:.2f} s, for {_link(network, *peers)}"
        )
    return Bound(text=text, peers=peers, seconds=link_s)


def _cuts(problem: PlacementProblem, network: Network, pipelines_MK: Indices) -> list[Bound]:
    bounds = []
    for stage, hops_M in enumerate(_hops(problem, pipelines_MK)):
        slowest = int(hops_M.argmax())
        one, other = (int(problem.peers[device]) for device in pipelines_MK[slowest, stage : stage + 2])
        text = f"stage {stage} to {stage + 1}: {hops_M[slowest]:.2f} s, as from {_link(network, one, other)}"
        bounds.append(Bound(text=text, peers=(one, other), seconds=float(hops_M[slowest])))
    return bounds


def _link(network: Network, one: int, other: int) -> str:
    links = network.only([one, other]).symmetrised()
    delay_ms, speed_gbps = links.delay_s[0, 1] * 1e3, links.bandwidth_bps[0, 1] / 1e9
    return f"{network.names[one]} to {network.names[other]} ({delay_ms:.0f} ms, {speed_gbps:.3g} Gbit/s)"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
