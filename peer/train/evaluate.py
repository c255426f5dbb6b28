"""Held-out loss of a model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.train.inner import next_token_logits

# B = sequences, T = context + 1 tokens, V = vocabulary


@torch.no_grad()
def held_out_loss(model: nn.Module, tokens_BT: Tensor, device: torch.device, sequences: int = 32) -> float:
    """Mean loss of `model` on `tokens_BT` in nats per token, `sequences` at a time, in float32."""
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for batch_BT in torch.split(tokens_BT, sequences):
        batch_BT = batch_BT.to(device)
        labels = batch_BT[:, 1:].flatten()
        logits_BTV = next_token_logits(model, batch_BT)
        total += F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, reduction="sum").item()
        tokens += labels.numel()
    model.train(was_training)
    return total / tokens
