"""What training takes of this machine, said every few seconds by a thread of its own.

A sample reads a few small files of /proc and asks the GPU's driver, which takes a millisecond or two and holds
no lock of Python meanwhile: the inner loop does not notice. What this machine does not tell is None.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peer.events import DeviceMeasured, Event

EVERY_S = 5.0
END_S = 2.0
"""A driver that hangs holds the end of this process up no longer."""
PROCESSES_MOST = 64

_THROTTLED = {
    "SwPowerCap": "power limit",
    "HwPowerBrakeSlowdown": "power supply",
    "SwThermalSlowdown": "too hot",
    "HwThermalSlowdown": "too hot",
    "HwSlowdown": "hardware",
}
"""By the name of NVML's bit, after nvmlClocksEventReason. To be idle or set to other clocks is not to be throttled."""

_CPU_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Memory that can be had without pushing anything else out; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


@contextmanager
def measuring(emit: Callable[[Event], None]) -> Iterator[None]:
    """Have `emit` called with a DeviceMeasured every EVERY_S, from another thread, until the block ends."""
    ended = threading.Event()

    def measure() -> None:
        tree, gpu = Tree(os.getpid()), Gpu()
        while not ended.wait(EVERY_S):
            measured = DeviceMeasured(**tree.figures(time.monotonic()), **gpu.figures())
            if not ended.is_set():
                emit(measured)

    thread = threading.Thread(target=measure, name="measuring", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)


def one_at_a_time(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """`emit` for several threads."""
    lock = threading.Lock()

    def emit_alone(event: Event) -> None:
        with lock:
            emit(event)

    return emit_alone


class Tree:
    """A process and those that it started: this peer, its link, the network daemon."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid, self._proc = pid, proc
        self._ticks: dict[int, int] = {}
        self._looked_at: float | None = None

    def figures(self, now: float) -> dict[str, Any]:
        """CPU time since the last look, in percent of one core, and resident memory; pages that two share count twice.

        `now` is seconds of any clock. There is no CPU figure at the first look, and none of either without /proc.
        """
        stats = self._stats()
        ticks = {pid: ticks for pid, (ticks, _) in stats.items()}
        before, since, self._ticks, self._looked_at = self._ticks, self._looked_at, ticks, now
        if not stats:
            return {"cpu_percent": None, "memory_bytes": None}
        used_s = sum(max(0, value - before.get(pid, 0)) for pid, value in ticks.items()) / _CPU_TICKS_PER_S
        percent = None if since is None or now <= since else round(100 * used_s / (now - since), 1)
        return {"cpu_percent": percent, "memory_bytes": sum(pages for _, pages in stats.values()) * _PAGE_BYTES}

    def pids(self) -> frozenset[int]:
        """Those that run now; none without /proc."""
        return frozenset(self._stats())

    def _stats(self) -> dict[int, tuple[int, int]]:
        """By process, ticks of CPU time and pages of memory. One that ends meanwhile is left out."""
        found: dict[int, tuple[int, int]] = {}
        waiting = [self._pid]
        while waiting and len(found) < PROCESSES_MOST:
            pid = waiting.pop()
            folder = self._proc / str(pid)
            with suppress(OSError):
                # The name, in parentheses, may hold anything; state is the field after it.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[pid] = (int(fields[11]) + int(fields[12]), int(fields[21]))
                for children in (folder / "task").glob("*/children"):  # each is a child of the thread that started it
                    with suppress(OSError):
                        waiting += map(int, children.read_text().split())
        return found


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
        """Why the clocks are lower than they could be, in words."""
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
