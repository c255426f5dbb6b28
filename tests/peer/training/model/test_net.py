"""The loss of a model as inner loops compute it, beside that of the logits that transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peer.schema import peak_memory
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import ATTENDS_BEYOND
from peer.training.data.chat.token_flags import BEGINS, HIDDEN, IGNORED
from peer.training.model import net as of_net
from peer.training.model.build import build, next_token_logits
from peer.training.model.net import (
    CAUSAL,
    CHUNK_TOKENS,
    Batch,
    Head,
    Net,
    attend_without_looking,
    recompute_blocks,
)
from tests.logits_loss import summed_loss
from tests.open_models import publish, run_from
from tests.peer.training.model.test_adapter import adapted
from tests.peer.training.model.test_build import make_spec
from tests.tensor_memory import held

EQUAL = 2e-7
"""Relative, of two losses in float32."""


def windows(rows: int = 3, columns: int = 17) -> Tensor:
    return torch.randint(0, 257, (rows, columns), generator=torch.Generator().manual_seed(1))


def packed() -> Tensor:
    """Windows of several documents."""
    tokens_BT = windows()
    for row, places in enumerate(((0, 5), (0, 3, 9), (0,))):
        tokens_BT[row, list(places)] |= BEGINS | HIDDEN
    return tokens_BT


def compute_in_chunks(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """However few the logits are."""
    for module in (of_net, peak_memory):
        monkeypatch.setattr(module, "CHUNK_TOKENS", tokens)
    monkeypatch.setattr(peak_memory, "WHOLE_BYTES", 0)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


def both_ways(model: nn.Module, read_BT: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Loss and gradients by transformers' logits, and by `Net`."""
    theirs = summed_loss(next_token_logits(model, read_BT), read_BT)
    torch.autograd.backward(theirs)
    by_theirs = gradients(model)
    attend_without_looking(model, read_BT.shape[1] - 1)
    ours, _ = Net(model)(Batch.of(read_BT))
    torch.autograd.backward(ours)
    return theirs, by_theirs, ours, gradients(model)


def expect_equal(theirs: Tensor, by_theirs: dict[str, Tensor], ours: Tensor, by_ours: dict[str, Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=EQUAL, atol=0)
    assert by_theirs.keys() == by_ours.keys()
    most = max(each.abs().max().item() for each in by_theirs.values())
    for name, gradient in by_theirs.items():
        torch.testing.assert_close(by_ours[name], gradient, rtol=1e-4, atol=1e-6 * most, msg=name)


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_loss_is_that_of_transformers_logits(
    architecture: str, in_chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole windows, and of conversations where the architecture keeps documents apart."""
    if in_chunks:
        compute_in_chunks(monkeypatch, 7)
    spec = make_spec(architecture)
    model = build(spec).eval()
    expect_equal(*both_ways(model, windows()))
    if architecture not in ATTENDS_BEYOND:
        expect_equal(*both_ways(build(spec).eval(), packed()))


def test_a_loss_that_is_not_trained_on_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(make_spec("granite", logits_scaling=3.0)).eval()
    with torch.no_grad():
        whole, _ = Net(model)(Batch.of(packed()))
        compute_in_chunks(monkeypatch, 7)
        cut, _ = Net(model)(Batch.of(packed()))
    torch.testing.assert_close(cut, whole, rtol=EQUAL, atol=0)


@pytest.mark.parametrize("kept_as", ["float32", "bfloat16"])
def test_an_adapter_has_the_loss_of_its_model(kept_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, without a gradient of the matrix, which is not trained."""
    compute_in_chunks(monkeypatch, 7)
    publish(tmp_path)
    model = build(adapted(run_from(tmp_path), base=kept_as)).eval()
    theirs, by_theirs, ours, by_ours = both_ways(model, windows())
    torch.testing.assert_close(ours, theirs, rtol=EQUAL if kept_as == "float32" else 1e-3, atol=0)
    assert by_theirs
    assert by_theirs.keys() == by_ours.keys()
    for name, gradient in by_theirs.items():
        error = (by_ours[name] - gradient).norm() / gradient.norm().clamp(min=1e-12)
        assert error < (1e-5 if kept_as == "float32" else 2e-2), name


def test_under_autocast_chunks_are_as_near_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(make_spec("llama")).eval()
    found = []
    for chunk in (1000, 7):
        compute_in_chunks(monkeypatch, chunk)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = Net(model)(Batch.of(windows()))
        torch.autograd.backward(loss)
        found.append((loss, gradients(model)))
    (whole, by_whole), (cut, by_cut) = found
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=0)
    for name, gradient in by_whole.items():
        error = (by_cut[name] - gradient).norm() / gradient.norm().clamp(min=1e-12)
        assert error < 1e-2, name


def test_a_short_window_is_left_to_transformers() -> None:
    """As is attention by another kernel than sdpa."""
    for values, context, is_ours in (
        ({}, 16, True),
        ({"sliding_window": 8}, 16, False),
        ({"sliding_window": 8}, 8, True),
    ):
        model: Any = build(make_spec("mistral", **values))
        attend_without_looking(model, context)
        assert (model.config._attn_implementation == CAUSAL) is is_ours
    eager: Any = build(make_spec("llama"))
    eager.set_attn_implementation("eager")
    attend_without_looking(eager, 16)
    assert eager.config._attn_implementation == "eager"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_blocks_that_are_computed_again_give_the_same_bits(architecture: str) -> None:
    """Loss and gradients, for less memory."""
    model = build(make_spec(architecture))
    found = []
    for again in (False, True, False):
        recompute_blocks(model, again)
        torch.manual_seed(0)  # of dropout, which draws again what it drew
        with held() as noted:
            loss, balance = Net(model)(Batch.of(windows(8)))
            forward_bytes = noted.present_bytes
            torch.autograd.backward(loss if balance is None else loss + balance)
        found.append((loss.item(), gradients(model), forward_bytes))
    (loss, by_loss, kept_bytes), (again, by_again, left_bytes), (*_, after_bytes) = found
    assert again == loss
    assert all(torch.equal(by_again[name], gradient) for name, gradient in by_loss.items())
    assert left_bytes < 0.8 * kept_bytes
    assert after_bytes == kept_bytes


def test_no_more_than_a_chunk_of_logits_exists() -> None:
    """Of 12,565 words and 8 × 1,024 tokens a quarter of what all logits, their softmax and their gradient take."""
    vocabulary, tokens, width = 12_565, 8 * 1024, 16
    plain = nn.Module()
    linear = nn.Linear(width, vocabulary, bias=False)
    plain.get_output_embeddings = lambda: linear  # type: ignore[assignment, method-assign]
    plain.config = object()  # type: ignore[assignment]
    hidden_BTD = torch.randn(8, 1024, width, requires_grad=True)
    labels_BT = torch.randint(0, vocabulary, (8, 1024))
    labels_BT[0, :100] = IGNORED
    assert tokens > CHUNK_TOKENS
    with held() as noted:
        torch.autograd.backward(Head(plain)(hidden_BTD, labels_BT))
    assert noted.most_bytes <= 3 * 4 * tokens * vocabulary / 4
