"""What a GPU tells of itself is said as it is; what it does not tell is None, and never an error."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.node.host.gpu import Gpus, device_gb, gpus_in_use, memories_bytes


class Nvml:
    """In the place of pynvml: a GPU that tells everything but what is in `silent`."""

    NVML_TEMPERATURE_GPU = 0
    nvmlClocksEventReasonGpuIdle = 0x01
    nvmlClocksEventReasonApplicationsClocksSetting = 0x02
    nvmlClocksEventReasonSwPowerCap = 0x04
    nvmlClocksEventReasonHwSlowdown = 0x08
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    class NVMLError(Exception):
        pass

    def __init__(self, *silent: str, reasons: int = 0) -> None:
        self.silent, self.reasons = silent, reasons
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit": None, "nvmlDeviceGetHandleByUUID": "handle", "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3 << 30, total=80 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97), "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPowerUsage": 312_500, "nvmlDeviceGetEnforcedPowerLimit": 350_000,
            "nvmlDeviceGetFanSpeed": 40, "nvmlDeviceGetCurrentClocksEventReasons": self.reasons,
        }  # fmt: skip

        def ask(*words: object) -> Any:
            self.calls.append(name)
            if name in self.silent:
                raise self.NVMLError(name)
            return answers[name]

        return ask


ONE = {"cuda:0": "GPU-1"}
ALL = {
    "gpu_percent": 97.0, "vram_used_bytes": 3 << 30, "vram_bytes": 80 << 30, "temperature_c": 61.0, "power_w": 312.5,
    "power_limit_w": 350.0, "fan_percent": 40.0, "throttled": "",
}  # fmt: skip


def test_a_gpu_tells_everything() -> None:
    assert Gpus(lambda: ONE, Nvml()).figures() == ALL


@pytest.mark.parametrize(
    ("silent", "fields"),
    [
        ("nvmlDeviceGetUtilizationRates", {"gpu_percent"}),
        ("nvmlDeviceGetMemoryInfo", {"vram_used_bytes", "vram_bytes"}),
        ("nvmlDeviceGetTemperature", {"temperature_c"}),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}),
        ("nvmlDeviceGetFanSpeed", {"fan_percent"}),
        ("nvmlDeviceGetCurrentClocksEventReasons", set()),
    ],
)
def test_what_the_driver_does_not_tell_is_none_and_the_rest_is_there(silent: str, fields: set[str]) -> None:
    assert Gpus(lambda: ONE, Nvml(silent)).figures() == ALL | dict.fromkeys(fields)


@pytest.mark.parametrize("silent", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_refuses_is_not_asked_again(silent: str) -> None:
    nvml = Nvml(silent)
    gpu = Gpus(lambda: ONE, nvml)
    assert gpu.figures() == gpu.figures() == {}
    assert nvml.calls.count(silent) == 1


class TwoCards(Nvml):
    """The second is hotter and fuller, and draws less."""

    def __getattr__(self, name: str) -> Any:
        first = super().__getattr__(name)
        second = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=20 << 30, total=24 << 30), "nvmlDeviceGetTemperature": 83,
            "nvmlDeviceGetPowerUsage": 150_000, "nvmlDeviceGetEnforcedPowerLimit": 160_000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
        }  # fmt: skip

        def ask(*words: object) -> Any:
            if name == "nvmlDeviceGetHandleByUUID":
                return words[0]
            return second[name] if words[:1] == ("GPU-2",) and name in second else first(*words)

        return ask


def test_of_several_gpus_the_worst_counts_and_each_is_told() -> None:
    """A limit of power holds for each card by itself: nothing is added up."""
    figures = Gpus(lambda: {"cuda:0": "GPU-1", "cuda:1": "GPU-2"}, TwoCards()).figures()
    second = ALL | {
        "gpu_percent": 40.0, "vram_used_bytes": 20 << 30, "vram_bytes": 24 << 30, "temperature_c": 83.0,
        "power_w": 150.0, "power_limit_w": 160.0,
    }  # fmt: skip
    assert figures.pop("gpus") == [{"device": "cuda:0", **ALL}, {"device": "cuda:1", **second}]
    assert figures == ALL | {"temperature_c": 83.0, "vram_used_bytes": 20 << 30, "vram_bytes": 24 << 30}


def test_what_no_card_tells_is_none() -> None:
    silent = TwoCards("nvmlDeviceGetFanSpeed")
    figures = Gpus(lambda: {"cuda:0": "GPU-1", "cuda:1": "GPU-2"}, silent).figures()
    assert figures["fan_percent"] is None


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (("auto",), {"cuda:0": "GPU-a", "cuda:1": "GPU-b", "cuda:2": "GPU-c"}),
        (("cuda", "cuda:2"), {"cuda:0": "GPU-a", "cuda:2": "GPU-c"}),
        (("cuda:2",), {"cuda:2": "GPU-c"}), ((), {"cuda:1": "GPU-b"}),
    ],
)  # fmt: skip
def test_gpus_are_those_that_were_chosen(
    devices: tuple[str, ...], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the one that holds tensors of this process; those of a rank are another's."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 3)
    monkeypatch.setattr(cuda, "memory_reserved", lambda index: index == 1)
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="abc"[index]))
    assert gpus_in_use(devices) == found


def test_without_a_gpu_no_driver_is_asked() -> None:
    nvml = Nvml()
    assert Gpus(lambda: {}, nvml).figures() == {}
    assert nvml.calls == []


def test_of_its_memory_there_is_a_figure_for_others() -> None:
    assert device_gb(Gpus(lambda: ONE, Nvml())) == 85.9
    assert device_gb(Gpus(lambda: ONE, Nvml("nvmlDeviceGetMemoryInfo"))) is None
    assert device_gb(Gpus(lambda: {}, Nvml())) is None


def test_a_gpu_is_found_once_the_model_is_on_it() -> None:
    uuids = iter([{}, ONE])
    gpu = Gpus(lambda: next(uuids), Nvml())
    assert gpu.figures() == {}
    assert gpu.figures() == gpu.figures() == ALL


@pytest.mark.parametrize(
    ("reasons", "words"),
    [(0x01, ""), (0x02, ""), (0x04, "power limit"), (0x60, "too hot"), (0x84, "power limit, power supply")],
)
def test_throttling_is_told_in_words(reasons: int, words: str) -> None:
    """Being idle, or set to other clocks, is none."""
    assert Gpus(lambda: ONE, Nvml(reasons=reasons)).figures()["throttled"] == words


def test_the_real_driver_or_none_at_all_is_no_error() -> None:
    """A GPU that is not there, of the real library where that finds a driver and where it does not."""
    assert Gpus(lambda: {"cuda:0": "GPU-00000000-0000-0000-0000-000000000000"}).figures() == {}


@pytest.mark.parametrize(("silent", "found"), [((), (80 << 30, 80 << 30)), (("nvmlInit",), ())])
def test_all_gpus_tell_what_memory_they_have(
    monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...], found: tuple[int, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*silent))
    assert memories_bytes() == found


def test_of_amds_cards_torch_tells_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML knows none of them."""
    monkeypatch.setattr("peer.node.host.gpu.version", lambda package: "2.9.0+rocm6.4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 << 30, 24 << 30))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=24 << 30))
    gpus = Gpus(lambda: ONE, Nvml("nvmlInit"))
    silent = dict.fromkeys(ALL) | {"throttled": ""}
    assert gpus.figures() == silent | {"vram_used_bytes": 4 << 30, "vram_bytes": 24 << 30}
    assert device_gb(gpus) == 25.77
    assert memories_bytes() == (24 << 30,)
