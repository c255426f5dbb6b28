"""The model architectures that a spec may name, the keys of each, and the bounds of each key.

A spec is a stranger's text. A key of transformers that is not listed here is refused, since some name code,
repositories or files. Add one only after reading what transformers does with it, and let
`tests/peer/schema/test_hostile_spec.py` agree.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dht.errors import BadSpec
from peer.schema.keys.allowed_values import Allowed, Flag, Real, Several, Value, Whole
from peer.schema.keys.families import (
    ACTIVATION,
    ALL,
    BIASES,
    BLOCKS,
    DROPOUT,
    EPSILON,
    EXPERTS,
    FACTOR,
    GEMMA_4,
    HEAD,
    HEADS,
    INNER,
    LLAMA,
    LONGROPE,
    MINISTRAL,
    OF_GEMMA,
    ROPE,
    SHAPE,
    SHARE,
    SPREAD,
    THETA,
    TOKENS,
    WIDTH,
    WINDOW,
    YARN,
)
from peer.schema.toml_tables import shortened

_LLAMA_VALUES: Mapping[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "tie_word_embeddings": False,
}  # fmt: skip

_GEMMA_4_VALUES: Mapping[str, Any] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": False,
    "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA_4_ROPE: Mapping[str, Any] = {
    "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "rope_local_base_freq": 1e4,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model type of transformers."""

    keys: Mapping[str, Allowed]
    """Of `model.config`."""
    values: Mapping[str, Any]
    """What transformers takes for those that decide the size, where a spec says nothing; no vocabulary."""
    rope: Mapping[str, Any] = field(default_factory=dict)
    """What it takes for rotary positions there, if they are scaled."""
    without: Mapping[str, Any] = field(default_factory=dict)
    """What transformers is told so that models have none of some parts, which no spec can say yet."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(keys={**LLAMA, **BIASES, **ROPE, "head_dim": HEAD}, values=_LLAMA_VALUES),
    "mistral": Architecture(
        keys={**LLAMA, **ROPE, "head_dim": HEAD, "sliding_window": WINDOW},
        values={**_LLAMA_VALUES, "intermediate_size": 14336, "num_key_value_heads": 8},
    ),
    "ministral3": Architecture(
        keys={**LLAMA, **MINISTRAL, "head_dim": HEAD},
        values={
            **_LLAMA_VALUES, "intermediate_size": 14336, "num_hidden_layers": 34, "num_key_value_heads": 8,
            "head_dim": 128,
        },
        rope={
            "rope_type": "yarn", "rope_theta": 1e6, "rope_factor": 16.0, "rope_original_positions": 16384,
            "rope_beta_fast": 32.0, "rope_beta_slow": 1.0, "rope_mscale": 1.0, "rope_mscale_all_dim": 1.0,
            "rope_query_beta": 0.1,
        },
    ),
    "mixtral": Architecture(
        keys={
            **LLAMA, **ROPE, "head_dim": HEAD, "sliding_window": TOKENS, "num_local_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS, "router_aux_loss_coef": Real(0.0, 1.0),
        },
        values={
            **_LLAMA_VALUES, "intermediate_size": 14336, "num_key_value_heads": 8, "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen2": Architecture(
        keys={
            **LLAMA, **ROPE, "use_sliding_window": Flag(), "sliding_window": TOKENS,
            "max_window_layers": Whole(0, 512),
        },
        values={**_LLAMA_VALUES, "intermediate_size": 22016, "num_key_value_heads": 32},
    ),
    "qwen3": Architecture(
        keys={
            **LLAMA, **ROPE, "head_dim": HEAD, "attention_bias": Flag(), "use_sliding_window": Flag(),
            "sliding_window": TOKENS, "max_window_layers": Whole(0, 512),
        },
        values={**_LLAMA_VALUES, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128},
    ),
    "gemma": Architecture(
        keys={**LLAMA, "head_dim": HEAD, "attention_bias": Flag(), "hidden_act": OF_GEMMA},
        values={
            "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
        },
    ),
    "granite": Architecture(
        keys={
            **LLAMA, **BIASES, **ROPE, "embedding_multiplier": FACTOR, "logits_scaling": FACTOR,
            "residual_multiplier": FACTOR, "attention_multiplier": FACTOR,
        },
        values=_LLAMA_VALUES,
    ),
    "olmo2": Architecture(keys={**LLAMA, "attention_bias": Flag()}, values=_LLAMA_VALUES),
    "olmo3": Architecture(
        keys={**LLAMA, "attention_bias": Flag(), "sliding_window": TOKENS, **YARN}, values=_LLAMA_VALUES,
    ),
    "olmoe": Architecture(
        keys={
            **LLAMA, "attention_bias": Flag(), "num_experts": EXPERTS, "num_experts_per_tok": EXPERTS,
            "norm_topk_prob": Flag(), "router_aux_loss_coef": Real(0.0, 1.0),
        },
        values={
            "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_experts": 64, "num_experts_per_tok": 8, "tie_word_embeddings": False,
        },
    ),
    "gemma3_text": Architecture(
        keys={
            **{key: each for key, each in LLAMA.items() if key != "hidden_act"}, "hidden_activation": ACTIVATION,
            "head_dim": HEAD, "attention_bias": Flag(), "sliding_window": TOKENS, "rope_local_base_freq": THETA,
            "query_pre_attn_scalar": Whole(1, 1 << 16), **ROPE,
        },
        values={
            "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
        },
    ),
    "gemma4_text": Architecture(
        keys=GEMMA_4,
        values=_GEMMA_4_VALUES,
        rope=_GEMMA_4_ROPE,
        without={"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False},
    ),
    "gemma4_unified_text": Architecture(
        keys=GEMMA_4, values=_GEMMA_4_VALUES, rope=_GEMMA_4_ROPE, without={"num_kv_shared_layers": 0},
    ),
    "glm4": Architecture(
        keys={**LLAMA, "head_dim": HEAD, "attention_bias": Flag(), "partial_rotary_factor": SHARE},
        values={
            **_LLAMA_VALUES, "intermediate_size": 13696, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "head_dim": 128, "attention_bias": True,
        },
    ),
    "apertus": Architecture(
        keys={
            **{key: each for key, each in LLAMA.items() if key != "hidden_act"}, **ROPE, "attention_bias": Flag(),
        },
        values={**_LLAMA_VALUES, "intermediate_size": 14336},
        rope={
            "rope_type": "llama3", "rope_theta": 12e6, "rope_factor": 8.0, "rope_original_positions": 8192,
            "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0,
        },
    ),
    "exaone4": Architecture(
        keys={**LLAMA, **ROPE, "sliding_window": WINDOW, "sliding_window_pattern": Whole(1, 512)},
        values={**_LLAMA_VALUES, "intermediate_size": 16384, "num_key_value_heads": 32},
    ),
    "seed_oss": Architecture(
        keys={
            **LLAMA, **BIASES, **ROPE, "head_dim": HEAD, "attention_out_bias": Flag(), "residual_dropout": DROPOUT,
        },
        values={
            **_LLAMA_VALUES, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 80,
            "num_key_value_heads": 8, "head_dim": 128, "attention_bias": True,
        },
    ),
    "qwen3_moe": Architecture(
        keys={
            **{key: each for key, each in LLAMA.items() if key != "intermediate_size"}, **ROPE, "head_dim": HEAD,
            "attention_bias": Flag(), "use_sliding_window": Flag(), "sliding_window": TOKENS, "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS, "moe_intermediate_size": INNER, "norm_topk_prob": Flag(),
            "router_aux_loss_coef": Real(0.0, 1.0),
        },
        values={
            "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 24, "num_attention_heads": 32,
            "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False,
        },
    ),
    "gpt_oss": Architecture(
        keys={
            **{key: each for key, each in LLAMA.items() if key != "hidden_act"}, **YARN, "head_dim": HEAD,
            "attention_bias": Flag(), "sliding_window": TOKENS, "num_local_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS, "swiglu_alpha": Real(0.01, 100.0), "swiglu_limit": Real(0.01, 1e4),
            "router_aux_loss_coef": Real(0.0, 1.0),
        },
        values={
            "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
            "attention_bias": True, "tie_word_embeddings": False,
        },
        rope={
            "rope_type": "yarn", "rope_theta": 15e4, "rope_factor": 32.0, "rope_original_positions": 4096,
            "rope_beta_fast": 32.0, "rope_beta_slow": 1.0, "rope_truncate": False,
        },
    ),
    "lfm2": Architecture(
        keys={
            **{key: each for key, each in SHAPE.items() if key != "attention_dropout"}, "intermediate_size": INNER,
            "num_key_value_heads": HEADS, "norm_eps": EPSILON, "rope_theta": THETA,
            "full_attn_idxs": Several(Whole(0, 511), 512), "conv_L_cache": Whole(1, 64), "conv_bias": Flag(),
            "block_auto_adjust_ff_dim": Flag(), "block_multiple_of": Whole(1, 1 << 16),
            "block_ffn_dim_multiplier": Real(0.01, 100.0),
        },
        values={
            "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "tie_word_embeddings": True, "conv_L_cache": 3, "conv_bias": False,
            "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
        },
    ),
    "qwen3_5_text": Architecture(
        keys={
            **LLAMA, "head_dim": HEAD, "attention_bias": Flag(), "partial_rotary_factor": SHARE, **YARN,
            "full_attention_interval": Whole(1, 512), "linear_num_key_heads": HEADS, "linear_num_value_heads": HEADS,
            "linear_key_head_dim": HEAD, "linear_value_head_dim": HEAD, "linear_conv_kernel_dim": Whole(1, 64),
        },
        values={
            "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": False, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
        },
    ),
    "phi3": Architecture(
        keys={
            **LLAMA, **LONGROPE, "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "sliding_window": TOKENS,
            "partial_rotary_factor": SHARE,
        },
        values={**_LLAMA_VALUES, "hidden_size": 3072, "intermediate_size": 8192},
    ),
    "smollm3": Architecture(
        keys={**LLAMA, **BIASES, **ROPE, "no_rope_layer_interval": Whole(1, 512)},
        values={
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 4, "tie_word_embeddings": True,
        },
    ),
    "starcoder2": Architecture(
        keys={
            **SHAPE, "intermediate_size": INNER, "num_key_value_heads": HEADS, "hidden_act": ACTIVATION,
            "norm_epsilon": EPSILON, "rope_theta": THETA, "sliding_window": TOKENS, "use_bias": Flag(),
            "residual_dropout": DROPOUT, "embedding_dropout": DROPOUT,
        },
        values={
            "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
            "num_key_value_heads": 2, "tie_word_embeddings": True, "use_bias": True,
        },
    ),
    "gpt_neox": Architecture(
        keys={
            **SHAPE, "intermediate_size": INNER, "hidden_act": ACTIVATION, "hidden_dropout": DROPOUT,
            "layer_norm_eps": EPSILON, "use_parallel_residual": Flag(), "attention_bias": Flag(), "rotary_pct": SHARE,
        },
        values={
            "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "num_attention_heads": 64,
            "tie_word_embeddings": False, "attention_bias": True,
        },
    ),
    "gpt2": Architecture(
        keys={
            **ALL, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_inner": INNER, "n_positions": TOKENS,
            "activation_function": ACTIVATION, "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "attn_pdrop": DROPOUT,
            "layer_norm_epsilon": EPSILON, "scale_attn_weights": Flag(), "scale_attn_by_inverse_layer_idx": Flag(),
        },
        values={"n_embd": 768, "n_layer": 12, "n_head": 12, "tie_word_embeddings": True},
    ),
    "opt": Architecture(
        keys={
            **{key: each for key, each in SHAPE.items() if key != "initializer_range"}, "ffn_dim": INNER,
            "activation_function": ACTIVATION, "dropout": DROPOUT, "init_std": SPREAD,
        },
        values={
            "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip
"""By their names in transformers."""
MAY_SEE = frozenset({"gemma3_text", "gemma4_text", "gemma4_unified_text", "ministral3", "qwen3_5_text"})
"""Architectures that are also published as the part of a model that reads text, beside another part that sees."""


def check_config(architecture: str, config: Mapping[str, Value]) -> None:
    """Raises BadSpec for an architecture, a key or a value that is not allowed."""
    known = ARCHITECTURES.get(architecture)
    if known is None:
        hint = _closest(architecture, ARCHITECTURES) or f"; choose one of {', '.join(ARCHITECTURES)}"
        raise BadSpec(f"model.architecture is {shortened(architecture)}, none that can be trained here{hint}")
    for key, value in config.items():
        if key not in known.keys:
            hint = _closest(key, known.keys)
            raise BadSpec(f"unknown key 'model.config.{shortened(key)[1:-1]}' for {architecture}{hint}")
        known.keys[key].check(f"model.config.{key}", value)


def _closest(name: str, valid: Mapping[str, object]) -> str:
    # Longer ones are nobody's slip, and take long to compare.
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5) if len(name) <= 64 else []
    return f"; did you mean {close[0]!r}?" if close else ""
