"""How a start scales its rotary positions is kept, and a configuration that makes no sense refused in one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.errors import BadSpec
from peer.schema.spec import dump, from_mapping, parse
from peer.training.model.build import build, build_config, next_token_logits
from peer.training.model.pretrained import adopt, find
from tests.open_models import publish, run_from
from tests.peer.training.model.test_pretrained import text_BT

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 500_000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "attention_factor": 1.3, "beta_fast": 30.0, "beta_slow": 1.0,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
    "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False,
}  # fmt: skip
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 2.5, 3, 4.0, 8.0, 9.5],
    "long_factor": [1.0, 2.5, 3.0, 6.5, 7.0, 9.0, 18.0, 24.5], "original_max_position_embeddings": 16,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
SEES = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
"""How positions in pictures turn, of which texts know nothing."""
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        *((name, {"rope_parameters": YARN, "num_key_value_heads": 2, "head_dim": 32, "pad_token_id": 0})
          for name in ("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "seed_oss", "apertus", "exaone4")),
        ("qwen3", {"rope_parameters": DEEPSEEK, "num_key_value_heads": 2, "head_dim": 32}),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16, "pad_token_id": 0}),
        ("qwen3_5_text", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5} | SEES} | DELTA),
        ("llama", {"rope_parameters": LLAMA3}), ("llama", {"rope_parameters": LINEAR}),
        ("olmo3", {"num_hidden_layers": 5, "pad_token_id": 0, "rope_parameters": {
            "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0}}}),
        ("seed_oss", {"rope_parameters": LLAMA3, "num_key_value_heads": 2, "head_dim": 32}),
        ("gemma3_text", {"num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 7, "rope_parameters": {
            "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    ],
)  # fmt: skip
def test_scaled_positions_of_a_start_are_kept(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Each of their numbers counts; without them the model computes otherwise."""
    theirs = publish(tmp_path, architecture, initializer_range=0.3, **config)
    spec = run_from(tmp_path)
    said = {key: value for key, value in spec.model.config.items() if key.startswith("rope_")}
    assert said["rope_type"] in ("llama3", "linear", "yarn", "longrope")
    assert parse(dump(spec)) == spec
    tokens_BT = text_BT(64)[:2]
    ours = next_token_logits(build(spec).eval(), tokens_BT)
    torch.testing.assert_close(ours, next_token_logits(theirs, tokens_BT), rtol=0, atol=1e-4)
    plain = {key: value for key, value in spec.model.config.items() if key != "rope_type"}
    without = dataclasses.replace(spec, model=dataclasses.replace(spec.model, config=plain))
    assert (next_token_logits(build(without).eval(), tokens_BT) - ours).abs().max() > 1e-3


@pytest.mark.parametrize("kinds", ["ra", "aa", "rr", "rara"])
@pytest.mark.parametrize("is_said_as", ["layer_types", "full_attention_interval"])
def test_which_blocks_attend_is_kept(kinds: str, is_said_as: str, tmp_path: Path) -> None:
    """Each in a list, or in a number where all of so many are alike."""
    names = {"r": "linear_attention", "a": "full_attention"}
    layers, interval = [names[kind] for kind in kinds], kinds.find("a") + 1 or len(kinds) + 1
    config = DELTA | {"layer_types": layers, "num_hidden_layers": len(kinds), "initializer_range": 0.3}
    theirs = publish(tmp_path, "qwen3_5_text", **config)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    if is_said_as == "full_attention_interval":
        said = {key: value for key, value in said.items() if key != "layer_types"} | {is_said_as: interval}
    path.write_text(json.dumps(said))
    spec = run_from(tmp_path)
    assert spec.model.config["full_attention_interval"] == interval
    tokens_BT = text_BT(64)[:2]
    ours = next_token_logits(build(spec).eval(), tokens_BT)
    torch.testing.assert_close(ours, next_token_logits(theirs, tokens_BT), rtol=0, atol=1e-4)


def test_factors_between_which_nothing_lies_are_refused() -> None:
    values = {"rope_type": "llama3", "rope_low_freq_factor": 4.0, "rope_high_freq_factor": 4.0}
    spec = from_mapping({"run": {"name": "x"}, "model": {"architecture": "llama", "context": 16, "config": values}})
    with pytest.raises(BadSpec, match="rope_low_freq_factor is not below rope_high_freq_factor"):
        build_config(spec)


def test_how_positions_turn_in_long_texts_is_compared_too(tmp_path: Path) -> None:
    """The tried text is no longer than those of the short factors."""
    rope = LONGROPE | {"original_max_position_embeddings": 48}
    publish(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=48, pad_token_id=0)
    table = {"context": 64, "config": {"rope_long_factor": (2.0,) * 8}}
    with pytest.raises(BadSpec, match="turn otherwise in long texts"):
        adopt(find(str(tmp_path)), table)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("lfm2", "block_multiple_of", 0), ("lfm2", "block_ffn_dim_multiplier", 1e308),
        ("lfm2", "num_key_value_heads", 0), ("lfm2", "full_attn_idxs", ["a"]),
        ("phi3", "original_max_position_embeddings", 1), ("phi3", "rope_parameters", LONGROPE | {"rope_theta": 10**30}),
        ("phi3", "rope_parameters", LONGROPE | {"attention_factor": {}}),
        ("llama", "rope_parameters", YARN | {"factor": 10**30}), ("llama", "head_dim", 0),
        ("qwen3_5_text", "linear_num_key_heads", 0), ("qwen3_5_text", "linear_num_key_heads", 3),
        ("qwen3_5_text", "rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "mrope_section": []}),
        ("qwen3_5_text", "layer_types", ["full_attention", "linear_attention"]),
        ("qwen3_5_text", "layer_types", ["sliding_attention", "full_attention"]),
        ("llama", "rope_parameters", YARN | {"rope_type": [1] * 2000}),
        ("gemma4_text", "layer_types", []), ("gemma4_text", "per_layer_config", {"1": {"head_dim": "x"}}),
        ("gemma4_text", "per_layer_config", {}), ("gemma4_text", "rope_parameters", {}),
        ("gemma4_text", "use_bidirectional_attention", "all"), ("gemma4_text", "final_logit_softcapping", 0.0),
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_refused_in_one_line(
    architecture: str, key: str, value: object, tmp_path: Path
) -> None:
    """Whatever transformers makes of it: errors of arithmetic, and of types once the model computes."""
    usual: dict[str, dict[str, Any]] = {
        "lfm2": {"full_attn_idxs": [1], "num_key_value_heads": 2},
        "qwen3_5_text": DELTA,
        "gemma4_text": {"num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 16},
        "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16, "pad_token_id": 0},
    }
    publish(tmp_path, architecture, **usual.get(architecture, {}))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(BadSpec) as refused:
        adopt(find(str(tmp_path)), {"context": 32})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
