"""Every field of everything that peers say, read from the declarations themselves: a new field is a new case.

A field is known by what says it and by its path, such as `Start headers.*.ranges.*.1`: names for the fields of a
structure, `*` for the entries of a list, numbers for those of a row.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.messages import _TYPES, ObjectData

EACH = "*"


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way to a field."""

    name: str
    """Of the field of a structure, `*` for the entries of a list, a number in a row."""
    place: int
    """In what is packed; -1 for all entries of a list."""
    hint: Any
    """The type of what is left by this step."""


NOT_ON_THE_WIRE = {(ObjectData, "digest")}
"""Computed by whoever receives it."""
SAID_AT_HOME: tuple[type, ...] = (ContributionHeader, Update)
"""Structures about which a peer can lie before anything is said, so that all it says agrees with the lie."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, or of a structure that is said in several."""

    said_in: type
    path: tuple[Step, ...]
    hint: Any
    """Its type, as declared."""

    def __str__(self) -> str:
        return f"{self.said_in.__name__} {'.'.join(step.name for step in self.path)}"


@cache
def fields() -> tuple[Field, ...]:
    """All of them, in the order of the declarations."""
    kinds = (*_TYPES.values(), *SAID_AT_HOME)
    return tuple(Field(kind, path, hint) for kind in kinds for path, hint in _of_structure(kind, kind))


def structures() -> tuple[type, ...]:
    """Everything that has fields of its own, each once: the messages, and what stands in them."""
    found = dict.fromkeys(_TYPES.values())
    for field in fields():
        if is_structure(field.hint):
            found[field.hint] = None
    return tuple(found)


def names_of(structure: type) -> tuple[str, ...]:
    """The names of its fields on the wire."""
    names: tuple[str, ...] = structure.__match_args__  # type: ignore[attr-defined]
    readers = getattr(structure, "readers", names)
    assert len(readers) == len(names), f"{structure.__name__} has {len(readers)} readers for {len(names)} fields"
    return tuple(name for name in names if (structure, name) not in NOT_ON_THE_WIRE)


def is_structure(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def is_packed_whole(hint: Any) -> bool:
    """Whether a list of it is one field on the wire: statistics are packed into bytes."""
    return is_structure(hint) and not hasattr(hint, "packed")


def _of_structure(structure: type, said_in: type) -> Iterator[tuple[tuple[Step, ...], Any]]:
    hints = get_type_hints(structure)
    for place, name in enumerate(names_of(structure)):
        # What an update says is lied about at home; in a block its digest is what the votes are for.
        shallow = hints[name] is Update and said_in is not Update
        for path, hint in _below(hints[name], said_in, shallow):
            yield (Step(name, place, structure), *path), hint


def _below(hint: Any, said_in: type, shallow: bool = False) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """The value itself, and what is in it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        yield (), hint
        (held,) = (one for one in inner if one is not type(None))
        yield from ((path, found) for path, found in _below(held, said_in) if path)
    elif origin is tuple and inner[-1] is Ellipsis:
        yield (), bytes if is_packed_whole(inner[0]) else hint
        if not is_packed_whole(inner[0]):
            yield from (((Step(EACH, -1, hint), *path), found) for path, found in _below(inner[0], said_in))
    elif origin is tuple:
        yield (), hint
        for number, item in enumerate(inner):
            yield from (((Step(str(number), number, hint), *path), found) for path, found in _below(item, said_in))
    elif is_structure(hint):
        yield (), hint
        if not shallow:
            yield from _of_structure(hint, said_in)
    else:
        assert hint in (int, bytes, str, bool), f"no extreme is known of {hint}"
        yield (), hint
