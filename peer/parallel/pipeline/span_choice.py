"""Assigns neighbouring layers to the homes of a cluster so that the slowest home delays the others as little as
possible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.planning.plan.home_cost import RECOMPUTED, WIRE_BYTES
from peer.schema.ipc import Assignment, HomeOffer, StageHolder
from peer.training.model.flat_parameters import Layer

Wire = Literal["int8", "bfloat16", "float32"]
HELD_BYTES = 20
"""The bytes per parameter that a home trains: parameters, gradients and two moments, and a quarter more for a micro-
batch."""
VALUE_BYTES = {"int8": WIRE_BYTES, "bfloat16": 2, "float32": 4}
"""The bytes of a value between two stages: see `peer.parallel.pipeline.activation_codec`."""
Matrix = NDArray[np.float64]


def choose_spans(
    layers: Sequence[Layer], width: int, homes: Sequence[HomeOffer], stages: int, epoch: int, wire: Wire
) -> Assignment:
    """Assign whole blocks to `stages` of the homes. The lead, the first of `homes`, gets the first stage. There are
    no spares yet.

    The other homes and their order are chosen for the most tokens per second. A home computes its layers in a time
    proportional to their parameters, while its line carries `width` values per token for each neighbour; the slowest of
    all decides (DT-FM, arXiv:2206.01288). Layers before the first block belong to it and cost nothing; layers after the
    last block belong to that one. An unknown speed (0) is assumed to be the mean of the others; a bandwidth or memory
    of 0 is no limit. The result is optimal if all blocks are equal. Raises BadInput if the model does not fit, or has
    fewer blocks than stages.
    """
    require_blocks(layers, stages)
    problem = _SpanProblem.of(layers, width, homes, wire)
    order = problem.order(stages)
    if order is None:
        whole = sum(layer.size for layer in layers) / 1e6
        raise BadInput(f"{len(homes)} homes have no room for the {whole:,.0f} M parameters in {stages} stages")
    starts = problem.starts(order)
    ends = (*starts[1:], len(layers))
    held = zip(order, starts, ends, strict=True)
    return Assignment(
        epoch, tuple(StageHolder(homes[home].peer, first, end - 1) for home, first, end in held), (), wire
    )  # fmt: skip


def require_blocks(layers: Sequence[Layer], stages: int) -> None:
    """Raises BadInput if the model has fewer blocks than stages."""
    blocks = sum(layer.is_block for layer in layers)
    if blocks < stages:
        raise BadInput(f"a model of {blocks} blocks cannot be trained by {stages} homes")


def has_room(home: HomeOffer, layers: Sequence[Layer]) -> bool:
    """Whether this home can train these layers, if it states its memory."""
    return not home.memory_gb or HELD_BYTES * sum(layer.size for layer in layers) <= home.memory_gb * 1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class _SpanProblem:
    """The choice of homes and cuts; a stage lies between two cuts. Homes are numbered in the given order."""

    cuts: tuple[int, ...]
    """The layers at which a stage may begin, and the end."""
    alone_s: tuple[tuple[Matrix, Matrix], ...]
    """For each home, with one neighbour and with two: seconds per token of a stage between two cuts, shape (cuts,
    cuts); inf if it does not fit."""

    @classmethod
    def of(cls, layers: Sequence[Layer], width: int, homes: Sequence[HomeOffer], wire: Wire) -> _SpanProblem:
        blocks = [number for number, layer in enumerate(layers) if layer.is_block]
        cuts = (0, *blocks[1:], len(layers))
        held_C = _sums((layer.size for layer in layers), cuts)
        work_C = _sums((layer.size * (number >= blocks[0]) for number, layer in enumerate(layers)), cuts)
        held_CC, work_CC = held_C[None] - held_C[:, None], (work_C[None] - work_C[:, None]) / work_C[-1]
        known = [home.tokens_per_s for home in homes if home.tokens_per_s > 0]
        usual = sum(known) / len(known) if known else 1.0

        def alone_s(home: HomeOffer) -> tuple[Matrix, Matrix]:
            room = home.memory_gb * 1e9 or math.inf
            fits_CC = (np.arange(len(cuts))[:, None] < np.arange(len(cuts))) & (HELD_BYTES * held_CC <= room)
            computing_CC = np.where(fits_CC, RECOMPUTED * work_CC / (home.tokens_per_s or usual), np.inf)
            passing_s = width * VALUE_BYTES[wire] * 8 / (home.upload_mbps * 1e6 or math.inf)
            return np.maximum(computing_CC, passing_s), np.maximum(computing_CC, 2 * passing_s)

        return cls(cuts=cuts, alone_s=tuple(map(alone_s, homes)))

    def order(self, stages: int) -> tuple[int, ...] | None:
        """The homes that hold a stage, in the order for which the slowest is fastest; None if the model does not
        fit."""
        known_s = np.unique(np.concatenate([matrix.ravel() for both in self.alone_s for matrix in both]))
        known_s = known_s[np.isfinite(known_s)]
        at = bisect_left(known_s, True, key=lambda slowest_s: self._order_within(slowest_s, stages) is not None)
        return self._order_within(known_s[at], stages) if at < len(known_s) else None

    def _order_within(self, slowest_s: float, stages: int) -> tuple[int, ...] | None:
        """An order in which no stage needs longer than `slowest_s`: each home in the middle holds as much as it can,
        and the homes that reach furthest come first."""
        end, others = len(self.cuts) - 1, range(1, len(self.alone_s))

        def reach(home: int, first: int, neighbours: int) -> int:
            """The last cut that this home's stage can reach from `first`; `first` if it can hold nothing."""
            within = np.flatnonzero(self.alone_s[home][neighbours - 1][first] <= slowest_s)
            return int(within[-1]) if len(within) else first

        for last in reversed(others):
            order, at = [0], min(reach(0, 0, 1), end - stages + 1)
            while at and len(order) < stages - 1:
                free = [home for home in others if home != last and home not in order]
                home = max(free, key=lambda home: reach(home, at, 2))
                before, at = at, min(reach(home, at, 2), end - stages + 1 + len(order))
                order.append(home)
                at = at if at > before else 0
            if at and self.alone_s[last][0][at, end] <= slowest_s:
                return (*order, last)
        return None

    def starts(self, order: Sequence[int]) -> tuple[int, ...]:
        """The first layer of each stage for this `order`, which fits, chosen so that the slowest home is fastest."""
        best_C = np.full(len(self.cuts), np.inf)  # by cut: of those who hold everything before it
        best_C[0] = 0.0
        came: list[NDArray[np.intp]] = []
        for place, home in enumerate(order):
            slowest_CC = np.maximum(best_C[:, None], self.alone_s[home][0 < place < len(order) - 1])
            came.append(slowest_CC.argmin(axis=0))
            best_C = slowest_CC.min(axis=0)
        at, found = len(self.cuts) - 1, []
        for came_C in reversed(came):
            at = int(came_C[at])
            found.append(self.cuts[at])
        return tuple(reversed(found))


def _sums(values: Iterable[int], cuts: Sequence[int]) -> Matrix:
    return np.array([0, *accumulate(values)], float)[list(cuts)]
