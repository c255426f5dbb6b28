"""Inner steps: a private optimizer on this peer's own data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from dht.errors import BadInput
from peer.spec import RunSpec
from peer.train.optimizers import Optimizers, make_optimizers, trained
from peer.train.residence import Residence
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
        self._optimizers = Optimizers(optimizer(model)) if optimizer else make_optimizers(model, spec, device)
        self._parameters = trained(model)
        self.residence = Residence(model, self._optimizers, device)
        self._bfloat16 = uses_bfloat16(spec, device)

    def step(self, round: int, step: float, stop: Callable[[], bool] = lambda: False) -> Step:
        """Inner step `step` (from 0) of round `round`, see `learning_rate`: all micro-batches, clip, optimizer.

        Of fewer of them once `stop` says so: whoever pauses a peer need not wait for all.
        """
        assert not self.residence.is_aside, "it is on its device again before it trains"
        table, done = self._spec.inner, 0
        # Read once at the end: each look at a number on a GPU waits for the GPU.
        loss, tokens = torch.zeros((), device=self._device), 0
        while done < table.accumulation and not (done and self._ends(stop)):
            tokens_BT = self._batches.next(table.sequences).to(self._device)
            micro_loss = self._loss(tokens_BT) / table.accumulation
            torch.autograd.backward(micro_loss)
            loss += micro_loss.detach()
            tokens += tokens_BT[:, 1:].numel()
            done += 1
        if done < table.accumulation:
            loss *= self._rescale(table.accumulation / done)
        norm = nn.utils.clip_grad_norm_(self._parameters, table.clip or math.inf)
        rate = learning_rate(self._spec, round, step)
        self._optimizers.step(rate)
        return Step(loss=loss.item(), tokens=tokens, learning_rate=rate, grad_norm=norm.item())

    def _ends(self, stop: Callable[[], bool]) -> bool:
        """Ask `stop` when the micro-batch before has been computed, not when it has been queued on a GPU.

        Else a pause would begin, and a rest would be measured, while the GPU has seconds of work left.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return stop()

    def _rescale(self, factor: float) -> float:
        """Make the gradients the mean over the micro-batches that were made; returns `factor`."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return factor

    def optimizer_state(self) -> dict[str, Tensor]:
        """All that the optimizer remembers, by stable names, on the CPU; see `Optimizers.state`."""
        return self._optimizers.state()

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `optimizer_state`, also before the first step. AssertionError for other names."""
        self._optimizers.load_state(state)

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
