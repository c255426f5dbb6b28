"""`gpu`: what the product takes of a GPU that a bare training loop would have, and what a round costs beside it.

The same model in the same precision, by turns: a loop of a dozen lines that does nothing but train on tokens that lie
on the device, and the product's inner loop on its own data; each as it is, and compiled by `torch.compile`. Then the
parts of a round that touch the device. Without a CUDA device it says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.codec.codec import Codec
from peer.data.open_source import open_source
from peer.data.sampler import ShardSampler
from peer.model.build import build
from peer.plan.model_shape import shape_of
from peer.spec import RunSpec, from_mapping
from peer.train.backend import SingleDevice
from peer.train.trainer import LocalTrainer
from tests.benchmarks import gpu_report
from tests.benchmarks.gpu_report import Cost, Speed
from tests.benchmarks.record import commit, machine, versions
from tests.decided import DecidedRound
from tests.stepping import step, submit

PLAN = Path(__file__).with_suffix(".toml")
ME = "12D3KooWGpu"
BARE, OURS = "bare", "ours"
CLIP = 1.0

Loop = Callable[[], object]
"""Makes one inner step; it may still be queued on the device when it returns."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured; see the file."""

    steps: int
    warm_steps: int
    repeats: int
    product: int
    round_steps: int
    spec: dict[str, Any]
    models: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, quick: bool) -> Plan:
        """From the file beside this one."""
        table = tomllib.loads(PLAN.read_text())
        short = table.pop("quick")
        table |= short if quick else {}
        return cls(**table | {"models": tuple(table["models"])})

    def spec_of(self, model: dict[str, Any]) -> RunSpec:
        """The run that would train this model."""
        tables = {name: dict(values) for name, values in self.spec.items()}
        tables["model"]["config"] = model["config"]
        tables["inner"] |= {"sequences": model["sequences"], "clip": CLIP}
        return from_mapping({"run": {"name": "gpu"}, "round": {"steps": self.round_steps}, **tables})


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `gpu` and its options to the command line."""
    parser = commands.add_parser("gpu", help=__doc__.splitlines()[0], description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, and a picture beside it")
    parser.add_argument("--quick", action="store_true", help="a tiny model and a few steps: shows only that it works")
    parser.add_argument("--device", default="cuda", help="another device: shows only that it works")
    parser.add_argument("--eager", action="store_true", help="without torch.compile, which needs a C compiler")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the tables, write the figures. 0 also where there is no such device: then it says so."""
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu was not run: there is no CUDA device here", flush=True)
        return 0
    plan, speeds, costs = Plan.read(arguments.quick), list[Speed](), list[Cost]()
    reached = product_flops(plan.product, device)
    print(f"{device_name(device)}: a bfloat16 product of {plan.product} squared reaches {reached / 1e12:.1f} TFLOP/s")
    for model in plan.models:
        for speed in speeds_of(plan, model, device, compiled=(False,) if arguments.eager else (False, True)):
            print(speed.told(reached), flush=True)
            speeds.append(speed)
        with tempfile.TemporaryDirectory(prefix="hf-") as folder:
            costs.append(cost_of(plan, model, device, Path(folder)))
        give_back(device)
        print(costs[-1].told(), flush=True)
    table = gpu_report.table(speeds, costs, reached)
    print("\n" + table, flush=True)
    if arguments.json:
        result = {
            "plan": dataclasses.asdict(plan), "commit": commit(), "versions": versions(), "machine": machine(),
            "device": device_name(device), "product_flops": reached,
            "speeds": [dataclasses.asdict(speed) for speed in speeds], "costs": [dataclasses.asdict(c) for c in costs],
        }  # fmt: skip
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        gpu_report.draw(speeds, reached, arguments.json.with_suffix(".png"))
    return 0


def device_name(device: torch.device) -> str:
    """The kind of a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


# ---- speed


def product_flops(size: int, device: torch.device) -> float:
    """FLOP/s of a bfloat16 product of two square matrices: what the device reaches if nothing else is asked of it."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        torch.mm(left, right)
    return 2 * size**3 * 10 / seconds_of(lambda: torch.mm(left, right), 10, device)


def speeds_of(plan: Plan, model: dict[str, Any], device: torch.device, compiled: tuple[bool, ...]) -> Iterator[Speed]:
    """Of each contender: one at a time on the device, all of them once before any comes again."""
    spec, shape = plan.spec_of(model), shape_of(plan.spec_of(model))
    tokens = spec.inner.sequences * spec.model.context
    contenders = [(name, compiles) for name in (BARE, OURS) for compiles in compiled]
    seconds: dict[tuple[str, bool], list[float]] = {contender: [] for contender in contenders}
    for _ in range(plan.repeats):
        for name, compiles in contenders:
            loop = (bare_loop if name == BARE else our_loop)(spec, device, compiles)
            for _ in range(plan.warm_steps):
                loop()
            seconds[name, compiles].append(seconds_of(loop, plan.steps, device) / plan.steps)
            del loop
            give_back(device)
    for (name, compiles), measured in seconds.items():
        yield Speed(
            model=model["name"], parameters=shape.parameters, loop=name, compiled=compiles,
            tokens_per_s=tokens / statistics.median(measured),
            flops=shape.flops_per_token(spec.model.context) * tokens / statistics.median(measured),
            spread=max(measured) / min(measured) - 1,
        )  # fmt: skip


def bare_loop(spec: RunSpec, device: torch.device, compiles: bool) -> Loop:
    """What anybody would write: the same micro-batch again and again, already on the device; nothing is read back."""
    model = build(spec).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.inner.learning_rate, fused=device.type == "cuda")
    tokens_BT = torch.randint(0, 256, (spec.inner.sequences, spec.model.context + 1), device=device)
    parameters, called = list(model.parameters()), compiled_or_not(model, compiles)

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits_BTV = called(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def our_loop(spec: RunSpec, device: torch.device, compiles: bool) -> Loop:
    """The product's: its data, its optimizer, its schedule, its guard against memory that runs out."""
    model = compiled_or_not(build(spec).to(device), compiles)
    inner = SingleDevice(model, spec, ShardSampler(open_source(spec), spec, ME, (ME,), {}), device)
    return lambda: inner.step(0, 0)


def compiled_or_not(model: nn.Module, compiles: bool) -> Any:
    """The model as torch's compiler makes it, if it shall."""
    return torch.compile(model) if compiles else model


# ---- a round


def cost_of(plan: Plan, model: dict[str, Any], device: torch.device, folder: Path) -> Cost:
    """What a round does beside inner steps, at a peer alone that keeps its files in `folder`."""
    spec, anchor = plan.spec_of(model), bytes(32)
    trainer = LocalTrainer(spec, ME, folder, device)
    trainer.begin_round((ME,))
    step(trainer)
    step_s = seconds_of(lambda: step(trainer), plan.steps, device) / plan.steps
    parameters = [parameter.detach() for parameter in trainer._backend._model.parameters()]
    to_host_s, to_device_s = copying_s(parameters, device)
    submit_s = seconds_of(lambda: submit(trainer, anchor), 1, device)
    decided = DecidedRound([trainer], anchor)
    apply_s = seconds_of(lambda: decided.apply_to(trainer), 1, device)
    return Cost(
        model=model["name"], parameters=trainer.parameters, step_s=step_s, round_steps=plan.round_steps,
        to_host_s=to_host_s, to_device_s=to_device_s, encode_s=encode_s(spec, trainer.parameters),
        submit_s=submit_s, apply_s=apply_s,
    )  # fmt: skip


def copying_s(parameters: Sequence[Tensor], device: torch.device) -> tuple[float, float]:
    """Seconds to copy them all to main memory, and back."""
    copies: list[Tensor] = []
    to_host_s = seconds_of(lambda: copies.extend(parameter.to("cpu", copy=True) for parameter in parameters), 1, device)

    def put_back() -> None:
        for parameter, copy in zip(parameters, copies, strict=True):
            parameter.copy_(copy)

    return to_host_s, seconds_of(put_back, 1, device)


def encode_s(spec: RunSpec, parameters: int) -> float:
    """Seconds to encode so many numbers on the processor, measured on at most 2²⁴ of them."""
    values = torch.randn(min(parameters, 1 << 24)).numpy()
    began = time.perf_counter()
    Codec(spec.codec.wire).encode(values)
    return (time.perf_counter() - began) * parameters / values.size


# ---- the device


def seconds_of(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Until all of it is done, not only queued."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait for what is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def give_back(device: torch.device) -> None:
    """The memory of what is not used any more, and what the compiler keeps of it."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
