"""Tables of named values in TOML, for specs and settings: read completely, or refused with one line."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dht.errors import BadSpec

T = TypeVar("T", bound="StrictTable")


@dataclass(frozen=True)
class Bounds:
    """From where to where a number may be: `Annotated[int, Bounds(1, 16)]`."""

    low: float
    high: float = float("inf")


@dataclass(frozen=True)
class Characters:
    """How many a text may have, all of them printable: `Annotated[str, Characters(64)]`."""

    most: int


class StrictTable:
    """A frozen dataclass that derives from this has no other keys than its fields when it is `read`.

    Numbers are within their `Bounds` and texts their `Characters`, however it is made; else BadSpec.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        table = type(self).__name__.removesuffix("Table").lower()
        for name, bounds in _bounds_of(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if isinstance(bounds, Bounds):
                require(value, f"{table}.{name}", low=bounds.low, high=bounds.high)
            elif len(value) > bounds.most or not value.isprintable():
                raise BadSpec(f"{table}.{name} is {shortened(value)}; use at most {bounds.most} printable characters")


@cache
def _bounds_of(kind: type[Any]) -> tuple[tuple[str, Bounds | Characters], ...]:
    hints = get_type_hints(kind, include_extras=True).items()
    each = ((name, bound) for name, hint in hints for bound in get_args(hint)[1:])
    return tuple((name, bound) for name, bound in each if isinstance(bound, Bounds | Characters))


def require(value: float, name: str, *, low: float, high: float = float("inf")) -> None:
    """Raises BadSpec for what is not from `low` to `high`, and for what is no number."""
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise BadSpec(f"{name} is {_number(value)}; it must be {bound}")


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:  # an integer that no float holds
        return shortened(value)


SHOWN = 60
"""Characters of a value in a message."""


def shortened(value: object) -> str:
    """A value as a message shows it: on one line, with nothing that a terminal would obey, and not too long."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except (ValueError, RecursionError):  # a number of very many digits, or very deep
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 10]}…{text[-9:]}"


def read(kind: type[T], values: Mapping[str, Any], source: str) -> T:
    """A table, and those in it, from values by name.

    Raises BadSpec with one line that names `source`, key and value.
    """
    try:
        table: T = _adapter(kind).validate_python(dict(values))  # type: ignore[arg-type]
    except ValidationError as error:
        raise BadSpec(f"{source}: {_explain(error, kind)}") from error
    except BadSpec as error:
        raise BadSpec(f"{source}: {error}") from error
    return table


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Made once: that takes twenty times as long as reading a table with it."""
    return TypeAdapter(kind)


def to_toml(values: Mapping[str, Any]) -> str:
    """A line `key = value` for each."""
    return "".join(f"{name} = {_to_toml(value)}\n" for name, value in values.items())


def _to_toml(value: str | bool | int | float | Sequence[str]) -> str:
    if isinstance(value, str):
        # The escapes of JSON are escapes of TOML, which wants one more.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence):
        return f"[{', '.join(_to_toml(item) for item in value)}]"
    return repr(value)


def _explain(error: ValidationError, root: type[StrictTable]) -> str:
    first = error.errors()[0]
    where = ".".join(shortened(str(step))[1:-1] for step in first["loc"] if not str(step).endswith("]"))
    if first["type"] == "unexpected_keyword_argument":
        names = _keys_beside(first["loc"], root)
        close = difflib.get_close_matches(str(first["loc"][-1])[:SHOWN], names, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(names)}"
        return f"unknown key '{where}'{hint}"
    if first["type"] == "missing":
        return f"{where} is missing"
    if isinstance(cause := first.get("ctx", {}).get("error"), BadSpec):
        return str(cause)
    return f"{where} is {shortened(first['input'])}; {must_be(first)}"


_KINDS = {
    "int": "a whole number", "float": "a number", "finite": "a finite number", "bool": "true or false",
    "string": "a text", "list": "a list", "tuple": "a list", "dataclass": "a table", "dict": "a table",
}  # fmt: skip
"""By how the type of an error begins."""


def must_be(error: ErrorDetails) -> str:
    """What a value has to be that pydantic refused, as people say it."""
    if error["type"] == "literal_error":
        return f"it must be {error['ctx']['expected']}"
    kind = _KINDS.get(error["type"].partition("_")[0])
    return f"it must be {kind}" if kind else error["msg"]


def _keys_beside(loc: tuple[int | str, ...], root: type[StrictTable]) -> list[str]:
    """Names that the table has to which this place belongs."""
    kind: Any = root
    for name in loc[:-1]:
        # Of a list of tables the place is a number.
        kind = get_args(kind)[0] if isinstance(name, int) else get_type_hints(kind)[name]
    return [each.name for each in dataclasses.fields(kind)]
