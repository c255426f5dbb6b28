"""`simulate`: whether the simulator tells what real peers do, and how large a swarm it takes in five minutes.

First the same run twice, by processes on this machine and by the simulator: the same groups, the same penalties, about
the same times. Then 512 peers message by message, the same drawn from a few groups, and 10,000 drawn; and fewer of
which some are slow, both ways.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.record import commit, machine, versions
from tests.fidelity import Plan, Story, in_reality, simulated
from tui.spec_choice import choose_spec

SETTINGS = Path(__file__).with_suffix(".toml")
ALIKE = 0.15
"""Median round times may differ by so much."""
AGREES = 0.05
"""And what is drawn from what is simulated message by message."""
WITHIN_S, WITHIN_GIB = 300.0, 4.0
LOOK_S = 0.2
"""How often memory is looked at."""
LONGEST_S = 10 * WITHIN_S
"""A simulation that takes so long is given up."""
COMPARED = ("rounds_per_hour", "tokens_per_s", "bytes_sent", "members")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One thing that must hold."""

    what: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'NOT met'}: {self.what}"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `simulate` and its options to the command line."""
    parser = commands.add_parser("simulate", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="no processes and few peers: shows only that it works")
    parser.add_argument("--only", choices=("fidelity", "large"), help="one of the two")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a line per bar, write the figures. 0 if all bars are met, or with `--quick`."""
    settings = tomllib.loads(SETTINGS.read_text())
    quick = settings.pop("quick")
    result: dict[str, Any] = {"commit": commit(), "versions": versions(), "machine": machine()}
    bars: list[Bar] = []
    if not arguments.quick and arguments.only != "large":
        result["fidelity"], found = measure_fidelity(Plan(**settings["fidelity"]))
        bars += found
    if arguments.only != "fidelity":
        large = settings["large"] | (quick["large"] if arguments.quick else {})
        result["large"], found = measure_large(large)
        bars += found
        unlike = settings["unlike"] | (quick["unlike"] if arguments.quick else {})
        result["unlike"], found = measure_unlike(large, **unlike)
        bars += found
    print("\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result["bars"] = [asdict(bar) for bar in bars]
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


# ---- as in reality ----


def measure_fidelity(plan: Plan) -> tuple[dict[str, Any], list[Bar]]:
    """The same run twice."""
    directory = Path(tempfile.mkdtemp(prefix="hf-simulate-"))
    try:
        real = in_reality(directory, plan)
    finally:
        shutil.rmtree(directory)
    model = simulated(choose_spec("micro", sets=plan.sets()), plan)
    for name, story in (("real", real), ("simulated", model)):
        say(f"{name}: rounds of {', '.join(f'{seconds:.1f}' for seconds in story.round_s)} s")
    return {"real": asdict(real), "simulated": asdict(model)}, judge_fidelity(real, model)


def judge_fidelity(real: Story, model: Story) -> list[Bar]:
    """Groups, penalties and times."""
    off = model.median_s / real.median_s - 1
    return [
        Bar(what=f"the same groups in the same order in {len(real.groups)} rounds", met=real.groups == model.groups),
        Bar(what=f"the same penalties in the same order: {_flat(real)}", met=real.penalties == model.penalties),
        Bar(
            what=f"median round {model.median_s:.2f} s simulated, {real.median_s:.2f} s real: {off:+.1%}",
            met=abs(off) <= ALIKE,
        ),
    ]  # fmt: skip


def _flat(story: Story) -> str:
    rows = (f"{code} of {peer} in {at}" for at, row in enumerate(story.penalties, 1) for peer, code in row)
    return ", ".join(rows) or "none"


# ---- large swarms ----


def measure_large(large: dict[str, Any]) -> tuple[dict[str, Any], list[Bar]]:
    """Each in a process of its own, so that its memory is its own."""
    exact = _ran(large, large["exact_peers"], large.get("grid", ""))
    drawn = _ran(large, large["exact_peers"], large.get("grid", ""), "--aggregate")
    largest = _ran(large, large["drawn_peers"], large.get("drawn_grid", ""), "--aggregate")
    bars = [bar for found in (exact, largest) for bar in judge_size(found, large["rounds"])]
    return {"exact": exact, "drawn": drawn, "largest": largest}, bars + judge_drawn(exact, drawn)


def measure_unlike(large: dict[str, Any], peers: int, slow: int, times: float) -> tuple[dict[str, Any], list[Bar]]:
    """The same swarm both ways; which of its peers are slow is drawn by the seed."""
    slower = set(random.Random(large["seed"]).sample(range(peers), slow))
    with tempfile.TemporaryDirectory(prefix="hf-simulate-") as directory:
        file = Path(directory) / "peers.toml"
        file.write_text("".join(_declared(large, seat, times if seat in slower else 1.0) for seat in range(peers)))
        exact, drawn = (_ran(large, file, large.get("grid", ""), *more) for more in ((), ("--aggregate",)))
    return {"exact": exact, "drawn": drawn, "slow": slow, "times": times}, judge_drawn(exact, drawn)


def _declared(large: dict[str, Any], seat: int, times: float) -> str:
    values = {
        "step_s": large["step_s"] * times, "upload_mbps": large["upload_mbps"], "download_mbps": large["download_mbps"]
    }  # fmt: skip
    return f'[[peer]]\nname = "peer-{seat}"\n' + "".join(f"{key} = {value}\n" for key, value in values.items())


def _ran(large: dict[str, Any], peers: int | Path, grid: str, *more: str) -> dict[str, Any]:
    """What `homefires simulate` prints, with its seconds and its memory. `peers`: how many alike, or their file."""
    alike = ("--step-s", large["step_s"], "--upload", large["upload_mbps"], "--download", large["download_mbps"])
    words = [
        large["spec"], *(word for setting in large["sets"] for word in ("--set", setting)), "--spread", large["spread"],
        "--churn", large["churn"], "--rounds", large["rounds"], "--seed", large["seed"], "--peers", peers, "--json",
        *(alike if isinstance(peers, int) else ()), *(("--grid", grid) if grid else ()), *more,
    ]  # fmt: skip
    began = time.monotonic()
    told, held = watched([sys.executable, "-m", "tui", "simulate", *map(str, words)])
    seconds, gib = time.monotonic() - began, held / 2**30
    found: dict[str, Any] = {"took_s": round(seconds, 1), "gib": round(gib, 2), **json.loads(told)}
    text = f"{seconds:.0f} s, {gib:.2f} GiB, {found['rounds_per_hour']:.1f} rounds/h"
    say(f"{found['peers']} peers {found['how']}: {text}")
    return found


def watched(command: list[str]) -> tuple[str, int]:
    """What a command prints, and the most bytes that all its processes held together, as often as was looked.

    Raises subprocess.CalledProcessError if it fails, and TimeoutError if it takes too long.
    """
    most, began = 0, time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while True:
            try:
                told, _ = process.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                most = max(most, held_bytes(process.pid))
            if time.monotonic() - began > LONGEST_S:
                process.kill()
                raise TimeoutError(f"{' '.join(command)} has not ended after {LONGEST_S:.0f} s")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return told, most


def held_bytes(pid: int) -> int:
    """Resident memory of a process and all its children. Pages that they share count once for each of them."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def judge_size(found: dict[str, Any], rounds: int) -> list[Bar]:
    """Time, and memory of all processes together."""
    what = f"{found['peers']} peers, {found['rounds']} rounds {found['how']}"
    return [
        Bar(what=f"{what} in {found['took_s']:.0f} s", met=found["took_s"] < WITHIN_S and found["rounds"] == rounds),
        Bar(what=f"and in {found['gib']:.2f} GiB, all processes together", met=found["gib"] < WITHIN_GIB),
    ]


def judge_drawn(exact: dict[str, Any], drawn: dict[str, Any]) -> list[Bar]:
    """Both ways of the same swarm."""
    bars = []
    for name in COMPARED:
        off = drawn[name] / exact[name] - 1
        bars.append(Bar(what=f"{name}: {exact[name]:.6g}, drawn {drawn[name]:.6g}: {off:+.1%}", met=abs(off) <= AGREES))
    return bars


def say(text: str) -> None:
    """With the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
