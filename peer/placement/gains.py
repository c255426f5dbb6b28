"""Local searches that swap devices by a gain that is cheap to tell, many layouts at a time.

*fastest*: DT-FM's own (arXiv:2206.01288, section 3.4). A fast link inside a group is wasted: averaging is bound by the
slow ones, and between two groups it would serve the pipeline. So of each group only an end of its fastest link is
moved. The gain of swapping d1 (whose fastest link is to d2) with d1' (to d2'), of groups C and C':

    mean over C' of w[d1, ·] − w[d1, d2]  +  mean over C of w[d1', ·] − w[d1', d2']

*cut*: the classical gain of Kernighan and Lin, which the paper compares with: what the swap takes off the cut.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peer.placement.layouts import labels_of
from peer.placement.pairwise_network import Matrix
from peer.placement.stage_workload import Indices, PlacementProblem

Gain = Literal["fastest", "cut"]
SMALL = 1e-12
"""Gains below this share of the slowest link are rounding."""


def improved(problem: PlacementProblem, layouts_BN: Indices, gain: Gain, rng: np.random.Generator) -> Indices:
    """Swap while there is a gain; no device twice, so that it ends. Groups of one device have nothing to gain."""
    if problem.pipelines == 1 or problem.stages == 1:
        return layouts_BN
    swaps = _Swaps(problem, layouts_BN, rng)
    propose = swaps.of_fastest_links if gain == "fastest" else swaps.of_the_cut
    least = SMALL * problem.hop_s.max()
    for _ in range(problem.placed // 2):
        gains, ones, others = propose()
        going = gains > least
        if not going.any():
            break
        swaps.make(np.flatnonzero(going), ones[going], others[going])
    return swaps.layouts_BN


class _Swaps:
    """Layouts on their way. Legend: B layouts, N devices, K groups, M devices of a group, E = 2 ends of a link."""

    def __init__(self, problem: PlacementProblem, layouts_BN: Indices, rng: np.random.Generator) -> None:
        self.layouts_BN = layouts_BN.copy()
        self._problem, self._rng = problem, rng
        self._groups_BKM = self.layouts_BN[:, : problem.placed].reshape(-1, problem.stages, problem.pipelines)
        labels_BN = labels_of(problem, layouts_BN)
        in_group_BNK = (labels_BN[:, :, None] == np.arange(problem.stages)).astype(np.float64)
        self._means_BNK = problem.hop_s @ in_group_BNK / problem.pipelines
        self._labels_BN = labels_BN
        self._movable_BN = labels_BN < problem.stages
        _, ranks = np.unique(problem.hop_s, return_inverse=True)
        self._ranks = ranks.reshape(problem.hop_s.shape).astype(np.float64)
        np.fill_diagonal(self._ranks, np.inf)

    def of_fastest_links(self) -> tuple[Matrix, Indices, Indices]:
        """The best swap of each layout: its gain (−inf for none) and the two devices. Equal links are drawn."""
        groups = self._groups_BKM
        count, stages, size = groups.shape
        links = self._ranks[groups[:, :, :, None], groups[:, :, None, :]]
        links += self._rng.random(links.shape)
        found = links.reshape(count, stages, -1).argmin(axis=2)
        places_BKE = np.stack(np.divmod(found, size), axis=2)
        ends_BKE = np.take_along_axis(groups, places_BKE, axis=2)
        fastest_BK = self._problem.hop_s[ends_BKE[:, :, 0], ends_BKE[:, :, 1]]
        each = np.arange(count)[:, None, None]
        reach_BKEK = self._means_BNK[each, ends_BKE] - fastest_BK[:, :, None, None]
        gains = reach_BKEK[:, :, :, :, None] + reach_BKEK.transpose(0, 3, 1, 2)[:, :, None, :, :]
        fixed_BKE = ~self._movable_BN[each, ends_BKE]
        gains[np.broadcast_to(fixed_BKE[:, :, :, None, None], gains.shape)] = -np.inf
        gains[np.broadcast_to(fixed_BKE[:, None, None, :, :], gains.shape)] = -np.inf
        gains[:, np.arange(stages), :, np.arange(stages), :] = -np.inf
        best, value = _best(gains)
        one, end, other, other_end = np.unravel_index(best, (stages, 2, stages, 2))
        rows = np.arange(count)
        return value, ends_BKE[rows, one, end], ends_BKE[rows, other, other_end]

    def of_the_cut(self) -> tuple[Matrix, Indices, Indices]:
        """The same for the classical gain, over all pairs of devices of two groups."""
        devices = len(self._problem)
        labels = np.minimum(self._labels_BN, self._problem.stages - 1)
        own_BN = np.take_along_axis(self._means_BNK, labels[:, :, None], axis=2)[:, :, 0]
        reach_BNN = np.take_along_axis(
            self._means_BNK, np.broadcast_to(labels[:, None, :], (len(labels), devices, devices)), axis=2
        )
        pull_BNN = reach_BNN - own_BN[:, :, None]
        gains = pull_BNN + pull_BNN.transpose(0, 2, 1) - 2 * self._problem.hop_s / self._problem.pipelines
        fixed_BN = ~self._movable_BN
        same_BNN = self._labels_BN[:, :, None] == self._labels_BN[:, None, :]
        gains[same_BNN | fixed_BN[:, :, None] | fixed_BN[:, None, :]] = -np.inf
        best, value = _best(gains)
        ones, others = np.divmod(best, devices)
        return value, ones, others

    def make(self, rows: Indices, ones: Indices, others: Indices) -> None:
        """Swap two devices in each of these layouts, and leave both where they are from now on."""
        here = (self.layouts_BN[rows] == ones[:, None]).argmax(axis=1)
        there = (self.layouts_BN[rows] == others[:, None]).argmax(axis=1)
        self.layouts_BN[rows, here], self.layouts_BN[rows, there] = others, ones
        group, other_group = self._labels_BN[rows, ones], self._labels_BN[rows, others]
        self._labels_BN[rows, ones], self._labels_BN[rows, others] = other_group, group
        change = (self._problem.hop_s[others] - self._problem.hop_s[ones]) / self._problem.pipelines
        self._means_BNK[rows, :, group] += change
        self._means_BNK[rows, :, other_group] -= change
        self._movable_BN[rows, ones] = False
        self._movable_BN[rows, others] = False


def _best(gains: NDArray[np.float64]) -> tuple[Indices, Matrix]:
    """Per layout: where the largest gain stands among all, and the gain."""
    flat = gains.reshape(len(gains), -1)
    best = flat.argmax(axis=1)
    return best, flat[np.arange(len(flat)), best]
