"""A device that is full is not one that does not work, and one that has failed is neither."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch

from dht.errors import BadInput, DeviceLost, MemoryFull
from peer.node.host.device import (
    choose_device,
    choose_devices,
    free_bytes,
    is_lost,
    is_out_of_memory,
    raising_device_lost,
    short_word,
    total_bytes,
)
from peer.node.host.unused_card import UnusedCard

CUDA = torch.device("cuda:1")
FULL = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def answering(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whatever is asked of a GPU ends so."""
    real = torch.ones

    def ones(*size: Any, device: Any) -> torch.Tensor:
        if str(device).startswith("cuda"):
            raise error
        return real(*size, device=device)

    monkeypatch.setattr(torch, "ones", ones)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize("error", [FULL, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")])
def test_a_gpu_without_room_for_a_kernel_is_full(
    wanted: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it ends where not even the driver's context finds room."""
    answering(monkeypatch, error)
    with pytest.raises(MemoryFull, match=r"^cuda has no room .*close other programs, or join with --devices cpu$"):
        choose_device(wanted)


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_that_does_not_work_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, RuntimeError("CUDA error: no kernel image is available\nand more"))
    with pytest.raises(BadInput, match=r"cuda does not work here \(CUDA error: no kernel image.*\); use cpu$"):
        choose_device()


def test_who_wants_cuda_hears_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    card = UnusedCard(found="an NVIDIA card is here, and its driver is not loaded", fix="install the driver")
    monkeypatch.setattr("peer.node.host.device.find_unused", lambda cuda: card)
    answering(monkeypatch, AssertionError("Torch not compiled with CUDA enabled"))
    with pytest.raises(BadInput, match=r"its driver is not loaded: install the driver, or use auto or cpu$"):
        choose_device("cuda")


def test_a_driver_without_memory_for_itself_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` does not train on the processor for that."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    answering(monkeypatch, RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 2: out of memory"))
    with pytest.raises(MemoryFull):
        choose_device()
    answering(monkeypatch, RuntimeError("Found no NVIDIA driver on your system"))
    assert choose_device().type in ("cpu", "mps")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: the launch timed out and was terminated",
        "CUDA error: driver shutting down",
        "CUDA error: no CUDA-capable device is detected",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: unknown error",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`",
    ],
)
def test_errors_that_no_retry_mends(text: str) -> None:
    for error in (RuntimeError(text), torch.AcceleratorError(f"{text}\nFor debugging consider passing")):
        assert is_lost(error)
        assert not is_out_of_memory(error)
        with pytest.raises(DeviceLost) as caught, raising_device_lost(CUDA):
            raise error
        assert str(caught.value).startswith(f"cuda:1 has failed ({text}); restart the machine")
        assert str(caught.value).isprintable()
        assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [FULL, RuntimeError("CUDA error: invalid argument"), ValueError("CUDA error: unspecified launch failure")],
)
def test_errors_that_are_raised_as_they_are(error: Exception) -> None:
    def fail() -> NoReturn:
        raise error

    assert not is_lost(error)
    with pytest.raises(type(error)) as caught, raising_device_lost(CUDA):
        fail()
    assert caught.value is error


def test_the_processor_does_not_tell_its_memory() -> None:
    """What others use of it changes all the time."""
    assert free_bytes(torch.device("cpu")) == total_bytes(torch.device("cpu")) == 0


@pytest.fixture
def two_gpus(a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compute."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "ones", lambda *size, device: OnCard(device))


class OnCard:
    """A number that lies on a card, and so says on which."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", device.index or 0)

    def add(self, other: int) -> torch.Tensor:
        return torch.zeros(()).add(other)


@pytest.mark.usefixtures("two_gpus")
def test_auto_takes_every_gpu_and_names_are_taken_in_their_order() -> None:
    assert [str(device) for device in choose_devices()] == ["cuda:0", "cuda:1"]
    assert [str(device) for device in choose_devices(("cuda:1", "cuda:0"))] == ["cuda:1", "cuda:0"]
    assert [str(device) for device in choose_devices(("cuda",))] == ["cuda:0"], "as tensors call it"


@pytest.mark.usefixtures("two_gpus")
def test_one_gpu_is_called_as_its_tensors_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [str(device) for device in choose_devices()] == ["cuda:0"]


@pytest.mark.usefixtures("two_gpus")
def test_a_second_gpu_that_does_not_compute_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*size: Any, device: Any) -> OnCard:
        if str(device) == "cuda:1":
            raise RuntimeError("CUDA error: no kernel image is available")
        return OnCard(device)

    monkeypatch.setattr(torch, "ones", ones)
    said = r"^settings\.devices is 'auto', and cuda:1 does not work here .*; name the others, or use cpu$"
    with pytest.raises(BadInput, match=said):
        choose_devices()
    with pytest.raises(BadInput, match=r"^settings\.devices is 'cuda:1', and cuda:1 does not work here"):
        choose_devices(("cuda:0", "cuda:1"))


def test_the_processor_is_as_many_ranks_as_it_is_named() -> None:
    assert choose_devices(("cpu",) * 3) == (torch.device("cpu"),) * 3


@pytest.mark.parametrize(
    ("devices", "word"),
    [
        (("cpu",), "cpu"), (("cuda",), "cuda"), (("cuda:1",), "cuda:1"), (("cpu", "cpu"), "2 × cpu"),
        (("cuda", "cuda:1"), "cuda:0+1"), (("cuda:1", "cuda:3"), "cuda:1+3"),
        (("cuda:0", "cuda:1", "cuda:2"), "3 × cuda"), (("cpu",) * 16, "16 × cpu"),
    ],
)  # fmt: skip
def test_a_short_word_fits_into_a_column(devices: tuple[str, ...], word: str) -> None:
    assert short_word(devices) == word
    assert len(word) <= 8
