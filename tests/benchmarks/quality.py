"""`quality`: what training apart costs and what the codecs cost, in held-out loss, over several seeds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tests.benchmarks import quality_report
from tests.benchmarks.jobs import CODE, Job, code_digest, rows_of
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.variants import CODECS, SINGLE, VARIANTS, run_variant, spec_of

URGENT = ("int4", "float32", "one-peer", "ddp")
"""Variants behind the bars: they come first, seed by seed."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `quality` and its options to the command line."""
    parser = commands.add_parser("quality", help=__doc__, description=__doc__)
    add_options(parser, out="quality", seeds=3)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    rivals = [variant for variant in VARIANTS if variant not in CODECS]
    parser.add_argument("--rivals", nargs="*", choices=rivals, default=rivals)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table, quality.json and quality.png. 0 if all bars are met."""
    base, peers, out = base_spec(arguments), arguments.peers, arguments.out
    chosen = [variant for variant in VARIANTS if variant in (*arguments.codecs, *arguments.rivals)]
    code = code_digest(CODE)
    jobs = [
        Job(variant=variant, seed=seed, spec=spec_of(variant, base, seed, peers), code=code, train=run_variant)
        for variant, seed in in_order(chosen, arguments.seeds)
    ]
    rows = rows_of(jobs, out, arguments.jobs)
    quality_report.draw(rows, out / "quality.png")
    table, bars = quality_report.table(rows), [*quality_report.judge(rows), *quality_report.fewer_bytes(rows)]
    return write_results(out / "quality", base, table, bars, rows, code=code, peers=peers, single=list(SINGLE))


def in_order(variants: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """What the bars need first, seed by seed, so that a glance at an unfinished benchmark tells most."""
    for urgent in (True, False):
        for seed in seeds:
            group = sorted(variants, key=lambda name: URGENT.index(name) if name in URGENT else len(URGENT))
            yield from ((variant, seed) for variant in group if (variant in URGENT) == urgent)
