"""A small model on several ranks, and updates of it: what each rank sees with the guard of gathers, and without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peer.parallel.fsdp.gather_guard import GatherGuard
from peer.parallel.fsdp.gather_hooks import GatherGates
from peer.parallel.fsdp.sharded_model import held_by_rank, shard
from peer.planning.plan.sharding_strategy import ShardingStrategy
from peer.training.model.flat_parameters import FlatParameters, layer_name
from peer.training.train.buffer_versions import StaleVersion

CPU = torch.device("cpu")
WORDS, WIDTH, BLOCKS = 11, 6, 2
UPDATES = 2
WAIT_S = 60.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))
        """One row: all ranks but the first hold nothing of it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(self.linear(x))


class Small(nn.Module):
    """Tokens to logits; its parameters follow from `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.layers:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


TOKENS = torch.arange(8).view(2, 4)


class Sharded:
    """The model of seed 0, divided; `becomes` writes another one's parameters into this rank's shares."""

    def __init__(self, strategy: ShardingStrategy) -> None:
        self.model = Small(0)
        self.flat = FlatParameters(self.model)
        shard(self.model, strategy, CPU)
        self.shares: list[list[tuple[str, slice, Tensor]]] = [[] for _ in self.flat.layers]
        number_of = {layer.name: number for number, layer in enumerate(self.flat.layers)}
        for name, parameter in self.model.named_parameters():
            self.shares[number_of[layer_name(name)]].append((name, *held_by_rank(parameter)))
        self.guard: GatherGuard
        self.gates: GatherGates

    def guarded(self) -> Sharded:
        self.guard = GatherGuard(len(self.flat.layers), self._gates, WAIT_S)
        return self

    def _gates(self, enter: Callable[[Collection[int]], None]) -> GatherGates:
        self.gates = GatherGates(self.model, self.flat, enter)
        return self.gates

    def write(self, layer: int, seed: int) -> None:
        whole = dict(Small(seed).named_parameters())
        for name, where, share in self.shares[layer]:
            share.copy_(whole[name].detach().view(-1)[where])

    def begin(self, seed: int) -> threading.Thread:
        """An update that is applied by another thread, which goes on when this one waits."""
        version = self.guard.begin()
        writer = threading.Thread(target=self._apply, args=(seed, version))
        writer.start()
        return writer

    def _apply(self, seed: int, version: int) -> None:
        for layer in self.gates.order:
            self.write(layer, seed)
            self.guard.publish(layer, version)


def evaluated(model: nn.Module) -> Tensor:
    """Logits of a forward pass that no backward pass follows."""
    with torch.no_grad():
        logits: Tensor = model(TOKENS)
        return logits.clone()


def stepped(model: nn.Module) -> Tensor:
    """Logits of a whole inner step."""
    logits: Tensor = model(TOKENS)
    logits.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()
    return logits.detach()


def is_right(logits: Tensor, seed: int) -> bool:
    return torch.allclose(logits, evaluated(Small(seed)), atol=1e-6)


# ---- what a rank does ----


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one rank says of one way to share the model."""

    entered: list[list[str]]
    """Names of the layers that each gate of a pass was told."""
    any_was_gathered: bool
    """When its gate was told of it."""
    right_without_guard: bool
    right_beside_updates: list[bool]
    empty_shares: int
    refusal: str


def tell(strategies: Sequence[ShardingStrategy]) -> list[Told]:
    """The job of each rank."""
    return [_tell(strategy) for strategy in strategies]


def _tell(strategy: ShardingStrategy) -> Told:
    names, any_gathered = _entered(strategy)
    right, empty = _with_guard(strategy)
    return Told(
        entered=names, any_was_gathered=any_gathered, right_without_guard=_without_guard(strategy),
        right_beside_updates=right, empty_shares=empty, refusal=_with_copies_kept(strategy),
    )  # fmt: skip


def _entered(strategy: ShardingStrategy) -> tuple[list[list[str]], bool]:
    sharded, told, gathered = Sharded(strategy), [], []

    def enter(layers: Collection[int]) -> None:
        told.append([sharded.flat.layers[layer].name for layer in layers])
        if len(layers) < len(sharded.flat.layers):
            gathered.extend(gates.is_gathered(layer) for layer in layers)

    gates = GatherGates(sharded.model, sharded.flat, enter)
    evaluated(sharded.model)
    return told, any(gathered)


def _without_guard(strategy: ShardingStrategy) -> bool:
    """Whether an evaluation is right after an update that followed an evaluation."""
    sharded = Sharded(strategy)
    evaluated(sharded.model)
    for layer in range(len(sharded.flat.layers)):
        sharded.write(layer, 1)
    return is_right(evaluated(sharded.model), 1)


def _with_guard(strategy: ShardingStrategy) -> tuple[list[bool], int]:
    """Whether evaluations and steps beside updates are right; how many shares of this rank have no element."""
    sharded, right = Sharded(strategy).guarded(), []
    for seed in range(1, UPDATES + 1):
        for run in (evaluated, stepped):
            writer = sharded.begin(seed)
            with sharded.guard.reading():
                right.append(is_right(run(sharded.model), seed))
            writer.join(WAIT_S)
    return right, sum(not share.numel() for layer in sharded.shares for _, _, share in layer)


def _with_copies_kept(strategy: ShardingStrategy) -> str:
    """What the guard says to a pass that would read second copies of the version before."""
    sharded = Sharded(strategy).guarded()
    with sharded.guard.reading():
        evaluated(sharded.model)
    vars(sharded.gates)["forget"] = lambda: None
    sharded.begin(1).join(WAIT_S)
    try:
        with sharded.guard.reading():
            evaluated(sharded.model)
    except StaleVersion as error:
        return str(error)
    return ""
