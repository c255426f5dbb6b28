"""What one volunteer chooses for one peer: stays on the machine, but for the name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dht.errors import BadSpec
from peer import schedule as schedules
from peer.tables import StrictTable, read, require, to_toml

LEAST_MBPS, MOST_MBPS = 0.5, 1e6
"""A line below the first holds every round up; one beyond the last is a mistake in the unit."""
MAX_NAME = 32
"""Characters of a peer's name: what a head record takes."""
DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
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
AT_START = ("name", "device", "threads", "listen", "metrics_port")
"""Settings that take effect when the peer starts; all others at once."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings(StrictTable):
    """What one volunteer chooses. Stays on the machine, but for the name."""

    name: str = ""
    """Told to the other peers; empty means the last letters of the peer id."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    threads: int = 0
    """CPU threads of the trainer; 0 leaves torch's choice."""
    min_step_s: float = 0.0
    """An inner step takes at least this long, so that whoever sits at the machine hardly notices; 0 means no pause."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on; port 0 takes a free one. `none`: others reach this peer through the bootstrap node."""
    chain_mb: int = 4000
    """Room on disk for updates that others may need; what no fork and no newcomer can need any more goes first."""
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
        if not DEVICES.fullmatch(self.device):
            raise BadSpec(f"device is {self.device!r}; use auto, cpu, mps, cuda, or one of several as in cuda:1")
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
    whole = {key: _split(value) if key in several else value for key, value in table.items()}
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
