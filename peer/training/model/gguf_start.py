"""A GGUF file as the start of a run: refused where it says what transformers does not read of it.

transformers would load the model, and it would compute something else: Llama 3 without its scaled positions, Phi 4 with
all of each head turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

UNREAD_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""By what each rotary frequency is divided."""

OF_ARCHITECTURE = frozenset({"hidden_act", "hidden_activation", "activation_function", "head_dim"})
"""Keys that follow from the name of the architecture there, or that `unread_in` compares."""


def said_in(path: Path) -> dict[str, Any]:
    """What transformers reads of it as the values of a config.json."""
    read: Any = load_gguf_checkpoint  # not annotated by transformers
    config: dict[str, Any] = read(str(path))["config"]
    return config


def unread_in(path: Path, config: PreTrainedConfig) -> str:
    """What it says otherwise than `config`, which transformers has made of it; empty for nothing."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    if found := [tensor.name for tensor in reader.tensors if tensor.name in UNREAD_TENSORS]:
        return f"it holds {found[0]}, which scales rotary positions"
    prefix = f"{reader.fields['general.architecture'].contents()}."
    for key, taken in _taken(config).items():
        field = reader.fields.get(prefix + key)
        if field is not None and not _is_alike(said := field.contents(), taken):
            return f"it says {prefix}{key} = {said}, where transformers takes {taken}"
    return ""


def _taken(config: Any) -> Mapping[str, Any]:
    """Keys of a file that decide what a model computes, and the values that transformers has for them."""
    rope = config.rope_parameters if getattr(config, "rope_parameters", None) else {}
    rope = rope.get("full_attention", rope)
    heads = getattr(config, "num_attention_heads", 1)
    head = getattr(config, "global_head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // heads
    epsilon = next((value for key in EPSILONS if (value := getattr(config, key, None)) is not None), None)
    taken = {
        "attention.key_length": head, "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": epsilon, "attention.layer_norm_epsilon": epsilon,
        "attention.sliding_window": getattr(config, "sliding_window", None) or 0,
    }  # fmt: skip
    if rope:
        taken |= {
            "rope.freq_base": rope["rope_theta"],
            "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
            "rope.scaling.type": {"default": "none"}.get(rope["rope_type"], rope["rope_type"]),
            "rope.scaling.factor": rope.get("factor", 1.0),
        }
    return taken


EPSILONS = ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon")
"""By any of these names."""


def _is_alike(said: Any, taken: Any) -> bool:
    if isinstance(said, float) and isinstance(taken, int | float):
        return abs(said - taken) <= 1e-5 * abs(taken)  # the file has fewer digits
    return bool(said == taken)
