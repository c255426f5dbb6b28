"""A stage has the bits of its layers, and what cannot be cut is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

from dht.errors import BadSpec
from peer.parallel.pipeline.stage_model import (
    TRIED_BLOCKS,
    _small_model,
    build_stage,
    initial_layer_digests,
    initial_span,
    model_layers,
    require_cuttable,
)
from peer.schema import spec as specs
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec, from_mapping
from peer.training.data.chat import token_flags
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.net import Batch, Head, Net
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.outer.outer_state import OuterState
from peer.training.train.round_vectors import Place, RoundVectors, VectorSlots

UNCUTTABLE = ("gpt2", "opt")
"""They add positions to whatever enters."""
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "n_embd": 64, "n_layer": 3, "n_head": 2,
    "intermediate_size": 96, "ffn_dim": 96, "num_key_value_heads": 1, "head_dim": 32, "num_local_experts": 3,
    "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "tie_word_embeddings": False, "router_aux_loss_coef": 0.0,
}  # fmt: skip


def spec_of(architecture: str, **config: Any) -> RunSpec:
    sizes = {key: value for key, value in SIZES.items() if key in ARCHITECTURES[architecture].keys}
    return from_mapping(
        {
            "run": {"name": "cut", "seed": 3, "founders": 1, "rounds": 4},
            "model": {
                "architecture": architecture, "context": 32, "tokenizer": "bytes", "config": sizes | config,
            },
            "data": {"source": "stdlib"},
        },
        "a test",
    )  # fmt: skip


def one_of_both(architecture: str) -> list[Any]:
    """Whether its head is its embedding: by day for some it is, and for others not."""
    by_day = sum(architecture.encode()) % 2
    return [
        pytest.param(architecture, tied, marks=[] if tied == by_day else pytest.mark.nightly) for tied in (False, True)
    ]


CUTTABLE = [name for name in ARCHITECTURES if name not in UNCUTTABLE]


@pytest.mark.parametrize(("architecture", "tied"), [case for name in CUTTABLE for case in one_of_both(name)])
def test_every_span_has_the_bits_of_the_whole_model(architecture: str, tied: bool) -> None:
    spec = spec_of(architecture, num_hidden_layers=2, tie_word_embeddings=tied)
    require_cuttable(spec)
    whole = FlatParameters(build(spec))
    values, digests = whole.by_layer(), OuterState.initial(whole.by_layer()).layer_digests()
    assert model_layers(spec) == whole.layers
    for first, end in combinations(range(len(values) + 1), 2):
        held = range(first, end)
        _, flat = build_stage(spec, held)
        assert flat.layers == whole.layers[first:end]
        assert all(map(torch.equal, flat.by_layer(), values[first:end]))
    last, matrix = build_stage(spec, range(2, len(values)))[0], build(spec).get_output_embeddings()
    assert last.is_tied is tied
    assert torch.equal(last.head.weight, matrix.weight)
    assert initial_span(spec, range(1, 3)).layer_digests() == digests[1:3]
    assert initial_layer_digests(spec) == digests


@pytest.mark.parametrize("architecture", UNCUTTABLE)
def test_what_cannot_be_cut_is_refused(architecture: str) -> None:
    with pytest.raises(BadSpec, match=f"{architecture}.*cannot be cut"):
        require_cuttable(spec_of(architecture))


def test_routers_that_are_balanced_over_all_blocks_are_refused_with_the_way_out() -> None:
    """What is balanced is the sum over all blocks, of which a stage knows its own alone."""
    with pytest.raises(BadSpec, match=r"router_aux_loss_coef = 0\.0") as caught:
        require_cuttable(spec_of("mixtral", router_aux_loss_coef=0.001))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("granite", {"embedding_multiplier": 12.0}),
        ("starcoder2", {"embedding_dropout": 0.1}),
        ("gpt_neox", {"hidden_dropout": 0.1}),
    ],
)
def test_what_every_stage_would_do_again_is_refused(architecture: str, config: dict[str, Any]) -> None:
    with pytest.raises(BadSpec):
        require_cuttable(spec_of(architecture, **config))


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("smollm3", {"no_rope_layer_interval": 2}),
        ("mistral", {"sliding_window": 4}),
        ("olmo3", {"sliding_window": 4, "num_hidden_layers": 5}),
        ("gemma3_text", {"sliding_window": 4, "num_hidden_layers": 7}),
        (
            "gemma4_text",
            {
                "sliding_window": 4,
                "num_hidden_layers": 3,
                "global_head_dim": 16,
                "layer_scalars": (0.5, 0.25, 2.0),
                "final_logit_softcapping": 2.0,
            },
        ),
        ("exaone4", {"sliding_window": 4, "num_hidden_layers": 5}),
        ("exaone4", {"sliding_window": 0, "num_hidden_layers": 5}),
        ("lfm2", {"full_attn_idxs": (1, 3), "num_hidden_layers": 5}),
        ("qwen3_5_text", {"full_attention_interval": 2, "num_hidden_layers": 5}),
        ("apertus", {}),
        ("granite", {"residual_multiplier": 0.3, "attention_multiplier": 0.1, "logits_scaling": 8.0}),
    ],
)
def test_blocks_that_differ_compute_in_a_stage_what_they_do_in_the_whole(
    architecture: str, config: dict[str, Any]
) -> None:
    """To the bit, with sequences longer than a window."""
    spec = spec_of(architecture, **config)
    require_cuttable(spec)
    whole, count = build(spec).eval(), len(model_layers(spec))
    tokens_BT = torch.arange(40).view(2, 20)
    hidden = tokens_BT[:, :-1]
    with torch.no_grad():
        for held in (range(2), range(2, 3), range(3, count)):
            last = build_stage(spec, held)[0].eval()
            hidden = last(hidden)
        labels_BT = token_flags.labels(tokens_BT)
        assert torch.equal(Head(last)(hidden, labels_BT), Net(whole)(Batch.of(tokens_BT))[0])


@pytest.mark.parametrize("name", ["llama-1b", "continue-1b", "adapter-8b"])
def test_whether_a_large_model_can_be_cut_is_tried_on_a_narrow_one(name: str) -> None:
    """In full width the trial of an 8 B model takes half a minute, and 7 GB of memory that a small home lacks."""
    tried, model = _small_model(specs.load(name))
    assert sum(value.numel() for value in model.parameters()) < 1e6
    assert len(model_layers(tried)) >= TRIED_BLOCKS
    require_cuttable(specs.load(name))


def test_dropout_inside_blocks_can_be_cut() -> None:
    require_cuttable(spec_of("phi3", resid_pdrop=0.1))
    assert build_stage(spec_of("phi3", resid_pdrop=0.1), range(2))[0].has_dropout
    assert not build_stage(spec_of("phi3"), range(2))[0].has_dropout


def test_vectors_of_a_span_take_parts_of_the_whole_model() -> None:
    spec, held = spec_of("llama"), range(2, 4)
    _, flat = build_stage(spec, held)
    cpu = torch.device("cpu")
    vectors = RoundVectors.at(flat, VectorSlots(outer=Place.MEMORY, own=Place.MEMORY), cpu, None)
    layer: LayerTensors = vectors.layer(0)
    assert layer.first == model_layers(spec)[2].start > 0
    assert vectors.anchor.layers == held
