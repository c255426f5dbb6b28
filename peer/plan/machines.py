"""The peers that a plan counts on: what each can compute, hold, send and take in; measured, declared or assumed."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dht.errors import BadInput
from peer.plan.network import Network
from peer.rounds.update import MAX_MEMBERS as MAX_MEMBERS  # the screen takes the limits of a group from here
from peer.rounds.update import MAX_PARTS as MAX_PARTS
from peer.settings import LEAST_MBPS, MOST_MBPS

HOME_FLOPS = 20e12
"""FLOP/s that training reaches on a home GPU of which nothing is known: 40 % of the half-precision peak of a card that
is advertised with 50 TFLOP/s. An assumption, not a measurement."""
HOME_DELAY_S = 0.03
"""One way between two homes of which nothing is known. An assumption."""
NEAR_DELAY_S = 0.005
"""One way within a region, as DT-FM's scenarios have it (arXiv:2206.01288, section 4)."""
NO_CAP_BPS = 1e9
"""What a line carries that nobody caps. An assumption, where it is used."""
MOST_PEERS = 10_000
LEAST_FLOPS, MOST_FLOPS = 1e6, 1e21
"""FLOP/s of a peer: what is slower or faster is a mistake in the unit."""
LEAST_STEP_S, MOST_STEP_S = 1e-6, 1e6
FASTEST_BPS = 100_000_000
"""Peers do not tell faster lines apart (`dht.uplink`)."""
MOST_WHOLE = 10**18
"""Whole numbers beyond that are typing mistakes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One peer."""

    name: str
    step_s: float = 0.0
    """Seconds of an inner step of the spec as it stands, measured; 0: not known."""
    flops: float = 0.0
    """FLOP/s that training reaches; 0: not known. `step_s` goes first."""
    memory_gb: float = 0.0
    """Of the training device, in 10⁹ bytes; 0: not known, and taken to be what the spec needs."""
    main_gb: float = 0.0
    """Main memory; 0: not known."""
    devices: int = 1
    """Over which the model of this peer may be sharded."""
    device_gbps: float = 100.0
    """Between these devices."""
    upload_mbps: float = 0.0
    """0: no cap."""
    download_mbps: float = 0.0
    region: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise BadInput(f"a peer's name is {self.name!r}; use printable characters")
        for key in ("step_s", "flops", "memory_gb", "main_gb", "device_gbps"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise BadInput(f"{self.name}: {key} is {getattr(self, key):g}; it must be 0 or more")
        for key, least, most in (("step_s", LEAST_STEP_S, MOST_STEP_S), ("flops", LEAST_FLOPS, MOST_FLOPS)):
            value = getattr(self, key)
            if value != 0 and not least <= value <= most:
                raise BadInput(
                    f"{self.name}: {key} is {value:g}; it must be between {least:g} and {most:g}, or 0 (not known)"
                )
        if not 1 <= self.devices <= 64:
            raise BadInput(f"{self.name}: devices is {self.devices}; it must be between 1 and 64")
        for key in ("upload_mbps", "download_mbps"):
            cap = getattr(self, key)
            if cap != 0 and not LEAST_MBPS <= cap <= MOST_MBPS:
                raise BadInput(f"{self.name}: {key} is {cap:g}; it must be 0 (no cap) or {LEAST_MBPS:g} and more")

    @property
    def kind(self) -> Machine:
        """The same for all that differ in their names alone."""
        return replace(self, name="any")

    @property
    def upload_bps(self) -> float:
        return self.upload_mbps * 1e6 or NO_CAP_BPS

    @property
    def download_bps(self) -> float:
        return self.download_mbps * 1e6 or NO_CAP_BPS


def claimed_mbps(upload_bps: int) -> float:
    """A line as somebody says it is, within what a plan takes; 0: not known, or too fast to tell."""
    return max(upload_bps / 1e6, LEAST_MBPS) if 0 < upload_bps < FASTEST_BPS else 0.0


def claimed_step_s(tokens: int, tokens_per_s: float) -> float:
    """Seconds of a step of so many tokens as somebody says his speed is, within what a plan takes; 0: not known."""
    return min(max(tokens / tokens_per_s, LEAST_STEP_S), MOST_STEP_S) if tokens_per_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """All peers of a plan, and what lies between them."""

    machines: tuple[Machine, ...]
    network: Network
    assumed: tuple[str, ...] = ()
    """What nobody measured or said, in words."""
    cores: int = 0
    """If all peers run on one machine: how many cores they share. 0: each has a machine of its own."""

    def __len__(self) -> int:
        return len(self.machines)


@dataclass(frozen=True, kw_only=True)
class _Row(Machine):
    __pydantic_config__ = ConfigDict(extra="forbid")
    count: int = 1
    """So many peers of this kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 1:
            raise BadInput(f"{self.name}: count is {self.count}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class _File:
    __pydantic_config__ = ConfigDict(extra="forbid")
    peer: list[_Row]
    delay_ms: float = HOME_DELAY_S * 1000
    """One way, between peers of which no regions, or no pair of regions, is known."""
    delays_ms: dict[str, float] = field(default_factory=dict)
    """By pair of regions, `"berlin tokyo" = 120`; one region twice is within it."""
    cores: int = 0

    def __post_init__(self) -> None:
        _refuse_delay(self.delay_ms, "delay_ms")
        known = {row.region for row in self.peer if row.region}
        for pair, delay_ms in self.delays_ms.items():
            _refuse_delay(delay_ms, f"delays_ms.{pair!r}")
            regions = pair.split()
            if not 1 <= len(regions) <= 2:
                raise BadInput(f"delays_ms.{pair!r} names {len(regions)} regions; write one or two, with a space")
            if unknown := [region for region in regions if region not in known]:
                raise BadInput(f"delays_ms.{pair!r}: no peer is in region {unknown[0]!r}")
        if self.cores < 0:
            raise BadInput(f"cores is {self.cores}; it must be 0 (a machine each) or more")


def _refuse_delay(delay_ms: float, key: str) -> None:
    if not 0 <= delay_ms < math.inf:
        raise BadInput(f"{key} is {delay_ms:g}; it must be a number of milliseconds, 0 or more")


_ROW_NUMBERS = {each.name for each in fields(_Row) if each.type in ("int", "float")}
_FILE_NUMBERS = ("delay_ms", "cores")


def read_peers(path: Path, *, most: int = MOST_PEERS) -> Swarm:
    """The peers in a TOML file, so many at most. Raises BadInput with one line that names the file and the key."""
    try:
        table = tomllib.loads(path.read_text())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; --peers takes a number or a TOML file of [[peer]] tables") from error
    return peers_from(table, str(path), most=most)


def peers_from(table: Mapping[str, Any], source: str, *, most: int = MOST_PEERS) -> Swarm:
    """The same from nested dictionaries."""
    try:
        _refuse_no_numbers(table)
        found = TypeAdapter(_File).validate_python(table)
    except ValidationError as error:
        raise BadInput(f"{source}: {_explain(error)}") from error
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    refuse_count(sum(row.count for row in found.peer), f"{source} has {{}} peers", most)
    machines = tuple(_each(found.peer))
    names = Counter(machine.name for machine in machines)
    if twice := [name for name, times in names.items() if times > 1]:
        raise BadInput(f"{source}: two peers are called {twice[0]!r}; give each a name of its own")
    delays = {frozenset(pair.split()): delay / 1000 for pair, delay in found.delays_ms.items()}
    return swarm_of(machines, delays=delays, otherwise_s=found.delay_ms / 1000, cores=found.cores)


def refuse_count(count: int, said: str, most: int) -> None:
    """Raises BadInput unless there are 1 to `most` peers; `said` is who says how many, with {} for the number."""
    if count > most == MAX_MEMBERS:
        raise BadInput(
            f"{said.format(count)}, but a group holds {most}; for more see homefires simulate --peers {count}"
        )
    if not 1 <= count <= most:
        raise BadInput(f"{said.format(count)}; there must be 1 to {most}")


def _refuse_no_numbers(table: Mapping[str, Any]) -> None:
    """Texts and truth values are no numbers, though they can be read as some."""
    rows = table.get("peer")
    numbers = {key: table[key] for key in _FILE_NUMBERS if key in table}
    if isinstance(table.get("delays_ms"), dict):
        numbers |= {f"delays_ms.{pair!r}": value for pair, value in table["delays_ms"].items()}
    for at, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict):
            numbers |= {f"peer.{at}.{key}": value for key, value in row.items() if key in _ROW_NUMBERS}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{key} is {value!r}; it must be a number")
        if isinstance(value, int) and abs(value) > MOST_WHOLE:
            raise BadInput(f"{key} has {len(str(value))} digits; that is too large a number")


def _each(rows: Sequence[_Row]) -> list[Machine]:
    machines = []
    for row in rows:
        values = {key: value for key, value in vars(row).items() if key != "count"}
        for number in range(row.count):
            name = row.name if row.count == 1 else f"{row.name}-{number + 1}"
            machines.append(Machine(**values | {"name": name}))
    return machines


def swarm_of(
    machines: Sequence[Machine],
    *,
    delays: Mapping[frozenset[str], float] | None = None,
    otherwise_s: float = HOME_DELAY_S,
    cores: int = 0,
) -> Swarm:
    """Peers and the matrix between them. What no machine says is assumed, and listed."""
    count, known = len(machines), delays or {}
    delay_s = np.full((count, count), otherwise_s)
    for one, machine in enumerate(machines):
        for other, peer in enumerate(machines):
            pair = frozenset((machine.region, peer.region))
            near = NEAR_DELAY_S if machine.region and machine.region == peer.region else otherwise_s
            delay_s[one, other] = known.get(pair, near) if machine.region and peer.region else otherwise_s
    upload = np.array([machine.upload_bps for machine in machines])
    download = np.array([machine.download_bps for machine in machines])
    network = Network(
        names=tuple(machine.name for machine in machines), delay_s=delay_s,
        bandwidth_bps=np.minimum(upload[:, None], download[None, :]),
    )  # fmt: skip
    return Swarm(machines=tuple(machines), network=network, assumed=tuple(_assumptions(machines)), cores=cores)


def alike(count: int, machine: Machine, **between: Any) -> Swarm:
    """So many peers of one kind."""
    refuse_count(count, "--peers is {}", MOST_PEERS)
    return swarm_of([replace(machine, name=f"peer-{number}") for number in range(count)], **between)


def at_places(network: Network, machine: Machine) -> Swarm:
    """Peers of one kind, one at each place of a network that is known; a cap of the machine's holds there, too."""
    refuse_count(len(network), "the network has {} peers", MOST_PEERS)
    machines = [replace(machine, name=name) for name in network.names]
    slowest = min(cap for cap in (machine.upload_mbps, machine.download_mbps, float("inf")) if cap)
    return Swarm(
        machines=tuple(machines),
        network=replace(network, bandwidth_bps=np.minimum(network.bandwidth_bps, 1e6 * slowest)),
        assumed=tuple(_assumptions(machines, knows_lines=True)),
    )  # fmt: skip


def _assumptions(machines: Sequence[Machine], knows_lines: bool = False) -> list[str]:
    said = []
    unknown = [machine for machine in machines if not machine.step_s and not machine.flops]
    if unknown:
        text = f"{HOME_FLOPS / 1e12:g} TFLOP/s reached in training"
        said.append(f"{_who(unknown, machines)}: {text}; measure a step and say step_s (--step-s)")
    uncapped = [machine for machine in machines if not (machine.upload_mbps and machine.download_mbps)]
    if uncapped and len(machines) > 1 and not knows_lines:
        said.append(f"{_who(uncapped, machines)}: a line of 1 Gbit/s where no cap is said (--upload, --download)")
    unsized = [machine for machine in machines if not machine.memory_gb]
    if unsized:
        said.append(f"{_who(unsized, machines)}: memory for the spec's micro-batch, no more (--memory)")
    return said


def _who(some: Sequence[Machine], of: Sequence[Machine]) -> str:
    if len(some) == len(of):
        return "every peer" if len(of) > 1 else some[0].name
    return ", ".join(machine.name for machine in some[:3]) + (" and others" if len(some) > 3 else "")


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown key {where!r}; a peer has {', '.join(_Row.__dataclass_fields__)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{where} is missing"
    if isinstance(cause := first.get("ctx", {}).get("error"), BadInput):
        return str(cause)
    return f"{where} is {first['input']!r}: {first['msg']}"
