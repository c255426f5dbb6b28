"""A TOML file of peers: `[[peer]]` tables, and the delays between their regions."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dht.errors import BadInput
from peer.planning.plan.peer_set import MOST_PEERS, Machine, PeerSet, PeerSpecs, refuse_count
from peer.schema.toml_tables import must_be

MOST_WHOLE = 10**18
"""Larger whole numbers are typing mistakes."""


@dataclass(frozen=True, kw_only=True)
class _Row(Machine):
    __pydantic_config__ = ConfigDict(extra="forbid")
    count: int = 1
    """The number of peers of this kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 1:
            raise BadInput(f"{self.name}: count is {self.count}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class _File:
    __pydantic_config__ = ConfigDict(extra="forbid")
    peer: list[_Row]
    delay_ms: float | None = None
    """The one-way delay between peers whose regions, or whose pair of regions, are not known; None: assumed."""
    delays_ms: dict[str, float] = field(default_factory=dict)
    """The delay by pair of regions, `"berlin tokyo" = 120`; for the delay within a region it is given alone or
    twice."""
    cores: int = 0

    def __post_init__(self) -> None:
        if self.delay_ms is not None:
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


def read_peers(path: Path, *, most: int = MOST_PEERS) -> PeerSet:
    """The peers in a TOML file, at most `most`. Raises BadInput with one line that names the file and the key."""
    return read_declared(path, most=most).swarm()


def read_declared(path: Path, *, most: int) -> PeerSpecs:
    """The same as `read_peers`, without matrices between all peers."""
    try:
        table = tomllib.loads(path.read_text())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; --peers takes a number or a TOML file of [[peer]] tables") from error
    return declared_by(table, str(path), most=most)


def declared_by(table: Mapping[str, Any], source: str, *, most: int = MOST_PEERS) -> PeerSpecs:
    """The same as `read_declared` from nested dictionaries."""
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
    otherwise_s = None if found.delay_ms is None else found.delay_ms / 1000
    return PeerSpecs(machines=machines, delays=delays, otherwise_s=otherwise_s, cores=found.cores)


def _refuse_no_numbers(table: Mapping[str, Any]) -> None:
    """Raises BadInput for texts and truth values in the place of numbers, which would otherwise be converted."""
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


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown key {where!r}; a peer has {', '.join(_Row.__dataclass_fields__)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{where} is missing"
    if isinstance(cause := first.get("ctx", {}).get("error"), BadInput):
        return str(cause)
    return f"{where} is {first['input']!r}; {must_be(first)}"
