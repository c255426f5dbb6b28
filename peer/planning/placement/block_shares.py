"""Deals whole blocks of a model to the homes of a cluster so that the slowest home delays the others as little as
possible. The lead of a cluster deals so, and whoever advises a cluster asks here whether it can form.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

HELD_BYTES = 17
"""The bytes per parameter that a home of a cluster needs: parameters, gradients and two moments, and one more for the
gaps that allocators leave."""
WIRE_BYTES = 1 + 4 / 64
"""The bytes of a value sent between two stages as int8, with the scales of its blocks: see
`peer.parallel.pipeline.activation_codec`."""
RECOMPUTED = 4 / 3
"""The operations of a stage, which computes its forward pass twice, divided by those of a device that holds
everything."""
FLIGHTS_PER_STAGE = 3
"""The least number of micro-batches on their way at a time, per stage. If a line needs as long for one as a stage
does, then each of S stages is working on one, and so is each of S - 1 lines, there and back."""
FLYING_BYTES = 1_250_000
"""Additional flights, of this many bytes in total for each stage after the first: what 100 Mbit/s carry in 50 ms
there and 50 ms back. The lead keeps all of them, and stages between the first and the last keep twice as much."""
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StageHome:
    """A home that may hold a stage."""

    tokens_per_s: float = 0.0
    """The speed at which it would train the whole model; 0: not known, the mean of the others is assumed."""
    room_bytes: float = 0.0
    """The memory of its device; 0: no limit."""
    upload_bps: float = 0.0
    """0: no limit."""


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """The layers of a model, and where it can be cut."""

    sizes: tuple[int, ...]
    """Trained parameters of each layer."""
    blocks: tuple[int, ...]
    """The layers that are blocks. Layers before the first belong to it, layers after the last to that one."""
    width: int
    """The width of the residual stream."""
    beside_bytes: tuple[float, ...] = ()
    """What else a home holds for each layer; empty: nothing."""
    each_stage_bytes: float = 0.0
    """What a home needs besides, whatever its layers are."""
    multiplied: tuple[float, ...] = ()
    """The parameters with which a token is multiplied in each layer; empty: all, from the first block on."""
    tied: int = 0
    """The parameters of the first layer that the last stage has a copy of."""

    @property
    def cuts(self) -> tuple[int, ...]:
        """The layers at which a stage may begin, and the end."""
        return (0, *self.blocks[1:], len(self.sizes))

    @property
    def held_bytes(self) -> tuple[float, ...]:
        """What a home needs for each layer."""
        beside = self.beside_bytes or (0,) * len(self.sizes)
        return tuple(HELD_BYTES * size + more for size, more in zip(self.sizes, beside, strict=True))

    def needed_bytes(self, held: range) -> float:
        """What a home needs for these layers."""
        return self.each_stage_bytes + sum(self.held_bytes[held.start : held.stop])

    @property
    def work(self) -> tuple[float, ...]:
        """The time of each layer, in some unit. Layers before the first block cost none."""
        first = self.blocks[0]
        return self.multiplied or tuple(size * (number >= first) for number, size in enumerate(self.sizes))


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """The homes that hold a stage, in the order of the stages, the lead first.

    Attributes:
        order: their numbers in the given sequence.
        starts: the first layer of each stage.
        tokens_per_s: of all of them together, with many micro-batches under way.
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    tokens_per_s: float


def deal_blocks(
    layout: BlockLayout, homes: Sequence[StageHome], stages: int, value_bytes: float = WIRE_BYTES
) -> Dealing | None:
    """Deal whole blocks to `stages` of the homes, the first of which leads; None if the model does not fit.

    The other homes and their order are chosen for the most tokens per second. A home computes its layers in a time
    proportional to what a token is multiplied with in them, while its line carries `width` values per token for each
    neighbour; the slowest of all decides (DT-FM, arXiv:2206.01288). The result is optimal if all blocks are equal.
    """
    if not 1 <= stages <= min(len(layout.blocks), len(homes)):
        return None
    problem = _DealingProblem.of(layout, homes, value_bytes)
    order = problem.order(stages)
    if order is None:
        return None
    cuts, slowest_s = problem.cuts_of(order)
    return Dealing(
        order=order, starts=tuple(layout.cuts[cut] for cut in cuts),
        tokens_per_s=1 / slowest_s if slowest_s > 0 else math.inf,
    )  # fmt: skip


def deal_in_order(
    layout: BlockLayout, homes: Sequence[StageHome], order: Sequence[int], value_bytes: float = WIRE_BYTES
) -> Dealing | None:
    """Deal whole blocks to these homes in this order, the lead first; None if the model does not fit."""
    if not 1 <= len(order) <= len(layout.blocks):
        return None
    cuts, slowest_s = _DealingProblem.of(layout, homes, value_bytes).cuts_of(order)
    if not math.isfinite(slowest_s):
        return None
    return Dealing(
        order=tuple(order), starts=tuple(layout.cuts[cut] for cut in cuts),
        tokens_per_s=1 / slowest_s if slowest_s > 0 else math.inf,
    )  # fmt: skip


def stage_room_bytes(layout: BlockLayout, stages: int) -> float:
    """The least memory with which `stages` homes alike can hold the model, whole blocks each; infinite if it has fewer
    blocks."""
    ends = _sums(layout.held_bytes, layout.cuts)[1:]
    if stages > len(ends):
        return math.inf
    held = np.unique(ends[:, None] - np.concatenate([[0.0], ends])[None])
    held = held[held > 0]

    def suffices(most: float) -> bool:
        at, before = 0, 0.0
        for _ in range(stages):
            at = int(np.searchsorted(ends, before + most, side="right"))
            if at == len(ends):
                return True
            before = ends[at - 1] if at else 0.0
        return False

    return layout.each_stage_bytes + float(held[bisect_left(held, True, key=suffices)])


@dataclass(frozen=True, kw_only=True, eq=False)
class _DealingProblem:
    """The choice of homes and cuts; a stage lies between two cuts. Homes are numbered in the given order."""

    homes: tuple[StageHome, ...]
    alone_s: tuple[tuple[Matrix, Matrix], ...]
    """For each home, with one neighbour and with two: seconds per token of a stage between two cuts, shape (cuts,
    cuts); inf if it does not fit."""

    @classmethod
    def of(cls, layout: BlockLayout, homes: Sequence[StageHome], value_bytes: float) -> _DealingProblem:
        cuts = layout.cuts
        held_C, work_C = _sums(layout.held_bytes, cuts), _sums(layout.work, cuts)
        held_CC, work_CC = held_C[None] - held_C[:, None], (work_C[None] - work_C[:, None]) / work_C[-1]
        known = [home.tokens_per_s for home in homes if home.tokens_per_s > 0]
        usual = sum(known) / len(known) if known else 1.0

        def alone_s(home: StageHome) -> tuple[Matrix, Matrix]:
            room = (home.room_bytes or math.inf) - layout.each_stage_bytes
            fits_CC = (np.arange(len(cuts))[:, None] < np.arange(len(cuts))) & (held_CC <= room)
            computing_CC = np.where(fits_CC, RECOMPUTED * work_CC / (home.tokens_per_s or usual), np.inf)
            passing_s = layout.width * value_bytes * 8 / (home.upload_bps or math.inf)
            return np.maximum(computing_CC, passing_s), np.maximum(computing_CC, 2 * passing_s)

        kinds = {home: alone_s(home) for home in dict.fromkeys(homes)}
        return cls(homes=tuple(homes), alone_s=tuple(kinds[home] for home in homes))

    @property
    def end(self) -> int:
        return len(self.alone_s[0][0]) - 1

    def order(self, stages: int) -> tuple[int, ...] | None:
        """The homes that hold a stage, in the order for which the slowest is fastest; None if the model does not
        fit."""
        if stages == 1:
            return (0,) if np.isfinite(self.alone_s[0][0][0, self.end]) else None
        distinct = {id(matrix): matrix for both in self.alone_s for matrix in both}.values()
        known_s = np.unique(np.concatenate([matrix.ravel() for matrix in distinct]))
        known_s = known_s[np.isfinite(known_s)]
        at = bisect_left(known_s, True, key=lambda slowest_s: self._order_within(slowest_s, stages) is not None)
        return self._order_within(known_s[at], stages) if at < len(known_s) else None

    def _order_within(self, slowest_s: float, stages: int) -> tuple[int, ...] | None:
        """An order in which no stage needs longer than `slowest_s`: each home in the middle holds as much as it can,
        and the homes that reach furthest come first."""
        end, others = self.end, range(1, len(self.alone_s))

        def reach(home: int, first: int, neighbours: int) -> int:
            """The last cut that this home's stage can reach from `first`; `first` if it can hold nothing."""
            within = np.flatnonzero(self.alone_s[home][neighbours - 1][first] <= slowest_s)
            return int(within[-1]) if len(within) else first

        for last in self._unlike(reversed(others)):
            order, at = [0], min(reach(0, 0, 1), end - stages + 1)
            while at and len(order) < stages - 1:
                free = self._unlike(home for home in others if home != last and home not in order)
                home = max(free, key=lambda home: reach(home, at, 2))
                before, at = at, min(reach(home, at, 2), end - stages + 1 + len(order))
                order.append(home)
                at = at if at > before else 0
            if at and self.alone_s[last][0][at, end] <= slowest_s:
                return (*order, last)
        return None

    def _unlike(self, numbers: Iterable[int]) -> list[int]:
        """The first home of each kind: of homes alike it does not matter which."""
        first: dict[StageHome, int] = {}
        for number in numbers:
            first.setdefault(self.homes[number], number)
        return list(first.values())

    def cuts_of(self, order: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """Returns (the cut at which each stage begins, the seconds per token of the slowest home), for an `order` that
        fits, with the cuts for which that home is fastest."""
        best_C = np.full(self.end + 1, np.inf)  # by cut: of those who hold everything before it
        best_C[0] = 0.0
        came: list[NDArray[np.intp]] = []
        for place, home in enumerate(order):
            slowest_CC = np.maximum(best_C[:, None], self.alone_s[home][0 < place < len(order) - 1])
            came.append(slowest_CC.argmin(axis=0))
            best_C = slowest_CC.min(axis=0)
        at, found = self.end, []
        for came_C in reversed(came):
            at = int(came_C[at])
            found.append(at)
        return tuple(reversed(found)), float(best_C[-1])


def _sums(values: Iterable[float], cuts: Sequence[int]) -> Matrix:
    return np.array([0, *accumulate(values)], float)[list(cuts)]
