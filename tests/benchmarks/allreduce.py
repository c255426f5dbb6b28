"""`allreduce`: what one committed round costs, against gloo's all_reduce and hivemind's averager.

All peers are processes on this machine and meet on its loopback device, which nothing slows down: what is compared is
time, processor time, memory and bytes. Of ours everything counts that follows the last inner step of a round: freeze
and encode, agree, send, measure, judge, reduce, encode the mean, distribute, vote, commit, decode, apply, settle the
residual, hash the new anchor. Of the others, that every peer has the mean. What is measured stands in `allreduce.toml`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from peer.schema.events import InviteIssued, parse_line
from peer.schema.spec import RunSpec, dump, from_mapping, read_text
from peer.testing.child_process import Child
from tests.benchmarks import allreduce_report
from tests.benchmarks.allreduce_crew import Crew, Failed, Make, Words
from tests.benchmarks.allreduce_members import LOOPBACK, Gloo, Hivemind, Ours
from tests.benchmarks.jobs import code_digest
from tests.benchmarks.record import commit, machine, versions
from tests.benchmarks.rows import Row

PLAN = Path(__file__).with_suffix(".toml")
MEMBERS: dict[str, Make] = {"gloo": Gloo, "hivemind": Hivemind, "ours": Ours}
NEEDED_BYTES = {"gloo": 10, "hivemind": 16, "ours": 28}
"""Per parameter and peer, at most: a cell for which there is no room is left out, and the table says so."""
PROCESS_BYTES = 700 << 20
"""And per peer, of Python, torch and hivemind."""
INVITE_S = 60.0
TRIES = 3
"""hivemind's matchmaking does not always find a group."""
CODE = (
    "dht/**/*.py", "peer/consensus/codec/*.py", "peer/node/store/*.py", "peer/network/sync/*.py",
    "peer/network/link/*.py", "peer/consensus/protocol/*.py",
    "peer/consensus/rounds/*.py", "peer/consensus/aggregation/*.py", "peer/node/lifecycle/*.py",
    "peer/training/train/*.py", "peer/schema/spec*.py",
    "tests/benchmarks/allreduce*.py", "tests/benchmarks/allreduce.toml",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cell:
    """So many parameters among so many peers, and who averages them."""

    parameters: int
    peers: int
    repeats: int
    contenders: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured; see the file."""

    layers: int
    rounds: int
    threads: int
    bar: dict[str, int]
    cells: tuple[Cell, ...]
    spec: dict[str, Any]

    @classmethod
    def read(cls, quick: bool) -> Plan:
        """From the file beside this one."""
        table = tomllib.loads(PLAN.read_text())
        short = table.pop("quick")
        table |= short if quick else {}
        cells = tuple(Cell(**cell | {"contenders": tuple(cell["contenders"])}) for cell in table.pop("cells"))
        return cls(**table, cells=cells)

    def runs(self) -> Iterator[tuple[Cell, str, int]]:
        """(cell, contender, turn) in the order in which they are measured: all contenders, then all of them again."""
        for cell in self.cells:
            for turn in range(cell.repeats):
                yield from ((cell, contender, turn) for contender in cell.contenders)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `allreduce` and its options to the command line."""
    parser = commands.add_parser("allreduce", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, and a picture beside it")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="go on where an earlier run stopped that wrote there")
    parser.add_argument("--quick", action="store_true", help="one small round of each: shows only that it works")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only contenders whose names begin like one of these")
    parser.add_argument("--cell", nargs=2, type=int, metavar=("PARAMETERS", "PEERS"), help="only this one of the plan")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table and a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    plan = chosen(Plan.read(arguments.quick), arguments.only, arguments.cell)
    rows = measure(plan, arguments.rows)
    table, bars = allreduce_report.table(rows), allreduce_report.judge(rows, plan.bar)
    aims = allreduce_report.aims(rows, plan.bar)
    print("\n" + table + "\n" + "".join(f"- {line}\n" for line in [*bars, *aims]), flush=True)
    if arguments.json:
        result = {
            "plan": dataclasses.asdict(plan), "commit": commit(), "versions": versions_here(), "machine": machine(),
            "bars": [dataclasses.asdict(bar) for bar in bars], "aims": [dataclasses.asdict(aim) for aim in aims],
            "rows": rows,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        allreduce_report.draw(rows, plan.bar, arguments.json.with_suffix(".png"))
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def chosen(plan: Plan, only: Sequence[str] | None, cell: Sequence[int] | None) -> Plan:
    """The part of a plan that the command line names."""
    cells = [
        dataclasses.replace(
            one, contenders=tuple(name for name in one.contenders if only is None or name.startswith(tuple(only)))
        )
        for one in plan.cells
        if cell is None or (one.parameters, one.peers) == tuple(cell)
    ]
    return dataclasses.replace(plan, cells=tuple(cells))


def versions_here() -> dict[str, str]:
    """Of what computes and of the rival."""
    from importlib.metadata import version

    return versions() | {"hivemind": version("hivemind")}


# ---- measuring


def measure(plan: Plan, path: Path | None) -> list[Row]:
    """A row per run of the plan, in its order; those that are in the file already, of this code, are not made again."""
    code, runs = code_digest(CODE), list(plan.runs())
    known = {key_of(row): row for row in read_rows(path) if row["code"] == code}
    rows = []
    for cell, contender, turn in runs:
        key = (contender, cell.parameters, cell.peers, turn)
        if key not in known:
            known[key] = about(cell, contender, turn, code) | figures_of(plan, cell, contender)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
        rows.append(known[key])
        print(f"{time.strftime('%H:%M:%S')}  {len(rows)} of {len(runs)}: {allreduce_report.sentence(known[key])}",
              flush=True)  # fmt: skip
    return rows


def key_of(row: Row) -> tuple[str, int, int, int]:
    return row["contender"], row["parameters"], row["peers"], row["turn"]


def read_rows(path: Path | None) -> list[Row]:
    """What an earlier run wrote."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def about(cell: Cell, contender: str, turn: int, code: str) -> Row:
    return {"contender": contender, "parameters": cell.parameters, "peers": cell.peers, "turn": turn, "code": code}


def figures_of(plan: Plan, cell: Cell, contender: str) -> Row:
    """What a run gave, or `skipped`: why there is nothing."""
    kind, codec = contender.split()
    needed = cell.peers * (cell.parameters * NEEDED_BYTES[kind] + PROCESS_BYTES)
    available = psutil.virtual_memory().available
    if needed > available:
        return {"skipped": f"needs {needed / 2**30:.0f} GiB, {available / 2**30:.0f} are free"}
    for attempt in range(TRIES):
        try:
            return rounds_of(plan, cell, kind, codec)
        except Failed as error:
            why = str(error)
            if "installed" in why or attempt + 1 == TRIES:
                break
            print(f"{contender}: {why}; once more", flush=True)
    return {"skipped": why}


def rounds_of(plan: Plan, cell: Cell, kind: str, codec: str) -> Row:
    """Start the processes, make one round that does not count and then those that do. Raises Failed."""
    sizes = layer_sizes(cell.parameters, plan.layers)
    folder = Path(tempfile.mkdtemp(prefix="hf-ar-"))
    options: Words = {
        "peers": cell.peers, "parameters": cell.parameters, "threads": plan.threads, "folder": str(folder),
        "layers": sizes, "codec": codec,
    }  # fmt: skip
    try:
        with ExitStack() as stack:
            if kind == "ours":
                options |= stack.enter_context(bootstrap(folder, spec_of(plan, codec, cell.peers, folder)))
            crew = stack.enter_context(Crew(MEMBERS[kind], folder, options))
            crew.round()
            rounds = [crew.round() for _ in range(plan.rounds)]
            extra = crew.extra_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    states = [{words.get("state") for words in round.said} for round in rounds]
    if any(len(found) != 1 for found in states):
        raise AssertionError(f"peers ended with different bits: {states}")
    return {"extra_bytes": extra, "rounds": [dataclasses.asdict(round) for round in rounds]}


def layer_sizes(parameters: int, layers: int) -> list[int]:
    """Equal ones, as far as they can be."""
    return [parameters * (layer + 1) // layers - parameters * layer // layers for layer in range(layers)]


def spec_of(plan: Plan, codec: str, peers: int, folder: Path) -> RunSpec:
    """The run of ours, on a text of no importance."""
    text = folder / "text"
    text.mkdir()
    for number in range(64):
        (text / f"{number}.txt").write_text(f"{number} " * 1000)
    table = tomllib.loads(read_text("micro"))
    changes = plan.spec | {
        "run": {"founders": peers, "rounds": 0},
        "codec": plan.spec["codec"] | {"wire": codec},
        "data": {"source": "files", "path": str(text), "held_out_every": 4},
    }
    for name, values in changes.items():
        table[name] = table.get(name, {}) | values
    return from_mapping(table, "allreduce")


@contextmanager
def bootstrap(folder: Path, spec: RunSpec) -> Iterator[Words]:
    """A bootstrap node of this run; gives the invite and the spec."""
    where, printed = folder / "bootstrap", queue.SimpleQueue[Any]()
    where.mkdir(mode=0o700)
    (where / "spec.toml").write_text(dump(spec))
    child = Child(
        [sys.executable, "-m", "bootstrap", str(where / "spec.toml"), "--dir", str(where), "--listen", LOOPBACK],
        where / "log", {"TMPDIR": str(folder)}, printed.put,
    )  # fmt: skip
    try:
        while True:
            text = printed.get(timeout=INVITE_S).text
            if text is None:
                raise Failed(f"the bootstrap node ended: {child.err[-500:]}")
            line = parse_line(text)
            if line is not None and isinstance(line.event, InviteIssued):
                break
        yield {"invite": line.event.invite, "spec": dump(spec)}
    finally:
        child.signal(15)
        child.end(20.0)
