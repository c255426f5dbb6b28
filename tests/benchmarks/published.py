"""What papers printed beside what our own code gives for their settings: `python -m tests.benchmarks papers`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.layout_search import Effort, evolve
from peer.planning.placement.pairwise_network import preset
from peer.planning.placement.stage_workload import block, problem_of, random_layouts, striped
from tests.benchmarks import papers
from tests.peer.planning.placement.paper import PAPER

RANDOM = 40
"""Random layouts of which the median is taken."""
SEARCH = Effort(evaluations=40_000, seeded=False)
"""From random layouts alone, so that the gain is the search's own."""
WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class Known:
    """Of one of DT-FM's clusters, by its authors (`published.toml`)."""

    block_s: float
    striped_s: float
    gain: float = 0.0
    """With their scheduler over a random layout; 0: they print none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of DT-FM's clusters: seconds of communication per iteration, by layout."""

    name: str
    known: Known
    block_s: float
    striped_s: float
    random_s: float
    search_s: float
    """Of the layout that our search finds."""

    @property
    def gain(self) -> float:
        """How many times as fast as a random layout it is."""
        return self.random_s / self.search_s

    def deviation(self) -> float:
        """The largest, relative, of the two layouts that are no matter of chance."""
        pairs = ((self.block_s, self.known.block_s), (self.striped_s, self.known.striped_s))
        return max((ours / theirs - 1 for ours, theirs in pairs), key=abs)

    def gain_deviation(self) -> float | None:
        """Of our gain from the published one, relative; None where none is printed."""
        return self.gain / self.known.gain - 1 if self.known.gain else None


@cache
def cases() -> dict[str, Known]:
    """By the name of the network."""
    text = Path(__file__).with_name("published.toml").read_text()
    return {name: Known(**figures) for name, figures in tomllib.loads(text).items()}


@cache
def case(name: str, seed: int = 0) -> Case:
    """A cluster's costs."""
    problem = problem_of(preset(name).network(), PAPER)
    scorer, dice = CommunicationCost(problem), np.random.default_rng(seed)
    order = np.arange(len(problem))
    drawn = random_layouts(problem, RANDOM, dice)
    costs = scorer.score(np.concatenate([[block(problem, order), striped(problem, order)], drawn])).cost_s
    return Case(
        name=name, known=cases()[name], block_s=float(costs[0]), striped_s=float(costs[1]),
        random_s=float(np.median(costs[2:])), search_s=evolve(problem, SEARCH, seed).cost_s,
    )  # fmt: skip


def lines() -> list[str]:
    """Everything, for people, at most 80 columns."""
    about = (
        "Block and striped: ours/theirs, by the authors' own code (commit cda948f) from the same matrices; off: the "
        f"larger deviation of the two. Random: the median of {RANDOM}. Search: ours, {SEARCH.evaluations:,} layouts, "
        "from random ones alone. Gain: of the search over random; beside it the paper's, and the deviation."
    )
    text = [*papers.lines(), "Seconds of communication per iteration of GPT3-XL on 64 devices"]
    text += ["(arXiv:2206.01288, five clusters).", *wrap(about, WIDTH)]
    text.append(f"{'':18}{'block':>12}{'striped':>12}{'off':>8}{'random':>7}{'search':>7}{'gain':>6}{'paper':>10}")
    text += [_row(case(name)) for name in cases()]
    nothing = (
        "The paper prints no seconds (its figure 4 draws them), and of its scheduler one figure: up to 2.7 times as "
        "fast as a random layout, in the world-wide case, measured end to end with computing. Of cases 1 to 4 it "
        "prints none: -. What else it prints, 1.2 to 4.8 times as fast as Megatron, is of systems not modelled here."
    )
    return [*text, *wrap(nothing, WIDTH)]


def _row(found: Case) -> str:
    block_s = f"{found.block_s:.2f}/{found.known.block_s:.2f}"
    striped_s = f"{found.striped_s:.2f}/{found.known.striped_s:.2f}"
    off = found.gain_deviation()
    paper = "-" if off is None else f"{found.known.gain:.1f} {off:+.0%}"
    return (
        f"{found.name:<18}{block_s:>12}{striped_s:>12}{found.deviation():>+8.2%}{found.random_s:>7.2f}"
        f"{found.search_s:>7.2f}{found.gain:>6.1f}{paper:>10}"
    )
