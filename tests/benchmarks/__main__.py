"""`python -m tests.benchmarks NAME`: what is too long for the test suite and must be measured all the same."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.benchmarks import (
    allreduce,
    attacks,
    chaos,
    churn,
    dashboard,
    drops,
    honest,
    join,
    links,
    overlap,
    parity,
    placement,
    prediction,
    quality,
    simulate,
    spikes,
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark that the command line names; 0 if every bar it shows was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    quality.add_command(commands)
    drops.add_command(commands)
    join.add_command(commands)
    chaos.add_command(commands)
    attacks.add_command(commands)
    spikes.add_command(commands)
    honest.add_command(commands)
    overlap.add_command(commands)
    parity.add_command(commands)
    placement.add_command(commands)
    dashboard.add_command(commands)
    allreduce.add_command(commands)
    links.add_command(commands)
    churn.add_command(commands)
    prediction.add_command(commands)
    simulate.add_command(commands)
    arguments = parser.parse_args(words)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
