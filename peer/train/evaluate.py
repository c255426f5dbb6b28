"""Held-out loss of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.train.inner import next_token_logits

# B = sequences, T = context + 1 tokens, V = vocabulary


class Stopped(Exception):
    """Whoever asked for the loss does not want it any more."""


@torch.no_grad()
def held_out_loss(
    model: nn.Module, tokens_BT: Tensor, device: torch.device, sequences: int = 32,
    stop: Callable[[], bool] = lambda: False,
) -> float:  # fmt: skip
    """Mean loss of `model` on `tokens_BT` in nats per token, `sequences` at a time, in float32.

    Raises Stopped once `stop` says so after some of them.
    """
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        for batch_BT in torch.split(tokens_BT, sequences):
            batch_BT = batch_BT.to(device)
            labels = batch_BT[:, 1:].flatten()
            logits_BTV = next_token_logits(model, batch_BT)
            total += F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, reduction="sum").item()
            tokens += labels.numel()
            if stop():
                raise Stopped
    finally:
        model.train(was_training)
    return total / tokens
