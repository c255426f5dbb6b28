"""What a field of an event may hold: each value is checked when it is read, and made printable.

It also names the files in which events lie.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

Reader = Callable[[Any], Any]
MAX_TEXT = 8192
"""A longer text is cut."""
RENAMED_PHASES = {"freeze": "submit", "group": "prepare", "send": "exchange", "judge": "weigh"}
"""Words of older clients and recordings, by which the same is said today: read, never written."""
GPU_FIGURES = frozenset({
    "gpu_percent", "vram_used_bytes", "vram_bytes", "temperature_c", "power_w", "power_limit_w", "fan_percent",
    "throttled",
})  # fmt: skip
_FILE = re.compile(r"events\.jsonl(?:\.(\d+))?")
_SHARED = 64
"""Texts of at most so many characters are kept once."""
_LARGEST = 2**63
MAX_LINE_BYTES = 4 << 20
"""A longer line is not read as one."""
LARGEST_NUMBER = 1e100
"""No figure of ours comes near. Sums, means and squares of what is below it stay finite."""
_LAST_T = 253_000_000_000.0
"""In the year 9987."""


def printable(text: str) -> str:
    """The text without control, format or escape characters: each becomes U+FFFD."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def event_files(directory: Path) -> list[Path]:
    """The event files of a run directory, oldest first."""
    found = [(match, path) for path in directory.glob("events.jsonl*") if (match := _FILE.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: -int(pair[0][1] or 0))]


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """Every line of an event file but empty ones, before it is read. Raises OSError."""
    with path.open("rb") as file:
        while raw := file.readline(MAX_LINE_BYTES):
            if not raw.isspace():
                yield raw


def read_text(value: Any) -> str:
    """A text without control, format or escape characters."""
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is no text")
    if not value.isprintable():
        value = printable(value)
    return _shared(value) if len(value) <= _SHARED else value[:MAX_TEXT]


@lru_cache(maxsize=8192)
def _shared(text: str) -> str:
    """The equal text that was read before: ids, digests, names and words come again and again.

    Not `sys.intern`, which on Python 3.12 keeps a text for ever.
    """
    return text


def read_integer(value: Any) -> int:
    """An integer of 64 bits."""
    if type(value) is not int or not -_LARGEST < value < _LARGEST:
        raise TypeError(f"{str(value)[:80]} is no integer")
    return value


def read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise TypeError(f"{str(value)[:80]} is no count")
    return value


def read_number(value: Any) -> float:
    """A number that is finite, also when it is added to others or squared."""
    if type(value) is not float:
        return float(read_integer(value))
    if not abs(value) <= LARGEST_NUMBER:  # nor inf, as 1e999 is read
        raise TypeError(f"{value} is too large")
    return value


def read_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r:.80} is neither true nor false")
    return value


def read_optional(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def read_time(value: Any) -> float:
    """Unix time that a calendar has."""
    t = read_number(value)
    if not 0 <= t < _LAST_T:
        raise TypeError(f"{t} is no time")
    return t


def read_list(read: Reader, value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"{value!r:.80} is no list")
    return [read(item) for item in value]


def read_map(read: Reader, value: Any) -> dict[str, Any]:
    """What `read` takes, by text. A number that is null was not finite: it is left out."""
    if type(value) is not dict:
        raise TypeError(f"{value!r:.80} is no object")
    return {read_text(key): read(item) for key, item in value.items() if item is not None}


def read_any(value: Any) -> Any:
    """A setting, of whatever type."""
    match value:
        case str():
            return read_text(value)
        case bool() | None:
            return value
        case int() | float():
            return read_number(value) if isinstance(value, float) else read_integer(value)
        case list():
            return [read_any(item) for item in value]
        case _:
            return {read_text(key): read_any(item) for key, item in value.items()}


def reader_of(hint: Any) -> Reader:
    """How a value of an annotated type is read."""
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return remembering(partial(read_list, reader_of(arguments[0])))
    if get_origin(hint) is tuple:
        items = reader_of(list[arguments[0]])  # type: ignore[valid-type]
        return lambda value: tuple(items(value))
    if get_origin(hint) is dict:
        return remembering(partial(read_map, reader_of(arguments[1])))
    if get_origin(hint) is UnionType:
        assert arguments[1:] == (NoneType,), f"no reader for {hint}"
        return partial(read_optional, reader_of(arguments[0]))
    return _SCALARS[hint]


def remembering(read: Reader) -> Reader:
    """`read`, which is spared if a value equals the one before: all members report a round in the same words.

    What was read then is returned again, so equal lines share it.
    """
    last: list[tuple[Any, Any]] = [(None, None)]

    def read_or_recall(value: Any) -> Any:
        known, result = last[0]
        if value is None or value != known:
            result = read(value)
            last[0] = value, result
        return result

    return read_or_recall


_SCALARS: dict[Any, Reader] = {
    str: read_text, int: read_count, float: read_number, bool: read_flag, Any: read_any,
}  # fmt: skip


def read_phase(value: Any) -> str:
    """A phase in today's word."""
    phase = read_text(value)
    return RENAMED_PHASES.get(phase, phase)


def read_connection(value: Any) -> dict[str, Any]:
    """A row of `NetworkMeasured.peers`."""
    return {name: read(value[name]) for name, read in _CONNECTION}


_CONNECTION: tuple[tuple[str, Reader], ...] = (
    ("peer", read_text), ("address", read_text), ("relayed", read_flag), ("bytes_sent", read_count),
    ("bytes_received", read_count), ("rtt_s", partial(read_optional, read_number)),
)  # fmt: skip


def finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


NARROWER: dict[str, Reader] = {
    "until": partial(read_optional, read_time),
    "deadline": partial(read_optional, read_time),
    "exit_code": read_integer,
    "phase": read_phase,
    "peers": partial(read_list, read_connection),
}
"""By the name of the field: those of plain values of which the type says too little."""

DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""Numbers that JSON lacks (NaN, Infinity) read as null, as they are written here."""
