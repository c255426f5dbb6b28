"""Parameters as one flat vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peer.schema import spec as specs
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters, layer_name


@pytest.fixture
def model() -> nn.Module:
    return build(specs.load("micro"))


def test_layers_cover_the_vector_in_model_order(model: nn.Module) -> None:
    """Embedding, blocks, final norm; contiguous; the tied head is not counted twice."""
    flat = FlatParameters(model)
    assert [layer.name for layer in flat.layers] == [
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
        "model.norm",
    ]
    ends = [layer.start + layer.size for layer in flat.layers]
    assert [layer.start for layer in flat.layers] == [0, *ends[:-1]]
    assert ends[-1] == flat.size == sum(value.numel() for value in model.parameters())


def test_values_survive_the_round_trip(model: nn.Module) -> None:
    """Out, changed, in again."""
    flat = FlatParameters(model)
    vector = flat.new()
    flat.copy_from(vector * 2)
    assert torch.equal(flat.new(), vector * 2)
    assert torch.equal(model.get_parameter("model.embed_tokens.weight").flatten()[:9], (vector * 2)[:9])


def test_other_dtypes_are_rounded_and_widened(model: nn.Module) -> None:
    """A bfloat16 model takes float32 vectors and gives them."""
    flat = FlatParameters(model.to(torch.bfloat16))
    vector = torch.linspace(-1, 1, flat.size)
    flat.copy_from(vector)
    assert torch.equal(flat.new(), vector.bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_changed_in_place_and_a_backward_pass_notices(model: nn.Module, dtype: torch.dtype) -> None:
    """Where the values are the parameter's own memory, too."""
    flat = FlatParameters(model.to(dtype))
    (number,) = (at for at, layer in enumerate(flat.layers) if layer.name == "model.norm")
    norm = model.get_parameter("model.norm.weight")
    loss = (norm * norm).sum()
    ((where, values),) = flat.of_layer(number)
    assert (where.start, where.stop) == (0, norm.numel())
    values.copy_(torch.full_like(values, 0.5))
    assert bool((norm == 0.5).all())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_frozen_parameters_are_left_out(model: nn.Module) -> None:
    """Only what is trained is averaged."""
    whole = FlatParameters(model).size
    norm = model.get_parameter("model.norm.weight").requires_grad_(False)
    assert FlatParameters(model).size == whole - norm.numel()


def test_a_vector_of_another_model_is_refused(model: nn.Module) -> None:
    """A wrong size is our mistake, caught where it happens."""
    flat = FlatParameters(model)
    with pytest.raises(AssertionError, match="flat vector has shape"):
        flat.copy_from(torch.zeros(flat.size + 1))


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("transformer.h.11.attn.c_attn.weight", "transformer.h.11"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", "model.layers.3"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
    ],
)
def test_layers_are_blocks_or_modules_outside(parameter: str, layer: str) -> None:
    """The first number in a name is the block's."""
    assert layer_name(parameter) == layer
