"""`homefires place`: which peer would hold which stage of a model that is cut over several of them. It starts nothing.

The placement is DT-FM's (arXiv:2206.01288), in `peer/planning/placement/place.py`; the weight of a stage comes from the
spec. A pipeline becomes a cluster, which its peers form themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dht.errors import BadInput
from peer.planning.placement.block_shares import StageHome
from peer.planning.placement.communication_cost import OnProgress
from peer.planning.placement.pairwise_network import preset
from peer.planning.placement.place import place
from peer.planning.placement.placed_pipelines import Placement
from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.cluster_cost import cluster_of, fewest_stages, no_cluster, room_of_stage, work_of
from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import ModelShape, shape_of
from peer.planning.plan.peer_set import (
    MAX_MEMBERS,
    PeerSet,
    on_one_device,
    peers_in_regions,
    refuse_count,
    step_between_s,
)
from peer.planning.plan.round_cost import step_seconds, step_tokens
from peer.planning.plan.strategy_search import seconds
from peer.schema.byte_text import format_bytes
from peer.schema.settings import MOST_STAGES
from peer.schema.spec import RunSpec
from tui.simulation.machines import peers_of
from tui.simulation.plan_options import PlaceOptions
from tui.simulation.plan_page import as_short, assumptions, page
from tui.text.units import EVERY_S, count

UNKNOWN = float("inf")
"""The memory of a peer that states none: it is never too small."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    spec: RunSpec
    shape: ModelShape
    swarm: PeerSet
    work: StageWorkload
    placement: Placement
    between_s: tuple[float, float]
    """Nine in ten steps last between these seconds."""
    tokens_per_s: float
    """Of all clusters together while many micro-batches are under way, as `plan` says it; 0 for whole models."""


def find(asked: PlaceOptions, tell: OnProgress | None = None) -> Placed:
    """Search for a layout. `tell` is called with the number of layouts considered so far. Raises BadInput if peers,
    stages and memory do not fit together."""
    spec = asked.choose()
    shape = shape_of(spec, asked.parameters)
    swarm = _spread_over(asked) if asked.preset else peers_of(asked.peers, spec, asked.machine)
    memory_bytes = [1e9 * machine.memory_gb or UNKNOWN for machine in swarm.machines]
    stages = _stages(asked.stages, spec, shape, memory_bytes)
    swarm = swarm if stages == 1 else on_one_device(swarm)
    step_s = [step_seconds(shape, spec, machine, shipped(), swarm) for machine in swarm.machines]
    speeds = [min(step_s) / each for each in step_s]
    work = work_of(shape, spec, stages, min(step_s))
    network = swarm.network if asked.preset else swarm.network.both_ways()
    found = place(
        network, work, memory_bytes=memory_bytes, speeds=speeds,
        pipelines=asked.pipelines or None, fewer=True, seed=asked.seed, tell=tell,
    )  # fmt: skip
    return Placed(
        spec=spec, shape=shape, swarm=swarm, work=work, placement=found,
        between_s=step_between_s(swarm, work, speeds, found),
        tokens_per_s=0.0 if stages == 1 else _tokens_per_s(spec, shape, swarm, step_s, found),
    )  # fmt: skip


def _stages(asked: int, spec: RunSpec, shape: ModelShape, memory_bytes: list[float]) -> int:
    """The number of stages: as asked for, or the smallest for which a stage fits on enough peers. Raises BadInput if
    there is none, or if no cluster can train the run."""
    why = no_cluster(spec)
    if asked:
        if not 1 <= asked <= shape.blocks:
            raise BadInput(f"--stages is {asked}; a model of {count(shape.blocks, 'block')} has 1 to as many")
        if asked > MOST_STAGES:
            raise BadInput(f"--stages is {asked}; a cluster has at most {MOST_STAGES} homes")
        if asked > 1 and why:
            raise BadInput(f"--stages is {asked}; {why}")
        return asked
    stages = fewest_stages(shape, spec, memory_bytes)
    if stages is not None and (stages == 1 or not why):
        return stages
    whole = format_bytes(room_of_stage(shape, spec, 1))
    most = min(shape.blocks, len(memory_bytes))
    raise BadInput(
        f"{whole} fit on none of these peers; {why}" if why
        else f"{whole} fit on no {most} of these peers, however the model is cut into whole blocks"
    )  # fmt: skip


def _tokens_per_s(
    spec: RunSpec, shape: ModelShape, swarm: PeerSet, step_s: list[float], layout: Placement
) -> float:  # fmt: skip
    """The speed of all clusters together, by the dealing of blocks that their leads do."""
    homes = [
        StageHome(
            tokens_per_s=step_tokens(spec) / each_s, room_bytes=1e9 * machine.memory_gb, upload_bps=machine.upload_bps
        )
        for machine, each_s in zip(swarm.machines, step_s, strict=True)
    ]
    made = [cluster_of(shape, spec, [homes[peer] for peer in pipeline]) for pipeline in layout.pipelines]
    return sum(each.tokens_per_s for each in made if each is not None)


# ---- the peers ----


def _spread_over(asked: PlaceOptions) -> PeerSet:
    """The peers in the regions of a preset. Raises BadInput for an unknown network, and if `peers` is not a number."""
    regions = preset(asked.preset)
    if asked.peers and not asked.peers.isdecimal():
        raise BadInput(f"--preset {asked.preset} has lines of its own; with it --peers is a number, not {asked.peers}")
    count = int(asked.peers) if asked.peers else min(sum(regions.counts), MAX_MEMBERS)
    refuse_count(count, "--peers is {}", MAX_MEMBERS)
    return peers_in_regions(regions.network(count), asked.machine)


# ---- for people ----


class Searching:
    """Reports every few seconds that a search continues. `say` prints a line, `clock` returns seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said_s, self._before, self._seen = clock(), 0, 0

    def tell(self, layouts: int) -> None:
        """Note the number of layouts considered; a smaller number than before belongs to another search."""
        if layouts < self._seen:
            self._before += self._seen
        self._seen = layouts
        if self._clock() - self._said_s >= EVERY_S:
            self._said_s = self._clock()
            self._say(f"still looking for who should hold what: {self._before + layouts:,} layouts so far")


def describe(found: Placed) -> str:
    """A page of at most 80 columns."""
    work, layout = found.work, found.placement
    lines = [
        f"{found.spec.run.name}: {as_short(found.shape.parameters)} parameters in {count(work.stages, 'stage')}, "
        f"{count(len(found.swarm), 'peer')}",
        f"a stage needs {format_bytes(work.stage_memory_bytes)} on its device; "
        f"{format_bytes(work.cut_bytes)} pass each cut per step and come back, "
        f"{format_bytes(work.stage_bytes)} of a stage are averaged once in {work.sync_steps} steps",
        *assumptions(found.swarm),
        "",
    ]
    for number, peers in enumerate(layout.pipelines, start=1):
        lines.append(f"pipeline {number}: {' > '.join(layout.names[peer] for peer in peers)}")
    lines += ["", *layout.explained().splitlines()]
    between = " and ".join(map(seconds, found.between_s))
    lines.append(f"nine in ten steps between {between}, an assumption: no pipeline was measured")
    if found.tokens_per_s:
        lines.append(f"about {found.tokens_per_s:,.0f} tokens/s in all where many micro-batches are under way")
    return page([*lines, *_set_up(found)])


def _set_up(found: Placed) -> list[str]:
    """The lines that say how pipelines become clusters of a run."""
    layout, stages = found.placement, found.work.stages
    if stages == 1:
        return []
    lines = [
        f"to set it up: run.founders = {len(layout.pipelines)}, and of each pipeline the first joins with "
        f"--set stages={stages} and gives the others the line of homefires cluster invite, for --cluster"
    ]
    for lead, *workers in layout.pipelines:
        names = ", ".join(layout.names[peer] for peer in workers)
        lines.append(f"  {layout.names[lead]} leads a cluster; in it work {names}")
    return lines


# ---- for programs ----


def to_json(found: Placed) -> str:
    """One JSON object: the pipelines by name, the cost of a step, and what limits it."""
    layout = found.placement
    table = {
        "run": found.spec.run.name, "parameters": found.shape.parameters, "work": asdict(found.work),
        "peers": list(layout.names), "assumed": list(found.swarm.assumed),
        "pipelines": [[layout.names[peer] for peer in peers] for peers in layout.pipelines],
        "spares": [layout.names[peer] for peer in layout.spares], "ranks": layout.ranks(), "step_s": layout.cost_s,
        "tokens_per_s": found.tokens_per_s, "low_s": found.between_s[0], "high_s": found.between_s[1],
        "averaging_s": layout.data_parallel_s, "passing_s": layout.pipeline_s, "computing_s": layout.compute_s,
        "note": layout.note, "evaluations": layout.evaluations,
        "bounds": [
            {"text": bound.text, "peers": [layout.names[peer] for peer in bound.peers], "seconds": bound.seconds}
            for bound in layout.bounds
        ],
    }  # fmt: skip
    return json.dumps(table)
