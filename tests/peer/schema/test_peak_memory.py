"""The estimate of training memory, against peaks that were measured and against what autograd saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.schema.model_layers import layers_of
from peer.schema.peak_memory import Rung, in_chunks, peak
from peer.schema.spec import from_mapping
from peer.training.model.build import build
from peer.training.model.net import Batch, Net, attend_without_looking, recompute_blocks

GIB, CONTEXT, VOCABULARY = 1 << 30, 1024, 32_000
MODELS = {
    "134 M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "401 M": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 20, "num_attention_heads": 16},
    "1.1 B": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A bare loop over a llama of transformers on an H100, under bfloat16 autocast, with all logits at once."""

    model: str
    sequences: int
    compiled: bool
    peak_bytes: float
    logit_bytes: int
    """Of each logit, with softmax and gradient."""


KNOWN = (
    Measured(model="134 M", sequences=32, compiled=False, peak_bytes=29 * GIB, logit_bytes=14),
    Measured(model="134 M", sequences=32, compiled=True, peak_bytes=14 * GIB, logit_bytes=4),
    Measured(model="401 M", sequences=24, compiled=False, peak_bytes=45 * GIB, logit_bytes=14),
    Measured(model="1.1 B", sequences=2, compiled=False, peak_bytes=25.35e9, logit_bytes=14),
)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.model}, compiled {known.compiled}")
def test_within_a_twenty_fifth_of_known_peaks(known: Measured) -> None:
    layers = layers_of("llama", MODELS[known.model] | {"vocab_size": VOCABULARY}, CONTEXT)
    tokens = known.sequences * CONTEXT
    rung = Rung(compiled=known.compiled)
    found = peak(layers, tokens, parameters=layers.parameters, bfloat16=True, rung=rung)
    all_logits = known.logit_bytes * tokens * VOCABULARY
    assert found.states + found.copies + found.blocks + all_logits == pytest.approx(known.peak_bytes, rel=0.04)


def saved_bytes(
    blocks: int,
    rows: int,
    config: Mapping[str, Any],
    *,
    recomputes: bool,
    architecture: str = "llama",
    context: int = 64,
) -> int:
    """What autograd keeps of the blocks of a model in float32, besides parameters; each storage once."""
    model = {"architecture": architecture, "context": context, "config": {**config, "num_hidden_layers": blocks}}
    made = build(from_mapping({"run": {"name": "x"}, "model": model}))
    attend_without_looking(made, context)
    recompute_blocks(made, recomputes)
    made.train()
    of_model = {value.untyped_storage().data_ptr() for value in made.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value
        return value

    batch = Batch.of(torch.randint(0, 257, (rows, context + 1)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        Net(made)(batch)
    return sum(value.untyped_storage().nbytes() for where, value in kept.items() if where not in of_model)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_blocks_in_float32_keep_what_autograd_saves(key_heads: int, recomputes: bool) -> None:
    """Of two models that differ in two blocks, with two and four rows: all else cancels out."""
    config = {
        "vocab_size": 257, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4,
        "num_key_value_heads": key_heads,
    }  # fmt: skip
    few, many = (
        saved_bytes(blocks, 4, config, recomputes=recomputes) - saved_bytes(blocks, 2, config, recomputes=recomputes)
        for blocks in (2, 4)
    )
    (two, four), rung = (
        (layers_of("llama", config | {"num_hidden_layers": blocks}, 64) for blocks in (2, 4)),
        Rung(recomputes=recomputes),
    )
    less, more = (peak(each, 128, parameters=each.parameters, rung=rung).blocks for each in (two, four))
    assert more - less == pytest.approx(many - few, rel=0.01)


EXPERTS, WINDOW = {"num_experts_per_tok": 2}, {"sliding_window": 64}
NO_DROPOUT = {"attention_dropout": 0.0, "residual_dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    **{
        f"{name}, {width}": {"head_dim": width} | (NO_DROPOUT if name == "seed_oss" else {})
        for name in ("llama", "mistral", "ministral3", "qwen3", "gemma", "gemma3_text", "glm4", "seed_oss")
        for width in (24, 64)
    },
    **{name: {} for name in ("qwen2", "granite", "olmo2", "olmo3", "apertus", "exaone4", "smollm3")},
    "lfm2": {"full_attn_idxs": (0,), "block_auto_adjust_ff_dim": False},
    "qwen3_5_text": {
        "head_dim": 64, "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
        "linear_value_head_dim": 48,
    },
    "gemma4_text": {"head_dim": 24, "global_head_dim": 56},
    "phi3": {},
    **{name: EXPERTS for name in ("mixtral", "olmoe")},
    **{f"gpt_oss, {width}": EXPERTS | {"head_dim": width} for width in (24, 64)},
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 96, "head_dim": 32},
    **{f"{name}, short windows": WINDOW for name in ("mistral", "phi3", "gemma3_text")},
    "phi3, short windows, a key for each query": WINDOW | {"num_key_value_heads": 4},
    "gemma4_text, short windows": WINDOW | {"head_dim": 24, "global_head_dim": 56},
    **{
        f"{name}, two blocks with short windows": WINDOW | {"use_sliding_window": True, "max_window_layers": 2}
        for name in ("qwen2", "qwen3")
    },
    "gemma4_unified_text, keys that are values": {
        "head_dim": 48, "global_head_dim": 64, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    },
    "qwen3_5_text, a key for each value": {
        "full_attention_interval": 2, "linear_num_key_heads": 8, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_each_kind_keep_what_autograd_saves(kind: str) -> None:
    """Of a pair, of which each is of another kind where an architecture has two; also with queries that are wider or
    narrower than what enters."""
    architecture, rows, context = kind.partition(",")[0], 2, 256
    config: dict[str, Any] = {
        "vocab_size": 257, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4,
        "num_key_value_heads": 2,
    } | KINDS[kind]  # fmt: skip
    config |= {"linear_num_value_heads": 8} if "linear_num_key_heads" in config else {}
    if KINDS[kind].get("num_experts_per_tok"):
        config["num_local_experts" if architecture in ("mixtral", "gpt_oss") else "num_experts"] = 4
    if architecture == "qwen3_moe":
        del config["intermediate_size"]

    def of_blocks(number: int) -> tuple[int, int]:
        saved = [
            saved_bytes(number, each, config, recomputes=False, architecture=architecture, context=context)
            for each in (rows, 2 * rows)
        ]
        layers = layers_of(architecture, config | {"num_hidden_layers": number}, context)
        return saved[1] - saved[0], peak(layers, rows * context, parameters=1).blocks

    few, many = (5, 7) if architecture.startswith("gemma4") else (2, 4)
    (less, told_less), (more, told_more) = of_blocks(few), of_blocks(many)
    assert told_more - told_less == pytest.approx(more - less, rel=0.03)


@pytest.mark.filterwarnings("ignore")  # transformers', about positions of a context that is none in the world
def test_attention_that_no_kernel_computes_keeps_its_scores() -> None:
    """Beyond what grows with the length of a text alone: of two lengths, twice the less is taken from the more."""
    config = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
        "num_local_experts": 2, "num_experts_per_tok": 2,
    }  # fmt: skip

    def of_a_block(context: int) -> tuple[int, int]:
        two, three = (
            saved_bytes(blocks, 1, config, recomputes=False, architecture="gpt_oss", context=context)
            for blocks in (2, 3)
        )
        layers = layers_of("gpt_oss", config | {"num_hidden_layers": 1}, context)
        return three - two, peak(layers, context, parameters=1).blocks

    (less, told_less), (more, told_more) = of_a_block(256), of_a_block(512)
    assert told_more - 2 * told_less == pytest.approx(more - 2 * less, rel=0.01)


def test_many_logits_take_a_chunk_and_the_gradient_of_the_matrix() -> None:
    layers = layers_of("llama", MODELS["134 M"] | {"vocab_size": VOCABULARY}, CONTEXT)
    one, many = (peak(layers, CONTEXT * n, parameters=layers.parameters).logits for n in (1, 32))
    assert in_chunks(CONTEXT, VOCABULARY)
    assert one == many == 12 * 512 * VOCABULARY + 4 * VOCABULARY * 768
    assert peak(layers, 64, parameters=layers.parameters).logits == 12 * 64 * VOCABULARY


def test_moments_of_eight_bits_save_six_bytes_but_those_of_muon() -> None:
    layers = layers_of("llama", MODELS["1.1 B"] | {"vocab_size": VOCABULARY}, CONTEXT)
    everything, rung = layers.parameters, Rung(eight_bits=True)
    assert peak(layers, 1, parameters=everything).states == 16 * everything
    assert peak(layers, 1, parameters=everything, rung=rung).states == pytest.approx(10.03 * everything, rel=1e-3)
    lowest = Rung(eight_bits=True, half_gradients=True)
    assert peak(layers, 1, parameters=everything, rung=lowest).states == pytest.approx(8.03 * everything, rel=1e-3)
    muon = peak(layers, 1, parameters=everything, one_moment=everything, rung=lowest)
    assert muon.states == 12 * everything


def test_each_rung_of_blocks_takes_less() -> None:
    layers = layers_of("llama", MODELS["1.1 B"] | {"vocab_size": VOCABULARY}, CONTEXT)
    for bfloat16 in (False, True):
        plain, compiled, recomputed, both = (
            peak(layers, CONTEXT, parameters=layers.parameters, bfloat16=bfloat16, rung=rung).blocks
            for rung in (Rung(), Rung(compiled=True), Rung(recomputes=True), Rung(compiled=True, recomputes=True))
        )
        assert plain > compiled > recomputed > both
