"""Every layer is entered before anything reads its parameters, whatever the model does with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peer.schema import spec as specs
from peer.training.model.build import build, next_token_logits
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.layer_hooks import LayerGates

CPU = torch.device("cpu")
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "lfm2": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "full_attn_idxs": (1,), "block_multiple_of": 16,
    },
    "qwen3_5_text": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
    "opt": {
        "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    },
    "mixtral": {
        "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "num_local_experts": 3,
    },
}  # fmt: skip


class Entered:
    """Remembers in which order layers were entered first."""

    def __init__(self, model: nn.Module) -> None:
        self.flat = FlatParameters(model)
        self.order: list[str] = []
        self.gates = LayerGates(model, self.flat, CPU, self.enter)

    def enter(self, layers: Collection[int]) -> None:
        for layer in sorted(layers):
            name = self.flat.layers[layer].name
            if name not in self.order:
                self.order.append(name)

    @property
    def early(self) -> list[str]:
        return [self.flat.layers[layer].name for layer in sorted(self.gates.early)]


def tokens(count: int = 4) -> Tensor:
    return torch.zeros((1, count), dtype=torch.int64)


@pytest.mark.parametrize("architecture", SMALL)
def test_each_layer_of_a_transformer_is_entered_in_its_turn(architecture: str) -> None:
    """Embedding first, then block by block; none has to be there before the model runs."""
    micro = specs.load("micro")
    model = build(
        dataclasses.replace(
            micro, model=dataclasses.replace(micro.model, architecture=architecture, config=SMALL[architecture])
        )
    )
    entered = Entered(model)
    next_token_logits(model, tokens())
    assert entered.early == []
    assert sorted(entered.order) == sorted(layer.name for layer in entered.flat.layers)
    blocks = [name for name in entered.order if name[-1].isdigit()]
    assert [name[-1] for name in blocks] == ["0", "1"]
    assert "emb" in entered.order[0] or "wte" in entered.order[0]


class Odd(nn.Module):
    """Reads parameters wherever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.empty = nn.ParameterList([nn.Parameter(torch.empty(0))])
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 5, bias=False)

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        x_BTC = self.embed(input_ids) * self.scales[0]
        peeked_BTC = F.linear(x_BTC, self.blocks[1].weight)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return SimpleNamespace(logits=F.linear(x_BTC + peeked_BTC, self.head.weight))


def test_parameters_that_others_read_are_entered_before_the_model_runs() -> None:
    """The head and the list are never called, the second block is read before it is called, one layer is not read."""
    model = Odd()
    entered = Entered(model)
    assert entered.early == ["blocks.1", "scales", "unused", "head"]
    next_token_logits(model, tokens())
    assert entered.order[:5] == ["blocks.1", "scales", "unused", "head", "embed"]
    assert set(entered.order) == {layer.name for layer in entered.flat.layers} >= {"empty"}


def test_whoever_reads_a_tied_parameter_enters_its_one_owner() -> None:
    """The embedding's layer holds it; the head reads it, too, and here first."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
            return SimpleNamespace(logits=self.head(torch.ones((*input_ids.shape, 4))))

    model = Tied()
    entered = Entered(model)
    assert entered.early == []
    next_token_logits(model, tokens())
    assert entered.order == ["embed"]


def test_a_block_that_is_recomputed_is_entered_again() -> None:
    """In the backward pass, where it reads its parameters once more."""

    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
            x_BTC = self.embed(input_ids)
            for block in self.blocks:
                x_BTC = checkpoint(block, x_BTC, use_reentrant=False)
            return SimpleNamespace(logits=x_BTC)

    model = Recomputing()
    entered = Entered(model)
    loss = next_token_logits(model, tokens()).sum()
    entered.order.clear()
    loss.backward()  # type: ignore[no-untyped-call]
    assert entered.order == ["blocks.1", "blocks.0"]


def test_looking_at_the_model_draws_nothing_from_the_generator() -> None:
    """Dropout draws the same as without gates."""
    micro = specs.load("micro")
    config = SMALL["gpt2"] | {"embd_pdrop": 0.5}
    model = build(
        dataclasses.replace(micro, model=dataclasses.replace(micro.model, architecture="gpt2", config=config))
    )
    model.train()
    before = torch.get_rng_state()
    Entered(model)
    assert torch.equal(torch.get_rng_state(), before)
    next_token_logits(model, tokens())
    assert not torch.equal(torch.get_rng_state(), before)
