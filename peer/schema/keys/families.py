"""Keys of `model.config` that many architectures have, with their bounds."""

from __future__ import annotations

from collections.abc import Mapping

from peer.schema.keys.allowed_values import Allowed, Flag, OneOf, Real, Several, Whole

WIDTH, INNER, BLOCKS, HEADS = Whole(1, 1 << 16), Whole(1, 1 << 18), Whole(1, 512), Whole(1, 1024)
HEAD, EXPERTS, TOKENS = Whole(2, 1024), Whole(1, 256), Whole(1, 1 << 20)
VOCABULARY = Whole(2, 1 << 20)
TOKEN = Whole(0, (1 << 20) - 1)
SPREAD, EPSILON, DROPOUT = Real(1e-6, 1.0), Real(1e-12, 0.1), Real(0.0, 0.9)
SHARE, THETA, FACTOR = Real(0.01, 1.0), Real(1.0, 1e9), Real(1e-4, 1e4)
ACTIVATION = OneOf(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "silu",
                    "swish", "mish", "tanh"))  # fmt: skip

ALL: Mapping[str, Allowed] = {
    "vocab_size": VOCABULARY, "initializer_range": SPREAD, "tie_word_embeddings": Flag(), "bos_token_id": TOKEN,
    "eos_token_id": TOKEN,
}  # fmt: skip
SHAPE: Mapping[str, Allowed] = {
    **ALL, "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
    "max_position_embeddings": TOKENS, "attention_dropout": DROPOUT,
}  # fmt: skip
LLAMA: Mapping[str, Allowed] = {
    **SHAPE, "intermediate_size": INNER, "num_key_value_heads": HEADS, "hidden_act": ACTIVATION,
    "rms_norm_eps": EPSILON, "rope_theta": THETA,
}  # fmt: skip
YARN: Mapping[str, Allowed] = {
    "rope_type": OneOf(("default", "yarn")), "rope_factor": Real(1.0, 1024.0), "rope_original_positions": TOKENS,
    "rope_beta_fast": Real(0.01, 1000.0), "rope_beta_slow": Real(0.01, 1000.0),
    "rope_attention_factor": Real(0.01, 100.0), "rope_mscale": Real(0.01, 100.0),
    "rope_mscale_all_dim": Real(0.01, 100.0), "rope_truncate": Flag(),
}  # fmt: skip
"""arXiv:2309.00071. DeepSeek has two factors for the attention, of which the quotient counts; with `rope_truncate` the
bounds between fast and slow are whole numbers."""
ROPE: Mapping[str, Allowed] = {
    **YARN, "rope_type": OneOf(("default", "linear", "llama3", "yarn")), "rope_low_freq_factor": Real(0.01, 1000.0),
    "rope_high_freq_factor": Real(0.01, 1000.0),
}  # fmt: skip
"""How rotary positions are stretched for longer texts than those of the first training. `rope_factor` is of all ways;
two factors are of `llama3` (Llama 3.1 and later)."""
LONGROPE: Mapping[str, Allowed] = {
    "rope_type": OneOf(("default", "longrope")), "rope_short_factor": Several(Real(0.01, 1e5), 512),
    "rope_long_factor": Several(Real(0.01, 1e5), 512), "rope_original_positions": TOKENS,
    "rope_factor": Real(1.0, 1024.0), "rope_attention_factor": Real(0.01, 100.0),
}  # fmt: skip
"""As Phi 3.5 and 4 have it (arXiv:2402.13753): a factor for each pair of a head's rotary values, others in texts of
more than `rope_original_positions` tokens."""
MINISTRAL: Mapping[str, Allowed] = {
    **{key: each for key, each in YARN.items() if key != "rope_attention_factor"}, "rope_type": OneOf(("yarn",)),
    "rope_query_beta": Real(0.0, 10.0),
}  # fmt: skip
"""YaRN; and queries grow by 1 + `rope_query_beta` · log(1 + ⌊position / `rope_original_positions`⌋), as in Llama 4."""
WINDOW = Whole(0, 1 << 20)
"""Tokens of the past that a sliding block sees; 0 where no block slides."""
GEMMA_4: Mapping[str, Allowed] = {
    **{key: each for key, each in LLAMA.items() if key != "hidden_act"}, "hidden_activation": ACTIVATION,
    "head_dim": HEAD, "global_head_dim": HEAD, "num_global_key_value_heads": HEADS, "attention_k_eq_v": Flag(),
    "attention_bias": Flag(), "sliding_window": TOKENS, "final_logit_softcapping": FACTOR,
    "rope_type": OneOf(("proportional",)), "partial_rotary_factor": SHARE, "rope_local_base_freq": THETA,
    "layer_scalars": Several(FACTOR, 512),
}  # fmt: skip
"""Blocks that see all have heads of their own, and with `attention_k_eq_v` the keys' matrix for their values, too.
`rope_theta` and `partial_rotary_factor` are of these blocks, `rope_local_base_freq` of those that slide. What leaves a
block is multiplied by its number of `layer_scalars`, which transformers has beside the parameters."""
OF_GEMMA = OneOf(tuple(word for word in ACTIVATION.words if word != "gelu"))
"""transformers would read `gelu` as another one."""
BIASES: Mapping[str, Allowed] = {"attention_bias": Flag(), "mlp_bias": Flag()}
