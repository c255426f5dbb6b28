"""`simulate`: whether the simulator tells what real peers do.

The same run twice, by processes on this machine and by the simulator: the same groups, the same penalties, about the
same times.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.record import commit, machine, versions
from tests.fidelity import Plan, Story, in_reality, simulated
from tui.spec_choice import choose_spec

SETTINGS = Path(__file__).with_suffix(".toml")
ALIKE = 0.15
"""Median round times may differ by so much."""


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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a line per bar, write the figures. 0 if all bars are met."""
    plan = Plan(**tomllib.loads(SETTINGS.read_text()))
    real, model = measure(plan)
    bars = judge(real, model)
    print("\n" + "".join(f"- {bar}\n" for bar in bars), flush=True)
    if arguments.json:
        result = {"commit": commit(), "versions": versions(), "machine": machine()}
        result |= {"real": asdict(real), "simulated": asdict(model), "bars": [asdict(bar) for bar in bars]}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1


def measure(plan: Plan) -> tuple[Story, Story]:
    """The same run twice: real, simulated."""
    with tempfile.TemporaryDirectory(prefix="hf-simulate-") as directory:
        real = in_reality(Path(directory), plan)
    model = simulated(choose_spec("micro", sets=plan.sets()), plan)
    for name, story in (("real", real), ("simulated", model)):
        print(f"{name}: rounds of {', '.join(f'{seconds:.1f}' for seconds in story.round_s)} s", flush=True)
    return real, model


def judge(real: Story, model: Story) -> list[Bar]:
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
