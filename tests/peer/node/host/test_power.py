"""Who runs on battery, read from folders like those of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.host.power import is_on_battery
from tests.peer.node.host.files import put


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
