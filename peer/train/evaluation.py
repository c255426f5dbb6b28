"""Held-out loss of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dht.errors import MemoryFull
from peer.train.atomic import is_out_of_memory
from peer.train.backend import next_token_logits
from peer.train.offload import return_memory

# B = sequences, T = context + 1 tokens, V = vocabulary


SEQUENCES = 32
"""At a time, where there is room for them."""


class Stopped(Exception):
    """Whoever asked for the loss does not want it any more."""


@torch.no_grad()
def held_out_loss(
    model: nn.Module, tokens_BT: Tensor, device: torch.device, sequences: int = SEQUENCES,
    stop: Callable[[], bool] = lambda: False,
) -> float:  # fmt: skip
    """Mean loss of `model` on `tokens_BT` in nats per token, `sequences` at a time or as many as have room, in float32.

    Raises Stopped once `stop` says so after some of them, MemoryFull if not even one has room.
    """
    was_training = model.training
    model.eval()
    total, done = 0.0, 0
    try:
        while done < len(tokens_BT):
            loss = _summed(model, tokens_BT[done : done + sequences], device)
            if loss is None:
                sequences = _halved(sequences, device)
                continue
            total, done = total + loss, done + sequences
            if stop():
                raise Stopped
    finally:
        model.train(was_training)
    return total / tokens_BT[:, 1:].numel()


def _summed(model: nn.Module, tokens_BT: Tensor, device: torch.device) -> float | None:
    """In nats; None without room."""
    try:
        tokens_BT = tokens_BT.to(device)
        logits_BTV = next_token_logits(model, tokens_BT)
        labels = tokens_BT[:, 1:].flatten()
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, reduction="sum").item()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


def _halved(sequences: int, device: torch.device) -> int:
    return_memory(device)
    if sequences == 1:
        raise MemoryFull(f"the memory of {device} has no room to measure even one sequence")
    return (sequences + 1) // 2
