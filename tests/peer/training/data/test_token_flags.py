"""What is predicted, and that no document sees another: every architecture, in windows that hold several."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dht.errors import BadSpec
from peer.schema import spec as specs
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import ATTENDS_BEYOND, RunSpec
from peer.training.data.chat.token_flags import (
    BEGINS,
    HIDDEN,
    IGNORED,
    labels,
    of_predicted,
    plain,
    positions,
    predicted_tokens,
    step_scale,
)
from peer.training.model.build import build, next_token_logits
from tests.logits_loss import summed_loss

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16,
    "num_key_value_heads": 2, "n_embd": 32, "n_layer": 2, "n_head": 2, "ffn_dim": 48, "num_local_experts": 2,
    "num_experts": 2, "moe_intermediate_size": 48, "attention_dropout": 0.0, "residual_dropout": 0.0,
    "num_experts_per_tok": 1, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "initializer_range": 0.2,
    "full_attn_idxs": (1,), "block_multiple_of": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
SLIDING: dict[str, Any] = {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1}
PACKED = sorted(ARCHITECTURES.keys() - ATTENDS_BEYOND)


def share_of_loss(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """What a micro-batch adds, of all tokens of the windows except the first of each."""
    return summed_loss(logits_BTV, tokens_BT) / tokens_BT[:, 1:].numel()


def make_spec(architecture: str, config: dict[str, Any], **data: object) -> RunSpec:
    known = {key: value for key, value in config.items() if key in ARCHITECTURES[architecture].keys}
    model = {"architecture": architecture, "context": 24, "config": known}
    return specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})


def drawn(rows: int, columns: int) -> Tensor:
    return torch.randint(0, 257, (rows, columns), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("architecture", PACKED)
@pytest.mark.parametrize("slides", [False, True])
def test_a_document_in_a_window_has_the_logits_that_it_has_alone(architecture: str, slides: bool) -> None:
    """Where each row is cut elsewhere, also with a sliding window that is shorter than some documents."""
    model = build(make_spec(architecture, SMALL | SLIDING if slides else SMALL)).eval()
    tokens_BT, cuts = drawn(2, 25), ((0, 10, 25), (0, 4, 13, 25))
    packed_BT = tokens_BT.clone()
    for row, places in enumerate(cuts):
        packed_BT[row, list(places[:-1])] |= BEGINS | HIDDEN
    with torch.no_grad():
        packed_BTV = next_token_logits(model, packed_BT)
        for row, places in enumerate(cuts):
            for first, last in pairwise(places):
                alone_TV = next_token_logits(model, tokens_BT[row : row + 1, first:last])[0]
                torch.testing.assert_close(packed_BTV[row, first : last - 1], alone_TV, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", sorted(ATTENDS_BEYOND))
def test_an_architecture_that_looks_beyond_a_document_learns_no_conversations(architecture: str) -> None:
    """And would: it is listed because of what it computes, not by mistake."""
    model = build(make_spec(architecture, SMALL)).eval()
    tokens_BT = drawn(1, 25)
    packed_BT = tokens_BT.clone()
    packed_BT[0, [0, 10]] |= BEGINS | HIDDEN
    with torch.no_grad():
        difference = next_token_logits(model, packed_BT)[0, 10:] - next_token_logits(model, tokens_BT[:, 10:])[0]
    assert difference.abs().max() > 1e-3
    with pytest.raises(BadSpec, match=f"'{architecture}', which cannot be kept"):
        make_spec(architecture, SMALL, source="files", path="talks", format="chat")


def test_conversations_are_not_longer_than_where_positions_begin_to_turn_otherwise() -> None:
    """Else the longest one of a micro-batch would decide for all of them."""
    turns: dict[str, Any] = {"rope_type": "longrope", "rope_short_factor": (1.0,) * 8, "rope_long_factor": (8.0,) * 8}
    for short, is_refused in ((24, False), (23, True)):
        config = SMALL | turns | {"rope_original_positions": short}
        make_spec("phi3", config)
        with pytest.raises(BadSpec, match=r"model\.context is 24, more than") if is_refused else nullcontext():
            make_spec("phi3", config, source="files", path="talks", format="chat")


def test_labels_and_places_follow_the_flags() -> None:
    """The first token of a document has nothing to be predicted from, even if it is not hidden."""
    tokens_BT = torch.tensor([[1 | HIDDEN | BEGINS, 2 | HIDDEN, 3, 4 | BEGINS, 5, 6 | HIDDEN], [1, 2, 3, 4, 5, 6]])
    assert plain(tokens_BT).tolist() == [[1, 2, 3, 4, 5, 6]] * 2
    hidden = IGNORED
    assert labels(tokens_BT).tolist() == [[hidden, 3, hidden, 5, hidden], [2, 3, 4, 5, 6]]
    places_BT = positions(tokens_BT)
    assert places_BT is not None
    assert places_BT.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert predicted_tokens(tokens_BT) == 7
    values_BTH = torch.arange(10.0).view(2, 5, 1)
    assert of_predicted(values_BTH, tokens_BT).flatten().tolist() == [1, 3, 5, 6, 7, 8, 9]


def test_text_has_neither_flags_nor_places() -> None:
    """Its loss and gradient have the bits of the plain mean, whole or not."""
    tokens_BT = drawn(2, 25)
    logits_BTV = torch.randn(2, 24, 257, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
    share = share_of_loss(logits_BTV, tokens_BT)
    assert positions(tokens_BT) is None
    assert share.equal(mean)
    gradients = [torch.autograd.grad(loss / 3, logits_BTV)[0] for loss in (mean, share)]
    assert gradients[0].equal(gradients[1])
    assert step_scale([tokens_BT, tokens_BT], 4) == 1
    assert step_scale([tokens_BT], 3) == 3 / 2


def test_the_shares_of_a_step_come_to_the_mean_over_what_it_predicts() -> None:
    """However unevenly the answers lie; a step without any has no loss."""
    tokens_BT = drawn(4, 25)
    tokens_BT[:3, :20] |= HIDDEN
    logits_BTV = torch.randn(4, 24, 257, generator=torch.Generator().manual_seed(0))
    mean = float(summed_loss(logits_BTV, tokens_BT)) / predicted_tokens(tokens_BT)
    for cut in (1, 2, 3, 4):
        pieces = list(zip(logits_BTV.split(cut), tokens_BT.split(cut), strict=True))
        shares = sum(float(share_of_loss(*piece)) * len(piece[1]) / 4 for piece in pieces)
        assert shares * step_scale([piece_BT for _, piece_BT in pieces], 4) == pytest.approx(mean, rel=1e-6)
    silent_BT = tokens_BT | HIDDEN
    assert float(share_of_loss(logits_BTV, silent_BT)) * step_scale([silent_BT], 4) == 0
