"""`gathers`: is anything old or half written gathered beside an update, and what does it cost that nothing is.

Schedules of ranks, updates and careless readers, drawn from seeds; then four ranks of a llama, `hierarchical`, with
the guard and without it by turns in one run: a shared machine drifts.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor, distributed

from peer.parallel.fsdp.gather_guard import GatherGuard
from peer.parallel.fsdp.gather_hooks import GatherGates
from peer.parallel.fsdp.sharded_model import held_by_rank, shard
from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy
from peer.schema.spec import RunSpec, from_mapping
from peer.training.model.build import build, next_token_logits
from peer.training.model.flat_parameters import FlatParameters
from tests.benchmarks.record import commit, machine, versions
from tests.benchmarks.rows import Bar
from tests.gather_race import Broken, GatherRace
from tests.gloo_ranks import run_ranks

STRATEGY = ShardingStrategy(kind=Sharding.HIERARCHICAL, ranks=4, group=2)
LEAST_SPEED = 0.98
"""What ZeRO++'s corrected second copies keep of the racing ones' speed (arXiv:2407.01614)."""
CONTEXT, SEQUENCES, STEPS = 64, 2, 2
"""Of each rank; steps between two updates."""
WAIT_S = 60.0

Seconds = tuple[float, float]
"""Of as many steps without the guard, and with it."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("gathers", help=__doc__.partition("\n")[0].partition(": ")[2] + "; 4 minutes")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--hidden", type=int, default=128, help="width of the model; 128 is 0.9 M parameters")
    parser.add_argument("--pairs", type=int, default=60, help="updates of each kind, by turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    failed = failures(options.schedules)
    broken = {kind.value: failures(options.schedules // 20, kind) for kind in Broken}
    for kind, count in broken.items():
        print(f"{kind}: {count} of {options.schedules // 20} schedules fail")
    parameters, pairs = run_ranks(STRATEGY.ranks, timed, options.hidden, options.pairs)[0]
    bars = list(judge(options.schedules, failed, broken, pairs))
    tokens = STRATEGY.ranks * SEQUENCES * CONTEXT * STEPS
    without_s, with_s = (median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"{parameters:,} parameters, {len(pairs)} updates of each kind by turns, medians")
    print(f"{tokens / without_s:.0f} tokens/s without the guard, {tokens / with_s:.0f} with it")
    print("\n".join(map(str, bars)), flush=True)
    if options.json:
        told = {
            "parameters": parameters, "schedules": options.schedules, "failed": failed, "broken": broken,
            "pairs": pairs, "bars": [vars(bar) for bar in bars], "commit": commit(), "versions": versions(),
            "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(bar.met for bar in bars) else 1


def failures(schedules: int, broken: Broken | None = None) -> int:
    """In how many schedules a mix was read, or an honest pass refused."""
    failed = 0
    for seed in range(schedules):
        race = GatherRace(seed, broken)
        race.run()
        failed += race.failed
    return failed


def judge(schedules: int, failed: int, broken: dict[str, int], pairs: Sequence[Seconds]) -> Iterator[Bar]:
    """The bars. Of speed it is the median of pairs: the two of a pair were run one after the other."""
    yield Bar(name="no schedule reads a mix", met=not failed, figures=f"{failed} of {schedules:,}")
    name = "each guard taken out alone is noticed"
    yield Bar(name=name, met=all(broken.values()), figures=", ".join(map(str, broken.values())))
    low, speed, high = quantiles((without_s / with_s for without_s, with_s in pairs), n=4)
    name = f"with the guard at least {LEAST_SPEED:g} of the speed without"
    yield Bar(name=name, met=speed >= LEAST_SPEED, figures=f"{speed:.3f}, half of all pairs {low:.2f} to {high:.2f}")


# ---- in each rank ----


class Trainee:
    """A model whose parameters another thread changes while its next step computes."""

    def __init__(self, spec: RunSpec, *, guarded: bool) -> None:
        self.model = build(spec)
        self._flat = FlatParameters(self.model)
        shard(self.model, STRATEGY, torch.device("cpu"))
        self._shares = self._by_layer()
        self._values = [[(share.clone(), share * 1.001) for share in layer] for layer in self._shares]
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self._order: Collection[int] = range(len(self._shares))
        self._guard = GatherGuard(len(self._shares), self._gates, WAIT_S) if guarded else None
        self._updates = 0

    def _by_layer(self) -> list[list[Tensor]]:
        members = FlatParameters(self.model).members
        return [[held_by_rank(parameter)[1] for parameter in layer] for layer in members]

    def _gates(self, enter: Callable[[Collection[int]], None]) -> GatherGates:
        gates = GatherGates(self.model, self._flat, enter)
        self._order = gates.order
        return gates

    def between_updates(self, tokens_BT: Tensor) -> None:
        """An update beside the first of some steps."""
        self._updates += 1
        version = self._guard.begin() if self._guard else 0
        writer = threading.Thread(target=self._write, args=[version])
        writer.start()
        for _ in range(STEPS):
            self._step(tokens_BT)
        writer.join(WAIT_S)

    def _write(self, version: int) -> None:
        for layer in self._order:
            for share, values in zip(self._shares[layer], self._values[layer], strict=True):
                share.copy_(values[self._updates % 2])
            if self._guard:
                self._guard.publish(layer, version)

    def _step(self, tokens_BT: Tensor) -> None:
        with self._guard.reading() if self._guard else nullcontext():
            logits_BTV = next_token_logits(self.model, tokens_BT)
            loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()


def timed(hidden: int, pairs: int) -> tuple[int, list[Seconds]]:
    """Parameters, and the seconds of each pair; which of the two is first changes. The first pair is not counted."""
    spec = from_mapping(
        {
            "run": {"name": "gathers"},
            "model": {"architecture": "llama", "context": CONTEXT, "config": {
                "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": 4,
                "num_attention_heads": 4, "num_key_value_heads": 4,
            }},
        },
        "gathers",
    )  # fmt: skip
    without, guarded = Trainee(spec, guarded=False), Trainee(spec, guarded=True)
    torch.manual_seed(distributed.get_rank())
    tokens_BT = torch.randint(0, 256, (SEQUENCES, CONTEXT))
    parameters = FlatParameters(without.model).size
    found = []
    for number in range(pairs + 1):
        runs = [partial(without.between_updates, tokens_BT), partial(guarded.between_updates, tokens_BT)]
        first_is_guarded = number % 2
        seconds = [_seconds(run) for run in (reversed(runs) if first_is_guarded else runs)]
        found.append((seconds[1], seconds[0]) if first_is_guarded else (seconds[0], seconds[1]))
    return parameters, found[1:]


def _seconds(run: Callable[[], None]) -> float:
    distributed.barrier()
    began_at = time.perf_counter()
    run()
    distributed.barrier()
    return time.perf_counter() - began_at
