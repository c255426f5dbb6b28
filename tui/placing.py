"""`homefires place`: which peer would hold which stage of a model that is cut over several of them. It starts nothing.

The placement is DT-FM's (arXiv:2206.01288), in `peer/plan/placement.py`; what a stage weighs comes from the spec. No
run of today is made so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from dht.errors import BadInput
from peer.events import event_files, read_events
from peer.plan.coefficients import shipped
from peer.plan.machines import (
    HOME_DELAY_S,
    MAX_MEMBERS,
    Machine,
    Swarm,
    at_places,
    claimed_mbps,
    claimed_step_s,
    refuse_count,
    swarm_of,
)
from peer.plan.network import Network
from peer.plan.pipeline import cut_bytes
from peer.plan.placement import Placement, place
from peer.plan.placing.scoring import Told
from peer.plan.placing.work import Work
from peer.plan.regions import preset
from peer.plan.round import step_seconds, step_tokens
from peer.plan.shape import Shape, memory_of, shape_of, stage_bytes
from peer.spec import RunSpec
from tui.fold import fold_all
from tui.planning import as_short, assumptions, peers_of, wrapped
from tui.progress import EVERY_S, count, format_bytes
from tui.report.names import labels_of
from tui.snapshot import PeerView
from tui.snapshot import Swarm as Seen

UNKNOWN = float("inf")
"""Memory of a peer that did not say: nothing is refused for it."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the command line asked for."""

    spec: RunSpec
    peers: str = ""
    """A number, a file of [[peer]] tables, or the folder of a peer; empty: as many as found the run."""
    machine: Machine
    """What every peer is, if `peers` is a number."""
    preset: str = ""
    """A network of known places, over which a number of peers is spread; as many as it has, or a group
    holds, if `peers` is empty."""
    stages: int = 0
    """0: as few as memory allows."""
    pipelines: int = 0
    """0: as many as there are peers for, or fewer if these make more steps per second together."""
    parameters: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What was found."""

    asked: Place
    shape: Shape
    swarm: Swarm
    work: Work
    placement: Placement


def find(asked: Place, tell: Told | None = None) -> Placed:
    """Search. `tell` hears how many layouts were looked at. Raises BadInput for peers, stages and memory that do not
    fit together."""
    spec, shape = asked.spec, shape_of(asked.spec, asked.parameters)
    swarm = _swarm(asked)
    step_s = [step_seconds(shape, spec, machine, shipped(), swarm) for machine in swarm.machines]
    memory_bytes = [1e9 * machine.memory_gb or UNKNOWN for machine in swarm.machines]
    work = _work(shape, spec, _stages(asked, shape, memory_bytes), min(step_s))
    network = swarm.network if asked.preset else _both_ways(swarm.network)
    found = place(
        network, work, memory_bytes=memory_bytes, speeds=[min(step_s) / each for each in step_s],
        pipelines=asked.pipelines or None, fewer=True, seed=asked.seed, tell=tell,
    )  # fmt: skip
    return Placed(asked=asked, shape=shape, swarm=swarm, work=work, placement=found)


def _both_ways(network: Network) -> Network:
    """Lines of homes are slow one way and fast the other. As much goes each way, one after the other, so that a pair
    is as fast as the harmonic mean of both; `place` would take the mean, as DT-FM does for its links."""
    with np.errstate(divide="ignore"):
        bandwidth_bps = 2 / (1 / network.bandwidth_bps + 1 / network.bandwidth_bps.T)
    return replace(network, bandwidth_bps=bandwidth_bps)


def _work(shape: Shape, spec: RunSpec, stages: int, fastest_s: float) -> Work:
    """What a stage of this model sends, holds and computes; `fastest_s` is an inner step of the fastest peer alone."""
    whole = spec.inner.accumulation * cut_bytes(shape, spec.inner.sequences, spec.model.context)
    return Work(
        stages=stages, stage_bytes=stage_bytes(shape, spec, stages), cut_bytes=whole,
        sync_steps=spec.round.steps, stage_memory_bytes=memory_of(shape, spec).device / stages,
        compute_s=fastest_s / stages, micro_batches=spec.inner.accumulation,
    )  # fmt: skip


def _stages(asked: Place, shape: Shape, memory_bytes: list[float]) -> int:
    """As asked for; else the fewest of which one fits into so many peers."""
    most = min(shape.blocks, len(memory_bytes))
    if asked.stages:
        if not 1 <= asked.stages <= shape.blocks:
            raise BadInput(f"--stages is {asked.stages}; a model of {count(shape.blocks, 'block')} has 1 to as many")
        return asked.stages
    needed = memory_of(shape, asked.spec).device
    for stages in range(1, most + 1):
        if sum(held >= needed / stages for held in memory_bytes) >= stages:
            return stages
    raise BadInput(f"{format_bytes(round(needed))} fit on no {most} of these peers, however the model is cut")


# ---- the peers ----


def _swarm(asked: Place) -> Swarm:
    if asked.preset:
        return _spread_over(asked)
    if asked.peers and Path(asked.peers).is_dir():
        return _seen_from(Path(asked.peers), asked.spec)
    return peers_of(asked.peers, asked.spec, asked.machine)


def _spread_over(asked: Place) -> Swarm:
    """Raises BadInput for a network that nobody knows, and for peers that are no number."""
    regions = preset(asked.preset)
    if asked.peers and not asked.peers.isdecimal():
        raise BadInput(f"--preset {asked.preset} has lines of its own; with it --peers is a number, not {asked.peers}")
    count = int(asked.peers) if asked.peers else min(sum(regions.counts), MAX_MEMBERS)
    refuse_count(count, "--peers is {}", MAX_MEMBERS)
    return at_places(regions.network(count), asked.machine)


def _seen_from(directory: Path, spec: RunSpec) -> Swarm:
    """The peers of a run as one of them knows them: what they say of their speeds and lines, and the round trips that
    it measured."""
    if not event_files(directory):
        raise BadInput(
            f"{directory} holds no events; name the folder of a peer, a file of [[peer]] tables, or a number"
        )
    seen = fold_all(Seen(), read_events(directory))
    labels, tokens = labels_of(seen), step_tokens(spec)
    there = [view for view in seen.peers.values() if view.reports or view.state != "GONE"]  # mine may be stopped
    refuse_count(len(there), f"{directory} knows {{}} peers", MAX_MEMBERS)
    machines = [
        Machine(
            name=labels[view.peer], region=view.peer,
            step_s=claimed_step_s(tokens, view.tokens_per_s),
            upload_mbps=claimed_mbps(view.upload_bps),
        )
        for view in there
    ]  # fmt: skip
    return swarm_of(machines, delays=_delays(seen), otherwise_s=HOME_DELAY_S)


def _delays(seen: Seen) -> dict[frozenset[str], float]:
    """One way in seconds, by pair of ids: half of the round trips that both ends tell, the mean of the two."""
    told: dict[frozenset[str], list[float]] = {}
    for view in seen.peers.values():
        for other, rtt_s in (_measured_by(view) | dict(view.distances)).items():
            told.setdefault(frozenset((view.peer, other)), []).append(rtt_s / 2)
    return {pair: fmean(delays_s) for pair, delays_s in told.items()}


def _measured_by(view: PeerView) -> dict[str, float]:
    """Round trips in seconds by peer id, in the lines of whoever reports."""
    rows = view.network.peers if view.reports and view.network is not None else ()
    return {row["peer"]: row["rtt_s"] for row in rows if row["rtt_s"] is not None and row["rtt_s"] >= 0}


# ---- for people ----


class Searching:
    """Says every few seconds that a search goes on. `say` takes a line, `clock` gives seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said_s, self._before, self._seen = clock(), 0, 0

    def tell(self, layouts: int) -> None:
        """So many layouts were looked at; a smaller number than before is that of another search."""
        if layouts < self._seen:
            self._before += self._seen
        self._seen = layouts
        if self._clock() - self._said_s >= EVERY_S:
            self._said_s = self._clock()
            self._say(f"still looking for who should hold what: {self._before + layouts:,} layouts so far")


def describe(found: Placed) -> str:
    """A page of at most 80 columns."""
    spec, work, layout = found.asked.spec, found.work, found.placement
    lines = [
        f"{spec.run.name}: {as_short(found.shape.parameters)} parameters in {count(work.stages, 'stage')}, "
        f"{count(len(found.swarm), 'peer')}",
        *wrapped(
            f"a stage needs {format_bytes(round(work.stage_memory_bytes))} on its device; "
            f"{format_bytes(round(work.cut_bytes))} pass each cut per step and come back, "
            f"{format_bytes(round(work.stage_bytes))} of a stage are averaged once in {work.sync_steps} steps"
        ),
        *assumptions(found.swarm),
        "",
    ]
    for number, peers in enumerate(layout.pipelines, start=1):
        lines += wrapped(f"pipeline {number}: {' > '.join(layout.names[peer] for peer in peers)}")
    lines.append("")
    for text in layout.explained().splitlines():
        lines += wrapped(text)
    return "\n".join([*lines, *wrapped("no run of today can be set up so: a replica is one process on one device")])


# ---- for programs ----


def to_json(found: Placed) -> str:
    """One object: the pipelines by name, what a step of them costs, and what bounds that."""
    layout = found.placement
    table = {
        "run": found.asked.spec.run.name, "parameters": found.shape.parameters, "work": asdict(found.work),
        "peers": list(layout.names), "assumed": list(found.swarm.assumed),
        "pipelines": [[layout.names[peer] for peer in peers] for peers in layout.pipelines],
        "spares": [layout.names[peer] for peer in layout.spares], "ranks": layout.ranks(), "step_s": layout.cost_s,
        "averaging_s": layout.data_parallel_s, "passing_s": layout.pipeline_s, "computing_s": layout.compute_s,
        "note": layout.note, "evaluations": layout.evaluations,
        "bounds": [
            {"text": bound.text, "peers": [layout.names[peer] for peer in bound.peers], "seconds": bound.seconds}
            for bound in layout.bounds
        ],
    }  # fmt: skip
    return json.dumps(table)
