"""`methods`: held-out loss at equal tokens of every way to train together, and of what could close the gap to DDP.

Which, and how each differs from the product's round, stands in `methods.toml`. All runs of a seed begin with the same
parameters; the held-out text is always the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from peer.schema.spec import RunSpec
from peer.training.train.optimizers import steps_before
from tests.benchmarks import jobs, methods_report
from tests.benchmarks.paced import fastest_steps, train_paced
from tests.benchmarks.record import write_results
from tests.benchmarks.unlike import dealt
from tests.benchmarks.variants import Outcome, Report, names_of, train_synchronously
from tui.spec_choice import choose_spec

PLAN = Path(__file__).with_name("methods.toml")
CODE = (
    *jobs.CODE, "tests/benchmarks/methods.py", "tests/benchmarks/paced.py", "tests/benchmarks/unlike.py",
)  # fmt: skip
"""Not the plan: another method in it makes no row again, and what a method says is part of its own rows' code."""
QUICK_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a run differs from the product's round on the plan's spec."""

    kind: Literal["rounds", "ddp"] = "rounds"
    peers: int = 0
    """0: as many as the plan says."""
    ahead: float = 0.0
    slower: tuple[int, ...] = (1,)
    unlike: bool = False
    set: Mapping[str, Any] = field(default_factory=dict)
    """Values of the spec by dotted keys."""

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """A method of the plan."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained."""

    spec: str
    peers: int
    rounds: int
    seeds: tuple[int, ...]
    eval_sequences: int
    """Evaluated: with few, the differences would be those of the text."""
    points: int
    """Evaluations of a run, about."""
    groups: Mapping[str, Mapping[str, Method]]
    """Titles, names, methods; a name stands for one method."""

    @classmethod
    def read(cls, path: Path = PLAN) -> Self:
        """The plan of a TOML file."""
        table = tomllib.loads(path.read_text())
        groups = {
            group["title"]: {name: Method.read(what) for name, what in group["method"].items()}
            for group in table.pop("group")
        }
        seeds = tuple(table.pop("seeds"))
        return cls(seeds=seeds, groups=groups, **table)

    @property
    def methods(self) -> dict[str, Method]:
        """All methods by name."""
        return {name: method for group in self.groups.values() for name, method in group.items()}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `methods` and its options to the command line."""
    parser = commands.add_parser("methods", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLAN, help="a file like tests/benchmarks/methods.toml")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="some of the plan's methods")
    parser.add_argument("--seeds", nargs="+", type=int, help="others than the plan's")
    parser.add_argument("--out", type=Path, default=Path("methods"), help="folder for rows and results")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds: shows only that it works")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, methods.json and methods.png. There is no bar."""
    plan = Plan.read(arguments.plan)
    if arguments.quick:
        plan = dataclasses.replace(plan, rounds=QUICK_ROUNDS, seeds=plan.seeds[:1])
    seeds, out = arguments.seeds or plan.seeds, arguments.out
    chosen = {name: each for name, each in plan.methods.items() if name in (arguments.only or plan.methods)}
    if unknown := set(arguments.only or ()) - set(chosen):
        raise SystemExit(f"--only {' '.join(sorted(unknown))}: the plan has {', '.join(plan.methods)}")
    code = jobs.code_digest(CODE)
    wanted = [
        jobs.Job(
            variant=name, seed=seed, spec=spec_of(method, plan, seed), code=f"{code} {method}", train=Training(method)
        )
        for seed in seeds
        for name, method in chosen.items()
    ]
    rows = jobs.rows_of(wanted, out, arguments.jobs)
    groups = {title: [name for name in group if name in chosen] for title, group in plan.groups.items()}
    methods_report.draw(rows, groups, out / "methods.png")
    base = spec_of(Method(), plan, seeds[0])
    ways = {name: dataclasses.asdict(method) for name, method in chosen.items()}
    return write_results(
        out / "methods", base, methods_report.table(rows, groups), [], rows, code=code, peers=plan.peers, methods=ways
    )


def spec_of(method: Method, plan: Plan, seed: int) -> RunSpec:
    """The spec of a method: with as many rounds as make its tokens nearest to those of the plan's peers and rounds."""
    peers = method.peers or plan.peers
    fixed = {"run.rounds": plan.rounds, "run.seed": seed, "run.founders": peers, **method.set}
    spec = choose_spec(plan.spec, fixed=fixed)
    wanted = plan.peers * steps_before(choose_spec(plan.spec, fixed={"run.rounds": plan.rounds}), plan.rounds)
    rounds = min(range(1, wanted + 1), key=lambda rounds: abs(peers * steps_before(spec, rounds) - wanted))
    fastest = fastest_steps(spec.round.steps, method.slower, peers)
    sequences = max(plan.eval_sequences, spec.data.eval_sequences)
    return dataclasses.replace(
        spec,
        run=dataclasses.replace(spec.run, rounds=rounds),
        data=dataclasses.replace(spec.data, eval_sequences=sequences, eval_every=max(1, rounds // plan.points)),
        round=dataclasses.replace(spec.round, steps=fastest),
    )


@dataclass(frozen=True)
class Training:
    """Trains a spec, as `spec_of` gave it, by its method. Another process calls it."""

    method: Method

    def __call__(self, variant: str, spec: RunSpec, report: Report) -> Outcome:
        """Train to the last round."""
        if not self.method.unlike:
            return self._train(spec, report)
        with tempfile.TemporaryDirectory(prefix="homefires-text-") as folder:
            return self._train(dealt(spec, names_of(spec), Path(folder)), report)

    def _train(self, spec: RunSpec, report: Report) -> Outcome:
        method = self.method
        if method.kind == "ddp":
            return train_synchronously(spec, report)
        return train_paced(spec, report, ahead=method.ahead, slower=method.slower)
