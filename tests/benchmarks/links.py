"""`links`: how soon peers on home lines reach a loss, next to what one would use instead.

The same model, data, names, seeds, inner optimizer and paced devices for ours, a blocking DiLoCo on hivemind's stock
averager (`rivals/open_diloco.py`), DistributedDataParallel over gloo (`rivals/ddp.py`), and the bound: ours with
free communication. Everything is said in `links.toml` and `links_plan.toml`. Losses are measured afterwards, of the
parameters that each left on disk.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from peer.schema.spec import RunSpec, dump
from peer.testing.process_swarm import ENDLESS
from peer.testing.swarm_contract import changed_spec
from tests.benchmarks import links_report
from tests.benchmarks.links_figures import Ran
from tests.benchmarks.links_ours import measure_ours
from tests.benchmarks.links_plan import SPEC, Plan
from tests.benchmarks.links_rivals import measure_ddp, measure_diloco
from tests.benchmarks.record import commit, machine, say, versions


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `links` and its options to the command line."""
    parser = commands.add_parser("links", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, and a picture beside it")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep what the peers write in this new folder")
    parser.add_argument("--quick", action="store_true", help="two short rounds of each: shows only that it works")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help="only these of the plan; `bound` comes first")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = Plan.read(arguments.quick, arguments.systems)
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="hf-links-"))
    spec = changed_spec(str(SPEC), [*ENDLESS, *plan.sets, f"run.founders={len(plan.slower)}"])
    try:
        ran = measure(directory, spec, plan)
    finally:
        if arguments.dir is None:
            shutil.rmtree(directory)
    target = links_report.target_of(ran, plan.rounds)
    bars = links_report.judge(ran, target)
    print("\n" + links_report.table(ran, target) + "\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result = {
            "plan": dataclasses.asdict(plan), "spec": dataclasses.asdict(spec), "commit": commit(),
            "versions": versions() | {"hivemind": version("hivemind")}, "machine": machine(), "target": target,
            "bars": [dataclasses.asdict(bar) for bar in bars], "ran": [dataclasses.asdict(each) for each in ran],
        }  # fmt: skip
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        links_report.draw(ran, target, arguments.json.with_suffix(".png"))
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def measure(directory: Path, spec: RunSpec, plan: Plan) -> list[Ran]:
    """Every system of the plan, one after the other."""
    directory.mkdir(exist_ok=True)
    path = directory / "spec.toml"
    path.write_text(dump(spec))
    ran: list[Ran] = []
    for number, (name, system) in enumerate(plan.systems.items()):
        folder = directory / f"system-{number}"
        folder.mkdir()
        match system["kind"]:
            case "ours":
                rounds = plan.rounds + (0 if system["lines"] == "free" else plan.extra_rounds)
                ran.append(measure_ours(folder, path, plan, name, system, rounds))
            case "open_diloco":
                ran.append(measure_diloco(folder, path, plan, name))
            case "ddp":
                ran.append(measure_ddp(folder, path, plan, name, links_report.target_of(ran, plan.rounds)))
        say(links_report.sentence(ran[-1]))
    return ran
