"""The planner's count of a model is torch's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from transformers import AutoConfig

from dht.errors import BadInput, BadSpec
from peer.planning.plan.model_shape import memory_of, shape_of
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec, from_mapping, load
from peer.schema.spec_fields import AdapterTable, StartTable
from peer.training.model.build import build_config, build_meta
from peer.training.model.flat_parameters import FlatParameters, hidden_matrices, trained

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}),
    ("llama", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("mistral", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}),
    ("qwen2", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2}),
    ("qwen3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 32}),
    ("qwen3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "attention_bias": True}),
    ("gemma", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 32, "attention_bias": True}),
    ("granite", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "attention_bias": True, "mlp_bias": True}),
    ("olmo2", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "attention_bias": True}),
    ("olmo3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
               "num_key_value_heads": 2, "attention_bias": True}),
    ("gemma3_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 32, "attention_bias": True}),
    ("gemma4_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24}),
    ("gemma4_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24, "attention_k_eq_v": True,
                     "num_global_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": False}),
    ("gemma4_unified_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                             "num_attention_heads": 4, "attention_k_eq_v": True}),
    ("ministral3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}),
    ("apertus", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("apertus", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "attention_bias": True}),
    ("exaone4", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 32}),
    ("exaone4", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "sliding_window": 0}),
    ("glm4", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "head_dim": 32}),
    ("glm4", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "attention_bias": False}),
    ("seed_oss", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}),
    ("seed_oss", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
                  "attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("olmoe", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "num_experts": 3, "num_experts_per_tok": 2, "attention_bias": True}),
    ("qwen3_moe", {"hidden_size": 64, "moe_intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_experts": 3, "num_experts_per_tok": 2, "head_dim": 32}),
    ("gpt_oss", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 16,
                 "head_dim": 32, "num_local_experts": 5}),
    ("gpt_oss", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
                 "num_local_experts": 5, "attention_bias": False, "tie_word_embeddings": True}),
    ("lfm2", {"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 5, "num_attention_heads": 4,
              "num_key_value_heads": 2, "full_attn_idxs": (1, 4), "block_multiple_of": 48, "conv_L_cache": 4}),
    ("lfm2", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
              "full_attn_idxs": (), "conv_bias": True, "block_auto_adjust_ff_dim": False,
              "tie_word_embeddings": False}),
    ("lfm2", {"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 8,
              "block_ffn_dim_multiplier": 1.7}),
    ("qwen3_5_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
                      "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
                      "linear_value_head_dim": 12}),
    ("qwen3_5_text", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "head_dim": 24, "attention_bias": True, "full_attention_interval": 2,
                      "linear_conv_kernel_dim": 3, "tie_word_embeddings": True}),
    ("phi3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("smollm3", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
                 "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("starcoder2", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("starcoder2", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "use_bias": False}),
    ("mixtral", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
                 "num_local_experts": 3}),
    ("gpt_neox", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("gpt_neox", {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "attention_bias": False, "tie_word_embeddings": True}),
    ("opt", {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4}),
    ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4}),
    ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 50}),
    ("opt", {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "max_position_embeddings": 50, "tie_word_embeddings": False}),
    ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_inner": 100}),
]  # fmt: skip


def spec_of(architecture: str, config: dict[str, Any]) -> RunSpec:
    model = {"architecture": architecture, "context": 32, "config": config}
    return from_mapping({"run": {"name": "x"}, "model": model})


@pytest.mark.parametrize(("architecture", "config"), MODELS)
def test_layers_are_those_of_the_flat_vector(architecture: str, config: dict[str, Any]) -> None:
    spec = spec_of(architecture, config)
    counted = [layer.size for layer in FlatParameters(build_meta(spec)).layers]
    assert list(shape_of(spec).layers) == counted


def test_every_architecture_is_counted() -> None:
    assert {architecture for architecture, _ in MODELS} == ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_that_are_not_said_are_those_of_transformers(architecture: str) -> None:
    """A model whose spec says nothing is as large as it is counted. None is built."""
    made = AutoConfig.for_model(architecture)
    said = made.to_dict()
    if "global_head_dim" in ARCHITECTURES[architecture].keys:
        said |= {"global_head_dim": made.per_layer_config["full_attention"].head_dim}
    for name, value in ARCHITECTURES[architecture].values.items():
        assert (said[name] if name in said else getattr(made, name)) == value
    followed = {"num_key_value_heads": made.num_attention_heads, "n_inner": None}
    followed["head_dim"] = made.hidden_size // made.num_attention_heads
    for name in followed.keys() - ARCHITECTURES[architecture].values.keys():
        assert getattr(made, name, None) in (None, followed[name])


@pytest.mark.parametrize("architecture", [name for name, each in ARCHITECTURES.items() if each.rope])
def test_positions_that_are_not_said_are_those_of_transformers(architecture: str) -> None:
    ours = build_config(spec_of(architecture, {"num_hidden_layers": 1}))  # one of all would be too large
    theirs = AutoConfig.for_model(architecture)
    kept = ours.rope_parameters | {"type": "yarn", "max_position_embeddings": theirs.max_position_embeddings}
    assert theirs.rope_parameters.items() <= kept.items()
    assert ours.rope_parameters.items() <= theirs.rope_parameters.items()


def with_optimizer(spec: RunSpec, optimizer: str) -> RunSpec:
    return dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, optimizer=optimizer))  # type: ignore[arg-type]


def training_bytes(spec: RunSpec) -> tuple[int, int, int]:
    """(parameters, bytes in training, bytes of what is frozen) of a model that is built, without storage."""
    model = build_meta(spec)
    parameters = sum(value.numel() for value in trained(model))
    one_moment = sum(value.numel() for value in hidden_matrices(model)) if spec.inner.optimizer == "muon" else 0
    held = [value for value in model.parameters() if not value.requires_grad]
    held += [value for name, value in model.named_buffers() if name.endswith((".packed", ".scales_G"))]
    frozen = sum(value.numel() * value.element_size() for value in held)
    return parameters, 4 * (4 * parameters - one_moment), frozen


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("architecture", "config"), MODELS)
def test_memory_in_training_is_that_of_the_model_that_is_built(
    architecture: str, config: dict[str, Any], optimizer: str
) -> None:
    """Of experts, too, which Muon does not take."""
    spec = with_optimizer(spec_of(architecture, config), optimizer)
    told = memory_of(shape_of(spec), spec)
    assert (told.parameters, told.training_bytes, told.frozen_bytes) == training_bytes(spec)


@pytest.mark.parametrize("name", ["micro", "tiny", "gpt2-small", "llama-1b"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_memory_of_the_shipped_specs(name: str, optimizer: str) -> None:
    spec = with_optimizer(load(name), optimizer)
    told = memory_of(shape_of(spec), spec)
    assert (told.parameters, told.training_bytes, told.frozen_bytes) == training_bytes(spec)
    assert told.anchor_bytes == 16 * told.parameters
    assert told.device_bytes == told.training_bytes + told.activation_bytes
    assert told.total_bytes == told.device_bytes + told.anchor_bytes + told.encoded_bytes


@pytest.mark.parametrize(
    ("base", "trains", "optimizer"),
    [
        ("float32", "both", "adamw"), ("float32", "b", "muon"), ("bfloat16", "both", "muon"),
        ("bfloat16", "b", "adamw"), ("int8", "both", "adamw"), ("int8", "b", "muon"),
        ("nf4", "both", "muon"), ("nf4", "b", "adamw"),
    ],
)  # fmt: skip
def test_an_adapter_is_counted_beside_its_model(trains: str, base: str, optimizer: str) -> None:
    plain = load("llama-1b")
    adapter = AdapterTable(rank=8, trains=trains, base=base)  # type: ignore[arg-type]
    start = StartTable(model="a", digest="0" * 64)
    spec = with_optimizer(dataclasses.replace(plain, start=start, adapter=adapter), optimizer)
    told = memory_of(shape_of(spec), spec)
    assert (told.parameters, told.training_bytes, told.frozen_bytes) == training_bytes(spec)
    assert told.parameters < shape_of(plain).parameters / 100
    shape = shape_of(spec)
    assert shape.flops_per_token(0) == 6 * shape.matrix_parameters + 4 * shape_of(plain).matrix_parameters


def test_flops_are_six_per_parameter_and_token_and_attention_on_top() -> None:
    """A block of width w without the head: 6 N; attention is 12 · blocks · width · context."""
    shape = shape_of(spec_of("llama", MODELS[0][1]))
    assert shape.flops_per_token(0) == 6 * shape.matrix_parameters
    assert shape.flops_per_token(100) - shape.flops_per_token(0) == 12 * 3 * 64 * 100


def test_a_model_of_another_size_can_be_planned() -> None:
    shape = shape_of(spec_of("llama", {"num_hidden_layers": 4}), parameters=1_000_003)
    assert shape.parameters == 1_000_003
    assert len(shape.layers) == 4


def test_a_tokenizer_without_a_vocabulary_size_is_refused() -> None:
    """Nobody loads a tokenizer to know how large a model is."""
    with pytest.raises(BadSpec, match="vocab_size is missing"):
        from_mapping({"run": {"name": "x"}, "model": {"architecture": "llama", "context": 8, "tokenizer": "a/b"}})


def test_fragments_hold_every_parameter_once() -> None:
    shape = shape_of(spec_of("llama", MODELS[0][1]))
    assert sum(shape.fragment_parameters(3)) == shape.parameters
    with pytest.raises(BadInput, match="is 7; the model has 6 layers"):
        shape.fragment_parameters(7)
