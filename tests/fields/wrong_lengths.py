"""Every list of everything that peers say, longer, shorter or empty: a list of a new field is a new case.

Lists are those of the declarations, whatever they stand in; rows of several values and bytes have lengths as well. What
is said with one is signed again by whoever signs it, so that it is looked at as what is honest is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from peer.consensus.protocol.block import Block, ContributionHeader, Restart, Roster, Stuck, Vote
from peer.consensus.protocol.encoding import Keys, pack
from peer.consensus.protocol.messages import MeanData, Message, Propose
from tests.fields.declared import EACH, names_of
from tests.fields.extremes import LONG, NotSaid, filler

Path = tuple[str | int, ...]
"""Names of fields, `*` for the first entry of a list, numbers in a row."""

LONGER: dict[str, Callable[[Any, Any], Any]] = {
    "one more": lambda value, entry: value + (value[:1] or entry),
    "very long": lambda value, entry: ((value or entry) * LONG)[:LONG],
}
"""By name, from a list and a list of one entry."""
SHORTER: dict[str, Callable[[Any, Any], Any]] = {
    "empty": lambda value, entry: value[:0],
    "one less": lambda value, entry: value[:-1],
}
LENGTHS = LONGER | SHORTER


hints_of = cache(get_type_hints)
"""It evaluates every annotation anew."""


@cache
def lists_of(kind: type[Message]) -> tuple[Path, ...]:
    """Where lists stand in a message."""
    return tuple(_below(kind))


def _below(hint: Any) -> Iterator[Path]:
    hint = _held(hint)
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        yield ()
        entries = {EACH: inner[0]} if inner[-1] is Ellipsis else dict(enumerate(inner))
        yield from ((at, *path) for at, entry in entries.items() for path in _below(entry))
    elif hint is bytes:
        yield ()
    elif is_dataclass(hint):
        names = names_of(hint) if hasattr(hint, "packed") else ()
        yield from ((name, *path) for name in names for path in _below(hints_of(hint)[name]))


def _held(hint: Any) -> Any:
    """The type of what is said in a field, if anything is."""
    is_optional = get_origin(hint) in (Union, types.UnionType)
    return next(one for one in get_args(hint) if one is not type(None)) if is_optional else hint


@dataclass(frozen=True)
class WrongLengths:
    """What is made of a message whose lists have other lengths."""

    keys_of: Callable[[str], Keys | None]
    """Of an author; None for one whose signature the speaker cannot make. The organiser has an empty name."""
    samples: Mapping[type, Any]
    """Structures for lists that have none."""

    def said(self, message: Message, path: Path, length: str) -> Message:
        """The same with the list there of that length. Raises NotSaid where it has that, or nothing to have."""
        changed: Message = self._changed(message, type(message), path, LENGTHS[length])
        return changed

    def _changed(self, value: Any, hint: Any, path: Path, change: Callable[[Any, Any], Any]) -> Any:
        hint = _held(hint)
        if not path:
            return self._of_length(value, hint, change)
        step, rest = path[0], path[1:]
        if isinstance(step, str) and step != EACH:
            below = self._changed(getattr(value, step), hints_of(type(value))[step], rest, change)
            return self._signed(replace(value, **{step: below}), step)
        at, inner = (0, get_args(hint)[0]) if step == EACH else (int(step), get_args(hint)[int(step)])
        value = value or (self._entries(hint) if step == EACH else filler(hint))
        return (*value[:at], self._changed(value[at], inner, rest, change), *value[at + 1 :])

    def _of_length(self, value: Any, hint: Any, change: Callable[[Any, Any], Any]) -> Any:
        own = hint() if value is None else value
        changed = change(own, self._entries(hint))
        if changed == own:
            raise NotSaid
        return changed

    def _entries(self, hint: Any) -> Any:
        """One entry of a list."""
        if hint is bytes:
            return b"x"
        entry = get_args(hint)[0]
        if is_dataclass(entry) and entry not in self.samples:
            raise NotSaid
        return (self.samples[entry] if is_dataclass(entry) else filler(entry),)

    def _signed(self, said: Any, changed: str) -> Any:
        """By its author, unless it is the signature that was changed."""
        if changed.endswith("signature"):
            return said
        match said:
            case ContributionHeader(peer=author) | Vote(voter=author) | MeanData(reducer=author) | Stuck(voter=author):
                return said if (keys := self.keys_of(author)) is None else said.signed(keys)
            case Restart() | Roster():
                return said if (keys := self.keys_of("")) is None else said.signed(keys)
            case Propose(place, update) if (keys := self.keys_of(update.coordinator)) is not None:
                return replace(said, signature=keys.sign("propose", pack((place.packed(), update.digest))))
            case Block(update, votes) if changed == "update":
                return replace(said, votes=tuple(self._vote_for(update.digest, vote) for vote in votes))
        return said

    def _vote_for(self, update: bytes, vote: Vote) -> Vote:
        keys = self.keys_of(vote.voter)
        return vote if keys is None else replace(vote, update=update).signed(keys)
