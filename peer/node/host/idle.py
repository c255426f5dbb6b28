"""How long nobody has used this machine, from files that every Linux user can read.

    /dev/tty*, /dev/pts/*                     when each terminal was last read from, to 8 s: what is typed there
    /sys/bus/usb/devices/*/urbnum             transfers of a USB keyboard, mouse, tablet or game pad
    /proc/interrupts                          those of a laptop's own keyboard and touchpad (i8042, I2C)

No key is read. The kernel says which devices are for people (/sys/class/input). Bluetooth has no counter of its own, so
its keyboards and mice are not seen, and neither is a remote desktop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KEY_A, REL_X, ABS_X = 30, 0, 0
"""Bits of what a keyboard, a mouse, and a touchpad or game pad can send (linux/input-event-codes.h)."""
_I2C = re.compile(r"/i2c-([^/]*[A-Z][^/]*)/")
"""The device on such a bus, as its interrupt is named."""
SERIAL = "i8042"


class Idleness:
    """Remembers its last readings. The folders are those of Linux."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._seen: dict[str, int] = {}
        self._used_at: float | None = None
        """Unix time of the newest change of a counter; at first, when counting began."""

    def idle_s(self, now: float) -> float | None:
        """Seconds at Unix time `now`; None if this machine has no such counters. 0 at the first look, since it may
        be in use."""
        counters = dict(self._counters())
        terminals = list(self._terminals())
        if not counters and not terminals and not (self._root / "dev/pts").is_dir():
            return None
        if self._used_at is None or counters != self._seen or now < self._used_at:  # the clock was set back
            self._seen, self._used_at = counters, now
        return max(0.0, now - max([self._used_at, *(at for at in terminals if at <= now)]))

    def _terminals(self) -> Iterator[float]:
        """When each terminal was last read from."""
        for path in (*(self._root / "dev").glob("tty[0-9]*"), *(self._root / "dev/pts").glob("[0-9]*")):
            with suppress(OSError):
                yield path.stat().st_atime

    def _counters(self) -> Iterator[tuple[str, int]]:
        lines: set[str] = set()
        for path in (self._root / "sys/class/input").glob("event*/device"):
            place = str(path.resolve())
            if not _is_for_people(path):
                continue
            if "/serio" in place:
                lines.add(SERIAL)
            elif found := _I2C.search(place + "/"):
                lines.add(found[1])
            elif (counter := _usb_counter(path.resolve())) is not None:
                yield place, counter
        yield from self._interrupts(lines)

    def _interrupts(self, names: set[str]) -> Iterator[tuple[str, int]]:
        if not names:
            return
        with suppress(OSError):
            for line in (self._root / "proc/interrupts").read_text().splitlines():
                number, *words = line.split()
                if words and words[-1] in names:
                    yield f"{number}{words[-1]}", sum(int(word) for word in words if word.isdecimal())


def _is_for_people(device: Path) -> bool:
    """Whether it has letter keys, or moves a pointer; a power button or a webcam does not count."""
    return any(
        _has(device / "capabilities" / kind, bit) for kind, bit in (("key", KEY_A), ("rel", REL_X), ("abs", ABS_X))
    )


def _has(path: Path, bit: int) -> bool:
    """Whether a bit is set in the last word of a bitmap, as the kernel prints it."""
    try:
        words = path.read_text().split()
        return bool(words) and bool(int(words[-1], 16) >> bit & 1)
    except (OSError, ValueError):
        return False


def _usb_counter(place: Path) -> int | None:
    """Transfers of the USB device to which this belongs; None if it belongs to none."""
    for folder in place.parents:
        with suppress(OSError, ValueError):
            return int((folder / "urbnum").read_text())
    return None
