"""The adapter of a run: LoRA (arXiv:2106.09685), two thin matrices beside some of a frozen model's matrices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from peer.schema.model_layers import TARGETS
from peer.schema.spec_fields import AdapterTable
from peer.training.model.frozen_bits import matrices_of

A, B = ".lora_A.", ".lora_B."
"""What the names of an adapter's parameters contain, by matrix."""
Draw = Callable[[Tensor, str, float], None]
"""Fills a parameter from a stream of this name with draws of this standard deviation, alike on all processors."""


def attach(model: nn.Module, table: AdapterTable, draw: Draw, seed: int) -> nn.Module:
    """The model with an adapter of float32, which alone is trained. B begins at 0, so the model's outputs do not
    change. The model need not have its values yet; what `frozen_bits.Packing` packs once it has them stays float32
    until then."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=table.rank, lora_alpha=table.alpha, target_modules=list(TARGETS[table.targets]), lora_dropout=table.dropout,
        bias="none", task_type="CAUSAL_LM", use_rslora=table.scale == "root",
    )  # fmt: skip
    if table.base != "float32":
        packed_later = set() if table.base == "bfloat16" else {id(each.weight) for _, _, each in matrices_of(model)}
        for parameter in model.parameters():
            # Not its buffers: positions that turn by rounded angles are other positions.
            if id(parameter) not in packed_later:
                parameter.data = parameter.data.to(torch.bfloat16)
    with warnings.catch_warnings():
        # peft asks for what transformers calls otherwise by now.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        adapted: nn.Module = get_peft_model(model, config)
    set_initial(adapted.named_parameters(), draw, seed)
    for name, parameter in adapted.named_parameters():
        if A in name:
            parameter.requires_grad_(table.trains == "both")
    return adapted


def set_initial(named: Iterable[tuple[str, Tensor]], draw: Draw, seed: int) -> None:
    """Set those of the parameters that are an adapter's to its initial values; they have their names in the whole
    model. Those without storage stay as they are."""
    for name, parameter in named:
        if parameter.is_meta:
            continue
        if A in name:
            # As peft draws it: evenly within 1 over the square root of the inputs.
            draw(parameter, f"{seed}/{name}", 1 / math.sqrt(3 * parameter.shape[1]))
        elif B in name:
            parameter.detach().zero_()
