"""Inner steps: private AdamW on this peer's own data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from dht.errors import BadInput
from peer.spec import RunSpec
from peer.train.schedule import learning_rate

# B = sequences in a micro-batch, T = context + 1 tokens, V = vocabulary


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one inner step did."""

    loss: float
    """Nats per token, the mean over the step's micro-batches."""
    tokens: int
    """Tokens predicted."""
    learning_rate: float
    grad_norm: float
    """Norm of the gradient before clipping."""


class Sequences(Protocol):
    """Where training sequences come from; `peer.data.batches.Batches` in a run."""

    def next(self, sequences: int) -> Tensor:
        """Tokens (sequences, context + 1), int64."""
        ...


class InnerLoop:
    """Trains `model` in place, one optimizer step at a time. The optimizer's state lasts across rounds."""

    def __init__(
        self,
        model: nn.Module,
        spec: RunSpec,
        batches: Sequences,
        device: torch.device,
        optimizer: Callable[[nn.Module], Optimizer] | None = None,
    ) -> None:
        self._model, self._spec, self._batches, self._device = model, spec, batches, device
        self._optimizer = optimizer(model) if optimizer else adamw(model, spec, device)
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        self._bfloat16 = uses_bfloat16(spec, device)

    def step(self, round: int, step: int) -> Step:
        """Inner step number `step` (from 0) of round `round`: gradients of all micro-batches, clip, AdamW."""
        table = self._spec.inner
        rate = learning_rate(self._spec, round, step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        # Read once at the end: each look at a number on a GPU waits for the GPU.
        loss, tokens = torch.zeros((), device=self._device), 0
        for _ in range(table.accumulation):
            tokens_BT = self._batches.next(table.sequences).to(self._device)
            micro_loss = self._loss(tokens_BT) / table.accumulation
            torch.autograd.backward(micro_loss)
            loss += micro_loss.detach()
            tokens += tokens_BT[:, 1:].numel()
        norm = nn.utils.clip_grad_norm_(self._parameters, table.clip or math.inf)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return Step(loss=loss.item(), tokens=tokens, learning_rate=rate, grad_norm=norm.item())

    def _loss(self, tokens_BT: Tensor) -> Tensor:
        context = torch.autocast(self._device.type, torch.bfloat16) if self._bfloat16 else contextlib.nullcontext()
        with context:
            logits_BTV = next_token_logits(self._model, tokens_BT)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())


def next_token_logits(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Logits (B, T − 1, V) of every token but the first, from those before it."""
    # No mask: sequences are full, and without one attention takes its fastest causal path.
    logits_BTV: Tensor = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits
    return logits_BTV


def adamw(model: nn.Module, spec: RunSpec, device: torch.device) -> Optimizer:
    """AdamW with weight decay on matrices only, fused where torch has that for the device."""
    table = spec.inner
    trained = [value for value in model.parameters() if value.requires_grad]
    groups = [
        {"params": [value for value in trained if value.dim() >= 2], "weight_decay": table.weight_decay},
        {"params": [value for value in trained if value.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=table.learning_rate,
        betas=(table.beta1, table.beta2),
        fused=device.type in ("cuda", "cpu", "mps"),
    )


def choose_device(wanted: str = "auto") -> torch.device:
    """The device a volunteer asked for; `auto` takes CUDA, then MPS, then the CPU. Raises BadInput."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(
            f"settings.device is {wanted!r}, which does not work here ({reason}); use auto or cpu"
        ) from error
    return device


def uses_bfloat16(spec: RunSpec, device: torch.device) -> bool:
    """Whether inner steps run under bfloat16 autocast on `device`."""
    if spec.inner.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return spec.inner.precision == "bfloat16"
