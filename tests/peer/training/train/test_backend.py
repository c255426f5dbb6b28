"""Inner steps on one peer."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dht.errors import BadInput
from peer.node.host.device import choose_device
from peer.schema import spec as specs
from peer.schema.peak_memory import Rung
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import predicted_tokens
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.model.build import build, next_token_logits
from peer.training.model.flat_parameters import FlatParameters, trained
from peer.training.train.backend import SingleDevice, held_out_loss, uses_bfloat16
from peer.training.train.inner_loop import MicroBatch
from peer.training.train.optimizers import learning_rate
from peer.training.train.trainer import LocalTrainer
from tests.logits_loss import summed_loss
from tests.peer.training.model.test_net import held
from tests.saved import load_optimizer_state, optimizer_state
from tests.stepping import loop_with
from tests.talks import on_talks

CPU = torch.device("cpu")


class Repeating:
    """The same few sequences for ever, a few at a time."""

    def __init__(self, context: int, sequences: int = 8) -> None:
        self.tokens_BT = torch.randint(0, 257, (sequences, context + 1), generator=torch.Generator().manual_seed(0))
        self.at = 0

    def next(self, sequences: int) -> Tensor:
        rows = [(self.at + row) % len(self.tokens_BT) for row in range(sequences)]
        self.at += sequences
        return self.tokens_BT[rows]


@pytest.fixture
def spec() -> RunSpec:
    return specs.load("micro")


def changed(spec: RunSpec, **inner: object) -> RunSpec:
    return dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, **inner))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_lowers_the_loss(spec: RunSpec, optimizer: str) -> None:
    """Forty steps on eight sequences: half of a guess's loss is learned by heart, and reported."""
    spec = changed(spec, optimizer=optimizer)
    model = build(spec)
    feed = Repeating(spec.model.context)
    loop = SingleDevice(model, spec, feed, CPU)
    steps = [loop.step(2, step) for step in range(40)]
    assert steps[0].loss == pytest.approx(5.55, abs=0.2)
    assert steps[-1].loss < 3.5
    assert held_out_loss(model, feed.tokens_BT, CPU, sequences=3) < 3.5


def test_a_step_reports_tokens_and_rate(spec: RunSpec) -> None:
    """Tokens are labels of all micro-batches; the rate is the schedule's."""
    spec = changed(spec, accumulation=3, sequences=2)
    step = SingleDevice(build(spec), spec, Repeating(spec.model.context), CPU).step(4, 7)
    assert step.tokens == 3 * 2 * spec.model.context
    assert step.learning_rate == learning_rate(spec, 4, 7)


def test_accumulation_is_one_large_batch(spec: RunSpec) -> None:
    """Four micro-batches of two sequences move the model like one of eight."""
    moved = []
    for accumulation, sequences in ((1, 8), (4, 2)):
        given = changed(spec, accumulation=accumulation, sequences=sequences)
        model = build(given)
        loop = loop_with(torch.optim.SGD(model.parameters(), lr=0.1), model, given, Repeating(spec.model.context), CPU)
        loop.step(0, 0)
        moved.append(FlatParameters(model).new())
    assert torch.allclose(moved[0], moved[1], atol=1e-6)


def test_a_step_of_conversations_is_the_mean_over_their_answers(spec: RunSpec, tmp_path: Path) -> None:
    """Loss and gradient are those of one pass over all that the step reads, however it is cut; so is the loss that is
    measured."""
    spec = on_talks(changed(spec, clip=0.0, learning_rate=1.0, warmup_steps=0), tmp_path)
    tokens_BT = ShardSampler(open_source(spec, str(tmp_path)), spec, "p", ("p",), {}).next(8)
    whole = build(spec)
    mean = summed_loss(next_token_logits(whole, tokens_BT), tokens_BT) / predicted_tokens(tokens_BT)
    torch.autograd.backward(mean)
    assert predicted_tokens(tokens_BT) < tokens_BT.numel() / 2
    for micro in (1, 3, 8):
        model, feed = build(spec), Repeating(spec.model.context)
        feed.tokens_BT = tokens_BT
        assert held_out_loss(model, tokens_BT, CPU, sequences=micro) == pytest.approx(mean.item(), rel=1e-5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        made = loop_with(optimizer, model, spec, feed, CPU, MicroBatch(micro)).step(0, 0)
        assert made.loss == pytest.approx(mean.item(), rel=1e-5)
        for moved, begun in zip(model.parameters(), whole.parameters(), strict=True):
            assert begun.grad is not None
            torch.testing.assert_close(begun - moved, begun.grad, rtol=1e-3, atol=1e-6)


def test_gradients_are_clipped(spec: RunSpec) -> None:
    """A plain SGD step of rate 1 is exactly as long as the clip."""
    spec = changed(spec, clip=0.01, learning_rate=1.0, warmup_steps=0)
    model = build(spec)
    before = FlatParameters(model).new()
    loop = loop_with(torch.optim.SGD(model.parameters(), lr=1.0), model, spec, Repeating(spec.model.context), CPU)
    loop.step(0, 0)
    assert (FlatParameters(model).new() - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_held_out_loss_has_one_precision_and_says_which(spec: RunSpec, corpus: Path, tmp_path: Path) -> None:
    """Whatever steps are computed in: peers and rounds are compared by it."""
    found = []
    for precision in ("float32", "bfloat16"):
        given = changed(spec, precision=precision)
        found.append(LocalTrainer(given, "p0", tmp_path / precision, CPU, data_path=given.data.path).evaluate())
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].precision == "float32"


def test_bfloat16_is_used_where_asked_for(spec: RunSpec) -> None:
    """`auto` keeps float32 on a CPU; parameters stay float32 under autocast, and the loss is close."""
    assert not uses_bfloat16(spec, CPU)
    losses = []
    for precision in ("float32", "bfloat16"):
        given = changed(spec, precision=precision)
        model = build(given)
        losses.append(SingleDevice(model, given, Repeating(spec.model.context), CPU).step(0, 0).loss)
        assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert losses[0] == pytest.approx(losses[1], abs=0.01)
    assert losses[0] != losses[1]


def test_evaluation_leaves_the_model_in_training(spec: RunSpec) -> None:
    """And counts every label once, whatever the batches."""
    model: nn.Module = build(spec).train()
    tokens_BT = Repeating(spec.model.context, 7).tokens_BT
    one, many = (held_out_loss(model, tokens_BT, CPU, sequences=size) for size in (7, 2))
    assert one == pytest.approx(many, abs=1e-6)
    assert model.training
    assert all(value.grad is None for value in model.parameters())


def test_a_device_that_is_not_there_is_one_clear_line() -> None:
    """`auto` always finds one."""
    assert choose_device("cpu") == CPU
    assert choose_device().type in ("cpu", "cuda", "mps")
    with pytest.raises(BadInput, match=r"settings\.devices is 'abacus'"):
        choose_device("abacus")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_saved_and_reloaded_loop_continues_bit_for_bit(spec: RunSpec, optimizer: str, tmp_path: Path) -> None:
    """Three steps, the optimizer through a safetensors file into a fresh loop, three more: as six in one go."""
    spec = changed(spec, optimizer=optimizer)
    model, feed = build(spec), Repeating(spec.model.context, 24)
    loop = SingleDevice(model, spec, feed, CPU)
    for step in range(3):
        loop.step(2, step)
    save_file(optimizer_state(loop), tmp_path / "optimizer.safetensors")
    again, rest = copy.deepcopy(model), copy.copy(feed)
    resumed = SingleDevice(again, spec, rest, CPU)
    load_optimizer_state(resumed, load_file(tmp_path / "optimizer.safetensors"))
    assert [loop.step(2, step) for step in range(3, 6)] == [resumed.step(2, step) for step in range(3, 6)]
    assert torch.equal(FlatParameters(model).new(), FlatParameters(again).new())
    assert equal(optimizer_state(loop), optimizer_state(resumed))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_fresh_loop_has_a_state_too(spec: RunSpec, optimizer: str) -> None:
    """It replaces what another loop remembers, and copies nothing by reference."""
    spec = changed(spec, optimizer=optimizer)
    fresh, used = (SingleDevice(build(spec), spec, Repeating(spec.model.context), CPU) for _ in range(2))
    empty = optimizer_state(fresh)
    used.step(2, 0)
    before = {name: value.clone() for name, value in optimizer_state(used).items()}
    load_optimizer_state(fresh, optimizer_state(used))
    fresh.step(2, 1)
    assert equal(optimizer_state(used), before)
    load_optimizer_state(used, empty)
    assert equal(optimizer_state(used), empty)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_other_names_are_refused(spec: RunSpec, optimizer: str) -> None:
    """Any one name missing, or one too many, is an error, not a silent loss of momentum."""
    spec = changed(spec, optimizer=optimizer)
    loop = SingleDevice(build(spec), spec, Repeating(spec.model.context), CPU)
    loop.step(2, 0)
    state = optimizer_state(loop)
    for name in state:
        with pytest.raises(AssertionError, match=f"lacks {name.partition(':')[2]}"):
            load_optimizer_state(loop, {key: value for key, value in state.items() if key != name})
    with pytest.raises(AssertionError, match=r"no such optimizer state: adamw\.9\.velocity"):
        load_optimizer_state(loop, state | {"0:adamw.9.velocity": torch.zeros(1)})


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_that_is_stopped_is_one_of_the_micro_batches_that_were_made(spec: RunSpec) -> None:
    """The mean over them, and their tokens: a pause need not wait for the rest."""
    models, losses = [], []
    for accumulation, stops in ((2, False), (8, True)):
        wanted, feed = changed(spec, accumulation=accumulation, sequences=2), Repeating(spec.model.context)
        torch.manual_seed(0)
        models.append(build(wanted))
        step = SingleDevice(models[-1], wanted, feed, CPU).step(2, 0, lambda: stops and feed.at >= 4)  # noqa: B023
        assert step.tokens == 4 * spec.model.context
        losses.append(step.loss)
    assert losses[0] == pytest.approx(losses[1])
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


def test_a_step_has_at_least_one_micro_batch(spec: RunSpec) -> None:
    """Whatever is wished."""
    spec = changed(spec, accumulation=4, sequences=2)
    feed = Repeating(spec.model.context)
    assert SingleDevice(build(spec), spec, feed, CPU).step(2, 0, lambda: True).tokens == 2 * spec.model.context


def test_a_card_that_emulates_bfloat16_trains_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those before Ampere do."""
    spec, card = specs.load("micro"), torch.device("cuda:0")
    automatic = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, precision="auto"))
    for computes in (False, True):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True, has=computes: has or including_emulation
        )
        assert uses_bfloat16(automatic, card) is computes


def test_apples_gpu_is_waited_for_before_anybody_asks_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    spec = specs.load("micro")
    loop = SingleDevice(build(spec), spec, Repeating(spec.model.context), CPU)
    monkeypatch.setattr(loop._whole, "_device", torch.device("mps:0"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: order.append("waits"))
    assert loop._whole._asked_to_stop(deque(), lambda: not order.append("asks"))  # type: ignore[func-returns-value]
    assert order == ["waits", "asks"]


def most_so_far(noted: Any, most_bytes: list[int], *hook: object) -> None:
    most_bytes.append(noted.most_bytes)


def test_blocks_that_are_computed_again_keep_no_copies_in_16_bit(spec: RunSpec) -> None:
    """Else autocast would keep those of all parameters until the end of the forward pass; the bits are the same."""
    spec = changed(spec, precision="bfloat16", sequences=1, accumulation=1)
    model = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4}
    spec = dataclasses.replace(spec, model=dataclasses.replace(spec.model, config={**spec.model.config, **model}))
    found = []
    for recomputes in (False, True):
        loop = SingleDevice(build(spec), spec, Repeating(spec.model.context), CPU, rung=Rung(recomputes=recomputes))
        with held() as noted:
            before_loss = partial(most_so_far, noted, most_bytes := [])
            loop._net.head.register_forward_pre_hook(before_loss)
            step = loop.step(2, 0)
        found.append((step.loss, [value.clone() for value in trained(loop._model)], most_bytes[0]))
    (loss, parameters, kept_bytes), (again, same, left_bytes) = found
    assert again == loss
    assert all(torch.equal(one, other) for one, other in zip(parameters, same, strict=True))
    copies_bytes = 2 * sum(value.numel() for value in parameters)
    assert left_bytes < kept_bytes - 0.8 * copies_bytes
    assert left_bytes < 0.5 * copies_bytes
