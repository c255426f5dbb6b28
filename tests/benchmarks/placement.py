"""`placement`: DT-FM's clusters, their devices in any order: what the search reaches, how soon, and what less reaches.

Time is that of the processor, of all threads. Everything is said in `placement.toml`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peer.planning.placement.communication_cost import CommunicationCost
from peer.planning.placement.layout_search import Effort, search
from peer.planning.placement.pairwise_network import preset
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.placement.starting_layouts import block, random_layouts, striped
from tests.benchmarks.record import commit, machine, versions
from tests.benchmarks.rows import Bar, markdown
from tests.peer.planning.placement.networks import KINDS, random_network
from tests.peer.planning.placement.paper import PAPER, best_of_all, placement_of

PLAN = Path(__file__).with_suffix(".toml")
METHODS: dict[str, dict[str, Any]] = {
    "ours": {},
    "first layouts alone": {"evaluations": 1},
    "random starts": {"seeded": False},
}
"""What is searched with: all of it; the layouts with which it begins; climbing and shaking from random layouts."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One search."""

    scenario: str
    method: str
    seed: int
    cost_s: float
    evaluations: int
    reached_after: int
    """Evaluations when the layout was found."""
    processor_s: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured.

    Attributes:
        references: (scenario and layout, given seconds, seconds found), of the sum and both terms.
        found: how many of the small instances ended at the best of all layouts.
        per_s: layouts scored per second of the processor, from nothing, 16 at a time.
    """

    references: list[tuple[str, list[float], list[float]]]
    search: list[Row]
    methods: list[Row]
    found: int
    instances: int
    per_s: float


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `placement` and its options to the command line."""
    parser = commands.add_parser("placement", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="one seed and ten instances: shows only that it works")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, print the tables and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = read(arguments.quick)
    figures = measure(plan)
    bars = judge(plan, figures)
    print("\n" + table(figures) + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result = {"plan": plan, "commit": commit(), "versions": versions(), "machine": machine(), **asdict(figures)}
        result["bars"] = [asdict(bar) for bar in bars]
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def read(quick: bool) -> dict[str, Any]:
    """The plan, from the file beside this one."""
    plan = tomllib.loads(PLAN.read_text())
    short = plan.pop("quick")
    if quick:
        plan["search"]["seeds"], plan["small"]["instances"] = short["search_seeds"], short["instances"]
        plan["methods"] |= {"seeds": short["method_seeds"], "scenarios": short["scenarios"]}
    return plan


# ---- measuring ----


def measure(plan: dict[str, Any]) -> Figures:
    """Everything in turn; some minutes."""
    methods, small = plan["methods"], plan["small"]
    search = [
        searched(scenario, "ours", seed) for scenario in plan["search"]["at_most_s"]
        for seed in range(plan["search"]["seeds"])
    ]  # fmt: skip
    compared = [
        searched(scenario, method, seed)
        for scenario in methods["scenarios"] for method in METHODS for seed in range(methods["seeds"])
    ]  # fmt: skip
    return Figures(
        references=[reference(**case) for case in plan["reference"]["costs"]],
        search=search, methods=compared, instances=small["instances"], per_s=speed("case5_worldwide"),
        found=sum(finds_the_best(small["devices"], number) for number in range(small["instances"])),
    )  # fmt: skip


def reference(scenario: str, layout: str, seconds: list[float]) -> tuple[str, list[float], list[float]]:
    network = preset(scenario).network()
    problem = problem_of(network, PAPER)
    devices = np.arange(len(network))
    found = placement_of(problem, network, block(problem, devices) if layout == "block" else striped(problem, devices))
    return f"{scenario}, {layout}", seconds, [found.cost_s, found.data_parallel_s, found.pipeline_s]


def searched(scenario: str, method: str, seed: int) -> Row:
    network = preset(scenario).network()
    order = np.random.default_rng(seed).permutation(len(network))
    problem = problem_of(network.only(order.tolist()), PAPER)
    began = time.process_time()
    found = search(problem, Effort(**METHODS[method]), seed)
    row = Row(
        scenario=scenario, method=method, seed=seed, cost_s=found.cost_s, evaluations=found.evaluations,
        reached_after=found.history[-1][0], processor_s=time.process_time() - began,
    )  # fmt: skip
    print(f"{scenario}, {method}, seed {seed}: {row.cost_s:.2f} s after {row.processor_s:.1f} s", flush=True)
    return row


def finds_the_best(devices: int, number: int) -> bool:
    """Instance `number`: its links, its stages and the seed of its search follow from that."""
    stages = (2, 4)[number % 2]
    network = random_network(devices, number, kind=KINDS[number // 2 % len(KINDS)])
    problem = problem_of(network, StageWorkload(stages=stages, stage_bytes=5e7, cut_bytes=2e7))
    _, least = best_of_all(problem)
    return search(problem, Effort(seeded=False), number).cost_s <= least * (1 + 1e-9)


def speed(scenario: str) -> float:
    scorer = CommunicationCost(problem_of(preset(scenario).network(), PAPER))
    layouts = random_layouts(scorer.problem, 16, np.random.default_rng(0))
    scorer.score(layouts)
    began, scored = time.process_time(), scorer.scored
    while time.process_time() - began < 1:
        scorer.score(layouts)
    return (scorer.scored - scored) / (time.process_time() - began)


# ---- telling ----


def judge(plan: dict[str, Any], figures: Figures) -> list[Bar]:
    """What placement has to reach."""
    tolerance = plan["reference"]["tolerance"]
    off = max(
        abs(found / given - 1) for _, all_given, all_found in figures.references
        for given, found in zip(all_given, all_found, strict=True)
    )  # fmt: skip
    return [
        Bar(
            name=f"reference costs within {100 * tolerance:g} %", met=off <= tolerance,
            figures=f"at most {100 * off:.3f} % off, of {len(figures.references)} layouts and both terms",
        ),
        *(_reached(plan["search"], figures, scenario) for scenario in plan["search"]["at_most_s"]),
        *(_better(figures, scenario) for scenario in plan["methods"]["scenarios"]),
        Bar(
            name="the best of all layouts on every small instance", met=figures.found == figures.instances,
            figures=f"{figures.found} of {figures.instances}",
        ),
    ]  # fmt: skip


def _reached(wanted: dict[str, Any], figures: Figures, scenario: str) -> Bar:
    rows = [row for row in figures.search if row.scenario == scenario]
    at_most_s, within_s = wanted["at_most_s"][scenario], wanted["within_s"]
    reached = sum(row.cost_s <= at_most_s and row.processor_s < within_s for row in rows)
    costs, times = [row.cost_s for row in rows], [row.processor_s for row in rows]
    return Bar(
        name=f"{scenario}: {at_most_s} s at most, found in under {within_s:g} s", met=reached == wanted["seeds"],
        figures=f"{reached} of {wanted['seeds']} seeds: {min(costs):.3f} to {max(costs):.3f} s "
        f"in {min(times):.1f} to {max(times):.1f} s",
    )  # fmt: skip


def _better(figures: Figures, scenario: str) -> Bar:
    ours, theirs = mean_of(figures, scenario, "ours"), mean_of(figures, scenario, "random starts")
    return Bar(
        name=f"{scenario}: no worse in the mean than from random starts", met=ours <= theirs,
        figures=f"{ours:.2f} s, {theirs:.2f} s",
    )  # fmt: skip


def mean_of(figures: Figures, scenario: str, method: str) -> float:
    return statistics.fmean(row.cost_s for row in figures.methods if row.scenario == scenario and row.method == method)


def table(figures: Figures) -> str:
    """Mean seconds of an iteration by scenario and method."""
    scenarios = dict.fromkeys(row.scenario for row in figures.methods)
    lines = [["scenario", *METHODS]]
    lines += [[name, *(f"{mean_of(figures, name, method):.2f}" for method in METHODS)] for name in scenarios]
    return markdown(lines) + f"\n{figures.per_s:.0f} layouts of case5_worldwide scored per second\n"
