"""What a demo trains on: a GPU that a child has seen compute, or what was asked for, or what its peers choose."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pynvml
import pytest

import tui.processes.device_probe as device_probe
from dht.errors import BadInput, HomefiresError, MemoryFull
from tui.processes.device_probe import (
    FoundDevice,
    count_gpus,
    find_device,
    kernel,
    may_train,
    require_devices,
    share_devices,
)


def computes_on(name: str) -> Callable[[str], str]:
    return lambda wanted: name


def failing(error: HomefiresError) -> Callable[..., str]:
    def fail(*wanted: str) -> str:
        raise error

    return fail


def untouched(wanted: str) -> str:
    raise AssertionError("no child is started")


def yes() -> bool:
    return True


def no() -> bool:
    return False


def test_without_a_gpu_nothing_is_looked_at_and_nothing_is_chosen() -> None:
    assert find_device("auto", no, untouched) == FoundDevice()
    assert find_device("cpu", yes, untouched) == FoundDevice(device="cpu")
    assert not FoundDevice(device="cpu").is_gpu
    assert not FoundDevice().is_gpu


@pytest.mark.parametrize(("told", "device"), [("cuda:0", "cuda"), ("mps", "mps")])
def test_a_gpu_that_computes_is_taken(told: str, device: str) -> None:
    found = find_device("auto", yes, computes_on(told))
    assert found == FoundDevice(device=device)
    assert found.is_gpu


def test_a_gpu_that_torch_does_not_see_is_none() -> None:
    """As behind a driver that is too old."""
    assert find_device("auto", yes, computes_on("cpu")) == FoundDevice()


@pytest.mark.parametrize("error", [BadInput("no kernel image"), MemoryFull("cuda has no room"), HomefiresError("late")])
def test_a_gpu_that_does_not_compute_is_told_and_left_alone(error: HomefiresError) -> None:
    assert find_device("auto", yes, failing(error)) == FoundDevice(device="cpu", note=f"the GPU is not used: {error}")


def test_a_gpu_that_is_asked_for_must_compute_or_be_full() -> None:
    assert find_device("cuda", no, computes_on("cuda:0")) == FoundDevice(device="cuda")
    waiting = find_device("cuda", no, failing(MemoryFull("cuda has no room")))
    assert waiting == FoundDevice(device="cuda", note="the peers wait for room: cuda has no room")
    with pytest.raises(BadInput, match="not here"):
        find_device("mps", no, failing(BadInput("not here")))


def test_of_devices_for_a_peer_that_nobody_watches_each_must_compute_or_be_full() -> None:
    """What is always there takes no child."""
    refused = failing(BadInput("not here"))
    require_devices(("auto",), refused)
    require_devices(("cpu", "cpu"), refused)
    require_devices(("cuda:0",), failing(MemoryFull("cuda has no room")))
    with pytest.raises(BadInput, match="not here"):
        require_devices(("cuda:0", "cuda:1"), refused)


@pytest.mark.outside
def test_a_child_says_which_device_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its last line: a library may have printed something before."""
    child = f"print('loading'); print({json.dumps(json.dumps({'device': 'cuda:0'}))})"
    monkeypatch.setattr(device_probe, "python_module", lambda *words: [sys.executable, "-c", child])
    assert kernel("cuda") == "cuda:0"


def test_ranks_are_on_the_processor_or_have_a_gpu_each() -> None:
    cpu, gpu = FoundDevice(device="cpu"), FoundDevice(device="cuda")
    assert share_devices(FoundDevice(), 2, 1, lambda: 0) == ((), ())
    assert share_devices(gpu, 2, 1, lambda: 1) == (("cuda",), ("cuda",))
    assert share_devices(cpu, 1, 3, lambda: 8) == share_devices(FoundDevice(), 1, 3, lambda: 0) == (("cpu",) * 3,)
    assert share_devices(gpu, 2, 2, lambda: 4) == (("cuda:0", "cuda:1"), ("cuda:2", "cuda:3"))
    with pytest.raises(BadInput, match=r"^--ranks 2 of --peers 2 take 4 GPUs, and 3 can be had: add --devices cpu$"):
        share_devices(gpu, 2, 2, lambda: 3)


@pytest.mark.outside
def test_gpus_are_counted_by_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.dumps({"devices": [{"device": name} for name in ("cuda:0", "cuda:1", "cpu")]})
    monkeypatch.setattr(device_probe, "python_module", lambda *words: [sys.executable, "-c", f"print({rows!r})"])
    assert count_gpus() == 2


@pytest.mark.outside
def test_the_real_child_refuses_a_device_that_is_not_there() -> None:
    with pytest.raises(BadInput, match=r"^settings\.devices is 'cuda:99', and cuda:99 does not work here"):
        kernel("cuda:99")


@pytest.mark.parametrize(
    ("torch", "cards", "may"),
    [("2.13.0", 1, True), ("2.13.0+cu130", 2, True), ("2.13.0+cpu", 1, False), ("2.13.0", 0, False)],
)
def test_a_gpu_may_train_where_torch_was_built_for_it(
    torch: str, cards: int, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_probe.sys, "platform", "linux")
    monkeypatch.setattr(device_probe, "version", lambda name: torch)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: cards)
    assert may_train() == may


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(device_probe, "version", lambda name: "2.13.0")
    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert not may_train()


@pytest.mark.parametrize(("machine", "may"), [("arm64", True), ("x86_64", False)])
def test_a_mac_may_train_on_its_own_chip(machine: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probe.sys, "platform", "darwin")
    monkeypatch.setattr(device_probe.platform, "machine", lambda: machine)
    assert may_train() == may


def test_an_amd_card_is_looked_for_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library here knows whether there is one."""
    monkeypatch.setattr(device_probe, "version", lambda package: "2.9.0+rocm6.4")
    assert may_train()
