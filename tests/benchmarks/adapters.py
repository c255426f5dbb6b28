"""`adapters`: what it costs that peers average A and B of an adapter each by itself, against one that trains as many
tokens alone, and against rounds of B alone, whose average is exact.

The model beside which it lies is a `micro` that was trained for some rounds on one half of the text's shards. All ways
of a seed begin with the same model, read the same shards and train on as many tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

import torch

from peer.node.store import start_blob
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdapterTable, StartTable
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.backend import SingleDevice
from tests.benchmarks import jobs
from tests.benchmarks.options import add_options, base_spec
from tests.benchmarks.record import write_results
from tests.benchmarks.rows import Bar, Row, losses, markdown, percent
from tests.benchmarks.variants import CPU, Outcome, Report, run_variant

CODE = (*jobs.CODE, "tests/benchmarks/adapters.py")
WAYS = {
    "as one": ("ddp", "both"),
    "rounds": ("int4", "both"),
    "as one, B": ("ddp", "b"),
    "rounds, B": ("int4", "b"),
}
"""By name: a way of `variants`, and what of the adapter is trained."""
ROUNDS, STEPS = 48, 10
"""Chosen with seed 9 and four peers, over 12 rounds of 40 steps (+3.2 % for +1.4 %)."""
BEGUN_STEPS = 400
"""Of the model beside which they lie."""
ADAPTER = AdapterTable(rank=8, alpha=16)
RATE = 1e-2
"""Chosen by `as one` with seed 9 among 3e-3, 1e-2 and 3e-2."""
SEQUENCES = 512
"""Evaluated."""
MOST = 1.01
"""Of the loss as one."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `adapters` and its options to the command line."""
    parser = commands.add_parser("adapters", help="adapters in rounds against one that is trained as one")
    add_options(parser, out="adapters", seeds=2)
    parser.add_argument("--rate", type=float, default=RATE, help="inner learning rate")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows only that it works")
    parser.set_defaults(run=run, spec="micro", rounds=ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Make the missing rows, then the table and adapters.json. 0 if the bar is met, or with `--quick`."""
    if arguments.quick:
        arguments.seeds, arguments.rounds = arguments.seeds[:1], 2
    os.environ.setdefault(start_blob.CACHE, str((arguments.out / "cache").resolve()))
    base, code = base_spec(arguments), jobs.code_digest(CODE)
    start = StartTable(model="micro", digest=begun(base, 20 if arguments.quick else BEGUN_STEPS))
    wanted = [
        jobs.Job(variant=way, seed=seed, spec=spec_of(way, base, start, seed, arguments), code=code, train=train)
        for seed in arguments.seeds
        for way in WAYS
    ]
    rows = jobs.rows_of(wanted, arguments.out, arguments.jobs)
    result = write_results(
        arguments.out / "adapters", base, table(rows), bars(rows), rows, code=code, peers=arguments.peers,
        adapter=dataclasses.asdict(ADAPTER), rate=arguments.rate,
    )  # fmt: skip
    return 0 if arguments.quick else result


def begun(base: RunSpec, steps: int) -> str:
    """Train the model for so many steps; the digest of its parameters, which are in the cache then."""
    torch.set_num_threads(1)
    names, model = ("begun", "else"), build(base)
    feed = ShardSampler(open_source(base, base.data.path), base, names[0], names, {})
    loop = SingleDevice(model, base, feed, CPU)
    for step in range(steps):
        loop.step(0, step / steps)
    layers = FlatParameters(model).by_layer()
    return start_blob.write((layer.detach().numpy() for layer in layers), {}).name


def spec_of(way: str, base: RunSpec, start: StartTable, seed: int, arguments: argparse.Namespace) -> RunSpec:
    variant, trains = WAYS[way]
    wire: Any = "float32" if variant == "ddp" else variant
    return dataclasses.replace(
        base, run=dataclasses.replace(base.run, seed=seed, founders=arguments.peers),
        model=dataclasses.replace(base.model, config={"vocab_size": 257} | base.model.config),
        inner=dataclasses.replace(base.inner, learning_rate=arguments.rate, weight_decay=0.0),
        round=dataclasses.replace(base.round, steps=STEPS),
        codec=dataclasses.replace(base.codec, wire=wire),
        data=dataclasses.replace(base.data, eval_sequences=SEQUENCES, eval_every=4),
        start=start, adapter=dataclasses.replace(ADAPTER, trains=trains),
    )  # fmt: skip


def train(way: str, spec: RunSpec, report: Report) -> Outcome:
    return run_variant(WAYS[way][0], spec, report)


def table(rows: list[Row]) -> str:
    """A row per way, a column per seed."""
    seeds = sorted({row["seed"] for row in rows})
    one, first = losses(rows, "as one"), {row["seed"]: row["points"][0]["loss"] for row in rows}
    lines = [["way", "bytes up a round", *(f"loss, seed {seed}" for seed in seeds), *(f"seed {s}" for s in seeds)]]
    lines += [["before", "", *(f"{first[seed]:.4f}" for seed in seeds), *("" for _ in seeds)]]
    for way in WAYS:
        found, sent = losses(rows, way), next(row["wire_bytes"] for row in rows if row["variant"] == way)
        beside = [percent(found[seed] / one[seed]) for seed in seeds]
        lines.append([way, f"{sent:,}", *(f"{found[seed]:.4f}" for seed in seeds), *beside])
    return f"{__doc__}\n{markdown(lines)}"


def bars(rows: list[Row]) -> list[Bar]:
    """Each way of averaging against the same that is trained as one."""
    pairs = [(way, losses(rows, way), losses(rows, way.replace("rounds", "as one"))) for way in ("rounds", "rounds, B")]
    return [
        Bar(
            name=f"{way}: at most {percent(MOST)} of the loss as one", met=all(found[s] <= MOST * one[s] for s in one),
            figures=", ".join(percent(found[seed] / one[seed]) for seed in one),
        )
        for way, found, one in pairs
    ]  # fmt: skip
