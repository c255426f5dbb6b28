"""A volunteer's settings for people: grouped, with what each means, as text and back.

The table itself is `PeerSettings` in `peer/settings.py`, and the peer alone checks a value: what cannot be read as the
kind that a setting has goes to it as it was typed, and it refuses that in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SettingInfo:
    """One line of the table."""

    name: str
    meaning: str
    """What it is for, on one line."""
    unit: str = ""
    off: str = ""
    """What its value 0, or an empty one, means."""
    example: str = ""
    """A value that a person may type."""
    hold: str = ""
    """The code of a hold that it can cause."""
    at_start: bool = False
    """It takes effect when the peer starts again."""


GROUPS: Mapping[str, tuple[SettingInfo, ...]] = {
    "when": (
        SettingInfo(
            name="schedule",
            meaning="the hours in which it may train, local time; may cross midnight",
            off="always",
            example="mon-fri 22:00-07:00, sat-sun 00:00-24:00",
            hold="SCHEDULE",
        ),
        SettingInfo(
            name="idle_min",
            meaning="only after nobody has used the machine for so long",
            unit="min",
            off="at any time",
            example="10",
            hold="IDLE",
        ),
        SettingInfo(
            name="on_battery", meaning="whether it trains on battery, too", example="yes or no", hold="BATTERY"
        ),
        SettingInfo(
            name="pause_for",
            meaning="it pauses while one of these programs runs",
            off="no program",
            example="blender, obs",
            hold="PROGRAM",
        ),
    ),
    "heat and power": (
        SettingInfo(
            name="max_temperature_c",
            meaning="the GPU is kept at or below this by computing less of the time",
            unit="°C",
            off="no limit",
            example="75",
            hold="TEMPERATURE",
        ),
        SettingInfo(
            name="max_power_w",
            meaning="the GPU is kept at or below this by computing less of the time",
            unit="W",
            off="no limit",
            example="180",
            hold="POWER",
        ),
        SettingInfo(
            name="min_step_s",
            meaning="an inner step takes at least so long, so that the machine stays usable",
            unit="s",
            off="no rest",
            example="0.5",
        ),
    ),
    "network": (
        SettingInfo(
            name="upload_mbps",
            meaning="it sends at most so much, to all others together",
            unit="Mbit/s",
            off="no cap",
            example="20",
        ),
        SettingInfo(
            name="download_mbps", meaning="it takes in at most so much", unit="Mbit/s", off="no cap", example="50"
        ),
        SettingInfo(
            name="newcomers_mbps",
            meaning="of what it sends, newcomers get at most so much for a snapshot",
            unit="Mbit/s",
            off="nothing",
            example="10",
        ),
        SettingInfo(
            name="monthly_gb",
            meaning="traffic both ways in a calendar month; beyond that it pauses",
            unit="GB",
            off="no quota",
            example="300",
            hold="QUOTA",
        ),
        SettingInfo(
            name="listen",
            meaning="addresses it listens on, or none; port 0: any",
            example="/ip4/0.0.0.0/tcp/4001",
            at_start=True,
        ),
    ),
    "disk and memory": (
        SettingInfo(
            name="disk_gb",
            meaning="all that its folder may take; beyond that it pauses",
            unit="GB",
            off="no quota",
            example="50",
            hold="DISK",
        ),
        SettingInfo(
            name="chain_mb",
            meaning="of that, the room for updates that others may need",
            unit="MB",
            off="what it needs",
            example="4096",
        ),
        SettingInfo(
            name="memory_gb",
            meaning="memory of all its processes together; beyond that it pauses",
            unit="GB",
            off="no quota",
            example="12",
            hold="MEMORY",
        ),
    ),
    "machine": (
        SettingInfo(
            name="name",
            meaning="what the others call it, 32 characters at most",
            off="the end of its id",
            example="attic",
            at_start=True,
        ),
        SettingInfo(
            name="device",
            meaning="where it trains; auto takes a GPU if there is one",
            example="auto, cpu, cuda, cuda:1 or mps",
            at_start=True,
        ),
        SettingInfo(
            name="threads",
            meaning="CPU threads of the trainer",
            off="torch's choice",
            example="4",
            at_start=True,
        ),
        SettingInfo(
            name="metrics_port",
            meaning="port of this machine on which Prometheus reads its metrics",
            off="none",
            example="9464",
            at_start=True,
        ),
        SettingInfo(
            name="nice",
            meaning="how much it gives way to other programs: 0 not at all, 19 always",
            example="19",
        ),
    ),
}
"""By what a person thinks of. A setting that is not here belongs to the last group, without a meaning."""

KNOWN = {setting.name: setting for settings in GROUPS.values() for setting in settings}
"""By name."""

_YES, _NO = frozenset({"yes", "true", "on", "1"}), frozenset({"no", "false", "off", "0"})


def grouped(settings: Mapping[str, Any]) -> Iterator[tuple[str, SettingInfo, Any]]:
    """(group, setting, its value) of those that a peer has, in the order in which they are shown."""
    for group, known in GROUPS.items():
        yield from ((group, setting, settings[setting.name]) for setting in known if setting.name in settings)
    last = list(GROUPS)[-1]
    yield from ((last, SettingInfo(name=name, meaning=""), settings[name]) for name in settings if name not in KNOWN)


def to_value(text: str, present: Any) -> Any:
    """The value that a person has typed, of the kind of the present one; as typed where it is no such value."""
    text = text.strip()
    if isinstance(present, bool):
        return True if text.lower() in _YES else False if text.lower() in _NO else text
    if isinstance(present, list | tuple):
        return [item.strip() for item in text.split(",") if item.strip()]
    if isinstance(present, int | float):
        return _to_number(text)
    return text


def _to_number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if abs(number) < float("inf") else text  # JSON has neither infinity nor NaN


def to_text(value: Any) -> str:
    """A value as a person types it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def in_words(setting: SettingInfo, value: Any) -> str:
    """A value as a person reads it: 200 W, no limit, yes."""
    if setting.off and not value:
        return setting.off
    text = to_text(value) or "(empty)"
    return f"{text} {setting.unit}" if setting.unit else text


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`max_power_w: no limit -> 200 W` for each setting that differs."""
    told = []
    for _, setting, value in grouped(after):
        if setting.name in before and before[setting.name] != value:
            told.append(f"{setting.name}: {in_words(setting, before[setting.name])} -> {in_words(setting, value)}")
    return told
