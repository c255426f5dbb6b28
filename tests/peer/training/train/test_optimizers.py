"""Which optimizer changes which parameter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dht.errors import BadSpec
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.model.build import build_meta
from peer.training.model.flat_parameters import hidden_matrices, trained
from peer.training.train.optimizers import Optimizers, adamw, make_optimizers

CPU = torch.device("cpu")
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2}
LLAMA_MATRICES = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
}  # fmt: skip
GPT2_MATRICES = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}


def muon_spec(architecture: str, config: dict[str, Any], **inner: Any) -> RunSpec:
    micro = specs.load("micro")
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, architecture=architecture, config=config),
        inner=dataclasses.replace(micro.inner, **{"optimizer": "muon"} | inner),
    )


def names_of(model: nn.Module, chosen: list[Tensor]) -> set[str]:
    """What the chosen parameters are called, without the block's number and `.weight`."""
    identities = {id(value) for value in chosen}
    names = {name for name, value in model.named_parameters() if id(value) in identities}
    return {name.removesuffix(".weight").split(".0.", 1)[-1] for name in names}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("architecture", "config", "expected"), [("llama", LLAMA, LLAMA_MATRICES), ("gpt2", GPT2, GPT2_MATRICES)]
)
def test_muon_takes_the_hidden_matrices(
    architecture: str, config: dict[str, Any], expected: set[str], tied: bool
) -> None:
    """Embeddings of tokens and positions and the output head are AdamW's, tied or not; so are all vectors."""
    spec = muon_spec(architecture, config | {"tie_word_embeddings": tied})
    model = build_meta(spec)
    matrices = hidden_matrices(model)
    assert names_of(model, matrices) == expected
    muon, rest = make_optimizers(model, spec, CPU).members
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(rest, torch.optim.AdamW)
    taken = [value for member in (muon, rest) for group in member.param_groups for value in group["params"]]
    assert sorted(map(id, taken)) == sorted(map(id, trained(model)))
    others = names_of(model, [value for group in rest.param_groups for value in group["params"]])
    embeddings = {"model.embed_tokens"} if architecture == "llama" else {"transformer.wte", "transformer.wpe"}
    assert embeddings <= others
    assert ("lm_head" in others) is not tied


def test_experts_in_one_tensor_are_not_matrices() -> None:
    """A three-dimensional weight is AdamW's, with decay: Muon takes matrices."""
    config = LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 1}
    spec = muon_spec("mixtral", config)
    model = build_meta(spec)
    assert {value.dim() for value in hidden_matrices(model)} == {2}
    decaying, _ = make_optimizers(model, spec, CPU).members[1].param_groups
    assert 3 in {value.dim() for value in decaying["params"]}


def test_one_rate_and_decay_for_both() -> None:
    """The values of the spec reach Muon; its steps are scaled to AdamW's."""
    spec = muon_spec("llama", LLAMA, learning_rate=3e-3, weight_decay=0.05, muon_momentum=0.8)
    optimizers = make_optimizers(build_meta(spec), spec, CPU)
    (muon,) = optimizers.members[0].param_groups
    assert (muon["lr"], muon["weight_decay"], muon["momentum"]) == (3e-3, 0.05, 0.8)
    assert muon["adjust_lr_fn"] == "match_rms_adamw"


def test_a_step_of_muon_is_as_long_as_one_of_adamw() -> None:
    """Root mean square of the first steps at one learning rate, for a wide, a tall and a square matrix."""
    spec = muon_spec("llama", LLAMA, learning_rate=1e-2, weight_decay=0.0)
    for shape in ((64, 256), (256, 64), (128, 128)):
        moved = []
        for make in (lambda values: torch.optim.Muon(values, adjust_lr_fn="match_rms_adamw"), None):
            weight = nn.Parameter(torch.zeros(shape))
            weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            Optimizers(make([weight]) if make else adamw([weight], spec, CPU)).step(1e-2)
            moved.append(float(weight.detach().square().mean().sqrt()))
        assert 0.15 < moved[0] / moved[1] < 0.25


def test_only_matrices_decay() -> None:
    """Norm weights are in the group without decay; every parameter is in one group."""
    spec = specs.load("micro")
    model = build_meta(spec)
    matrices, others = adamw(trained(model), spec, CPU).param_groups
    assert {value.dim() for value in matrices["params"]} == {2}
    assert matrices["weight_decay"] == spec.inner.weight_decay
    assert {value.dim() for value in others["params"]} == {1}
    assert others["weight_decay"] == 0
    assert len(matrices["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_an_optimizer_that_does_not_exist_is_one_clear_line() -> None:
    """And so is a momentum."""
    with pytest.raises(BadSpec, match=r"inner\.muon_momentum is 1; it must be between 0 and 0\.9999"):
        muon_spec("llama", LLAMA, muon_momentum=1.0)
    with pytest.raises(BadSpec, match=r"inner\.optimizer is 'muno'"):
        specs.parse(specs.read_text("micro").replace("[inner]", "[inner]\noptimizer = 'muno'"))
