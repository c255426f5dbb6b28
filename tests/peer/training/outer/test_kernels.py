"""Nothing a peer produced is lost or counted twice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.torch_codec import TorchCodec
from peer.consensus.protocol.layout import Part
from peer.training.outer import copy_stream, kernels, outer_step
from peer.training.outer.kernels import TorchKernels
from peer.training.outer.layer_tensors import LayerTensors, Origin
from tests.drawn_layers import WIRES
from tests.fake_cuda import CARD, fake_cuda

SIZE = 6
FIRST = 100
"""Where the layer begins in its model."""
HALF = Part(layer=2, start=FIRST, size=3), Part(layer=2, start=FIRST + 3, size=3)
EXACT = Codec("float32")
integers = st.lists(st.integers(-1000, 1000), min_size=SIZE, max_size=SIZE)
operation = st.one_of(
    st.tuples(st.just("produce"), integers),
    st.tuples(st.sampled_from(["counted", "give_up"]), st.sampled_from(HALF), integers),
)


def a_layer(residual: Tensor, now: Tensor | None = None, start: Tensor | None = None) -> LayerTensors:
    """At an anchor of zeros, of two parameters."""
    zeros = torch.zeros_like(residual)
    now = zeros.clone() if now is None else now
    cut = len(now) // 3
    layer = LayerTensors(
        first=FIRST, local=((slice(0, cut), now[:cut]), (slice(cut, len(now)), now[cut:])), residual=residual,
        theta=zeros.clone(), momentum=zeros.clone(),
    )  # fmt: skip
    began(layer, zeros if start is None else start)
    return layer


def began(layer: LayerTensors, start: Tensor) -> None:
    """The present stretch of inner steps, there."""
    layer.room_for_start().copy_(start)
    layer.start = Origin.KEPT


def encoded(values: Tensor) -> bytes:
    return EXACT.encode(values.numpy().astype(np.float32))


@given(st.lists(operation, max_size=12))
def test_the_residual_equals_exact_bookkeeping(operations: list[tuple[object, ...]]) -> None:
    """Produced − counted, less what was given up: exact in float32 for small integers."""
    layer, exact, arithmetic = a_layer(torch.zeros(SIZE)), [Fraction(0)] * SIZE, TorchKernels(EXACT)
    for name, *arguments in operations:
        if name == "produce":
            began(layer, torch.tensor(arguments[0], dtype=torch.float32))
            arithmetic.progress(layer)
            exact = [have + value for have, value in zip(exact, arguments[0], strict=True)]
            continue
        part, values = arguments
        here = layer.of(part)
        counted = name == "counted"
        if counted:
            arithmetic.counted(layer, part, encoded(torch.tensor(values, dtype=torch.float32)[here]))
        else:
            arithmetic.give_up(layer, part)
        for index in range(SIZE)[here]:
            exact[index] = exact[index] - values[index] if counted else Fraction(0)
    assert layer.residual.tolist() == exact


def test_what_the_encoding_lost_is_offered_again() -> None:
    """Error feedback: over many rounds the counted sum follows the produced sum."""
    layer, counted, arithmetic = a_layer(torch.zeros(3)), torch.zeros(3), TorchKernels(EXACT)
    step = torch.tensor([0.3, -1.7, 1e-4])
    for _ in range(1000):
        began(layer, step)
        arithmetic.progress(layer)
        decoded = layer.residual.round()
        arithmetic.counted(layer, HALF[0], encoded(decoded))
        counted += decoded
    assert torch.allclose(counted + layer.residual, step * 1000, rtol=1e-4)
    assert bool((layer.residual.abs() <= 0.5).all())


def test_a_small_move_of_a_large_parameter_is_kept() -> None:
    """The difference is taken before it is added, so 2^-20 of a parameter of size 1 survives."""
    layer = a_layer(torch.full((1,), 2.0**-30), torch.ones(1) - 2.0**-20, torch.ones(1))
    TorchKernels(EXACT).progress(layer)
    assert layer.residual.item() == 2.0**-20 + 2.0**-30


def test_a_part_that_is_given_up_reports_its_norm() -> None:
    """The other part is untouched."""
    layer = a_layer(torch.tensor([3.0, 4.0, 0.0, 7.0, 8.0, 9.0]))
    assert TorchKernels(EXACT).give_up(layer, HALF[0]) == pytest.approx(5.0)
    assert layer.residual.tolist() == [0.0, 0.0, 0.0, 7.0, 8.0, 9.0]


def test_what_is_counted_reports_its_squared_norm() -> None:
    layer = a_layer(torch.ones(SIZE))
    assert TorchKernels(EXACT).counted(layer, HALF[1], encoded(torch.tensor([1.0, 2.0, 2.0]))) == pytest.approx(9.0)
    assert layer.residual.tolist() == [1.0, 1.0, 1.0, 0.0, -1.0, -1.0]


def test_steps_begin_at_the_anchor_less_what_is_owed() -> None:
    """Its parameters lie in two tensors; where steps begin follows from the anchor, until that changes."""
    layer, arithmetic = a_layer(torch.arange(6.0), torch.full((6,), 9.0)), TorchKernels(EXACT)
    layer.theta.fill_(10.0)
    arithmetic.begin(layer)
    assert torch.cat([values for _, values in layer.local]).tolist() == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]
    assert layer.start is Origin.AT_ANCHOR
    arithmetic.keep_start(layer)
    assert layer.kept.tolist() == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_pass_notices_that_a_parameter_was_changed(dtype: torch.dtype) -> None:
    """Where the values are the parameter's own memory, too."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    loss = (parameter * parameter).sum()
    layer = a_layer(torch.zeros(3), parameter.detach().view(-1))
    update = kernels.PartUpdate(part=HALF[0], outer=None, mean=None, mine=None, kept=None, gives_up=False, own=None)
    TorchKernels(EXACT).apply(layer, [update])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size of them gives the same bits."""
    start, now = torch.linspace(0, 1, 101), torch.linspace(1, 3, 101)
    at_once, tiled = a_layer(torch.zeros(101), now, start), a_layer(torch.zeros(101), now, start)
    TorchKernels(EXACT).progress(at_once)
    monkeypatch.setattr(outer_step, "TILE", 7)
    TorchKernels(EXACT).progress(tiled)
    assert torch.equal(at_once.residual, tiled.residual)
    assert tiled.start is Origin.AT_PARAMETERS, "what comes next is measured from here"


@pytest.mark.parametrize("wire", WIRES)
def test_no_tile_is_decoded_while_the_host_waits(wire: str) -> None:
    """A card would stand still in between."""
    values = torch.randn(3 * 4096, generator=torch.Generator().manual_seed(0))
    codec = Codec(wire)
    for kind in (codec, codec.of_means):
        with fake_cuda() as cuda:
            octets = copy_stream.octets_on(kind.encode(values.numpy()), CARD)
            decode, buffer = TorchCodec(kind).opened(octets), torch.empty(4096, device=CARD)
            before = len(cuda.waits)
            for first in range(0, len(values), 4096):
                decode(slice(first, first + 4096), buffer)
            assert cuda.waits[before:] == []
            assert not cuda.mixed
