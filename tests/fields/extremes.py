"""The extremes of a field: what a lie can put in place of an honest value, and where."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from peer.consensus.protocol.encoding import digest_of
from tests.fields.declared import EACH, Step, is_structure

YEAR_S = 365 * 86_400
NAN_BITS = 0x7FC00000
LONG = 2_000
"""Entries of a very long list; the readers of the longest take 65,536, which no frame of the others can hold."""
MADE_UP = digest_of(b"made up")
STRANGER = "x0"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a lie can be made of. All values are as they are packed."""

    honest: Any
    anothers: Any = None
    """Of the same field in what another peer said last; None if it said nothing."""
    earlier: Any = None
    """The same in what the liar itself said in an earlier round."""


NUMBERS: dict[str, Callable[[Seen], Any]] = {
    "0": lambda seen: 0,
    "1": lambda seen: 1,
    "2^62": lambda seen: 1 << 62,
    "2^63-1": lambda seen: (1 << 63) - 1,
    "2^31": lambda seen: 1 << 31,
    "NaN": lambda seen: NAN_BITS,
    "one more": lambda seen: seen.honest + 1,
    "twice": lambda seen: 2 * seen.honest,
    "long past": lambda seen: max(0, seen.honest - YEAR_S),
    "far future": lambda seen: seen.honest + YEAR_S,
    "an hour ahead": lambda seen: seen.honest + 3600,
    "a minute before": lambda seen: max(0, seen.honest - 60),
    "-1": lambda seen: -1,
}
BYTES: dict[str, Callable[[Seen], Any]] = {
    "made up": lambda seen: (MADE_UP * (len(seen.honest) // 32 + 1))[: len(seen.honest)],
    "empty": lambda seen: b"",
    "ones": lambda seen: b"\xff" * len(seen.honest),
    "twice": lambda seen: 2 * seen.honest,
    "very long": lambda seen: bytes(1 << 17),
}
TEXTS: dict[str, Callable[[Seen], Any]] = {
    "a stranger": lambda seen: STRANGER,
    "empty": lambda seen: "",
    "long": lambda seen: "x" * 64,
    "twice": lambda seen: 2 * seen.honest,
    "unprintable": lambda seen: "\x1b[2J",
    "very long": lambda seen: "x" * 5_000,
}
FLAGS: dict[str, Callable[[Seen], Any]] = {"the other": lambda seen: not seen.honest, "1": lambda seen: 1}
LISTS: dict[str, Callable[[Seen], Any]] = {
    "empty": lambda seen: (),
    "without the first": lambda seen: seen.honest[1:],
    "reversed": lambda seen: seen.honest[::-1],
    "twice": lambda seen: 2 * seen.honest,
    "very long": lambda seen: (seen.honest * LONG)[:LONG],
}
OTHERS: dict[str, Callable[[Seen], Any]] = {
    "another's": lambda seen: seen.anothers,
    "earlier": lambda seen: seen.earlier,
    "missing": lambda seen: None,
}


def lies_about(hint: Any) -> dict[str, Callable[[Seen], Any]]:
    """By name, what can be said in a field of this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (held,) = (one for one in inner if one is not type(None))
        return {**_filled(held), **OTHERS}
    if origin is tuple:
        return {**_longer(inner[0]), **LISTS, **OTHERS} if inner[-1] is Ellipsis else {**_filled(hint), **OTHERS}
    if is_structure(hint):
        return OTHERS
    return {**{int: NUMBERS, bytes: BYTES, str: TEXTS, bool: FLAGS}[hint], **OTHERS}


def _filled(row: Any) -> dict[str, Callable[[Seen], Any]]:
    return {"made up": lambda seen: filler(row)}


def _longer(entry: Any) -> dict[str, Callable[[Seen], Any]]:
    """A list with an entry that nobody has said."""
    return {} if is_structure(entry) else {"made up": lambda seen: (*seen.honest, filler(entry))}


def filler(hint: Any) -> Any:
    """Something of this type where an honest peer says nothing."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return filler(inner[0])
    if origin is tuple:
        return () if inner[-1] is Ellipsis else tuple(map(filler, inner))
    if is_structure(hint):
        return None
    return {int: 1, bytes: MADE_UP, str: STRANGER, bool: False}[hint]


class NotSaid(Exception):
    """The field is in nothing that was to be said: a list of structures is empty."""


def changed(value: Any, path: Sequence[Step], change: Callable[[Any], Any], me: str) -> Any:
    """`value`, packed, with `change` where `path` leads; of structures that have an author, in mine alone.

    Raises NotSaid.
    """
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    if value is None:
        value = filler(step.hint)
    if step.name == EACH:
        value = value or (_made_up(get_args(step.hint)[0]),)
        own = [item for item in value if isinstance(item, tuple) and item[:1] == (me,)]
        return tuple(changed(item, rest, change, me) if not own or item in own else item for item in value)
    old = (
        value[step.place] if step.place < len(value) else ()
    )  # the last field of a header is left out where it is empty
    return (*value[: step.place], changed(old, rest, change, me), *value[step.place + 1 :])


def _made_up(hint: Any) -> Any:
    if is_structure(hint):
        raise NotSaid
    return filler(hint)


def at(value: Any, path: Sequence[Step], author: str) -> Any:
    """What stands where `path` leads, in the first entry of a list, or the one of this author; None if nothing does."""
    for step in path:
        if not isinstance(value, tuple) or not value:
            return None
        if step.name == EACH:
            own = [item for item in value if isinstance(item, tuple) and item[:1] == (author,)]
            value = (own or value)[0]
        else:
            value = value[step.place] if step.place < len(value) else None
    return value
