"""`parity`: what it costs, in held-out loss, that nobody waits: streaming, rounds by time and int4 to plain DiLoCo.

All variants of a seed start from the same parameters, read the same shards and train on as many tokens.
Plain DiLoCo trains H steps, averages float32 and waits for the new anchor. The others do what a peer of
a running swarm does, with the product's trainers, contribution files, codec, mean and outer step; only the
network is missing, and what would take time in it is a number of inner steps.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from peer.schema.spec import RunSpec
from tests.benchmarks import jobs, parity_report
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.paced import SLOWER, fastest_steps, train_paced
from tests.benchmarks.record import write_results
from tests.benchmarks.variants import Outcome, Report

CODE = (
    *jobs.CODE,
    "tests/benchmarks/parity.py",
    "tests/benchmarks/paced.py",
)
ROUNDS, QUICK_ROUNDS = 24, 3
SEQUENCES, EVERY = 512, 4
"""Evaluated, and the rounds between evaluations: with few sequences the differences would be those of the text."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a run differs from plain DiLoCo."""

    wire: Literal["float32", "float16", "int4"] = "float32"
    ahead: float = 0.0
    """The share of a round's steps that are made while the round before it is agreed."""
    alpha: float | None = None
    """How much of its own place a peer keeps when the anchor arrives; None: it goes to the anchor, and what it learned
    meanwhile goes along."""
    slower: tuple[int, ...] = (1,)
    """Peer i makes a step in the time in which the fastest makes `slower[i]`; repeated for more peers."""


AHEAD = {"25": 0.25, "50": 0.5, "10": 0.1}
WAYS = {
    "plain": Way(),
    "int4": Way(wire="int4"),
    "by-time": Way(slower=SLOWER),
    **{f"rebase-{name}": Way(ahead=ahead) for name, ahead in AHEAD.items()},
    "all": Way(wire="int4", ahead=0.25, alpha=0.5, slower=SLOWER),
    "float16": Way(wire="float16"),
    **{f"interpolate-{name}": Way(ahead=ahead, alpha=0.5) for name, ahead in AHEAD.items()},
}
"""In the order in which they are run, seed by seed."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `parity` and its options to the command line."""
    parser = commands.add_parser("parity", help=__doc__.splitlines()[0], description=__doc__)
    add_options(parser, out="parity", seeds=5)
    parser.add_argument("--variants", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds: shows only that it works")
    parser.set_defaults(run=run, spec="micro", rounds=ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, parity.json and parity.png. 0 if all bars are met, or with `--quick`."""
    if arguments.quick:
        arguments.seeds, arguments.rounds = arguments.seeds[:1], QUICK_ROUNDS
    base, peers, out = base_spec(arguments), arguments.peers, arguments.out
    code = jobs.code_digest(CODE)
    chosen = [name for name in WAYS if name in {"plain", *arguments.variants}]
    wanted = [
        jobs.Job(variant=variant, seed=seed, spec=spec_of(variant, base, seed, peers), code=code, train=train)
        for seed in arguments.seeds
        for variant in chosen
    ]
    rows = jobs.rows_of(wanted, out, arguments.jobs)
    parity_report.draw(rows, out / "parity.png")
    table, bars = parity_report.table(rows), parity_report.judge(rows)
    ways = {variant: dataclasses.asdict(WAYS[variant]) for variant in chosen}
    code_of_exit = write_results(out / "parity", base, table, bars, rows, code=code, peers=peers, ways=ways)
    return 0 if arguments.quick else code_of_exit


def spec_of(variant: str, base: RunSpec, seed: int, peers: int) -> RunSpec:
    """The spec of a variant, evaluated on more text than others."""
    way = WAYS[variant]
    wire: Any = way.wire
    sequences = max(SEQUENCES, base.data.eval_sequences)
    return dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, seed=seed, founders=peers),
        data=dataclasses.replace(base.data, eval_sequences=sequences, eval_every=EVERY),
        round=dataclasses.replace(
            base.round,
            steps=fastest_steps(base.round.steps, way.slower, peers),
            overlap="streaming" if way.ahead else "none",
            merge="rebase" if way.alpha is None else "interpolate",
            alpha=way.alpha or 0.0,
        ),
        codec=dataclasses.replace(base.codec, wire=wire),
    )


def train(variant: str, spec: RunSpec, report: Report) -> Outcome:
    """Train `spec`, as `spec_of` gave it, to its last round as the variant says."""
    way = WAYS[variant]
    return train_paced(spec, report, ahead=way.ahead, slower=way.slower)
