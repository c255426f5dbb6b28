"""`dashboard`: what the dashboard takes of a machine, and how soon it draws.

The real application in a real pseudo-terminal. It follows a file to which a stream of 200 peers is written, 20 events
per second for a minute, while every screen is looked at; then it opens a recording of 100,000 events.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.dashboard_stream import Stream
from tests.benchmarks.record import commit, machine
from tests.benchmarks.rows import Bar
from tests.benchmarks.terminal import Terminal

COLUMNS, ROWS = 160, 48
WAIT_S = 60.0
MARKS = {
    "1": "in all rounds", "2": "behind  weight", "3": "a column", "4": "Learning ·", "5": "Reached", "6": "all levels",
    "7": " allows",
}  # fmt: skip
"""What a screen draws that no other one does, by its key."""

MOST_CPU = 0.15
MOST_BYTES = 150 * 2**20
MOST_KEY_S = 0.1
MOST_FIRST_S = 1.0
MOST_OPEN_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much is measured."""

    peers: int = 200
    per_s: float = 20.0
    seconds: float = 60.0
    keys: int = 60
    events: int = 100_000


QUICK = Load(peers=12, per_s=20.0, seconds=2.0, keys=4, events=1000)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; seconds, bytes, shares of one core."""

    first_paint_s: float
    first_paint_cpu_s: float
    """Processor time of it: what it would be on a machine that does nothing else, or less."""
    cpu_share: float
    cpu_share_of: dict[str, float]
    """By the key of the screen that was shown."""
    peak_bytes: int
    keys_s: list[float]
    open_s: float
    open_cpu_s: float
    open_peak_bytes: int


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `dashboard` and its options to the command line."""
    parser = commands.add_parser("dashboard", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: that it works, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and judge; 0 if every bar is met, or with --quick if it worked."""
    load = QUICK if arguments.quick else Load()
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        figures = measure(load, Path(folder))
    bars = judge(figures)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    for line in [*table(figures), *(f"- {bar}" for bar in bars)]:
        print(line, flush=True)
    if arguments.json is not None:
        told = {"load": asdict(load), "commit": commit(), "machine": machine(), "figures": asdict(figures)}
        arguments.json.write_text(json.dumps(told | {"bars": [asdict(bar) for bar in bars]}, indent=1) + "\n")
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def measure(load: Load, folder: Path) -> Figures:
    """Everything, one after the other."""
    events = folder / "events.jsonl"
    with _writing(Stream(peers=load.peers), events, load), _dashboard("--live", str(events)) as terminal:
        first_paint_s = terminal.wait_for("7 Limits", WAIT_S) - terminal.began_s
        first_paint_cpu_s = terminal.cpu_s()
        terminal.wait_for(MARKS["1"], WAIT_S)
        cpu_share_of = {key: _cpu_share(terminal, key, load.seconds / len(MARKS)) for key in MARKS}
        keys_s = [_key_s(terminal, number) for number in range(load.keys)]
        peak_bytes = terminal.peak_bytes()
    open_s, open_cpu_s, open_peak_bytes = _open(load, folder / "recording.jsonl")
    return Figures(
        first_paint_s=first_paint_s, first_paint_cpu_s=first_paint_cpu_s,
        cpu_share=statistics.mean(cpu_share_of.values()), cpu_share_of=cpu_share_of, peak_bytes=peak_bytes,
        keys_s=keys_s, open_s=open_s, open_cpu_s=open_cpu_s, open_peak_bytes=open_peak_bytes,
    )  # fmt: skip


def judge(figures: Figures) -> list[Bar]:
    """The bars of the issue."""
    screen, worst_s = max(figures.cpu_share_of, key=figures.cpu_share_of.__getitem__), max(figures.keys_s)
    share, median_s = figures.cpu_share_of[screen], statistics.median(figures.keys_s)
    peak = max(figures.peak_bytes, figures.open_peak_bytes)
    keys = f"median {1e3 * median_s:.0f} ms, worst {1e3 * worst_s:.0f} ms"
    first = _told(figures.first_paint_s, figures.first_paint_cpu_s)
    opened = _told(figures.open_s, figures.open_cpu_s)
    rows = [
        ("under 15 % of one core on every screen", share < MOST_CPU, f"{share:.1%} on screen {screen}"),
        ("under 150 MiB resident", peak < MOST_BYTES, f"{peak / 2**20:.0f} MiB"),
        ("key to paint under 100 ms", worst_s < MOST_KEY_S, keys),
        ("first paint under 1 s", figures.first_paint_s < MOST_FIRST_S, first),
        ("opens the recording in under 3 s", figures.open_s < MOST_OPEN_S, opened),
    ]
    return [Bar(name=name, met=met, figures=told) for name, met, told in rows]


def _told(seconds: float, cpu_s: float) -> str:
    return f"{seconds:.2f} s, of processor time {cpu_s:.2f} s"


def table(figures: Figures) -> list[str]:
    """Share of one core by screen."""
    head = ["| screen | share of one core |", "| --- | ---: |"]
    rows = [f"| {key} ({MARKS[key]}) | {share:.1%} |" for key, share in figures.cpu_share_of.items()]
    return [*head, *rows, f"| mean | {figures.cpu_share:.1%} |"]


def _dashboard(*words: str) -> Terminal:
    argv = [sys.executable, "-m", "tui", "watch", "--ui", "tui", *words]
    return Terminal(argv, columns=COLUMNS, rows=ROWS)


def _cpu_share(terminal: Terminal, key: str, seconds: float) -> float:
    """Of one core, while a screen is shown and events come; the switch itself is not counted."""
    terminal.press(key)
    terminal.wait_for(MARKS[key], WAIT_S)
    before_s, began_s = terminal.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return (terminal.cpu_s() - before_s) / (time.perf_counter() - began_s)


def _key_s(terminal: Terminal, number: int) -> float:
    """From a key to what it draws: to and fro between screens, at any moment between two ticks."""
    key = list(MARKS)[number % len(MARKS)]
    time.sleep(0.31 + 0.037 * (number % 11))
    pressed_s = time.perf_counter()
    terminal.press(key)
    return terminal.wait_for(MARKS[key], WAIT_S) - pressed_s


def _open(load: Load, path: Path) -> tuple[float, float, int]:
    """Seconds from the start of the process until all of a recording was read and its beginning is drawn, of them on
    a processor; memory, once its end is drawn, too."""
    stream = Stream(peers=16)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in stream.starts(0.0))
        left = load.events - 2 * stream.peers
        file.writelines(f"{stream.line(index, 0.05 * index)}\n" for index in range(left))
    with _dashboard(str(path)) as terminal:
        drawn_s, drawn_cpu_s = terminal.wait_for(f" of {load.events:,}", WAIT_S), terminal.cpu_s()
        terminal.press("\x1b[F")  # End
        terminal.wait_for(f"{load.events:,} of {load.events:,}", WAIT_S)
        return drawn_s - terminal.began_s, drawn_cpu_s, terminal.peak_bytes()


@contextmanager
def _writing(stream: Stream, path: Path, load: Load) -> Iterator[None]:
    """Events are added to `path` at their pace, after some rounds that were there before."""
    done = threading.Event()
    backlog = 3 * 12 * load.peers
    with path.open("w", encoding="utf-8") as file:
        now = time.time()
        file.writelines(f"{line}\n" for line in stream.starts(now - backlog / load.per_s))
        file.writelines(f"{stream.line(i, now - (backlog - i) / load.per_s)}\n" for i in range(backlog))

    def write() -> None:
        with path.open("a", encoding="utf-8", buffering=1) as file:
            index = backlog
            while not done.wait(1 / load.per_s):
                file.write(stream.line(index, time.time()) + "\n")
                index += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()
