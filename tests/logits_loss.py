"""The loss by all logits at once: what the product, which computes it in chunks, is compared with."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from peer.training.data.chat.token_flags import labels


def summed_loss(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """The loss in nats, summed over predicted tokens."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), labels(tokens_BT).flatten(), reduction="sum")
