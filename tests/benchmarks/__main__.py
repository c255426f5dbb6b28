"""`python -m tests.benchmarks NAME`: what is too long for the test suite and must be measured all the same."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from types import FrameType

from peer.node.host.threads import sleep_while_waiting
from tests.benchmarks import (
    allreduce,
    attacks,
    bare,
    busy,
    chaos,
    churn,
    cuda,
    fields,
    fuzz,
    gathers,
    honest,
    links,
    memory,
    methods,
    obeyed,
    parity,
    penalties,
    pipeline,
    pipeline_homes,
    placement,
    prediction,
    prediction_unlike,
    quality,
    shared_stages,
    simulate,
    spikes,
)

BENCHMARKS = (
    quality, methods, chaos, attacks, spikes, honest, penalties, parity, placement, allreduce, links, churn,
    prediction, prediction_unlike, simulate, fuzz, cuda, obeyed, busy, memory, bare, fields, gathers, pipeline,
    pipeline_homes, shared_stages,
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark that the command line names; 0 if every bar it shows was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for benchmark in BENCHMARKS:
        benchmark.add_command(commands)
    arguments = parser.parse_args(words)
    sleep_while_waiting()
    code: int = arguments.run(arguments)
    return code


def _end(number: int, frame: FrameType | None) -> None:
    """As an interrupt: whoever holds children or folders lets go of them."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main())
