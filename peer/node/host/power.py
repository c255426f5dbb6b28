"""The machine's power supply, sleep and temperatures, from the kernel's files and the desktop."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MAINS, BATTERIES = ("Mains", "USB"), ("Battery", "UPS")
ASK_S = 2.0
"""The desktop is not waited for any longer."""
GNOME_POWER = "org.gnome.settings-daemon.plugins.power"
SLEEP_TYPE, SLEEP_AFTER = "sleep-inactive-ac-type", "sleep-inactive-ac-timeout"


@dataclass(frozen=True, kw_only=True)
class Power:
    """The machine's power supply, and whether it goes to sleep by itself. None: unknown."""

    has_battery: bool = False
    on_battery: bool = False
    sleeps_after_s: float | None = None
    """When idle and plugged in; 0: never."""


def read_power(root: Path = Path("/")) -> Power:
    """From the kernel, and from GNOME if this is its desktop."""
    supplies = list((root / "sys/class/power_supply").glob("*"))
    battery = any(_text(path / "type") == "Battery" and _is_the_machines(path) for path in supplies)
    sleeps = 0.0 if not _text(root / "sys/power/state") else _desktop_sleeps_after_s()
    return Power(has_battery=battery, on_battery=is_on_battery(root), sleeps_after_s=sleeps)


def is_on_battery(root: Path = Path("/")) -> bool:
    """Whether no mains feed this machine and a battery or a UPS is discharging. A machine without either has mains."""
    emptied = False
    for supply in (root / "sys/class/power_supply").glob("*"):
        kind = _text(supply / "type")
        if kind in MAINS and _text(supply / "online") == "1":
            return False
        if kind in BATTERIES and _is_the_machines(supply):
            emptied = emptied or _text(supply / "status") == "Discharging"
    return emptied


def _is_the_machines(supply: Path) -> bool:
    """A mouse has a battery, too."""
    return _text(supply / "scope") != "Device"


def _desktop_sleeps_after_s() -> float | None:
    program = shutil.which("gsettings")
    if program is None:
        return None
    kind, after = (_query(program, "get", GNOME_POWER, key) for key in (SLEEP_TYPE, SLEEP_AFTER))
    if kind == "'nothing'":
        return 0.0
    return float(after) if kind and after.isdigit() else None


def _query(*command: str) -> str:
    """The output of a program; empty if it fails or takes long."""
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def cpu_temperature_c(root: Path = Path("/")) -> float | None:
    """The hottest zone that the kernel reports."""
    zones = [_text(path / "temp") for path in (root / "sys/class/thermal").glob("thermal_zone*")]
    known = [int(text) / 1000 for text in zones if text.lstrip("-").isdigit()]
    plausible = [value for value in known if 0 < value < 150]
    return max(plausible, default=None)


def _text(path: Path) -> str:
    """The text of a small file of the kernel; empty if it does not exist."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
