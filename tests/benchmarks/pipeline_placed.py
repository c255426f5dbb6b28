"""Clusters whose homes lie as `peer.planning.placement` puts them, and at random: DT-FM's delays and rates, in threads.

Frames pass in memory, each pair of homes by a way of its own that has the pair's rate and delay.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from peer.parallel.pipeline.activation_codec import encoded_bytes
from peer.parallel.pipeline.span_choice import choose_spans
from peer.parallel.pipeline.stage import StagePlace
from peer.planning.placement.pairwise_network import Network, preset
from peer.planning.placement.place import place
from peer.planning.placement.stage_workload import StageWorkload
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.ipc import Assignment
from peer.schema.spec import RunSpec, from_mapping
from peer.training.data.open_source import open_source
from peer.training.data.sampler import IdleSampler, ShardSampler
from tests.benchmarks.pipeline_stage import CPU, FORWARDS, PacedLead, PacedWorker, in_order
from tests.benchmarks.rows import Bar
from tests.pipeline_step import Stage, pipeline_step_s

WIRE = "int8"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Clusters that were made in one way.

    Attributes:
        homes: names, stage by stage, of each cluster that was measured.
        speeds, forecasts: of each of these in tokens per second: measured, and by the planner's formula.
    """

    way: str
    homes: list[list[str]]
    speeds: list[float]
    forecasts: list[float]

    @property
    def speed(self) -> float:
        return fmean(self.speeds)

    @property
    def forecast(self) -> float:
        return fmean(self.forecasts)


class PairwiseFlow:
    """Frames between homes of one process: in order, as late as the way between the two makes them."""

    def __init__(self, network: Network) -> None:
        self._number = {name: number for number, name in enumerate(network.names)}
        self._network = network
        self._boxes = {name: Box() for name in network.names}
        self._free_at: dict[tuple[str, str], float] = {}

    def send(self, sender: str, to: str, frame: bytes) -> None:
        way = self._number[sender], self._number[to]
        begins = max(time.monotonic(), self._free_at.get((sender, to), 0.0))
        ends = begins + len(frame) * 8 / self._network.bandwidth_bps[way]
        self._free_at[sender, to] = ends  # one thread alone sends for a home
        self._boxes[to].put(ends + self._network.delay_s[way], sender, frame)

    def receive(self, me: str, timeout_s: float) -> tuple[str, bytes] | None:
        return self._boxes[me].get(timeout_s)


@dataclass(frozen=True)
class PairwisePort:
    """Of one home."""

    flow: PairwiseFlow
    me: str

    def send(self, to: str, frame: bytes) -> None:
        self.flow.send(self.me, to, frame)

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        return self.flow.receive(self.me, timeout_s)


@dataclass
class Box:
    """What comes to a home, each at its time."""

    _coming: list[tuple[float, int, str, bytes]] = field(default_factory=list)
    _count: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)

    def put(self, at: float, sender: str, frame: bytes) -> None:
        with self._news:
            self._count += 1
            heapq.heappush(self._coming, (at, self._count, sender, frame))
            self._news.notify()

    def get(self, timeout_s: float) -> tuple[str, bytes] | None:
        until = time.monotonic() + timeout_s
        with self._news:
            while True:
                now = time.monotonic()
                if self._coming and self._coming[0][0] <= now:
                    _, _, sender, frame = heapq.heappop(self._coming)
                    return sender, frame
                if now >= until:
                    return None
                next_at = self._coming[0][0] if self._coming else until
                self._news.wait(min(until, next_at) - now)


def compare(folder: Path, plan: dict[str, Any], way: str) -> Placed:
    """Some clusters of a layout of the whole network: of one at random, or of that which the search finds."""
    network, spec = scaled(plan), _spec(plan)
    pipelines = _searched(network, spec, plan) if way == "placed" else _drawn(network, plan)
    names = [[network.names[peer] for peer in pipeline] for pipeline in pipelines[: plan["measured"]]]
    speeds = [_speed(folder / str(number), spec, network, homes, plan) for number, homes in enumerate(names)]
    forecasts = [_forecast(spec, network, pipeline, plan) for pipeline in pipelines[: plan["measured"]]]
    return Placed(way=way, homes=names, speeds=speeds, forecasts=forecasts)


def scaled(plan: dict[str, Any]) -> Network:
    """With all rates divided by `slower`, as frames are smaller than those of a model that needs many homes."""
    network = preset(plan["network"]).network()
    return Network(
        names=network.names, delay_s=network.delay_s, bandwidth_bps=network.bandwidth_bps / plan["slower"]
    )  # fmt: skip


def _spec(plan: dict[str, Any]) -> RunSpec:
    config = plan["spec"]["model"]["config"] | {"num_hidden_layers": plan["homes"]}
    return from_mapping(plan["spec"] | {"model": plan["spec"]["model"] | {"config": config}}, "placed")


def _flight_bytes(spec: RunSpec) -> int:
    return encoded_bytes(spec.inner.sequences * spec.model.context * spec.model.config["hidden_size"], WIRE)


def _searched(network: Network, spec: RunSpec, plan: dict[str, Any]) -> list[tuple[int, ...]]:
    flights = spec.inner.accumulation
    work = StageWorkload(
        stages=plan["homes"], stage_bytes=plan["stage_bytes"] / plan["slower"], cut_bytes=flights * _flight_bytes(spec),
        sync_steps=plan["steps_a_round"], compute_s=flights * FORWARDS * plan["forward_s"], micro_batches=flights,
    )  # fmt: skip
    pipelines = list(place(network, work, seed=plan["seed"]).pipelines)
    return [pipelines[at] for at in np.random.default_rng(plan["seed"]).permutation(len(pipelines))]


def _drawn(network: Network, plan: dict[str, Any]) -> list[tuple[int, ...]]:
    order = np.random.default_rng(plan["seed"]).permutation(len(network))
    return [tuple(row) for row in order[: len(order) // plan["homes"] * plan["homes"]].reshape(-1, plan["homes"])]


def _forecast(spec: RunSpec, network: Network, pipeline: Sequence[int], plan: dict[str, Any]) -> float:
    transfer_s = network.transfer_s(_flight_bytes(spec))
    cuts = [float(transfer_s[one, other] + transfer_s[other, one]) for one, other in pairwise(pipeline)]
    stages = [Stage(blocks=1, micro_s=FORWARDS * plan["forward_s"])] * len(pipeline)
    step_s = pipeline_step_s(stages, cuts, spec.inner.accumulation)
    return spec.inner.sequences * spec.inner.accumulation * spec.model.context / step_s


def _speed(folder: Path, spec: RunSpec, network: Network, homes: Sequence[str], plan: dict[str, Any]) -> float:
    """Tokens per second of one step."""
    folder.mkdir(parents=True)
    assignment = choose_spans(layout_of(shape_of(spec), spec), in_order(homes), len(homes), 1, WIRE)
    return speed_of_step(folder, spec, PairwiseFlow(network), assignment, [plan["forward_s"]] * len(homes))


def speed_of_step(
    folder: Path, spec: RunSpec, flow: PairwiseFlow, assignment: Assignment, paces_s: Sequence[float]
) -> float:
    """Tokens per second of one step of a cluster whose homes run in threads, each stage with a pace of its own."""
    names = [holder.peer for holder in assignment.stages]
    places = [StagePlace(assignment=assignment, me=me, port=PairwisePort(flow, me)) for me in names]
    batches = ShardSampler(open_source(spec), spec, names[0], (names[0],), {})
    lead = PacedLead(spec, places[0], batches, CPU, lambda smaller: None, lambda: None, folder)
    workers = [PacedWorker(spec, place, IdleSampler(), CPU, folder) for place in places[1:]]
    for stage, pace_s in zip((lead, *workers), paces_s, strict=True):
        stage.pace(pace_s)
        assert stage.anchor.round == 0, "made before the first step"
    threads = [threading.Thread(target=worker.step, args=(0, 0)) for worker in workers]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    made = lead.step(0, 0)
    seconds = time.monotonic() - began
    for thread in threads:
        thread.join()
    return made.tokens / seconds


def bars_of(plan: dict[str, Any], rows: list[Placed]) -> list[Bar]:
    """Placed clusters against those at random, and against what was said of them."""
    by_way = {row.way: row for row in rows}
    placed, drawn = by_way["placed"], by_way["random"]
    gain, kept = placed.speed / drawn.speed, placed.speed / placed.forecast
    return [
        Bar(name=f"placed at least {plan['gain']:g} × random", met=gain >= plan["gain"], figures=f"{gain:.2f} ×"),
        Bar(
            name=f"placed at least {plan['kept']:g} of the forecast", met=kept >= plan["kept"], figures=f"{kept:.2f}"
        ),
    ]  # fmt: skip


def table_of(rows: list[Placed]) -> list[list[str]]:
    """Titles, and a line of each way."""
    titles = ["tokens/s of a cluster", "clusters", "mean", "least", "most", "forecast"]
    return [titles] + [
        [
            row.way, str(len(row.speeds)), f"{row.speed:,.0f}", f"{min(row.speeds):,.0f}", f"{max(row.speeds):,.0f}",
            f"{row.forecast:,.0f}",
        ]
        for row in rows
    ]  # fmt: skip
