"""What a machine says of itself, read from folders like those of Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from peer.host.idle import Idleness
from peer.host.measurements import Gpu, Tree
from peer.limits.enforcer import Machine, Spared, folder_bytes, is_on_battery, running
from peer.settings import PeerSettings

T = 1_800_000_000.0


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- battery ----


def supply(root: Path, name: str, **values: str) -> None:
    for key, value in values.items():
        put(root / "sys/class/power_supply" / name / key, value + "\n")


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({}, False),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"ucsi": {"type": "USB", "online": "1"}, "BAT0": {"type": "Battery", "status": "Not charging"}}, False),
        ({"mouse": {"type": "Battery", "status": "Discharging", "scope": "Device"}}, False),
        ({"ups": {"type": "UPS", "status": "Discharging"}}, True),
    ],
)  # fmt: skip
def test_who_runs_on_battery(tmp_path: Path, supplies: dict[str, dict[str, str]], on_battery: bool) -> None:
    """A desktop never does, and a mouse's battery is not the machine's."""
    for name, values in supplies.items():
        supply(tmp_path, name, **values)
    assert is_on_battery(tmp_path) is on_battery


# ---- programs ----


def process(proc: Path, pid: int, comm: str, *argv: str) -> None:
    put(proc / str(pid) / "comm", comm + "\n")
    put(proc / str(pid) / "cmdline", "".join(word + "\0" for word in argv))


def test_programs_are_known_by_their_names(tmp_path: Path) -> None:
    """By the process or by the file that was started; one that has ended and waits for its parent does not run."""
    process(tmp_path, 10, "steam", "/usr/lib/steam/steam", "-silent")
    process(tmp_path, 11, "Main", "Z:\\games\\Elden Ring\\EldenRing.exe")
    process(tmp_path, 12, "a-very-long-nam", "python3", "/opt/x")
    process(tmp_path, 13, "blender")
    process(tmp_path, 14, "python", "/usr/bin/python")
    (tmp_path / "15").mkdir()
    names = ("Steam", "eldenring", "a-very-long-name-of-a-program", "blender", "python", "vlc")
    assert running(names, tmp_path, {14}) == ("Steam", "eldenring", "a-very-long-name-of-a-program")
    assert running(("python",), tmp_path, {99}) == ("python",)
    assert running(names, tmp_path / "nowhere", {1}) is None


@pytest.mark.outside
def test_what_a_peer_has_started_itself_is_no_reason_to_pause(tmp_path: Path) -> None:
    """Its link is a python, too, and is started by a thread of its own; the python of somebody else counts."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    name = Path(sys.executable).name
    with ThreadPoolExecutor(1) as starter:
        child = starter.submit(
            subprocess.Popen, [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ).result()  # fmt: skip
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            mine = Tree(os.getpid()).pids()
            assert {os.getpid(), child.pid} <= mine
            others = set(map(int, filter(str.isdecimal, os.listdir("/proc")))) - mine
            assert running((name,), Path("/proc"), others) == (name,)
            assert running((name,), Path("/proc"), others | mine) == ()
            assert child.stdin is not None
            child.stdin.close()
    assert Machine(tmp_path)._tree.pids() >= {os.getpid()}


def test_this_machine_runs_what_started_these_tests() -> None:
    """The real /proc: a child of this process is found by name, this process is not."""
    name = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    assert running((name,), Path("/proc"), ()) == (name,)


# ---- folder ----


def test_a_folder_takes_what_its_files_take(tmp_path: Path) -> None:
    """Blocks on disk, of all folders below; a link counts as itself."""
    put(tmp_path / "a/b/c", "x" * 100_000)
    put(tmp_path / "d", "x")
    (tmp_path / "link").symlink_to("/usr")
    taken = sum(path.lstat().st_blocks * 512 for path in tmp_path.rglob("*") if not path.is_dir() or path.is_symlink())
    assert folder_bytes(tmp_path) == taken
    assert taken > 100_000
    assert folder_bytes(tmp_path / "nowhere") == 0


def test_a_folder_of_very_many_files_is_looked_at_less_often() -> None:
    """A look that takes 50 ms follows 2.5 s after the one before; one that takes none, every time."""
    now, looks = [0.0], list[float]()

    def look() -> int:
        looks.append(now[0])
        now[0] += 0.05
        return len(looks)

    spared = Spared(look, lambda: now[0])
    assert spared() == 1
    for _ in range(20):
        now[0] += 0.5
        spared()
    assert looks == pytest.approx([0.0, 2.55, 5.1, 7.65, 10.2])
    assert spared() == len(looks)
    values = iter([1, 2])
    free = Spared(lambda: next(values), lambda: now[0])
    assert (free(), free()) == (1, 2)


# ---- idleness ----


class Desk:
    """A machine with a terminal, a USB mouse, a laptop's keyboard and touchpad, a webcam and a power button."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.terminal = put(root / "dev/pts/0", "")
        self.typed(at=T - 500)
        usb = "sys/devices/pci0000:00/usb1/1-2"
        self.mouse = put(root / usb / "urbnum", "100\n")
        self.webcam = put(root / "sys/devices/pci0000:00/usb1/1-7/urbnum", "7\n")
        self.interrupts = put(root / "proc/interrupts", "")
        self.interrupted(keyboard=5, touchpad=9)
        self._add(f"{usb}/1-2:1.0/0003:046D:C077.0001/input/input5", rel="3", key="1f0000 0 0 0 0")
        self._add(
            "sys/devices/platform/i8042/serio0/input/input3",
            key="402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe",
        )
        self._add(
            "sys/devices/pci0000:00/i2c_designware.0/i2c-1/i2c-ELAN1200:00/0018:04F3.2/input/input8",
            abs="273800000000003",
        )
        self._add("sys/devices/pci0000:00/usb1/1-7/1-7:1.0/input/input9", key="100000 0 0 0")
        self._add("sys/devices/LNXSYSTM:00/LNXPWRBN:00/input/input0", key="10000000000000 0")

    def _add(self, place: str, **capabilities: str) -> None:
        for kind, bits in capabilities.items():
            put(self.root / place / "capabilities" / kind, bits + "\n")
        events = self.root / "sys/class/input"
        events.mkdir(parents=True, exist_ok=True)
        event = self.root / place / "event"
        event.mkdir()
        (event / "device").symlink_to("..")
        (events / f"event{len(list(events.iterdir()))}").symlink_to(event)

    def typed(self, at: float) -> None:
        os.utime(self.terminal, (at, T - 9999))

    def interrupted(self, **counts: int) -> None:
        self.counts = getattr(self, "counts", {}) | counts
        self.interrupts.write_text(
            "            CPU0       CPU1\n"
            f"   1:        {self.counts['keyboard']}          3  IR-IO-APIC    1-edge      i8042\n"
            "   9:        0          7  IR-IO-APIC    9-fasteoi   acpi\n"
            f"  51:        0          {self.counts['touchpad']}  intel-gpio   51  ELAN1200:00\n"
        )


def test_a_key_or_a_move_of_the_mouse_is_use(tmp_path: Path) -> None:
    """Of each kind of device, counted from when this process began to look: before, it may have been in use."""
    desk = Desk(tmp_path)
    idleness = Idleness(tmp_path)
    assert idleness.idle_s(T) == 0.0
    assert idleness.idle_s(T + 100) == 100.0
    uses: list[Any] = [
        lambda: desk.mouse.write_text("101\n"),
        lambda: desk.interrupted(keyboard=6),
        lambda: desk.interrupted(touchpad=10),
    ]
    for number, use in enumerate(uses, start=1):
        use()
        assert idleness.idle_s(T + 1000 * number) == 0.0
        assert idleness.idle_s(T + 1000 * number + 60) == 60.0
    desk.typed(at=T + 4990)
    assert idleness.idle_s(T + 5000) == 10.0


def test_a_clock_that_is_set_back_counts_as_use_once(tmp_path: Path) -> None:
    """Not until it is as late again."""
    Desk(tmp_path)
    idleness = Idleness(tmp_path)
    idleness.idle_s(T)
    assert idleness.idle_s(T - 400) == 0.0
    assert idleness.idle_s(T - 300) == 100.0


def test_a_webcam_an_interrupt_of_the_board_and_what_a_terminal_prints_are_no_use(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    idleness = Idleness(tmp_path)
    idleness.idle_s(T)
    desk.webcam.write_text("9000\n")
    desk.interrupts.write_text(desk.interrupts.read_text().replace("          7 ", "          8 "))
    os.utime(desk.terminal, (T - 500, T + 90))
    assert idleness.idle_s(T + 100) == 100.0


def test_a_machine_without_terminals_and_devices_does_not_tell(tmp_path: Path) -> None:
    assert Idleness(tmp_path).idle_s(T) is None
    (tmp_path / "dev/pts").mkdir(parents=True)
    idle = Idleness(tmp_path)
    assert [idle.idle_s(T), idle.idle_s(T + 60)] == [0.0, 60.0], "nobody is at any terminal"


def test_this_machine_can_be_asked() -> None:
    """The real folders, whatever they hold."""
    idle_s = Idleness().idle_s(T)
    assert idle_s is None or idle_s >= 0.0


# ---- all of it ----


class NoGpu(Gpu):
    asked = 0

    def figures(self) -> dict[str, Any]:
        self.asked += 1
        return {"temperature_c": 61.0, "power_w": None}


def test_only_what_a_setting_asks_for_is_read(tmp_path: Path) -> None:
    gpu = NoGpu()
    machine = Machine(tmp_path, tmp_path, gpu)
    nothing = machine.read(PeerSettings(on_battery=True), T)
    assert {value for value in vars(nothing).values()} == {None}
    assert gpu.asked == 0
    put(tmp_path / "proc/1/comm", "init\n")
    put(tmp_path / "dev/pts/0", "")
    put(tmp_path / "proc" / str(os.getpid()) / "task" / str(os.getpid()) / "children", "")
    stat = "1 (python) S " + " ".join(["0"] * 20) + " 250 0"
    put(tmp_path / "proc" / str(os.getpid()) / "stat", stat)
    everything = machine.read(
        PeerSettings(
            idle_min=5, pause_for=("init",), disk_gb=1, memory_gb=1, max_temperature_c=70, max_power_w=100, monthly_gb=1
        ),
        T,
    )  # fmt: skip
    assert (everything.temperature_c, everything.power_w) == (61.0, None)
    assert (everything.on_battery, everything.running, everything.idle_s) == (False, (), 0.0)
    assert everything.memory_bytes == 250 * os.sysconf("SC_PAGE_SIZE")
    assert everything.folder_bytes
