"""The GPU, as NVML tells of it: figures while it trains, its memory, its power limit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_THROTTLED = {
    "SwPowerCap": "power limit",
    "HwPowerBrakeSlowdown": "power supply",
    "SwThermalSlowdown": "too hot",
    "HwThermalSlowdown": "too hot",
    "HwSlowdown": "hardware",
}
"""By the name of NVML's bit, after nvmlClocksEventReason. To be idle or set to other clocks is not to be throttled."""


class Gpu:
    """The GPU on which this process trains, as NVML sees it. `find` gives the UUID of that GPU, None without one."""

    def __init__(self, find: Callable[[], str | None] | None = None, nvml: Any = None) -> None:
        self._find, self._nvml = find or gpu_in_use, nvml
        self._handle: Any = None
        self._is_lost = False

    def figures(self) -> dict[str, Any]:
        """The fields of DeviceMeasured about a GPU; empty without one."""
        if self._handle is None and not self._open():
            return {}
        nvml, handle = self._nvml, self._handle
        memory = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return {
            "gpu_percent": self._told(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "vram_used_bytes": None if memory is None else int(memory.used),
            "vram_bytes": None if memory is None else int(memory.total),
            "temperature_c": self._told(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            "power_w": self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "power_limit_w": self._told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "fan_percent": self._told(lambda: float(nvml.nvmlDeviceGetFanSpeed(handle))),
            "throttled": self._throttled(),
        }

    def _open(self) -> bool:
        """Whether there is such a GPU; a driver that refuses once is not asked again."""
        uuid = None if self._is_lost else self._find()
        if uuid is None:
            return False
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:
            self._is_lost = True
        return not self._is_lost

    def _told(self, ask: Callable[[], Any]) -> Any:
        """What the driver answers; None for what this GPU does not tell."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

    def _throttled(self) -> str:
        bits = self._told(lambda: self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)) or 0
        reasons = [
            words for name, words in _THROTTLED.items() if bits & getattr(self._nvml, f"nvmlClocksEventReason{name}")
        ]
        return ", ".join(dict.fromkeys(reasons))


def device_gb(gpu: Gpu | None = None) -> float | None:
    """Memory of the GPU on which this process trains, in 10⁹ bytes; None without one, or where it does not tell."""
    whole = (gpu or Gpu()).figures().get("vram_bytes")
    return None if whole is None else round(whole / 1e9, 2)


def gpu_in_use() -> str | None:
    """The UUID, as NVML writes it, of the CUDA device that holds this process's tensors; None before there are any."""
    if "torch" not in sys.modules:
        return None
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    index = max(range(torch.cuda.device_count()), key=torch.cuda.memory_reserved)
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def power_limit_w() -> float | None:
    """What the first GPU may draw at most, as NVML tells; None where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        limit_mw = pynvml.nvmlDeviceGetEnforcedPowerLimit(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    return float(limit_mw) / 1000
