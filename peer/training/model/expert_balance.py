"""The load-balancing loss of a mixture-of-experts model: its routers shall send about as many tokens to each expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# B = sequences, T = context + 1 tokens, V = vocabulary, X = experts


def balance_coefficient(model: nn.Module) -> float:
    """The weight of the balance loss beside a loss in nats (`router_aux_loss_coef`); 0 for a model without experts."""
    return float(getattr(getattr(model, "config", None), "router_aux_loss_coef", 0.0))


def balance_of(model: nn.Module, router_logits: tuple[Tensor, ...], weights_B: Tensor) -> Tensor:
    """The term that is added to the loss before its gradient is taken, the mean over sequences.

    It is transformers' `load_balancing_loss_func` (arXiv:2101.03961, equations 4 to 6) of each sequence, times its
    coefficient: 1 × the coefficient is perfect balance. It is not linear in the tokens, so over a whole micro-batch it
    would depend on how a step is cut into micro-batches and ranks. A sequence weighs its predicted share, as it does
    in the loss (`step_scale`).
    """
    return balance_coefficient(model) * (_of_sequences(model, router_logits, len(weights_B)) * weights_B).mean()


def _of_sequences(model: nn.Module, router_logits: tuple[Tensor, ...], sequences: int) -> Tensor:
    """(B): 1 for perfect balance, up to X / (experts of a token) where all tokens go to the same."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config: Any = model.config
    balance: Any = load_balancing_loss_func  # annotated as if it gave a number at times
    layers_BTX = [layer.view(sequences, -1, layer.shape[-1]) for layer in router_logits]
    experts, of_a_token = config.num_local_experts, config.num_experts_per_tok
    return torch.stack([balance(tuple(rows), experts, of_a_token) for rows in zip(*layers_BTX, strict=True)])
