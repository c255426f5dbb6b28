"""A model of experts is trained to use all of them; what is reported and evaluated stays the loss of the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from peer.schema.spec import RunSpec, from_mapping
from peer.training.data.chat.token_flags import HIDDEN
from peer.training.model.build import build, next_token_logits
from peer.training.model.net import Batch, Net
from peer.training.train.backend import SingleDevice, held_out_loss
from peer.training.train.inner_loop import MicroBatch
from tests.logits_loss import summed_loss

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.3,
}  # fmt: skip


def spec_of(coefficient: float = 0.02) -> RunSpec:
    config = {**SHAPE, "router_aux_loss_coef": coefficient}
    spec = from_mapping(
        {
            "run": {"name": "experts"},
            "model": {"architecture": "mixtral", "context": 16, "config": config},
            "inner": {"sequences": 4, "accumulation": 1, "clip": 0.0, "warmup_steps": 0},
        }
    )
    return dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, learning_rate=1e-30, weight_decay=0.0))


class Feed:
    """The same sequences, in order."""

    def __init__(self, tokens_BT: Tensor) -> None:
        self._tokens_BT, self._read = tokens_BT, 0

    def next(self, sequences: int) -> Tensor:
        self._read += sequences
        return self._tokens_BT[self._read - sequences : self._read]


def tokens() -> Tensor:
    return torch.randint(0, 257, (4, 17), generator=torch.Generator().manual_seed(2))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def of_a_step(coefficient: float, micro: int, tokens_BT: Tensor) -> tuple[float, Mapping[str, Tensor]]:
    """The reported loss of a step that is made in micro-batches of so many, and its gradient."""
    spec = spec_of(coefficient)
    model = build(spec)
    loop = SingleDevice(model, spec, Feed(tokens_BT), CPU, micro=MicroBatch(micro))
    loss = loop._gradients([], lambda: False)
    return loss.item(), gradients(model)


def test_a_step_has_the_gradient_that_transformers_has_for_its_labels() -> None:
    """Of one sequence: its loss with `output_router_logits` is the text's and the coefficient times the balance."""
    spec, tokens_BT = spec_of(), tokens()[:1]
    model = build(spec)
    summed, balance = Net(model)(Batch.of(tokens_BT))
    assert balance is not None
    torch.autograd.backward(summed / tokens_BT[:, 1:].numel() + balance)
    ours = gradients(model)
    model.zero_grad()
    # Its labels are the tokens that enter, one further; the last one is predicted, but enters nothing.
    entering_BT, labels_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    theirs = model(input_ids=entering_BT, shift_labels=labels_BT, labels=labels_BT, output_router_logits=True)
    theirs.loss.backward()
    for name, gradient in gradients(model).items():
        assert torch.allclose(ours[name], gradient, atol=1e-6), name


def test_the_balance_reaches_the_routers_and_not_the_reported_loss() -> None:
    plain_loss, plain = of_a_step(0.0, 4, tokens())
    loss, balanced = of_a_step(0.02, 4, tokens())
    assert loss == plain_loss
    router = "model.layers.0.mlp.gate.weight"
    assert not torch.allclose(plain[router], balanced[router], atol=1e-5)


@pytest.mark.parametrize("hidden", [0, 9])
def test_the_gradient_of_a_step_is_the_same_however_it_is_cut(hidden: int) -> None:
    """A promise of micro-batches; also where part of the tokens is not predicted."""
    tokens_BT = tokens()
    tokens_BT[1, :hidden] |= HIDDEN
    (whole_loss, whole), (loss, cut) = (of_a_step(0.02, micro, tokens_BT) for micro in (4, 1))
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    for name, gradient in whole.items():
        assert torch.allclose(cut[name], gradient, atol=1e-6), name


def test_held_out_loss_is_that_of_the_text() -> None:
    model, tokens_BT = build(spec_of()).eval(), tokens()
    text = summed_loss(next_token_logits(model, tokens_BT), tokens_BT).item() / tokens_BT[:, 1:].numel()
    assert held_out_loss(model, tokens_BT, CPU) == pytest.approx(text, rel=1e-6)


def test_training_uses_all_experts_where_it_used_to_leave_some() -> None:
    """Routers that send everything to two experts are brought to use the others."""
    model, tokens_BT = build(spec_of(1.0)), tokens()
    with torch.no_grad():
        for block in model.model.layers:  # type: ignore[operator, union-attr]
            block.mlp.gate.weight.mul_(5)
    balances = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(20):
        _, balance = Net(model)(Batch.of(tokens_BT))
        assert balance is not None
        optimizer.zero_grad()
        balance.backward()
        optimizer.step()
        balances.append(balance.item())
    assert balances[-1] < balances[0] - 0.1 * (balances[0] - 1)


def test_models_without_experts_have_nothing_to_balance() -> None:
    spec = from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 16, "config": {
        "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    }}})  # fmt: skip
    _, balance = Net(build(spec))(Batch.of(tokens()))
    assert balance is None


@pytest.mark.parametrize("architecture", ["gpt_oss", "mixtral", "olmoe", "qwen3_moe"])
def test_the_balance_of_a_sequence_is_that_of_transformers(architecture: str) -> None:
    """Of every architecture with experts, whatever it calls them."""
    renamed: dict[str, str] = {"intermediate_size": "moe_intermediate_size", "num_local_experts": "num_experts"}
    names = {"olmoe": {"num_local_experts": "num_experts"}, "qwen3_moe": renamed}.get(architecture, {})
    config = {names.get(key, key): value for key, value in SHAPE.items()} | {"router_aux_loss_coef": 0.02}
    table = {"architecture": architecture, "context": 16, "config": config}
    model = build(from_mapping({"run": {"name": "x"}, "model": table}))
    _, balance = Net(model)(Batch.of(tokens()[:1]))
    theirs = model(input_ids=tokens()[:1, :-1], output_router_logits=True).aux_loss
    assert balance is not None
    torch.testing.assert_close(balance, 0.02 * theirs)
