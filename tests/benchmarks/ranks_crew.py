"""Several ranks on this machine that train one model with FSDP2 over gloo: what their steps take and what they hold.

Every rank is a process of one thread. All of them walk through the same configurations in the same order.
"""

from __future__ import annotations

import datetime
import gc
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from peer.parallel.fsdp.sharded_model import shard
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema.spec import RunSpec, from_mapping
from peer.training.model.build import build, next_token_logits
from peer.training.train.optimizers import make_optimizers

WARM = 2
STEPS = 2
COLLECTIVE_S = 60.0
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class RanksCase:
    """A model, and the way in which ranks share it; `ranks` 1 is one process that shards nothing."""

    width: int
    blocks: int
    sequences: int
    """Of a micro-batch of one rank."""
    accumulation: int
    context: int
    ranks: int
    kind: str = "replicated"
    group: int = 0
    offloads: bool = False
    alone: bool = False
    """No collectives: every rank trains a model of its own. What computing takes where all ranks compute at once."""

    @property
    def name(self) -> str:
        group = f"-{self.group}" if self.group else ""
        way = "alone" if self.alone else f"{self.kind}{group}{'-offload' if self.offloads else ''}"
        return f"r{self.ranks}-w{self.width}-b{self.blocks}-{self.accumulation}x{self.sequences}-t{self.context}-{way}"

    @property
    def model(self) -> tuple[int, ...]:
        """The same for all that differ in the way alone."""
        return self.width, self.blocks, self.sequences, self.accumulation, self.context

    @property
    def strategy(self) -> ShardingStrategy:
        return ShardingStrategy(
            kind=Sharding(self.kind), ranks=self.ranks, group=self.group, offloads=self.offloads
        )  # fmt: skip

    @property
    def spec(self) -> RunSpec:
        config = {
            "hidden_size": self.width, "intermediate_size": self.width * 11 // 4, "num_hidden_layers": self.blocks,
            "num_attention_heads": 4, "vocab_size": 512,
        }  # fmt: skip
        return from_mapping({
            "run": {"name": "ranks"}, "model": {"architecture": "llama", "context": self.context, "config": config},
            "inner": {"sequences": self.sequences, "accumulation": self.accumulation},
        })  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RanksTimes:
    """Of one configuration."""

    name: str
    steps_s: list[float]
    """Of the slowest rank, by repetition."""
    peak_bytes: int
    """Of the rank that held the most tensor bytes, from its model's building to the end of its second step."""


def measure(cases: Sequence[RanksCase], repeats: int, within_s: float) -> list[RanksTimes]:
    """All cases of one number of ranks, by turns: what changes on the machine meanwhile hits all alike."""
    ranks = cases[0].ranks
    assert all(case.ranks == ranks for case in cases)
    with tempfile.TemporaryDirectory(prefix="hf-ranks-") as folder:
        started = multiprocessing.start_processes(
            _rank, args=(ranks, [asdict(case) for case in cases], repeats, folder), nprocs=ranks, join=False,
            start_method="spawn",
        )  # fmt: skip
        ends = time.monotonic() + within_s
        try:
            while not started.join(timeout=1.0):
                if time.monotonic() > ends:
                    raise TimeoutError(f"{ranks} ranks were not done within {within_s:g} s")
        finally:
            for process in started.processes:
                process.kill()
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [
        RanksTimes(
            name=case.name,
            steps_s=[max(times) for times in zip(*(each[at]["steps_s"] for each in told), strict=True)],
            peak_bytes=max(each[at]["peak_bytes"] for each in told),
        )
        for at, case in enumerate(cases)
    ]


# ---- in a rank's process ----


def _rank(rank: int, ranks: int, cases: list[dict[str, Any]], repeats: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    timeout = datetime.timedelta(seconds=COLLECTIVE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    try:
        found = _walk([RanksCase(**case) for case in cases], repeats)
    finally:
        dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def _walk(cases: Sequence[RanksCase], repeats: int) -> list[dict[str, Any]]:
    peaks, learners = [], []
    for case in cases:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
            learner = _Learner(case)
            for _ in range(WARM):
                learner.step()
        peaks.append(_peak_bytes(told))
        learners.append(learner)
    gc.collect()
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(repeats):
        for at, learner in enumerate(learners):
            for _ in range(STEPS):
                dist.barrier()
                began = time.perf_counter()
                learner.step()
                times[at].append(time.perf_counter() - began)
    return [{"steps_s": each, "peak_bytes": peak} for each, peak in zip(times, peaks, strict=True)]


def _peak_bytes(told: profile) -> int:
    """The most that the processor's allocator had given out at once, of what it gave since `told` began.

    What another thread takes back is not told: it counts until its address is given out again.
    """
    found: list[tuple[int, int, int]] = []

    def visit(events: Sequence[Any]) -> None:
        for event in events:
            if str(event.tag).endswith("Allocation"):
                found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
            visit(event.children)

    visit(told.profiler.kineto_results.experimental_event_tree())
    held, total, most = dict[int, int](), 0, 0
    for _, address, size in sorted(found, key=lambda each: each[0]):
        total += max(0, size) - held.pop(address, 0)
        if size > 0:
            held[address] = size
        most = max(most, total)
    return most


class _Learner:
    def __init__(self, case: RanksCase) -> None:
        self._case, self._spec = case, case.spec
        self._model = build(self._spec)
        if not case.alone:
            shard(self._model, case.strategy, CPU)
        self._optimizers = make_optimizers(self._model, self._spec, CPU)
        torch.manual_seed(dist.get_rank())
        self._tokens_BT = torch.randint(0, 512, (case.sequences, case.context + 1))

    def step(self) -> None:
        for _ in range(self._case.accumulation):
            logits_BTV = next_token_logits(self._model, self._tokens_BT)
            loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), self._tokens_BT[:, 1:].flatten())
            loss.backward()
        self._optimizers.step(1e-4)
