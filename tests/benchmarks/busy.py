"""`busy`: how much longer a round's arithmetic takes where four other programs want the processor all the time.

Idle and busy by turns, in one run: a machine that is shared drifts. `--against TREE` times another source tree in
between, on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

from tests.benchmarks.jobs import ROOT
from tests.benchmarks.record import commit, machine, versions
from tests.benchmarks.rows import Bar, markdown

SCRIPT = Path(__file__).with_name("round_timed.py")
LOOPS = 4
MOST_TIMES_IDLE = 3.0
NO_SLOWER = 1.1
"""Two runs of one program differ by as much on a shared machine."""
MODES = ("none", "streaming")
IDLE, BUSY, BEFORE = "idle", "busy", "before"
END_S = 30.0

Seconds = Mapping[str, float]


class TimedPeer:
    """A process that makes a round whenever it is told to."""

    def __init__(self, tree: Path, hidden: int, mode: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(hidden), mode], cwd=tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.parameters = int(self._line()["parameters"])

    def round(self) -> Seconds:
        """What its parts took."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Seconds:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the child has ended with exit code {self._process.wait(END_S)}"
        said: Seconds = json.loads(line)
        return said

    def close(self) -> None:
        """It ends when nothing more is asked."""
        try:
            self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=END_S)


@contextlib.contextmanager
def busy_loops() -> Iterator[None]:
    """Four programs that compute all the time, as a game or a compiler would."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(END_S)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("busy", help="a round's arithmetic beside four busy loops; 5 minutes")
    parser.add_argument("--hidden", type=int, default=960, help="width of the model; 960 is 134 M parameters")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--overlap", nargs="+", choices=MODES, default=MODES, help="only these ways to overlap")
    parser.add_argument("--against", type=Path, metavar="TREE", help="also time this source tree, on an idle machine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    lines, bars, all_rounds = [["overlap", "machine", "submit s", "of that held s", "apply s", "sum s"]], [], {}
    for mode in options.overlap:
        parameters, rounds = measure(mode, options.hidden, options.repeats, options.against)
        all_rounds[mode] = rounds
        lines += [_cells(mode, name, made) for name, made in rounds.items() if made]
        bars += judge(mode, rounds)
    print(f"{parameters:,} parameters, {options.repeats} rounds of each by turns, medians\n\n{markdown(lines)}")
    print("\n".join(map(str, bars)), flush=True)
    if options.json:
        told = {
            "parameters": parameters, "rounds": all_rounds, "bars": [vars(bar) for bar in bars], "commit": commit(),
            "versions": versions(), "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1


def measure(mode: str, hidden: int, repeats: int, against: Path | None) -> tuple[int, dict[str, list[Seconds]]]:
    """Parameters of the model, and rounds of each kind, by turns; the first of each process is not counted."""
    rounds: dict[str, list[Seconds]] = {IDLE: [], BUSY: [], BEFORE: []}
    with ExitStack() as stack:
        ours = stack.enter_context(closing(TimedPeer(ROOT, hidden, mode)))
        ours.round()
        before = stack.enter_context(closing(TimedPeer(against.resolve(), hidden, mode))) if against else None
        if before:
            before.round()
        for _ in range(repeats):
            rounds[IDLE].append(ours.round())
            if before:
                rounds[BEFORE].append(before.round())
            with busy_loops():
                rounds[BUSY].append(ours.round())
    return ours.parameters, rounds


def judge(mode: str, rounds: Mapping[str, list[Seconds]]) -> Iterator[Bar]:
    """The bars of one way to overlap."""
    idle_s, busy_s = _sum_s(rounds[IDLE]), _sum_s(rounds[BUSY])
    name = f"{mode}: busy takes at most {MOST_TIMES_IDLE:g} times as long as idle"
    yield Bar(name=name, met=busy_s <= MOST_TIMES_IDLE * idle_s, figures=f"{busy_s / idle_s:.2f} times")
    if rounds[BEFORE]:
        before_s = _sum_s(rounds[BEFORE])
        name = f"{mode}: idle takes at most {NO_SLOWER:g} times what it took before"
        yield Bar(name=name, met=idle_s <= NO_SLOWER * before_s, figures=f"{idle_s / before_s:.2f} times")


def _sum_s(rounds: list[Seconds]) -> float:
    return median(seconds["submit_s"] + seconds["apply_s"] for seconds in rounds)


def _cells(mode: str, name: str, rounds: list[Seconds]) -> list[str]:
    medians = (median(seconds[key] for seconds in rounds) for key in ("submit_s", "held_s", "apply_s"))
    return [mode, name, *(f"{seconds:.2f}" for seconds in medians), f"{_sum_s(rounds):.2f}"]
