"""What papers printed beside what our own code gives for their settings: `homefires simulate --papers`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peer.plan import papers
from peer.plan.placing.layouts import block, random_layouts, striped
from peer.plan.placing.scoring import Scorer
from peer.plan.placing.work import PAPER, problem_of
from peer.plan.regions import preset

RANDOM = 40
"""Random layouts of which the median is taken."""
CASES: dict[str, tuple[float, float, float]] = {
    "case1_datacenter": (16.981, 3.440, 19.802),
    "case2_spot": (49.504, 49.504, 49.504),
    "case5_worldwide": (59.437, 49.218, 91.382),
}
"""Seconds per iteration of the block layout, the striped one and the median of 40 random ones, computed from the
paper's matrices by an implementation that shares nothing with ours. The paper prints no such costs, only that its
scheduler alone is up to 2.7 times as fast as a random layout (arXiv:2206.01288, section 4.2, figure 3)."""
ALL_CASES = ("case1_datacenter", "case2_spot", "case3_two_sites", "case4_us_regional", "case5_worldwide")
SPEED_UP = 2.7


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of DT-FM's clusters: seconds of communication per iteration, by layout."""

    name: str
    block_s: float
    striped_s: float
    random_s: float

    @property
    def gain(self) -> float:
        """How many times as fast as a random layout the better of the two is."""
        return self.random_s / min(self.block_s, self.striped_s)

    def deviation(self) -> float | None:
        """The largest, relative, of the two layouts that are no matter of chance; None where nothing is known."""
        known = CASES.get(self.name)
        if known is None:
            return None
        pairs = zip((self.block_s, self.striped_s), known, strict=False)
        return max((ours / theirs - 1 for ours, theirs in pairs), key=abs)


def case(name: str, seed: int = 0) -> Case:
    """A cluster's costs."""
    regions = preset(name)
    network = regions.network()
    problem = problem_of(network, PAPER)
    scorer, dice = Scorer(problem), np.random.default_rng(seed)
    order = np.arange(len(problem))
    drawn = random_layouts(problem, RANDOM, dice)
    costs = scorer.score(np.concatenate([[block(problem, order), striped(problem, order)], drawn])).cost_s
    return Case(
        name=name, block_s=float(costs[0]), striped_s=float(costs[1]), random_s=float(np.median(costs[2:]))
    )  # fmt: skip


def lines() -> list[str]:
    """Everything, for people, at most 80 columns."""
    text = papers.lines()
    text.append("Seconds of communication per iteration of GPT3-XL on 64 devices")
    text.append("(arXiv:2206.01288, five clusters). References by an independent implementation")
    text.append("from the same matrices; the paper prints none.")
    text.append(f"{'':18}{'block':>16}{'striped':>16}{'random':>9}{'gain':>8}{'deviation':>11}")
    for found in map(case, ALL_CASES):
        known = CASES.get(found.name)
        block_s = f"{found.block_s:.2f}" + (f"/{known[0]:.2f}" if known else "")
        striped_s = f"{found.striped_s:.2f}" + (f"/{known[1]:.2f}" if known else "")
        off = found.deviation()
        deviation = "-" if off is None else f"{off:+.2%}"
        text.append(
            f"{found.name:<18}{block_s:>16}{striped_s:>16}{found.random_s:>9.2f}{found.gain:>7.1f}×{deviation:>11}"
        )  # fmt: skip
    text.append(f"the paper: its scheduler alone up to {SPEED_UP} times as fast as a random layout")
    return text
