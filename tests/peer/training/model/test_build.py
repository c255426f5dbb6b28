"""The architectures that are listed, with the same first bits everywhere."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from dht.errors import BadSpec
from peer.schema import spec as specs
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec
from peer.training.model.build import build, build_config, build_cut, build_meta, build_unset, scalars_of
from peer.training.model.flat_parameters import FlatParameters

LLAMA: dict[str, object] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
SMALL: dict[str, dict[str, object]] = {
    "llama": LLAMA,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "qwen3": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"num_key_value_heads": 2, "head_dim": 16},
    **{
        name: LLAMA | {"num_key_value_heads": 2}
        for name in ("mistral", "qwen2", "granite", "olmo2", "phi3", "smollm3", "starcoder2")
    },
    "mixtral": LLAMA | {"num_key_value_heads": 2, "num_local_experts": 4},
    "olmo3": LLAMA | {"num_hidden_layers": 5},
    "gemma3_text": LLAMA | {"num_hidden_layers": 7, "num_key_value_heads": 2, "head_dim": 16},
    **{
        name: LLAMA
        | {"num_hidden_layers": 7, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24}
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "sliding_window": 8}
        | {"final_logit_softcapping": 3.0, "layer_scalars": (0.5, 1.0, 0.75, 1.0, 1.0, 2.0, 0.9)}
        for name in ("gemma4_text", "gemma4_unified_text")
    },
    "ministral3": LLAMA | {"num_key_value_heads": 2, "head_dim": 16},
    "apertus": LLAMA | {"num_key_value_heads": 2},
    "exaone4": LLAMA | {"num_hidden_layers": 5, "num_key_value_heads": 2},
    "glm4": LLAMA | {"num_key_value_heads": 2, "head_dim": 16},
    "seed_oss": LLAMA | {"num_key_value_heads": 2, "head_dim": 16},
    "olmoe": LLAMA | {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {key: each for key, each in LLAMA.items() if key != "intermediate_size"}
    | {"moe_intermediate_size": 48, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": LLAMA | {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "lfm2": LLAMA | {"num_hidden_layers": 3, "num_key_value_heads": 2, "full_attn_idxs": (1,), "block_multiple_of": 16},
    "qwen3_5_text": LLAMA
    | {"num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 16}
    | {"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    | {"linear_key_head_dim": 8, "linear_value_head_dim": 12},
    "gemma": LLAMA | {"num_key_value_heads": 2, "head_dim": 16},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt_neox": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
}


def make_spec(architecture: str = "llama", seed: int = 0, **config: object) -> RunSpec:
    assert architecture in SMALL or architecture not in ARCHITECTURES, (
        "at the size it has in the world it fills a machine"
    )
    values = SMALL.get(architecture, {}) | config
    model = {"architecture": architecture, "context": 16, "config": values}
    return specs.from_mapping({"run": {"name": "t", "seed": seed}, "model": model})


def bits_of(model: nn.Module) -> str:
    return hashlib.blake2b(FlatParameters(model).new().numpy().astype("<f4").tobytes(), digest_size=16).hexdigest()


def test_first_parameters_have_agreed_bits() -> None:
    """A golden value: peers on different processors and torch versions must start from the same anchor."""
    assert bits_of(build(make_spec())) == GOLDEN


def test_first_parameters_depend_on_the_seed_alone() -> None:
    """Neither torch's global generator nor the number of threads matters, and neither is changed."""
    torch.manual_seed(5)
    first = bits_of(build(make_spec()))
    untouched = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == untouched
    assert bits_of(build(make_spec())) == first
    assert bits_of(build(make_spec(seed=1))) != first


@pytest.mark.parametrize("architecture", sorted(SMALL))
def test_architectures_build_and_predict(architecture: str) -> None:
    """The first loss is that of a guess among 257 bytes."""
    model = build(make_spec(architecture))
    logits = model(input_ids=torch.arange(16)[None]).logits
    assert logits.shape == (1, 16, 257)
    loss = nn.functional.cross_entropy(logits[0], torch.arange(16, 32)).item()
    assert loss == pytest.approx(math.log(257), abs=0.3)


def test_draws_are_uniform_with_the_declared_spread_and_norms_stay_one() -> None:
    """Mean 0, standard deviation `initializer_range`, within its bound; constants are kept."""
    model = build(make_spec(initializer_range=0.05, hidden_size=128))
    embedding = model.get_parameter("model.embed_tokens.weight")
    assert embedding.std().item() == pytest.approx(0.05, rel=0.02)
    assert embedding.mean().item() == pytest.approx(0.0, abs=0.001)
    assert embedding.abs().max().item() <= 0.05 * math.sqrt(3) * 1.0001
    assert bool((model.get_parameter("model.norm.weight") == 1).all())


def test_what_multiplies_the_output_of_a_block_is_as_the_spec_says() -> None:
    """In every way in which a model is made."""
    spec = make_spec("gemma4_text")
    for made in (build(spec), build_cut(spec, lambda whole: whole), build_unset(spec)):
        assert torch.cat(scalars_of(made)).tolist() == pytest.approx(spec.model.config["layer_scalars"], rel=1e-7)
    assert [each.shape for each in scalars_of(build_meta(spec))] == [(1,)] * 7


def spreads_of(model: nn.Module) -> dict[str, float]:
    return {name: parameter.std().item() for name, parameter in model.named_parameters() if parameter.dim() > 1}


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_parameter_spreads_as_transformers_has_it(architecture: str) -> None:
    """Of every architecture: GPT-2's projections into the residual stream by √(2 × blocks) less (its paper, § 2.3)."""
    spec = make_spec(architecture)
    torch.manual_seed(0)
    theirs = spreads_of(AutoModelForCausalLM.from_config(build_config(spec)))
    ours = spreads_of(build(spec))
    assert ours.keys() == theirs.keys()
    for name, spread in theirs.items():
        assert ours[name] == pytest.approx(spread, rel=0.15), name
    if architecture == "gpt2":
        assert ours["transformer.h.1.mlp.c_proj.weight"] == pytest.approx(0.02 / math.sqrt(2 * 2), rel=0.05)


def test_a_part_of_a_model_has_the_spreads_of_the_whole() -> None:
    """Also where a module sets those of its parts."""
    spec = make_spec("gpt2", tie_word_embeddings=False)
    part = dict(build_cut(spec, lambda model: model.get_submodule("transformer.h.1")).named_parameters())
    for name, value in build(spec).get_submodule("transformer.h.1").named_parameters():
        assert torch.equal(part[name], value), name


@pytest.mark.parametrize("heads", [1, 64])
def test_how_fast_states_fade_is_drawn_as_transformers_does(heads: int) -> None:
    """Logarithms of uniform draws, of one head, too, with agreed bits; in a part of the model as in the whole."""
    spec = make_spec("qwen3_5_text", linear_num_key_heads=1, linear_num_value_heads=heads)
    torch.manual_seed(0)
    name, whole = "model.layers.0.linear_attn.A_log", build(spec)
    drawn, others = whole.get_parameter(name).exp(), whole.get_parameter(name.replace("0", "2")).exp()
    theirs = AutoModelForCausalLM.from_config(build_config(make_spec("qwen3_5_text", linear_num_value_heads=1024)))
    rates = theirs.get_parameter(name).exp()
    assert rates.min() / 10 <= drawn.min() <= drawn.max() <= rates.max() * 1.01
    assert not torch.equal(drawn, others)
    if heads > 1:
        assert drawn.mean().item() == pytest.approx(rates.mean().item(), rel=0.2)
    assert build(make_spec("qwen3_5_text")).get_parameter(name).tolist() == FADES
    part = build_cut(spec, lambda model: model.get_submodule("model.layers.0"))
    assert torch.equal(part.get_parameter("linear_attn.A_log"), whole.get_parameter(name))


def test_every_parameter_has_its_own_stream() -> None:
    """Two matrices of one shape do not start equal."""
    model = build(make_spec())
    key = model.get_parameter("model.layers.0.self_attn.k_proj.weight")
    value = model.get_parameter("model.layers.0.self_attn.v_proj.weight")
    assert not torch.equal(key, value)


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("lama", {}, "did you mean 'llama'"),
        ("bert-of-mine", {}, "'bert-of-mine', none that can be trained here; choose one of llama, "),
        ("t5", {}, "'t5', none that can be trained here"),
        ("llama", {"hiden_size": 32}, "unknown key 'model.config.hiden_size'.*did you mean 'hidden_size'"),
        ("llama", {"hidden_size": "wide"}, "hidden_size is 'wide'; it must be a whole number"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads is 0; it must be between 1 and"),
        ("lfm2", {"full_attn_idxs": [0, 3]}, "full_attn_idxs names block 3, of 3 that count from 0"),
        ("lfm2", {"full_attn_idxs": [0, -1]}, r"full_attn_idxs\[1\] is -1; it must be between 0 and"),
        ("lfm2", {"full_attn_idxs": [True]}, r"full_attn_idxs\[0\] is True; it must be a whole number"),
        (
            "phi3",
            {"rope_type": "longrope", "rope_short_factor": [1.0]},
            "needs rope_short_factor, rope_long_factor, rope_or",
        ),
        (
            "phi3",
            {"rope_type": "longrope", "rope_short_factor": [1], "rope_long_factor": [1], "rope_original_positions": 8},
            "short_factor field must have length 8, got 1",
        ),
        ("lfm2", {"full_attn_idxs": 2}, "full_attn_idxs is 2; it must be a list of numbers"),
        ("lfm2", {"full_attn_idxs": [0] * 513}, "full_attn_idxs has 513 numbers; there must be at most 512"),
        ("lfm2", {"intermediate_size": 1}, "feed-forward layers of no width"),
        ("qwen3_5_text", {"linear_num_key_heads": 3}, "linear_num_key_heads is 3, which does not divide 4"),
        ("llama", {"hidden_size": [32]}, "hidden_size is .*; it must be a whole number"),
        ("gemma4_text", {"layer_scalars": [1.0]}, "layer_scalars has 1 numbers, for 7 blocks"),
        ("gemma4_text", {"num_global_key_value_heads": 3}, "24 wide, 2 with 3 keys; the width must be even"),
        ("gemma4_text", {"hidden_size_per_layer_input": 8}, "unknown key 'model.config.hidden_size_per_layer_input'"),
        ("gpt2", {"n_head": 5}, "5 attention heads, which do not divide its width of 32"),
    ],
)
def test_a_wrong_model_is_one_clear_line(architecture: str, config: dict[str, object], message: str) -> None:
    """Architecture, key and value."""
    with pytest.raises(BadSpec, match=message) as caught:
        build(make_spec(architecture, **config))
    assert "\n" not in str(caught.value)


GOLDEN = "1c366feba54381f025d5327fde6964af"
FADES = [2.1334025859832764, 2.326836347579956, 1.1263759136199951, 1.5717867612838745]
