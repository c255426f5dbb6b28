"""The models of the CUDA bars: random llamas on the standard library's source text, so that nothing is fetched."""

from __future__ import annotations

from typing import Any

from peer.schema.spec import RunSpec, from_mapping

CONTEXT = 1024
MODELS: dict[str, dict[str, int]] = {
    "134 M": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12),
    "401 M": dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=20, num_attention_heads=16),
    "1.1 B": dict(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4
    ),
}
"""The last one has the shape of `peer/schema/runs/llama-1b.toml`."""
SEQUENCES = {"134 M": 8, "401 M": 4, "1.1 B": 4}
"""Of a micro-batch."""
VOCABULARY = 32000
TINY = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
TINY_CONTEXT, TINY_VOCABULARY = 32, 512


def spec_of(model: str, *, tiny: bool = False, **tables: dict[str, Any]) -> RunSpec:
    """A run that trains this model, or a tiny one in its place; `tables` are laid over the spec's."""
    config = (TINY | {"vocab_size": TINY_VOCABULARY}) if tiny else (MODELS[model] | {"vocab_size": VOCABULARY})
    context = TINY_CONTEXT if tiny else CONTEXT
    spec: dict[str, dict[str, Any]] = {
        "run": {"name": "cuda"},
        "model": {"architecture": "llama", "context": context, "tokenizer": "bytes", "config": config},
        "data": {"source": "stdlib", "eval_sequences": 1, "eval_every": 1000},
        "inner": {"sequences": 1 if tiny else SEQUENCES[model], "learning_rate": 1e-4},
        "codec": {"wire": "int4", "part_elements": 4096 if tiny else 1 << 22},
    }  # fmt: skip
    return from_mapping({name: spec.get(name, {}) | tables.get(name, {}) for name in {*spec, *tables}})
