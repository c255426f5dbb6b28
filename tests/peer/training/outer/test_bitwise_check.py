"""The arithmetic of a round gives the bits that it gave in numpy, on every device and with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.training.outer import bitwise_check
from peer.training.outer.bitwise_check import device_for, results
from peer.training.outer.kernels import CPU
from tests.drawn_layers import WIRES
from tests.golden_bits import GOLDEN, THREADS, digest_of, octets


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many torch may take."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.cuda)]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", GOLDEN)
def test_bits_are_those_of_numpy(operation: str, device: str, threads: Callable[[int], None]) -> None:
    """Of layers of every kind: plain, denormal, huge, of mixed sizes, mostly zeros of both signs, infinite, equal."""
    assert digest_of(operation, torch.device(device), threads) == GOLDEN[operation]


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
    assert device_for(torch.device("cuda:0"), Codec(wire)).type == "cuda"


def test_a_device_with_other_bits_leaves_the_arithmetic_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that flushes denormals, here: nothing but the last bits of the least numbers differs."""
    honest = bitwise_check.results

    def flushing(device: torch.device, codec: Codec) -> list[Tensor]:
        made = honest(CPU, codec)
        if device == CPU:
            return made
        return [each.where(each.abs() >= 2**-126, 0.0) if each.is_floating_point() else each for each in made]

    monkeypatch.setattr(bitwise_check, "results", flushing)
    assert device_for(torch.device("meta"), Codec("int4")) == CPU
    monkeypatch.setattr(bitwise_check, "results", lambda device, codec: honest(CPU, codec))
    assert device_for(torch.device("meta", 0), Codec("int4")) == torch.device("meta", 0)


@pytest.mark.parametrize("error", [TypeError("no float64 here"), NotImplementedError("aten::topk")])
def test_a_device_that_lacks_an_operation_leaves_it_to_the_processor_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MPS may; of a card such an error is one of ours."""

    def lacking(device: torch.device, codec: Codec) -> list[Tensor]:
        raise error

    monkeypatch.setattr(bitwise_check, "results", lacking)
    assert device_for.__wrapped__(torch.device("mps:0"), Codec("int4")) == CPU
    with pytest.raises(type(error)):
        device_for.__wrapped__(torch.device("cuda:0"), Codec("int4"))
