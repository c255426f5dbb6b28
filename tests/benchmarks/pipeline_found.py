"""Homes that found each other, beside the best of all groupings and beside random ones: six homes of three speeds on
two kinds of lines, and a model that three of them hold.

The searches are those of the product, in virtual time. Clusters are trained in threads, on lines in memory: of each
home one uplink for all that it sends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from dht.records import SoughtHomes, short_id
from peer.parallel.pipeline.span_choice import choose_spans
from peer.planning.homes.home_match import HomeMatching
from peer.planning.homes.home_search import SETTLE_S, Gather, HomeSearch
from peer.planning.placement.block_shares import StageHome
from peer.planning.placement.pairwise_network import Network
from peer.planning.plan.cluster_cost import layout_of, room_of_stage
from peer.planning.plan.model_shape import shape_of
from peer.schema.ipc import HomeOffer
from peer.schema.spec import RunSpec, from_mapping
from tests.benchmarks.pipeline_placed import WIRE, PairwiseFlow, speed_of_step
from tests.benchmarks.pipeline_stage import in_order
from tests.benchmarks.rows import Bar

STAGES = 3
ROOM = 1.05
"""The memory of each home, as a multiple of what a third of the model takes."""
PASSES = 3
"""Forward passes in a forward and a backward one (arXiv:2001.08361, section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class FoundHomes:
    """Groupings that were made in one way: the homes of each cluster, and tokens per second of all homes together."""

    way: str
    homes: list[list[list[str]]]
    speeds: list[float]


class UplinkFlow(PairwiseFlow):
    """Frames that share the line of whoever sends them."""

    def send(self, sender: str, to: str, frame: bytes) -> None:
        way = self._number[sender], self._number[to]
        ends = max(time.monotonic(), self._free_at.get((sender, ""), 0.0))
        ends += len(frame) * 8 / self._network.bandwidth_bps[way]
        self._free_at[sender, ""] = ends
        self._boxes[to].put(ends + self._network.delay_s[way], sender, frame)


@dataclass(frozen=True)
class Town:
    """The homes of a plan, what they offer, and the model."""

    spec: RunSpec
    offers: Mapping[str, SoughtHomes]
    network: Network

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Town:
        spec = from_mapping(plan["spec"], "found")
        memory_gb = ROOM * room_of_stage(shape_of(spec), spec, STAGES) / 1e9
        kinds = [(speed, mbps) for speed in plan["tokens_per_s"] for mbps in plan["upload_mbps"]]
        names = [f"{speed}-{mbps}" for speed, mbps in kinds]
        delays = np.full((len(names), len(names)), plan["delay_s"])
        bandwidth = np.repeat(np.array([[1e6 * mbps] for _, mbps in kinds]), len(names), axis=1)
        trips = {name: tuple((short_id(other), round(2e3 * plan["delay_s"])) for other in names if other != name)
                 for name in names}  # fmt: skip
        offers = {
            name: SoughtHomes(
                memory_gb=memory_gb, tokens_per_s=float(speed), upload_mbps=float(mbps), trips_ms=trips[name]
            )
            for name, (speed, mbps) in zip(names, kinds, strict=True)
        }  # fmt: skip
        return cls(spec, offers, Network(names=tuple(names), delay_s=delays, bandwidth_bps=bandwidth))

    def found(self) -> list[list[str]]:
        """The clusters that the homes gather, each by its own search."""
        matching, gathered = HomeMatching(shape_of(self.spec), self.spec), []
        for name in self.offers:
            search = HomeSearch(name, matching.matches, matching.rated)
            search.look(self.offers, 0.0)
            does = search.look(self.offers, SETTLE_S)
            if isinstance(does, Gather):
                gathered.append(list(does.match.homes))
        return gathered

    def order_of(self, group: Sequence[str]) -> list[str]:
        """The best cluster of exactly these homes, by the cost of the search."""
        matching = HomeMatching(shape_of(self.spec), self.spec)
        homes = {
            name: StageHome(
                tokens_per_s=self.offers[name].tokens_per_s, room_bytes=1e9 * self.offers[name].memory_gb,
                upload_bps=1e6 * self.offers[name].upload_mbps,
            )
            for name in group
        }  # fmt: skip
        round_trip_s = 2 * float(self.network.delay_s[0, 1])
        (match,) = matching.matches(homes, {frozenset(pair): round_trip_s for pair in combinations(group, 2)})
        return list(match.homes)

    def speed(self, folder: Path, order: Sequence[str], *, is_dealt: bool) -> float:
        """Tokens per second of one step of these homes, with layers dealt by what they offer, or as if nothing were
        known of them."""
        folder.mkdir(parents=True)
        offers = [
            HomeOffer(name, name, said.memory_gb, said.tokens_per_s, said.upload_mbps)
            for name in order
            if (said := self.offers[name])
        ]  # fmt: skip
        homes = offers if is_dealt else in_order(order)
        layout = layout_of(shape_of(self.spec), self.spec)
        assignment = choose_spans(layout, homes, STAGES, 1, WIRE, order)
        work = [sum(layout.work[number] for number in holder.layers) / sum(layout.work) for holder in assignment.stages]
        tokens = self.spec.inner.sequences * self.spec.model.context
        paces = [
            share * tokens / self.offers[holder.peer].tokens_per_s / PASSES
            for share, holder in zip(work, assignment.stages, strict=True)
        ]
        return speed_of_step(folder, self.spec, UplinkFlow(self.network), assignment, paces)


def compare(folder: Path, plan: dict[str, Any], way: str) -> FoundHomes:
    """The homes as they find each other, in the best of all groupings (each cluster is trained), or in random ones."""
    town, speeds = Town.of(plan), dict[tuple[str, ...], float]()

    def speed(order: Sequence[str], *, is_dealt: bool = True) -> float:
        if tuple(order) not in speeds:
            speeds[tuple(order)] = town.speed(folder / str(len(speeds)), order, is_dealt=is_dealt)
        return speeds[tuple(order)]

    if way == "found":
        made = [town.found()]
    elif way == "exhaustion":
        made = [[town.order_of(group) for group in grouping] for grouping in _groupings(list(town.offers))]
        made = [max(made, key=lambda orders: sum(map(speed, orders)))]
    else:
        drawn = Random(plan["seed"])
        shuffled = [drawn.sample(list(town.offers), len(town.offers)) for _ in range(plan["drawn"])]
        made = [[names[at : at + STAGES] for at in range(0, len(names), STAGES)] for names in shuffled]
    is_dealt = way != "random"
    return FoundHomes(
        way=way, homes=made, speeds=[sum(speed(each, is_dealt=is_dealt) for each in orders) for orders in made]
    )  # fmt: skip


def _groupings(names: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """All ways to make two clusters of three homes each."""
    first, rest = names[0], names[1:]
    ones = [[first, *others] for others in combinations(rest, STAGES - 1)]
    return [(one, [name for name in rest if name not in one]) for one in ones]


def bars_of(plan: dict[str, Any], rows: list[FoundHomes]) -> list[Bar]:
    """Homes that found each other against the best grouping, and against random ones; a quick run tries no best one."""
    by_way = {row.way: fmean(row.speeds) for row in rows}
    if "exhaustion" not in by_way:
        return []
    share, gain = by_way["found"] / by_way["exhaustion"], by_way["found"] / by_way["random"]
    return [
        Bar(name=f"found at least {plan['share']:g} of the best", met=share >= plan["share"], figures=f"{share:.2f}"),
        Bar(name=f"found at least {plan['gain']:g} × random", met=gain >= plan["gain"], figures=f"{gain:.2f} ×"),
    ]


def table_of(rows: list[FoundHomes]) -> list[list[str]]:
    """Titles, and a line of each way."""
    clusters = [" | ".join(", ".join(homes) for homes in row.homes[0]) for row in rows]
    titles = ["tokens/s of all", "speed", "clusters (speed-upload of each home)"]
    return [titles] + [[row.way, f"{fmean(row.speeds):,.0f}", words] for row, words in zip(rows, clusters, strict=True)]
