"""What a machine tells of itself is said as it is; what it does not tell is None, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.events import DeviceMeasured, Event, EventLine, format_line, parse_line
from peer.host import measurements as measurings
from peer.host.measurements import Gpu, Tree, device_gb, measuring, one_at_a_time
from peer.testing.child_process import HANG_S


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
            "nvmlInit": None, "nvmlDeviceGetHandleByUUID": "handle",
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


ALL = {
    "gpu_percent": 97.0, "vram_used_bytes": 3 << 30, "vram_bytes": 80 << 30, "temperature_c": 61.0, "power_w": 312.5,
    "power_limit_w": 350.0, "fan_percent": 40.0, "throttled": "",
}  # fmt: skip


def test_a_gpu_tells_everything() -> None:
    assert Gpu(lambda: "GPU-1", Nvml()).figures() == ALL


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
    assert Gpu(lambda: "GPU-1", Nvml(silent)).figures() == ALL | dict.fromkeys(fields)


@pytest.mark.parametrize("silent", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_refuses_is_not_asked_again(silent: str) -> None:
    nvml = Nvml(silent)
    gpu = Gpu(lambda: "GPU-1", nvml)
    assert gpu.figures() == gpu.figures() == {}
    assert nvml.calls.count(silent) == 1


def test_without_a_gpu_no_driver_is_asked() -> None:
    nvml = Nvml()
    assert Gpu(lambda: None, nvml).figures() == {}
    assert nvml.calls == []


def test_of_its_memory_there_is_a_figure_for_others() -> None:
    assert device_gb(Gpu(lambda: "GPU-1", Nvml())) == 85.9
    assert device_gb(Gpu(lambda: "GPU-1", Nvml("nvmlDeviceGetMemoryInfo"))) is None
    assert device_gb(Gpu(lambda: None, Nvml())) is None


def test_a_gpu_is_found_once_the_model_is_on_it() -> None:
    uuids = iter([None, "GPU-1"])
    gpu = Gpu(lambda: next(uuids), Nvml())
    assert gpu.figures() == {}
    assert gpu.figures() == gpu.figures() == ALL


@pytest.mark.parametrize(
    ("reasons", "words"),
    [(0x01, ""), (0x02, ""), (0x04, "power limit"), (0x60, "too hot"), (0x84, "power limit, power supply")],
)
def test_throttling_is_told_in_words(reasons: int, words: str) -> None:
    """Being idle, or set to other clocks, is none."""
    assert Gpu(lambda: "GPU-1", Nvml(reasons=reasons)).figures()["throttled"] == words


def test_the_real_driver_or_none_at_all_is_no_error() -> None:
    """A GPU that is not there, of the real library where that finds a driver and where it does not."""
    assert Gpu(lambda: "GPU-00000000-0000-0000-0000-000000000000").figures() == {}


def process(proc: Path, pid: int, ticks: int, pages: int, *children: int, name: str = "python") -> None:
    """A process in a folder that looks like /proc."""
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", *"0" * 10, str(ticks - 1), "1", *"0" * 8, str(pages)]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)} 0 0\n")
    (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)) + " ")


def test_the_processes_that_it_started_count_too(tmp_path: Path) -> None:
    """A percentage needs two looks; a process that came meanwhile counts, one that went does not make it negative."""
    hz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    process(tmp_path, 1, 100 * hz, 10, 2, 3)
    process(tmp_path, 2, 50 * hz, 5, name="a) name (of 1 2")
    process(tmp_path, 3, 7 * hz, 1)
    tree = Tree(1, tmp_path)
    assert tree.figures(10.0) == {"cpu_percent": None, "memory_bytes": 16 * page}
    process(tmp_path, 1, 104 * hz, 20, 2, 4, 999)
    process(tmp_path, 2, 51 * hz, 5)
    process(tmp_path, 4, hz, 2)
    assert tree.figures(15.0) == {"cpu_percent": 120.0, "memory_bytes": 27 * page}


def test_a_machine_without_proc_tells_nothing(tmp_path: Path) -> None:
    assert Tree(1, tmp_path).figures(1.0) == {"cpu_percent": None, "memory_bytes": None}


@pytest.mark.outside
def test_this_process_and_its_child_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tree = Tree(os.getpid())
        figures = tree.figures(0.0)
        assert {os.getpid(), child.pid} <= tree._stats().keys()
        child.communicate()
    assert figures["memory_bytes"] > 10 << 20
    busy_until = time.process_time() + 0.2
    while time.process_time() < busy_until:
        pass
    assert tree.figures(1.0)["cpu_percent"] >= 15


def test_measuring_goes_on_beside_the_work_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its own thread; what is said is an event line, and nothing is said after the end."""
    monkeypatch.setattr(measurings, "EVERY_S", 0.01)
    said: list[Event] = []
    three = threading.Event()

    def emit(event: Event) -> None:
        said.append(event)
        if len(said) == 3:
            three.set()

    with measuring(emit):
        assert three.wait(HANG_S)
    count = len(said)
    assert not any(thread.name == "measuring" for thread in threading.enumerate())
    last = said[-1]
    assert isinstance(last, DeviceMeasured)
    assert last.memory_bytes is not None
    assert last.gpu_percent is None
    line = EventLine(seq=1, t=1.0, run="r", peer="p", event=last)
    assert parse_line(format_line(line)) == line
    assert asdict(last)["cpu_percent"] >= 0
    assert len(said) == count


def test_events_of_several_threads_do_not_mix() -> None:
    """Each is written whole before the next begins."""
    inside, mixed = threading.Lock(), []

    def emit(event: Event) -> None:
        mixed.append(not inside.acquire(blocking=False))
        time.sleep(0.0001)
        inside.release()

    alone = one_at_a_time(emit)
    threads = [threading.Thread(target=lambda: [alone(DeviceMeasured()) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mixed) == 200
    assert not any(mixed)
