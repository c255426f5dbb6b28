"""`churn`: what a swarm keeps of its speed while peers come, leave, crash and stall.

The same schedule (`churn_plan.toml`) for ours and for the blocking rival (`rivals/open_diloco.py`), and each of them
without it: peers of one speed, paced, on the lines of `links`, with the spec of `links`. A rival that stands still
until the end has kept nothing more: that is the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peer.schema.spec import RunSpec, dump
from peer.testing.process_swarm import ENDLESS
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks import churn_report
from tests.benchmarks.churn_figures import Kept, acts_of
from tests.benchmarks.churn_runs import run_ours, run_rival
from tests.benchmarks.links_plan import SPEC
from tests.benchmarks.record import commit, machine, say, versions

PLAN = Path(__file__).with_name("churn_plan.toml")
OURS, RIVAL = "ours", "blocking DiLoCo"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """See `churn_plan.toml`."""

    step_s: float
    founders: int
    upload_mbps: float
    download_mbps: float
    delay_s: float
    seconds: float
    events: list[dict[str, Any]]
    sets: tuple[str, ...] = ()

    @classmethod
    def read(cls, quick: bool) -> Plan:
        """From the file."""
        table = tomllib.loads(PLAN.read_text())
        short = table.pop("quick")
        if quick:
            table |= short
        return cls(**table | {"sets": tuple(table.get("sets", ()))})

    @property
    def most_peers(self) -> int:
        """That are ever there."""
        return max([self.founders, *(act.peer + 1 for act in acts_of(self.events))])


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `churn` and its options to the command line."""
    parser = commands.add_parser("churn", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, and a picture beside it")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep what the peers write in this new folder")
    parser.add_argument("--quick", action="store_true", help="some seconds of each: shows only that it works")
    parser.add_argument("--systems", nargs="+", choices=(OURS, RIVAL), default=[OURS, RIVAL])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = Plan.read(arguments.quick)
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="hf-churn-"))
    spec = changed_spec(str(SPEC), [*ENDLESS, *plan.sets, f"run.founders={plan.founders}"])
    try:
        kept = measure(directory, spec, plan, arguments.systems)
    finally:
        if arguments.dir is None:
            shutil.rmtree(directory)
    bars = churn_report.judge(kept)
    print("\n" + churn_report.table(kept) + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result = {
            "plan": dataclasses.asdict(plan), "spec": dataclasses.asdict(spec), "commit": commit(),
            "versions": versions() | {"hivemind": version("hivemind")}, "machine": machine(),
            "bars": [dataclasses.asdict(bar) for bar in bars], "kept": [dataclasses.asdict(each) for each in kept],
        }  # fmt: skip
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        churn_report.draw(kept, arguments.json.with_suffix(".png"))
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def measure(
    directory: Path,
    spec: RunSpec,
    plan: Plan,
    systems: Sequence[str] = (OURS, RIVAL),
    churns: Sequence[bool] = (False, True),
) -> list[Kept]:
    """Each system without churn and with it."""
    directory.mkdir(exist_ok=True)
    path = directory / "spec.toml"
    path.write_text(dump(spec))
    kept = []
    for number, name in enumerate(systems):
        for churn in churns:
            folder = directory / f"system-{number}-{churn:d}"
            acts = acts_of(plan.events) if churn else []
            kept.append((run_ours if name == OURS else run_rival)(folder, path, plan, name, acts))
            say(churn_report.sentence(kept[-1]))
    return kept
