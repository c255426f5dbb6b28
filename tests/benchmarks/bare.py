"""`bare`: an inner step of the demo's model beside the one that anybody would write around the same model.

Processor time of one thread, by turns in one process: a machine that is shared drifts. A first run takes a minute to
compile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.parallel.autotune.trial import Noise
from peer.schema.peak_memory import Rung
from peer.schema.spec import RunSpec, load
from peer.training.data.tokenizer import ByteTokenizer
from peer.training.model.build import build
from peer.training.train.backend import SingleDevice
from tests.benchmarks.rows import Bar

CPU = torch.device("cpu")
WARM_STEPS = 3
BARS = {False: 0.97, True: 0.95}
"""The least share of the bare loop's speed; with compiled blocks, of that of the whole model compiled."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("bare", help="an inner step of the demo's model beside a bare loop; 3 minutes")
    parser.add_argument("--rounds", type=int, default=40, help="each way makes one step in each")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    spec, bars = load("tiny"), list[Bar]()
    for compiled, least in BARS.items():
        ratios, seconds = compare(_bare(spec, compiled=compiled), _ours(spec, compiled=compiled), options.rounds)
        share, name = median(ratios), "compiled" if compiled else "eager"
        figures = f"{share:.3f} of its speed, at least {least}; a step takes it {1e3 * seconds:.1f} ms"
        bars.append(Bar(name=f"{name}, beside the bare loop", met=share >= least, figures=figures))
        print(bars[-1], flush=True)
    return 0 if all(bar.met for bar in bars) else 1


def compare(bare: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[list[float], float]:
    """How fast `ours` is, as shares of `bare`, of each round; and the median time of a step of `bare`."""
    for _ in range(WARM_STEPS):
        bare()
        ours()
    taken = [(_seconds(bare), _seconds(ours)) for _ in range(rounds)]
    return [theirs / mine for theirs, mine in taken], median(theirs for theirs, _ in taken)


def _seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def _ours(spec: RunSpec, *, compiled: bool) -> Callable[[], object]:
    loop = SingleDevice(build(spec), spec, Noise(spec, ByteTokenizer.vocabulary), CPU, rung=Rung(compiled=compiled))
    return lambda: loop.step(10, 0)


def _bare(spec: RunSpec, *, compiled: bool) -> Callable[[], object]:
    model, noise = build(spec), Noise(spec, ByteTokenizer.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.inner.learning_rate, fused=True)
    forward: Any = torch.compile(model, fullgraph=True, dynamic=False) if compiled else model

    def loss_of(tokens_BT: Tensor) -> Tensor:
        logits_BTV = forward(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())

    def step() -> float:
        loss = loss_of(noise.next(spec.inner.sequences))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), spec.inner.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step
