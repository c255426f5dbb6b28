"""`fuzz`: whatever strangers write, nothing crashes, nothing forged is believed, and no memory is lost.

Invites, records of the board, admissions and orders, frames of a round, requests at the control socket and event lines:
genuine ones that are changed, msgpack and JSON of anything, and bytes. Hypothesis makes them, batch by batch.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from tests.benchmarks.fuzz_targets import Forged, targets
from tests.benchmarks.record import commit, machine, versions

EXAMPLES, QUICK = 100_000, 600
"""Over all targets."""
BATCH = 1_000
GROWTH_MIB = 64.0
"""The largest size of this process may grow by so much after the first batch of each target."""

Check = Callable[[Any], str]
"""What became of one example, in a word. Raises Forged, or whatever crashes."""


@dataclass
class Outcome:
    """What the examples of one target came to."""

    examples: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """One line for each batch that ended with a crash or a forgery."""
    growth_mib: float = 0.0

    @property
    def met(self) -> bool:
        return not self.failures and self.growth_mib <= GROWTH_MIB


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `fuzz` and its options to the command line."""
    parser = commands.add_parser("fuzz", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} examples instead of {EXAMPLES:,}")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="another makes other examples (default 1)")
    parser.add_argument("--examples", type=int, default=EXAMPLES, metavar="N", help=f"over all (default {EXAMPLES:,})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fuzz every target, print a line for each, write the figures. 0 if all are met."""
    outcomes: dict[str, Outcome] = {}
    with targets() as found:
        share = -(-(QUICK if arguments.quick else arguments.examples) // len(found))
        for name, (strategy, check) in found.items():
            outcomes[name] = fuzz(strategy, check, share, arguments.seed)
            print(describe(name, outcomes[name]), flush=True)
    total = sum(outcome.examples for outcome in outcomes.values())
    met = all(outcome.met for outcome in outcomes.values())
    print(f"{'PASS' if met else 'FAIL'}: {total:,} examples: no crash, no accepted forgery, bounded memory")
    if arguments.json:
        told = {name: {**vars(outcome), "met": outcome.met} for name, outcome in outcomes.items()}
        result = {"commit": commit(), "versions": versions(), "machine": machine(), "seed": arguments.seed, "met": met}
        arguments.json.write_text(json.dumps({**result, "examples": total, "targets": told}, indent=1) + "\n")
    return 0 if met else 1


def fuzz(strategy: st.SearchStrategy[Any], check: Check, examples: int, seed: int) -> Outcome:
    """At least so many examples, in batches: what Hypothesis remembers of one is gone with it."""
    outcome, began = Outcome(), time.perf_counter()
    floor_mib = 0.0
    while outcome.examples < examples and len(outcome.failures) < 3:
        _batch(strategy, check, min(BATCH, examples - outcome.examples), seed * 1_000_003 + outcome.examples, outcome)
        floor_mib = floor_mib or _largest_mib()
        outcome.growth_mib = round(_largest_mib() - floor_mib, 1)
    outcome.seconds = round(time.perf_counter() - began, 1)
    return outcome


def _batch(strategy: st.SearchStrategy[Any], check: Check, examples: int, seed: int, outcome: Outcome) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate], report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def one(example: Any) -> None:
        outcome.examples += 1
        outcome.counts[check(example)] += 1

    try:
        one()
    except Forged as error:
        outcome.failures.append(f"seed {seed}: forged: {error}")
    except Exception as error:  # a crash is what this looks for
        outcome.failures.append(f"seed {seed}: {type(error).__name__}: {error}"[:400])


def _largest_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def describe(name: str, outcome: Outcome) -> str:
    """One line."""
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(outcome.counts.items()))
    line = f"{name}: {outcome.examples:,} examples in {outcome.seconds:.0f} s: {counts}; +{outcome.growth_mib:.0f} MiB"
    return "\n".join([line, *(f"  FAILED {failure}" for failure in outcome.failures)])
