"""What int8 between stages costs of learning: a cluster in threads of this process, beside the whole model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer.schema.spec import RunSpec, from_mapping, read_text
from tests.benchmarks.anchors import HeldOut
from tests.benchmarks.rows import Bar
from tests.peer.parallel.pipeline.stages import Cluster, alone


@dataclass(frozen=True, kw_only=True)
class Learned:
    """From the same parameters, with the same batches: held-out nats per token."""

    seed: int
    steps: int
    before: float
    whole: float
    cluster: float

    @property
    def ratio(self) -> float:
        return self.cluster / self.whole


def learn(folder: Path, plan: dict[str, Any], seed: int) -> Learned:
    """All steps of the run, at the learning rates of its rounds; but no round is closed."""
    table = tomllib.loads(read_text(plan["spec"]))
    table["run"]["seed"] = seed
    table["model"]["config"] |= plan["config"]
    spec = from_mapping(table, plan["spec"])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _learned(folder, spec, plan)
    finally:
        torch.set_num_threads(threads)


def _learned(folder: Path, spec: RunSpec, plan: dict[str, Any]) -> Learned:
    folder.mkdir(parents=True)
    whole, cluster = alone(spec), Cluster(spec, plan["homes"], plan["wire"], folder)
    held_out, steps = HeldOut(spec), plan["steps"]
    tokens = [0, 0]
    with cluster.at_work():
        for step in range(steps):
            where = divmod(step, spec.round.steps)
            tokens[0] += whole.step(*where).tokens
            tokens[1] += cluster.lead.step(*where).tokens
    assert tokens[0] == tokens[1] > 0
    return Learned(
        seed=spec.run.seed, steps=steps, before=held_out.of_initial(), whole=held_out.loss(whole.vectors.flat.new()),
        cluster=held_out.loss(cluster.parameters()),
    )  # fmt: skip


def bars_of(plan: dict[str, Any], rows: list[Learned]) -> list[Bar]:
    """One for each seed."""
    name = f"held-out loss with {plan['wire']} at most {plan['worse']:.0%} above the whole model's"
    return [
        Bar(name=f"seed {row.seed}: {name}", met=row.ratio <= 1 + plan["worse"], figures=f"{row.ratio - 1:+.2%}")
        for row in rows
    ]


def table_of(rows: list[Learned]) -> list[list[str]]:
    """Titles, and a line of each seed."""
    titles = ["held-out loss", "steps", "before", "whole model", "two stages", "apart"]
    return [titles] + [
        [
            f"seed {row.seed}", str(row.steps), f"{row.before:.4f}", f"{row.whole:.4f}", f"{row.cluster:.4f}",
            f"{row.ratio - 1:+.2%}",
        ]
        for row in rows
    ]  # fmt: skip
