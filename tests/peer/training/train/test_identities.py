"""Identities of DiLoCo (arXiv:2311.08105) that hold exactly, and the rules that keep anchors alike."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import momentum_at
from peer.training.train.backend import SingleDevice
from tests.outer_step import outer_step
from tests.stepping import loop_with
from tests.vectors import cut_like, whole

CPU = torch.device("cpu")
RATE = 0.1


class Given:
    """Hands out prepared batches in order."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self.batches = iter(batches)

    def next(self, sequences: int) -> Tensor:
        batch = next(self.batches)
        assert len(batch) == sequences
        return batch


def plain_spec(sequences: int = 4) -> RunSpec:
    """Micro without schedule, clip or outer momentum."""
    micro = specs.load("micro")
    inner = dataclasses.replace(
        micro.inner, learning_rate=RATE, warmup_steps=0, final_fraction=1.0, clip=0.0, sequences=sequences
    )
    outer = dataclasses.replace(micro.outer, learning_rate=1.0, momentum=0.0, momentum_warmup_rounds=0)
    return dataclasses.replace(micro, inner=inner, outer=outer)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


def random_batches(count: int, spec: RunSpec, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (spec.inner.sequences, spec.model.context + 1)
    return [torch.randint(0, 257, shape, generator=generator) for _ in range(count)]


class Swarm:
    """Peers that run one after the other in this process and agree on float32 means."""

    def __init__(
        self,
        spec: RunSpec,
        feeds: Sequence[Sequence[Tensor]],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    ) -> None:
        self.spec = spec
        self.models = [build(spec) for _ in feeds]
        self.flats = [FlatParameters(model) for model in self.models]
        self.loops = [
            loop_with(optimizer(model), model, spec, Given(feed), CPU)
            if optimizer
            else SingleDevice(model, spec, Given(feed), CPU)
            for model, feed in zip(self.models, feeds, strict=True)
        ]
        self.anchor = OuterState.initial(self.flats[0].by_layer())

    def run_round(self, steps: int) -> Tensor:
        """One round of `steps` inner steps; returns the mean displacement θ_local − θ_anchor."""
        mean = torch.zeros_like(whole(self.anchor.theta))
        for flat, loop in zip(self.flats, self.loops, strict=True):
            flat.copy_from(whole(self.anchor.theta))
            for step in range(steps):
                loop.step(self.anchor.round, step)
            mean += (whole(self.anchor.theta) - flat.new()) / len(self.loops)
        factor = momentum_at(self.spec, self.anchor.round)
        for theta, momentum, mine in zip(
            self.anchor.theta, self.anchor.momentum, cut_like(self.anchor, mean), strict=True
        ):
            outer_step(theta, momentum, mine, self.spec.outer.learning_rate, factor)
        self.anchor.arrive((), 0)
        return -mean


def test_outer_sgd_of_rate_one_is_parameter_averaging() -> None:
    """Learning rate 1 without momentum: the next anchor is the mean of the peers' parameters (FedAvg)."""
    spec = plain_spec()
    swarm = Swarm(spec, [random_batches(6, spec, seed) for seed in range(3)])
    for _ in range(2):
        swarm.run_round(3)
        average = torch.stack([flat.new() for flat in swarm.flats]).mean(0)
        assert (whole(swarm.anchor.theta) - average).abs().max().item() < 1e-6


def test_one_inner_sgd_step_is_large_batch_training() -> None:
    """H = 1, inner SGD, outer SGD(1): three peers of 4 sequences are one model that takes 12 at a time."""
    spec, rounds = plain_spec(), 5
    feeds = [random_batches(rounds, spec, seed) for seed in range(3)]
    swarm = Swarm(spec, feeds, sgd)
    for _ in range(rounds):
        swarm.run_round(1)
    large = plain_spec(sequences=12)
    model = build(large)
    feed = Given([torch.cat(parts) for parts in zip(*feeds, strict=True)])
    loop = loop_with(sgd(model), model, large, feed, CPU)
    for step in range(rounds):
        loop.step(0, step)
    assert (whole(swarm.anchor.theta) - FlatParameters(model).new()).abs().max().item() < 1e-6


def test_one_peer_is_lookahead() -> None:
    """One peer without momentum: slow ← slow + α (fast − slow) every H steps (arXiv:1907.08610)."""
    spec, alpha, steps, rounds = plain_spec(), 0.5, 3, 3
    spec = dataclasses.replace(spec, outer=dataclasses.replace(spec.outer, learning_rate=alpha))
    batches = random_batches(steps * rounds, spec)
    swarm = Swarm(spec, [batches])
    model = build(spec)
    flat, loop = FlatParameters(model), SingleDevice(model, spec, Given(batches), CPU)
    slow = flat.new()
    for round in range(rounds):
        swarm.run_round(steps)
        for step in range(steps):
            loop.step(round, step)
        slow += alpha * (flat.new() - slow)
        flat.copy_from(slow)
    assert (whole(swarm.anchor.theta) - slow).abs().max().item() < 1e-6


def test_the_first_nesterov_step_moves_a_third_more_than_the_mean() -> None:
    """0.7 (1 + 0.9) = 1.33 times the mean displacement."""
    spec = plain_spec()
    spec = dataclasses.replace(spec, outer=dataclasses.replace(spec.outer, learning_rate=0.7, momentum=0.9))
    swarm = Swarm(spec, [random_batches(2, spec, seed) for seed in range(2)])
    before = whole(swarm.anchor.theta)
    displacement = swarm.run_round(2)
    moved = whole(swarm.anchor.theta) - before
    assert (moved - 1.33 * displacement).abs().max().item() < 1e-6
    assert displacement.abs().max().item() > 1e-3


def test_thirty_rounds_follow_torch_nesterov() -> None:
    """Fixed pseudo-gradients at 0.7 / 0.9: within 1e-5 of torch.optim.SGD(nesterov=True) in float64."""
    generator = np.random.default_rng(1)
    start = generator.standard_normal(500)
    gradients = 0.01 * generator.standard_normal((30, 500))
    theta, momentum = torch.from_numpy(start).float(), torch.zeros(500)
    reference = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    for gradient in gradients:
        outer_step(theta, momentum, torch.from_numpy(gradient).float(), 0.7, 0.9)
        reference.grad = torch.from_numpy(gradient)
        optimizer.step()
        assert (theta.double() - reference.detach()).abs().max().item() < 1e-5


def test_two_runs_of_ours_match_bit_for_bit() -> None:
    """The same spec and data, twice: equal digests after AdamW inner steps and Nesterov rounds."""
    micro = specs.load("micro")
    digests = []
    for _ in range(2):
        swarm = Swarm(micro, [random_batches(6, micro, seed) for seed in range(2)])
        for _ in range(3):
            swarm.run_round(2)
        digests.append(swarm.anchor.state_digest())
    assert digests[0] == digests[1]


# ---- what anchor code may not use, because fused multiply-add differs between processors

FORBIDDEN_NAMES = {"lerp", "addcmul", "addcdiv", "addmm", "addmv", "addr", "baddbmm", "addbmm", "fma", "einsum"}
FORBIDDEN_KEYWORDS = {"alpha", "value"}
ANCHOR_MODULES = (
    "peer.training.outer.apply",
    "peer.training.outer.outer_step",
    "peer.training.outer.kernels",
    "peer.consensus.codec.codec",
    "peer.network.link.reduction",
)
NEAR_ENOUGH = {"peer.consensus.codec.rows"}
"""Its sums are compared within a bound, and are in no anchor."""


def source_of(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def imported_by(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def anchor_sources() -> dict[str, ast.Module]:
    """The anchor's modules and everything of ours that they import, parsed."""
    waiting, trees = list(ANCHOR_MODULES), {}
    while waiting:
        module = waiting.pop()
        if module in trees or module in NEAR_ENOUGH:
            continue
        trees[module] = ast.parse(source_of(module).read_text())
        ours = [name for name in imported_by(trees[module]) if name.split(".")[0] in ("peer", "dht")]
        waiting += [name for name in ours if is_module(name)]
    return trees


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def offences(tree: ast.AST) -> list[str]:
    found = [name for name in imported_by(tree) if name.startswith("torch.optim")]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in FORBIDDEN_KEYWORDS:
            found.append(f"{node.arg}=")
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name.removeprefix("_foreach_").rstrip("_") in FORBIDDEN_NAMES or name == "optim":
            found.append(name)
    return found


@pytest.mark.slow
def test_anchor_code_uses_no_fused_operation() -> None:
    """No `alpha=`, lerp, addcmul, addcdiv or torch optimizer in outer, anchor, residual and what they import."""
    sources = anchor_sources()
    assert set(ANCHOR_MODULES) < set(sources)
    assert {module: offences(tree) for module, tree in sources.items() if offences(tree)} == {}


@pytest.mark.parametrize(
    "line",
    [
        "theta.add_(mean, alpha=-0.7)",
        "theta.lerp_(mean, 0.5)",
        "torch.addcmul(a, b, c)",
        "torch._foreach_addcdiv_(a, b, c)",
        "torch.optim.SGD(p, lr=1)",
        "from torch.optim import SGD",
    ],
)
def test_the_search_for_fused_operations_finds_them(line: str) -> None:
    """So that the test above can fail."""
    assert offences(ast.parse(line))
