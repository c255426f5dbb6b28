"""Since when nobody uses a machine, read from folders like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from peer.node.host.idle import Idleness
from tests.peer.node.host.files import put

T = 1_800_000_000.0


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
