"""A volunteer's settings of one peer. They stay on the machine, except for the peer's name."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dht.errors import BadSpec
from dht.streams.base import LEAST_MBPS, MOST_MBPS
from peer.schema import weekly_schedule as schedules
from peer.schema.toml_tables import StrictTable, read, require, shortened, to_toml

MAX_NAME = 32
"""Characters of a peer's name: what a head record takes."""
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
MOST_DEVICES = 16
SHARDINGS = ("auto", "replicated", "full", "hierarchical", "hybrid")
"""Words of `peer.planning.plan.sharding_strategy`, and `auto`, which chooses among them."""
MOST_STAGES = 32
COMPILE = ("auto", "yes", "no")
AUTO = "auto"
"""The word for 0 in `stages`."""
ACTIVATIONS = ("int8", "bfloat16", "float32")
"""float32 is for tests: it computes what one home would."""
MAX_PATH = 4096
"""Characters of a path, as Linux has it."""
MOST_THREADS = 1024
"""More than any machine has."""
MAX_PROGRAM, MAX_PROGRAMS = 64, 64
"""Characters in the name of a program, and names."""
MOST_IDLE_MIN = 7 * 24 * 60
LEAST_AND_MOST = {
    "max_temperature_c": (30, 120), "max_power_w": (10, 5000), "monthly_gb": (0.1, 1e6), "disk_gb": (0.1, 1e6),
    "memory_gb": (0.5, 1e6),
}  # fmt: skip
"""Of settings where 0 means none: what lies beyond is a mistake in the unit, and no peer could train with it."""
AT_START = (
    "name", "devices", "sharding", "offload", "compile", "stages", "activations", "threads", "data_path", "listen",
    "metrics_port",
)  # fmt: skip
"""Settings that take effect when the peer starts; all others at once."""
RENAMED = {"device": "devices"}
"""Words of files that older clients wrote, by which the same is said today: read, never written."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings(StrictTable):
    """What one volunteer chooses. Stays on the machine, but for the name."""

    name: str = ""
    """Told to the other peers; empty means the last letters of the peer id."""
    devices: tuple[str, ...] = ("auto",)
    """auto, cpu, cuda, cuda:1, mps: each is one rank, all of one kind. The processor may be named several times,
    which is for tests and demos; auto stands alone."""
    sharding: str = "auto"
    """How several devices share the model: one of SHARDINGS."""
    offload: bool = False
    """Layers lie in main memory and come to the device when they are used: slower, for a model that the device does
    not hold."""
    compile: str = "auto"
    """Whether blocks of the model are compiled by torch, one of COMPILE: auto, where a dry run finds them equal and
    faster (on a processor only in a run so long that it repays the compiling); yes, wherever they are equal; no."""
    stages: int = 0
    """This peer leads a cluster of so many homes, itself among them, which train one copy of the model together; 1: it
    trains the whole model or nothing; 0, or `auto`: the whole model if its device holds it, else in a cluster of homes
    that find each other. Whoever works in a friend's cluster has 0 or 1."""
    activations: str = "int8"
    """How a lead has values between the stages of its cluster sent: one of ACTIVATIONS."""
    threads: int = 0
    """CPU threads of the trainer; 0 leaves torch's choice."""
    data_path: str = ""
    """The folder or file that is read by a run whose data are files of this machine. No spec decides that."""
    min_step_s: float = 0.0
    """An inner step takes at least this long, so that whoever sits at the machine hardly notices; 0 means no pause."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on; port 0 takes a free one. `none`: others reach this peer through the bootstrap node."""
    chain_mb: int = 4000
    """Room on disk for updates that others may need; what nobody who catches up can need any more goes first."""
    upload_mbps: float = 0.0
    """Megabits per second that this peer sends at most, to all others together; 0 means no cap. A little less than the
    line carries leaves room for whoever else uses it."""
    download_mbps: float = 0.0
    """Likewise what it takes in."""
    newcomers_mbps: float = 100.0
    """Of what it sends, newcomers get at most so much for a snapshot, between rounds; 0 gives none."""
    schedule: str = ""
    """When it may train, by the clock of this machine, such as `mon-fri 22:00-07:00, sat-sun 00:00-24:00`; empty means
    always."""
    idle_min: float = 0.0
    """It trains only after nobody has used the machine for so many minutes; 0 means that it does not matter."""
    on_battery: bool = False
    """Whether it trains on battery, too."""
    pause_for: tuple[str, ...] = ()
    """Names of programs, such as a game's: it pauses while one of them runs."""
    max_temperature_c: float = 0.0
    """Of the GPU, in degrees Celsius: it rests between micro-batches as much as that takes; 0 means no limit."""
    max_power_w: float = 0.0
    """Likewise what the GPU draws on average, in watts."""
    monthly_gb: float = 0.0
    """Traffic in both directions in a calendar month, in 10^9 bytes; 0 means no quota."""
    disk_gb: float = 0.0
    """What all of the run folder may take, in 10^9 bytes; 0 means no quota. The chain gets half of it at most."""
    memory_gb: float = 0.0
    """What all processes of the peer may have resident, in 10^9 bytes; 0 means no limit."""
    nice: int = 10
    """Niceness of the trainer, 0 to 19: the higher, the more it stands back for other programs."""
    metrics_port: int = 0
    """Metrics for Prometheus are served at this port of loopback; 0 means none."""

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise BadSpec(f"name is {self.name!r}; use at most {MAX_NAME} printable characters")
        if len(self.data_path) > MAX_PATH or not self.data_path.isprintable():
            raise BadSpec(f"data_path is {shortened(self.data_path)}; use at most {MAX_PATH} printable characters")
        require(self.threads, "threads", low=0, high=MOST_THREADS)
        require(self.min_step_s, "min_step_s", low=0, high=3600)
        require(self.chain_mb, "chain_mb", low=0)
        for name in ("upload_mbps", "download_mbps"):
            cap = getattr(self, name)
            if cap != 0 and not LEAST_MBPS <= cap <= MOST_MBPS:
                range = f"between {LEAST_MBPS:g} and {MOST_MBPS:g} (megabits per second)"
                raise BadSpec(f"{name} is {cap:g}; it must be 0 (no cap) or {range}")
        require(self.newcomers_mbps, "newcomers_mbps", low=0, high=MOST_MBPS)
        require(self.metrics_port, "metrics_port", low=0, high=65_535)
        _check_devices(self.devices)
        _check_sharding(self.sharding, self.devices)
        if self.compile not in COMPILE:
            raise BadSpec(f"compile is {shortened(self.compile)}; use {', '.join(COMPILE[:-1])} or {COMPILE[-1]}")
        _check_stages(self.stages, self.activations, self.devices)
        if not all(address.isprintable() for address in self.listen):
            raise BadSpec("listen has characters that cannot be printed")
        schedules.parse(self.schedule)
        if not all(name.isprintable() and 0 < len(name) <= MAX_PROGRAM for name in self.pause_for):
            named = ", ".join(self.pause_for)
            raise BadSpec(f"pause_for is {named!r}; a program has 1 to {MAX_PROGRAM} printable characters")
        require(len(self.pause_for), "the number of programs in pause_for", low=0, high=MAX_PROGRAMS)
        require(self.nice, "nice", low=0, high=19)
        require(self.idle_min, "idle_min", low=0, high=MOST_IDLE_MIN)
        for name, (low, high) in LEAST_AND_MOST.items():
            value = getattr(self, name)
            if value != 0 and not low <= value <= high:
                raise BadSpec(f"{name} is {value:g}; it must be 0 (no limit) or between {low:g} and {high:g}")

    @property
    def chain_bytes(self) -> int:
        """Room for updates: `chain_mb`, and of `disk_gb` no more than a half."""
        asked = self.chain_mb * 10**6
        return min(asked, int(self.disk_gb * 1e9) // 2) if self.disk_gb else asked


def _check_devices(devices: Sequence[str]) -> None:
    odd = next((name for name in devices or ("",) if not DEVICE.fullmatch(name)), None)
    if odd is not None:
        raise BadSpec(f"devices is {shortened(odd)}; use auto, cpu, mps, cuda, or some of several as in cuda:0,cuda:1")
    require(len(devices), "the number of devices", low=1, high=MOST_DEVICES)
    if len(devices) == 1:
        return
    said = f"devices is {', '.join(devices)!r}"
    if "auto" in devices:
        raise BadSpec(f"{said}; auto stands alone: it takes every GPU that computes")
    kinds = {name.partition(":")[0] for name in devices}
    if len(kinds) > 1:
        raise BadSpec(f"{said}; several must be of one kind, all cuda or all cpu")
    numbers = [int(name.partition(":")[2] or 0) for name in devices]
    if kinds != {"cpu"} and len(set(numbers)) < len(numbers):
        raise BadSpec(f"{said}; one GPU is named twice")


def _check_sharding(sharding: str, devices: Sequence[str]) -> None:
    if sharding not in SHARDINGS:
        raise BadSpec(f"sharding is {shortened(sharding)}; use {', '.join(SHARDINGS[:-1])} or {SHARDINGS[-1]}")
    count = len(devices)
    if sharding not in ("hierarchical", "hybrid") or tuple(devices) == ("auto",):
        return
    if not any(count % group == 0 for group in range(2, count)):
        raise BadSpec(
            f"sharding is {sharding!r}, which takes several groups of as many devices, so 4, 6, 8 and so on; "
            f"devices names {count}: use full or replicated"
        )


def _check_stages(stages: int, activations: str, devices: Sequence[str]) -> None:
    require(stages, "stages", low=0, high=MOST_STAGES)
    if activations not in ACTIVATIONS:
        raise BadSpec(
            f"activations is {shortened(activations)}; use {', '.join(ACTIVATIONS[:-1])} or {ACTIVATIONS[-1]}"
        )
    if stages > 1 and len(devices) > 1:
        raise BadSpec(f"stages is {stages}, and devices names {len(devices)}; a home of a cluster trains on one device")


def settings_from(assignments: Sequence[str], kept: Mapping[str, Any] | None = None, **values: Any) -> PeerSettings:
    """A volunteer's settings from `settings.key=value` words, over those in `values`, over those that were `kept`.

    An empty value in `values` means that nothing was said. Raises BadSpec.
    """
    table = dict(kept or {}) | {key: value for key, value in values.items() if value}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.startswith("settings."):
            raise BadSpec(f"{assignment!r} is not of the form settings.KEY=VALUE")
        table[key.removeprefix("settings.")] = value
    return settings_of(table)


def settings_of(table: Mapping[str, Any], source: str = "settings") -> PeerSettings:
    """A volunteer's settings by name, each a value or a text that gives one; a text for several has commas.

    Raises BadSpec with one line that names `source`, key and value.
    """
    several = {each.name for each in dataclasses.fields(PeerSettings) if isinstance(each.default, tuple)}
    named = {RENAMED.get(key, key): value for key, value in table.items()}
    whole = {key: _split(value) if key in several else value for key, value in named.items()}
    if whole.get("stages") == AUTO:
        whole["stages"] = 0
    return read(PeerSettings, whole, source)


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(word.strip() for word in value.split(",") if word.strip())


def dump_settings(settings: PeerSettings) -> str:
    """TOML of what differs from the defaults; `settings_of` takes what it parses to."""
    chosen = {
        each.name: value
        for each in dataclasses.fields(settings)
        if (value := getattr(settings, each.name)) != each.default
    }
    return to_toml(chosen)


@dataclass(frozen=True)
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
            "schedule", "the hours in which it may train, local time; may cross midnight",
            off="always", example="mon-fri 22:00-07:00, sat-sun 00:00-24:00", hold="SCHEDULE",
        ),
        SettingInfo(
            "idle_min", "only after nobody has used the machine for so long",
            unit="min", off="at any time", example="10", hold="IDLE",
        ),
        SettingInfo("on_battery", "whether it trains on battery, too", example="yes or no", hold="BATTERY"),
        SettingInfo(
            "pause_for", "it pauses while one of these programs runs",
            off="no program", example="blender, obs", hold="PROGRAM",
        ),
    ),
    "heat and power": (
        SettingInfo(
            "max_temperature_c", "the GPU is kept at or below this by computing less of the time",
            unit="°C", off="no limit", example="75", hold="TEMPERATURE",
        ),
        SettingInfo(
            "max_power_w", "the GPU is kept at or below this by computing less of the time",
            unit="W", off="no limit", example="180", hold="POWER",
        ),
        SettingInfo(
            "min_step_s", "an inner step takes at least so long, so that the machine stays usable",
            unit="s", off="no rest", example="0.5",
        ),
    ),
    "network": (
        SettingInfo(
            "upload_mbps", "it sends at most so much, to all others together",
            unit="Mbit/s", off="no cap", example="20",
        ),
        SettingInfo("download_mbps", "it takes in at most so much", unit="Mbit/s", off="no cap", example="50"),
        SettingInfo(
            "newcomers_mbps", "of what it sends, newcomers get at most so much for a snapshot",
            unit="Mbit/s", off="nothing", example="10",
        ),
        SettingInfo(
            "monthly_gb", "traffic both ways in a calendar month; beyond that it pauses",
            unit="GB", off="no quota", example="300", hold="QUOTA",
        ),
        SettingInfo(
            "listen", "addresses it listens on, or none; port 0: any",
            example="/ip4/0.0.0.0/tcp/4001", at_start=True,
        ),
    ),
    "disk and memory": (
        SettingInfo(
            "disk_gb", "all that its folder may take; beyond that it pauses",
            unit="GB", off="no quota", example="50", hold="DISK",
        ),
        SettingInfo(
            "chain_mb", "of that, the room for updates that others may need",
            unit="MB", off="what it needs", example="4096",
        ),
        SettingInfo(
            "memory_gb", "memory of all its processes together; beyond that it pauses",
            unit="GB", off="no quota", example="12", hold="MEMORY",
        ),
    ),
    "machine": (
        SettingInfo(
            "name", "what the others call it, 32 characters at most",
            off="the end of its id", example="attic", at_start=True,
        ),
        SettingInfo(
            "devices", "where it trains, several as one peer; auto takes every GPU there is",
            example="auto, or cpu, mps, cuda:0, cuda:1", at_start=True,
        ),
        SettingInfo(
            "sharding", "how several devices share the model",
            example=", ".join(SHARDINGS), at_start=True,
        ),
        SettingInfo(
            "offload", "layers lie in main memory until they are used: slower, for a model too large for the device",
            example="yes or no", at_start=True,
        ),
        SettingInfo(
            "compile", "torch compiles the model; auto: where that is faster, and the run is long enough",
            example="auto, yes or no", at_start=True,
        ),
        SettingInfo(
            "stages", "it leads a cluster of so many homes; 1: it trains alone; auto: whichever its memory allows",
            off="auto", example="auto, or 2", at_start=True,
        ),
        SettingInfo(
            "activations", "how values between the homes of its cluster are sent",
            example=", ".join(ACTIVATIONS), at_start=True,
        ),
        SettingInfo(
            "data_path", "folder or file that it reads, in runs on files of your own",
            off="none", example="~/texts", at_start=True,
        ),
        SettingInfo("threads", "CPU threads of the trainer", off="torch's choice", example="4", at_start=True),
        SettingInfo(
            "metrics_port", "port of this machine on which Prometheus reads its metrics",
            off="none", example="9464", at_start=True,
        ),
        SettingInfo("nice", "how much it gives way to other programs: 0 not at all, 19 always", example="19"),
    ),
}  # fmt: skip
"""By what a person thinks of. A setting that is not here belongs to the last group, without a meaning."""

KNOWN = {setting.name: setting for settings in GROUPS.values() for setting in settings}
"""By name."""

_YES, _NO = frozenset({"yes", "true", "on", "1"}), frozenset({"no", "false", "off", "0"})


def grouped(settings: Mapping[str, Any]) -> Iterator[tuple[str, SettingInfo, Any]]:
    """(group, setting, its value) of those that a peer has, in the order in which they are shown."""
    for group, known in GROUPS.items():
        yield from ((group, setting, settings[setting.name]) for setting in known if setting.name in settings)
    last = list(GROUPS)[-1]
    yield from ((last, SettingInfo(name, meaning=""), settings[name]) for name in settings if name not in KNOWN)


PATHS = ("data_path",)


def to_value(text: str, present: Any, name: str = "") -> Any:
    """The value that a person has typed, of the kind of the present one; as typed where it is no such value. A path is
    meant from where it was typed: the peer may start elsewhere another time, as a service does."""
    text = text.strip()
    if name in PATHS and text:
        return os.path.abspath(os.path.expanduser(text))
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
