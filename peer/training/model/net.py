"""A model as inner loops call it: windows in, the summed loss out. Nothing here waits for the device.

The loss of many tokens is computed in chunks of them, with its gradients, so that the logits of all tokens never exist
at once: for 8 × 1,024 tokens and a vocabulary of 50,257 those take 1.6 GB, and three times as much with their
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from peer.schema.peak_memory import CHUNK_TOKENS, in_chunks
from peer.training.data.chat import token_flags
from peer.training.data.chat.token_flags import IGNORED
from peer.training.model.compiled_blocks import compiled, is_compiled
from peer.training.model.expert_balance import balance_coefficient, balance_of

# B = sequences, T = context, N = B · T tokens, D = width, V = vocabulary

CAUSAL = "causal"
"""torch's attention without a mask, for windows that hold one document or come with a mask of their own.

For a name without a mask function transformers makes no mask, and so does not look on the device for padding or for
several documents, which it does for `sdpa`."""
AttentionInterface.register(CAUSAL, sdpa_attention_forward)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Windows as a model is given them, made in main memory, where their flags are looked at."""

    tokens_BT: Tensor
    labels_BT: Tensor
    """The next token, or IGNORED where none is predicted."""
    positions_BT: Tensor | None
    """Positions within documents, from 0; None where every window holds one document."""
    weights_B: Tensor
    """The predicted share of each window."""

    @classmethod
    def of(cls, read_BT: Tensor) -> Batch:
        """Of windows (B, context + 1)."""
        entering_BT, labels_BT = read_BT[:, :-1], token_flags.labels(read_BT)
        return cls(
            tokens_BT=token_flags.plain(entering_BT), labels_BT=labels_BT,
            positions_BT=token_flags.positions(entering_BT), weights_B=(labels_BT != IGNORED).float().mean(dim=1),
        )  # fmt: skip

    def padded(self, rows: int) -> Batch:
        """With windows of which nothing is predicted, up to so many."""
        missing = rows - len(self.tokens_BT)
        if missing <= 0:
            return self
        positions_BT = self.positions_BT
        return Batch(
            tokens_BT=F.pad(self.tokens_BT, (0, 0, 0, missing)), weights_B=F.pad(self.weights_B, (0, missing)),
            labels_BT=F.pad(self.labels_BT, (0, 0, 0, missing), value=IGNORED),
            positions_BT=None if positions_BT is None else F.pad(positions_BT, (0, 0, 0, missing)),
        )  # fmt: skip

    def moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """Each tensor as `move` gives it on the device."""
        return Batch(
            tokens_BT=move(self.tokens_BT), labels_BT=move(self.labels_BT), weights_B=move(self.weights_B),
            positions_BT=None if self.positions_BT is None else move(self.positions_BT),
        )  # fmt: skip


class Net(nn.Module):
    """Computes the loss of a causal model of transformers, which may have an adapter. It has no parameters of its
    own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        self._plain = (plain,)  # in a tuple: its modules are those of `model` already
        self._balance = balance_coefficient(plain)
        self.head = Head(plain)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The loss in nats, summed over what is predicted; and what its gradient has besides (`expert_balance`)."""
        (plain,) = self._plain
        told = {"output_router_logits": True} if self._balance else {}
        outputs = plain.base_model(input_ids=batch.tokens_BT, use_cache=False, **told, **self._documents(batch))
        self.head.is_compiled = is_compiled(plain)
        loss: Tensor = self.head(outputs.last_hidden_state, batch.labels_BT)
        return loss, balance_of(plain, outputs.router_logits, batch.weights_B) if self._balance else None

    def _documents(self, batch: Batch) -> dict[str, Tensor]:
        """What the model is told of windows with several documents: tokens do not see those of other documents."""
        (plain,) = self._plain
        if batch.positions_BT is None:
            return {}
        told = {"position_ids": batch.positions_BT}
        if plain.config._attn_implementation == CAUSAL:
            document_BT = (batch.positions_BT == 0).cumsum(1)
            told["attention_mask"] = (document_BT[:, :, None] == document_BT[:, None, :]).tril()[:, None]
        return told


def call_for_loss(model: nn.Module) -> None:
    """From now on a call of the model itself takes a `Batch` and gives what `Net` does: where its own call is what
    brings its parameters together, and other tensors take the place of those that it has now."""
    net, plain = Net(model), cast("Any", model)

    def forward(batch: Batch) -> tuple[Tensor, Tensor | None]:
        net.head.weight = plain.get_output_embeddings().weight
        return net.forward(batch)

    plain.forward = forward


class Head(nn.Module):
    """The output matrix, and the loss of the hidden values in front of it."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        linear, config = plain.get_output_embeddings(), plain.config
        assert linear.bias is None, "no architecture that is trained has one"
        self.weight = linear.weight  # so that a hook that waits for this layer belongs here
        self.is_compiled = False
        """Whether the loss of a chunk is computed by compiled code."""
        self._divisor = float(getattr(config, "logits_scaling", 1.0))
        self._cap = getattr(config, "final_logit_softcapping", None)

    def forward(self, hidden_BTD: Tensor, labels_BT: Tensor) -> Tensor:
        """In nats, summed over what is predicted."""
        if not in_chunks(labels_BT.numel(), len(self.weight)):
            return self._whole(hidden_BTD, labels_BT.flatten())
        rows_ND = hidden_BTD.flatten(0, 1)
        if self._divisor != 1:
            rows_ND = rows_ND / self._divisor
        if torch.is_grad_enabled():
            slope = partial(_compiled_slope() if self.is_compiled else _with_gradient, cap=self._cap)
            loss: Tensor = _InChunks.apply(  # type: ignore[no-untyped-call]
                rows_ND, self.weight, labels_BT.flatten(), slope
            )
            return loss
        pieces = zip(*(torch.split(each, CHUNK_TOKENS) for each in (rows_ND, labels_BT.flatten())), strict=True)
        return torch.stack([self._cross_entropy(F.linear(rows, self.weight), labels) for rows, labels in pieces]).sum()

    def _whole(self, hidden_BTD: Tensor, labels_N: Tensor) -> Tensor:
        logits_BTV = F.linear(hidden_BTD, self.weight)
        if self._divisor != 1:
            logits_BTV = logits_BTV / self._divisor
        return self._cross_entropy(logits_BTV.flatten(0, 1), labels_N)

    def _cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return F.cross_entropy(logits_NV.float(), labels_N, reduction="sum", ignore_index=IGNORED)


Slope = Callable[..., tuple[Tensor, Tensor]]
"""Called with logits and labels of a chunk: see `_with_gradient`."""


class _InChunks(torch.autograd.Function):
    """The summed loss, whose gradients are computed with it in the forward pass, chunk by chunk: no logits are kept
    and no product is computed twice. It takes one gradient of the matrix beside the chunk."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, slope: Slope) -> Tensor:
        kind = rows_ND.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows_ND.dtype
        by_rows_ND = torch.empty_like(rows_ND)
        by_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), device=rows_ND.device)
        with torch.autocast(kind, enabled=False):
            matrix_VD = weight_VD.to(dtype)
            pieces = (torch.split(each, CHUNK_TOKENS) for each in (rows_ND.to(dtype), labels_N, by_rows_ND))
            for rows, labels, by_rows in zip(*pieces, strict=True):
                loss, by_logits = slope(torch.mm(rows, matrix_VD.t()), labels)
                total += loss
                by_rows.copy_(torch.mm(by_logits, matrix_VD))
                if by_weight_VD is not None:
                    by_weight_VD += torch.mm(by_logits.t(), rows)
        ctx.save_for_backward(by_rows_ND, by_weight_VD)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        by_rows_ND, by_weight_VD = ctx.saved_tensors
        return by_rows_ND * upstream, None if by_weight_VD is None else by_weight_VD * upstream, None, None


def _with_gradient(logits_NV: Tensor, labels_N: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """The summed cross entropy, and its gradient by the logits, in their dtype: softmax less one at the label; times
    how far they still move, where `cap` · tanh(logits / `cap`) takes their place."""
    is_predicted_N, at_N1 = labels_N != IGNORED, labels_N.clamp(min=0)[:, None]
    values_NV = logits_NV.float()
    if cap is not None:
        values_NV = (values_NV / cap).tanh_().mul_(cap)
    most_N1 = values_NV.amax(1, keepdim=True)
    at_label_N1 = values_NV.gather(1, at_N1)
    odds_NV = (values_NV - most_N1).exp_()
    sum_N1 = odds_NV.sum(1, keepdim=True)
    loss = ((sum_N1.log() + most_N1 - at_label_N1)[:, 0] * is_predicted_N).sum()
    odds_NV *= is_predicted_N[:, None] / sum_N1
    odds_NV.scatter_add_(1, at_N1, -is_predicted_N[:, None].float())
    if cap is not None:
        odds_NV *= values_NV.div_(cap).square_().neg_().add_(1)
    return loss, odds_NV.to(logits_NV.dtype)


@cache
def _compiled_slope() -> Slope:
    """A GPU reads and writes the logits of a chunk twice so, instead of eight times."""
    return compiled(_with_gradient)


def attend_without_looking(model: nn.Module, context: int) -> None:
    """Let a model use CAUSAL where that is the same as its `sdpa`: where every token sees all that come before it."""
    plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    window: int = getattr(plain.config, "sliding_window", None) or context
    is_short = window < context and bool(getattr(plain.config, "use_sliding_window", True))
    if plain.config._attn_implementation == "sdpa" and not is_short:
        plain.set_attn_implementation(CAUSAL)


def recompute_blocks(model: nn.Module, wanted: bool = True) -> None:
    """Keep nothing of a block's inside for the backward pass, which computes it again: a third more work for a fraction
    of the memory, with the same bits."""
    plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    state = "enable" if wanted else "disable"
    change = getattr(plain, f"activation_checkpointing_{state}", None) or getattr(
        plain,
        f"gradient_checkpointing_{state}",  # as transformers called it before
    )
    change(*[{"use_reentrant": False}] * wanted)
