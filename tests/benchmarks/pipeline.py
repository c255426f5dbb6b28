"""`pipeline`: how fast a cluster trains on home lines, and what it learns, beside what its stages and lines allow.

Homes are processes with stages, links and nodes of the product, and devices that are paced. Everything is said in
`pipeline.toml`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import pipeline_found, pipeline_lines, pipeline_placed, pipeline_wire
from tests.benchmarks.record import commit, machine, say, versions
from tests.benchmarks.rows import Bar, markdown

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that is measured, and what is said of it."""

    cases: str
    """What its rows are made for, in the plan."""
    measure: Callable[..., Any]
    """(an empty folder, the part's plan, a case) to a row."""
    bars: Callable[..., list[Bar]]
    table: Callable[..., list[list[str]]]


PARTS = {
    "lines": Part(
        cases="settings", measure=pipeline_lines.fly, bars=pipeline_lines.bars_of, table=pipeline_lines.table_of
    ),
    "wire": Part(
        cases="seeds", measure=pipeline_wire.learn, bars=pipeline_wire.bars_of, table=pipeline_wire.table_of
    ),
    "placed": Part(
        cases="ways", measure=pipeline_placed.compare, bars=pipeline_placed.bars_of, table=pipeline_placed.table_of
    ),
    "found": Part(
        cases="ways", measure=pipeline_found.compare, bars=pipeline_found.bars_of, table=pipeline_found.table_of
    ),
}  # fmt: skip


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pipeline` and its options to the command line."""
    parser = commands.add_parser("pipeline", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="one short step of each: shows only that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the tables and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = read(arguments.quick)
    told: dict[str, Any] = {"plan": plan}
    bars: list[Bar] = []
    for name in arguments.parts:
        part, table = PARTS[name], plan[name]
        rows = measured(part, table)
        told[name] = [asdict(row) for row in rows]
        bars += part.bars(table, rows)
        print("\n" + markdown(part.table(rows)), flush=True)
    print("".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        told |= {"commit": commit(), "versions": versions(), "machine": machine()}
        told["bars"] = [asdict(bar) for bar in bars]
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def measured(part: Part, plan: dict[str, Any]) -> list[Any]:
    """A row of each case."""
    rows = []
    for case in plan[part.cases]:
        with tempfile.TemporaryDirectory(prefix="hf-") as folder:
            rows.append(part.measure(Path(folder) / "run", plan, case))
        say(str(rows[-1]))
    return rows


def read(quick: bool) -> dict[str, Any]:
    """The plan, from the file beside this one."""
    plan = tomllib.loads(FILE.read_text())
    short = plan.pop("quick")
    return {part: table | short[part] if quick else table for part, table in plan.items()}
