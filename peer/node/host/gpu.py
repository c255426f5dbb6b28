"""GPUs as NVML reports them: figures while they train, their memory, their power limit.

AMD's cards have no NVML: torch reports their memory, and nothing reports the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

_THROTTLED = {
    "SwPowerCap": "power limit",
    "HwPowerBrakeSlowdown": "power supply",
    "SwThermalSlowdown": "too hot",
    "HwThermalSlowdown": "too hot",
    "HwSlowdown": "hardware",
}
"""By the name of NVML's bit, after nvmlClocksEventReason. To be idle or set to other clocks is not to be throttled."""


class Gpus:
    """The GPUs on which a peer trains, as NVML sees them. `find` gives UUIDs by torch's names, none without a GPU."""

    def __init__(self, find: Callable[[], Mapping[str, str]] | None = None, nvml: Any = None) -> None:
        self._find, self._nvml = find or gpus_in_use, nvml
        self._handles: dict[str, Any] = {}
        self._is_lost = False

    def figures(self) -> dict[str, Any]:
        """The fields of DeviceMeasured about GPUs; empty without one."""
        if not self._handles and not self._open():
            return {}
        each = {name: self._figures(handle) for name, handle in self._handles.items()}
        if len(each) == 1:
            return next(iter(each.values()))
        return worst_of(list(each.values())) | {"gpus": [{"device": name, **row} for name, row in each.items()]}

    def _figures(self, handle: Any) -> dict[str, Any]:
        if is_rocm():
            return _torch_figures(handle)
        nvml = self._nvml
        memory = self._query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return {
            "gpu_percent": self._query(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "vram_used_bytes": None if memory is None else int(memory.used),
            "vram_bytes": None if memory is None else int(memory.total),
            "temperature_c": self._query(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            "power_w": self._query(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "power_limit_w": self._query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "fan_percent": self._query(lambda: float(nvml.nvmlDeviceGetFanSpeed(handle))),
            "throttled": self._throttled(handle),
        }

    def _open(self) -> bool:
        """Whether there are such GPUs; a driver that refuses once is not asked again."""
        uuids = {} if self._is_lost else self._find()
        if not uuids:
            return False
        if is_rocm():
            self._handles = {name: name for name in uuids}
            return True
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
            self._handles = {name: self._nvml.nvmlDeviceGetHandleByUUID(uuid) for name, uuid in uuids.items()}
        except self._nvml.NVMLError:
            self._is_lost = True
        return not self._is_lost

    def _query(self, ask: Callable[[], Any]) -> Any:
        """The driver's answer; None for what this GPU does not report."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

    def _throttled(self, handle: Any) -> str:
        bits = self._query(lambda: self._nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        reasons = [
            words for name, words in _THROTTLED.items() if bits & getattr(self._nvml, f"nvmlClocksEventReason{name}")
        ]
        return ", ".join(dict.fromkeys(reasons))


def is_rocm() -> bool:
    """Whether torch was built for AMD's cards, which it calls `cuda`, too; asked without loading it."""
    return "+rocm" in version("torch")


def _torch_figures(name: str) -> dict[str, Any]:
    import torch

    free, whole = torch.cuda.mem_get_info(name)
    silent = ("gpu_percent", "temperature_c", "power_w", "power_limit_w", "fan_percent")
    return dict.fromkeys(silent) | {"vram_used_bytes": whole - free, "vram_bytes": whole, "throttled": ""}


def worst_of(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each figure of that GPU which is nearest to its limit, since a limit holds for every GPU by itself."""
    fullest = min(gpus, key=_free_bytes)
    drawing = max(gpus, key=lambda gpu: gpu["power_w"] or 0.0)
    return {
        "gpu_percent": _most(gpus, "gpu_percent"),
        "vram_used_bytes": fullest["vram_used_bytes"],
        "vram_bytes": fullest["vram_bytes"],
        "temperature_c": _most(gpus, "temperature_c"),
        "power_w": drawing["power_w"],
        "power_limit_w": drawing["power_limit_w"],
        "fan_percent": _most(gpus, "fan_percent"),
        "throttled": ", ".join(dict.fromkeys(gpu["throttled"] for gpu in gpus if gpu["throttled"])),
    }


def _free_bytes(gpu: Mapping[str, Any]) -> float:
    used, whole = gpu["vram_used_bytes"], gpu["vram_bytes"]
    return float("inf") if used is None or whole is None else whole - used


def _most(gpus: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return max((gpu[name] for gpu in gpus if gpu[name] is not None), default=None)


def device_gb(gpus: Gpus | None = None) -> float | None:
    """Memory of the GPU on which this process trains, in 10⁹ bytes; None without one, or if it does not tell."""
    whole = (gpus or Gpus()).figures().get("vram_bytes")
    return None if whole is None else round(whole / 1e9, 2)


def gpus_in_use(devices: Sequence[str] = ()) -> dict[str, str]:
    """UUIDs, as NVML writes them, by torch's names: those of the CUDA devices that `settings.devices` means, whose
    tensors other processes may hold, or without `devices` those with this process's tensors; none before CUDA has
    begun here."""
    if "torch" not in sys.modules:
        return {}
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    here = range(torch.cuda.device_count())
    named = [int(name.partition(":")[2] or 0) for name in devices if name.startswith("cuda")]
    chosen = list(here) if tuple(devices) == ("auto",) else named or [max(here, key=torch.cuda.memory_reserved)]
    return {f"cuda:{index}": f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in chosen}


def memories_bytes() -> tuple[int, ...]:
    """All of the memory of each GPU; empty without one."""
    if is_rocm():
        import torch

        return tuple(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles)
    except pynvml.NVMLError:
        return ()


def power_limit_w() -> float | None:
    """The power limit of the first GPU, as NVML reports it; None if there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        limit_mw = pynvml.nvmlDeviceGetEnforcedPowerLimit(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    return float(limit_mw) / 1000
