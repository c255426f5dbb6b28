"""An adapter beside a frozen model: what is trained, with agreed first bits, and the model as it was to begin with."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dht.errors import BadSpec
from peer.schema.model_layers import ADAPTED
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdapterTable
from peer.training.model.build import build, build_meta, build_unset, next_token_logits
from peer.training.model.flat_parameters import FlatParameters
from tests.open_models import publish, run_from

TOKENS_BT = torch.arange(40).unsqueeze(0)
KEYS: dict[str, dict[str, Any]] = {
    "gemma4_text": {"num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 48, "layer_scalars": (0.5, 0.3)},
    "gemma4_unified_text": {
        "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 48, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 32}, "seed_oss": {"num_key_value_heads": 2, "head_dim": 32},
    "gemma": {"num_key_value_heads": 2, "head_dim": 32}, "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32}, "mistral": {"num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 2, "pad_token_id": 0}, "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "starcoder2": {"num_key_value_heads": 2}, "olmo2": {"num_key_value_heads": 2, "pad_token_id": 0},
    "granite": {"num_key_value_heads": 2}, "ministral3": {"num_key_value_heads": 2, "head_dim": 32, "pad_token_id": 0},
    "apertus": {"num_key_value_heads": 2}, "exaone4": {"num_key_value_heads": 2, "sliding_window": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("base")
    publish(folder)
    return run_from(folder)


def adapted(spec: RunSpec, **values: object) -> RunSpec:
    return dataclasses.replace(spec, adapter=AdapterTable(**{"rank": 4, "alpha": 8} | values))


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return next_token_logits(model.eval(), TOKENS_BT)


def bits_of(model: nn.Module) -> str:
    return hashlib.blake2b(FlatParameters(model).new().numpy().astype("<f4").tobytes(), digest_size=16).hexdigest()


def test_it_begins_as_the_model_is(base: RunSpec) -> None:
    model = build(adapted(base))
    assert torch.equal(logits_of(model), logits_of(build(base)))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)


def test_its_first_parameters_have_agreed_bits(base: RunSpec) -> None:
    """A golden value: they depend on the run's seed, and not on the machine or on what the model's weights are."""
    assert bits_of(build(adapted(base))) == GOLDEN
    other = dataclasses.replace(base, run=dataclasses.replace(base.run, seed=2))
    assert bits_of(build(adapted(other))) != GOLDEN


def test_with_b_alone_a_stays_as_it_was_drawn(base: RunSpec) -> None:
    both, alone = (build(adapted(base, trains=trains)) for trains in ("both", "b"))
    drawn = {name: value for name, value in both.named_parameters() if ".lora_A." in name}
    kept = {name: value for name, value in alone.named_parameters() if ".lora_A." in name}
    assert all(torch.equal(kept[name], value) and not kept[name].requires_grad for name, value in drawn.items())
    assert len(FlatParameters(alone).new()) < len(FlatParameters(both).new())


def test_a_base_in_bfloat16_takes_half_and_what_is_trained_stays_float32(base: RunSpec) -> None:
    model = build(adapted(base, base="bfloat16"))
    kinds = {parameter.dtype: parameter.requires_grad for parameter in model.parameters()}
    assert kinds == {torch.bfloat16: False, torch.float32: True}
    assert torch.allclose(logits_of(model).float(), logits_of(build(base)), atol=0.05)


def test_a_base_in_bfloat16_turns_positions_as_it_was_trained(base: RunSpec) -> None:
    """Angles that are rounded to 8 bits are those of other positions after some hundred tokens."""
    turns, exact = (dict(build(each).named_buffers()) for each in (adapted(base, base="bfloat16"), base))
    (turned,) = [value for name, value in turns.items() if name.endswith("rotary_emb.inv_freq")]
    assert torch.equal(turned, exact["model.rotary_emb.inv_freq"])


def test_with_a_scale_by_the_root_of_the_rank_the_product_counts_more(base: RunSpec) -> None:
    """By the root of the rank, and a run without the key is the run that it was."""
    by_rank, by_root = adapted(base), adapted(base, scale="root")
    assert "scale" not in by_rank.tables()["adapter"]
    assert by_root.digest() != by_rank.digest()
    changes = []
    for spec in (by_rank, by_root):
        model = build(spec)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if ".lora_B." in name:
                    value.fill_(1e-5)
        changes.append(logits_of(model) - logits_of(build(base)))
    assert torch.allclose(changes[1], 2 * changes[0], rtol=0.05, atol=1e-4 * float(changes[1].abs().max()) + 2e-6)


@pytest.mark.parametrize(("trains", "targets"), [("both", "all"), ("b", "attention")])
@pytest.mark.parametrize("architecture", sorted(ADAPTED))
def test_a_spec_knows_its_layers_without_the_model(
    architecture: str, targets: str, trains: str, tmp_path: Path
) -> None:
    """Else a peer could not say what a round sends before it has the model."""
    publish(tmp_path, architecture, **KEYS.get(architecture, {}))
    spec = adapted(run_from(tmp_path), targets=targets, trains=trains)
    layers = FlatParameters(build_meta(spec)).layers
    known = spec.trained_layers
    assert known.number == len(layers)
    assert known.parts(64) == sum(-(-layer.size // 64) for layer in layers)


def test_an_architecture_that_takes_none_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "gpt_neox")
    with pytest.raises(BadSpec, match=r"\[adapter\] is for"):
        adapted(run_from(tmp_path))


def test_it_is_trained_on_one_device_of_a_peer(base: RunSpec) -> None:
    with pytest.raises(BadSpec, match=r"a run with \[adapter\] is trained on one device of each peer"):
        build_unset(adapted(base))


GOLDEN = "31d9070e7c2eb5e41e6562f6bac751e2"
