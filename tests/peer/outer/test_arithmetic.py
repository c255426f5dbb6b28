"""The arithmetic of a round gives the bits that it gave in numpy, on every device and with any number of threads.

`tests/golden/arithmetic.json` was written by the numpy arithmetic before it left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.codec import Codec
from peer.outer import arithmetic
from peer.outer.arithmetic import device_for, results
from peer.outer.kernels import CPU, PartUpdate, TorchKernels
from peer.outer.layer_tensors import LayerTensors, Origin
from peer.protocol.layout import Part
from tests.drawn_layers import WIRES, DrawnLayer, drawn_layer

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "arithmetic.json").read_text())
LAYERS = 2000
THREADS = (1, 2, 7)
APPLIED = {
    "apply counted": dict(outer=(0.7, 0.9), mean=True, mine=True),
    "apply missed": dict(outer=(0.7, 0.9), mean=True, kept=0.75),
    "apply void": dict(outer=(0.7, 0.9), kept=0.5),
    "apply rolled back": dict(outer=None),
    "apply too old": dict(outer=(0.7, 0.0), mean=True, kept=0.5, gives_up=True),
    "apply interpolated": dict(outer=(0.7, 0.9), mean=True, mine=True, own=0.5),
}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many torch may take."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", GOLDEN)
def test_bits_are_those_of_numpy(operation: str, device: str, threads: Callable[[int], None]) -> None:
    """Of layers of every kind: plain, denormal, huge, of mixed sizes, mostly zeros of both signs, infinite, equal."""
    found = blake3()
    for number in range(LAYERS):
        threads(THREADS[number % len(THREADS)])
        drawn = drawn_layer(number)
        layer, now = on_device(drawn, torch.device(device))
        kernels, part = TorchKernels(drawn.codec, torch.device(device)), Part(0, 0, len(drawn.now))
        if operation == "encode":
            found.update(kernels.encode(layer, part))
            continue
        do(kernels, operation, layer, part, drawn)
        kernels.keep_start(layer)
        for vector in (layer.theta, layer.momentum, layer.residual, now, layer.kept):
            found.update(octets(vector))
    assert found.hexdigest() == GOLDEN[operation]


def do(kernels: TorchKernels, operation: str, layer: LayerTensors, part: Part, drawn: DrawnLayer) -> None:
    if operation in APPLIED:
        kernels.apply(layer, [update(part, drawn, **APPLIED[operation])])
    elif operation in {"progress", "begin"}:
        getattr(kernels, operation)(layer)
    elif operation == "give_up":
        kernels.give_up(layer, part)
    else:
        getattr(kernels, operation)(layer, part, drawn.mine)


def update(
    part: Part, drawn: DrawnLayer, *, outer: tuple[float, float] | None, mean: bool = False, mine: bool = False,
    kept: float | None = None, gives_up: bool = False, own: float | None = None,
) -> PartUpdate:  # fmt: skip
    return PartUpdate(
        part=part, outer=outer, mean=drawn.mean if mean else None, mine=drawn.mine if mine else None, kept=kept,
        gives_up=gives_up, own=own,
    )  # fmt: skip


def on_device(drawn: DrawnLayer, device: torch.device) -> tuple[LayerTensors, Tensor]:
    """The layer, and its parameters."""
    theta, momentum, residual, start, now = (
        torch.from_numpy(vector).to(device, copy=True)
        for vector in (drawn.theta, drawn.momentum, drawn.residual, drawn.start, drawn.now)
    )
    local = ((slice(0, drawn.cut), now[: drawn.cut]), (slice(drawn.cut, len(now)), now[drawn.cut :]))
    layer = LayerTensors(first=0, local=local, residual=residual, theta=theta, momentum=momentum)
    layer.room_for_start().copy_(start)
    layer.start = Origin.KEPT
    return layer, now


def octets(vector: Tensor) -> bytes:
    """Its bits; any two NaN are alike."""
    values = vector.cpu().numpy().copy()
    bits = values.view(np.uint32)
    bits[np.isnan(values)] = 0x7FC00000
    return bits.tobytes()


@pytest.mark.parametrize("wire", WIRES)
def test_a_large_layer_has_the_same_bits_with_any_number_of_threads(wire: str, threads: Callable[[int], None]) -> None:
    """Also where torch would share an operation out among them."""
    found = set()
    for count in THREADS:
        threads(count)
        found.add(
            b"".join(
                octets(each) if each.is_floating_point() else each.numpy().tobytes()
                for each in results(CPU, Codec(wire))
            )
        )
    assert len(found) == 1


@pytest.mark.cuda
@pytest.mark.parametrize("wire", WIRES)
def test_a_gpu_does_the_arithmetic(wire: str) -> None:
    assert device_for(torch.device("cuda"), Codec(wire)).type == "cuda"


def test_a_device_with_other_bits_leaves_the_arithmetic_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that flushes denormals, here: nothing but the last bits of the least numbers differs."""
    honest = arithmetic.results

    def flushing(device: torch.device, codec: Codec) -> list[Tensor]:
        made = honest(CPU, codec)
        if device == CPU:
            return made
        return [each.where(each.abs() >= 2**-126, 0.0) if each.is_floating_point() else each for each in made]

    monkeypatch.setattr(arithmetic, "results", flushing)
    assert device_for(torch.device("meta"), Codec("int4")) == CPU
    monkeypatch.setattr(arithmetic, "results", lambda device, codec: honest(CPU, codec))
    assert device_for(torch.device("meta", 0), Codec("int4")) == torch.device("meta", 0)
