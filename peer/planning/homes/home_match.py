"""Which homes that cannot hold a run's model alone would train it together: the groups with the most tokens per second,
by the cost of `cluster_cost`, which is that of every other advice about clusters.

What homes say of themselves is not believed without bounds: memory counts up to one whole model, and speed up to
FASTEST times the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from peer.planning.homes.home_groups import HomeGroup, group_homes
from peer.planning.placement.block_shares import Dealing, StageHome, deal_blocks, deal_in_order
from peer.planning.plan.cluster_cost import ONE_WAY_S, fewest_stages, forecast_of, layout_of
from peer.planning.plan.model_shape import ModelShape
from peer.schema.settings import MOST_STAGES
from peer.schema.spec import RunSpec

FASTEST = 10.0
"""A home counts as at most this many times as fast as the median of all."""
MOST_SWAPPED = 8
"""In clusters of up to this many homes stages change places for shorter round trips."""

Trips = Mapping[frozenset[str], float]
"""Round trips in seconds, by the two homes; those that are not measured take twice ONE_WAY_S."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """Homes that would train together."""

    homes: tuple[str, ...]
    """Peer ids in the order of the stages, the lead first."""
    tokens_per_s: float


@dataclass(frozen=True)
class HomeMatching:
    """Answers for one run."""

    shape: ModelShape
    spec: RunSpec

    def matches(self, homes: Mapping[str, StageHome], trips: Trips) -> tuple[Match, ...]:
        """The clusters of these homes that are fastest together. Equal offers give equal answers; ties go by peer
        id."""
        asked = _Asked(self, homes, trips)
        found = group_homes(asked.rankings(), asked.fewest(), self.most_stages, asked.best_of) if homes else ()
        return tuple(asked.named(group) for group in found)

    def rated(self, order: Sequence[str], homes: Mapping[str, StageHome], trips: Trips) -> float:
        """Tokens per second of these homes in this order; 0 if one is not known, or the model does not fit."""
        if not set(order) <= homes.keys() or not 2 <= len(set(order)) == len(order) <= self.most_stages:
            return 0.0
        asked = _Asked(self, homes, trips)
        numbers = [asked.names.index(peer) for peer in order]
        dealt = deal_in_order(layout_of(self.shape, self.spec), asked.homes, numbers)
        return 0.0 if dealt is None else asked.speed_of(dealt)

    @property
    def most_stages(self) -> int:
        return min(MOST_STAGES, self.shape.blocks)

    def missing_words(self, homes: Mapping[str, StageHome]) -> str:
        """What homes that wait have, and what the model needs, for people."""
        here = "1 is here" if len(homes) == 1 else f"{len(homes)} are here"
        room = max((home.room_bytes for home in homes.values()), default=0.0)
        needed = fewest_stages(self.shape, self.spec, [room] * self.shape.blocks, least=2) if room else None
        if needed is None:
            return f"looking for other homes: {here}, none of which has room for a stage of the model"
        return f"looking for other homes: {here}, the model needs {needed} of {room / 1e9:.2g} GB"


class _Asked:
    """One question: homes by number, in the order of their ids, with plausible figures."""

    def __init__(self, matching: HomeMatching, homes: Mapping[str, StageHome], trips: Trips) -> None:
        self._shape, self._spec, self._trips = matching.shape, matching.spec, trips
        self._layout = layout_of(matching.shape, matching.spec)
        self.names = sorted(homes)
        known = [home.tokens_per_s for home in homes.values() if home.tokens_per_s > 0]
        fastest, whole = (
            FASTEST * median(known) if known else 0.0,
            self._layout.needed_bytes(range(len(self._layout.sizes))),
        )
        self.homes = [
            replace(
                homes[name], tokens_per_s=min(homes[name].tokens_per_s, fastest),
                room_bytes=min(homes[name].room_bytes, whole),
            )
            for name in self.names
        ]  # fmt: skip

    def fewest(self) -> int:
        """A smaller number of homes cannot hold the model, even if layers could be cut anywhere."""
        beside = self._layout.each_stage_bytes
        rooms = sorted(((home.room_bytes or float("inf")) - beside for home in self.homes), reverse=True)
        held, whole = list(accumulate(rooms)), sum(self._layout.held_bytes)
        return max(2, next((at + 1 for at, sum_bytes in enumerate(held) if sum_bytes >= whole), len(held) + 1))

    def rankings(self) -> list[list[int]]:
        """All homes by speed, by line, by room, and by nearness to the first."""
        numbers = range(len(self.homes))
        near = [min(numbers, key=lambda number: self.names[number])]
        while len(near) < len(numbers):
            near.append(min(set(numbers) - set(near), key=lambda number: (self.one_way_s(near[-1], number), number)))
        return [
            sorted(numbers, key=lambda number: (-self.homes[number].tokens_per_s, number)),
            sorted(numbers, key=lambda number: (-(self.homes[number].upload_bps or float("inf")), number)),
            sorted(numbers, key=lambda number: (-self.homes[number].room_bytes, number)),
            near,
        ]

    def best_of(self, group: frozenset[int]) -> HomeGroup | None:
        """The best cluster of these homes: who leads and in which order, by the dealing of blocks, and then with
        stages in each other's places where round trips make that faster."""
        best: tuple[float, Dealing] | None = None
        for lead in self._leads(group):
            numbers = [lead, *sorted(group - {lead})]
            dealt = deal_blocks(self._layout, [self.homes[number] for number in numbers], len(numbers))
            if dealt is None:
                continue
            here = replace(dealt, order=tuple(numbers[at] for at in dealt.order))
            speed = self.speed_of(here)
            if best is None or speed > best[0]:
                best = speed, here
        if best is None:
            return None
        speed, dealt = self._nearer(*best) if self._trips else best
        return HomeGroup(homes=dealt.order, tokens_per_s=speed)

    def _leads(self, group: frozenset[int]) -> list[int]:
        """The homes that may lead: the first stage has one neighbour and the embedding, so those with the fastest
        device, the slowest line and the most room."""
        homes = self.homes
        line = min(group, key=lambda number: (homes[number].upload_bps or float("inf"), number))
        fast = max(group, key=lambda number: (homes[number].tokens_per_s, -number))
        large = max(group, key=lambda number: (homes[number].room_bytes, -number))
        return list(dict.fromkeys((fast, line, large)))

    def _nearer(self, speed: float, dealt: Dealing) -> tuple[float, Dealing]:
        stages = len(dealt.order)
        improved = stages <= MOST_SWAPPED
        while improved:
            improved = False
            for one in range(stages):
                for other in range(one + 1, stages):
                    order = list(dealt.order)
                    order[one], order[other] = order[other], order[one]
                    changed = deal_in_order(self._layout, self.homes, order)
                    if changed is not None and self.speed_of(changed) > speed * (1 + 1e-9):
                        speed, dealt, improved = self.speed_of(changed), changed, True
        return speed, dealt

    def speed_of(self, dealt: Dealing) -> float:
        return forecast_of(self._shape, self._spec, self.homes, dealt, self.one_way_s).tokens_per_s

    def one_way_s(self, one: int, other: int) -> float:
        return self._trips.get(frozenset((self.names[one], self.names[other])), 2 * ONE_WAY_S) / 2

    def named(self, group: HomeGroup) -> Match:
        return Match(homes=tuple(self.names[number] for number in group.homes), tokens_per_s=group.tokens_per_s)
