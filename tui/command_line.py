"""A command is a dataclass, and each of its options is a field: name, type, default and help, written once.

    @dataclass(frozen=True, kw_only=True)
    class BundleCommand(Command):
        to: Annotated[Path | None, Option("the zip file to write", "FILE")] = None

This makes `--to FILE`. `bool` is a switch, `tuple[str, ...]` an option that can be repeated, and a field that is a
dataclass itself adds its options to those of the command.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from math import inf
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from dht.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")
SECRET = re.compile(r"\b(hf1|hfc1):[\w=-]+")
"""An invite or the line of a cluster, which must not appear in an error message."""
MOST_NAME_BYTES = 255
"""The longest name of a file or folder, on the file systems of Linux and macOS."""
CLOSE = 0.7
"""The least similarity, of at most 1, for a suggestion."""


@dataclass(frozen=True)
class Option:
    """A field that is given as `--FIELD-NAME`, or by another `flag`."""

    help: str
    metavar: str | None = None
    flag: str = ""
    choices: Collection[str] | None = None
    either: str = ""
    """Options with the same word here exclude each other."""
    many: bool = False
    """Whether the option accepts several words at once."""
    hidden: bool = False
    within: tuple[float, float] | None = None
    """The smallest and largest value; infinity is not a valid value."""

    def check(self, flag: str, value: Any) -> None:
        """Raises BadInput for a value outside of `within`."""
        if self.within is None:
            return
        least, most = self.within
        if value == inf or not least <= value <= most:
            usual = f"it must be {least:g} or more" if most == inf else f"use {least:g} to {most:,.15g}"
            raise BadInput(f"{flag} is {f'{value:g}' if isinstance(value, float) else value}; {usual}")


@dataclass(frozen=True)
class Argument:
    """A field that is given by position, without a flag. It may be left out if the field has a default."""

    help: str
    metavar: str


@dataclass(frozen=True)
class Section:
    """The heading for the options of a field that is itself a dataclass."""

    title: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its options, and what it does."""

    debug: bool = field(default=False, repr=False)

    def run(self) -> int:
        """Execute the command; returns the exit code."""
        raise NotImplementedError


REWORDED = (
    (re.compile(r"argument (\S+): invalid int value: (.*)"), r"\1 is \2; write a whole number"),
    (re.compile(r"argument (\S+): invalid float value: (.*)"), r"\1 is \2; write a number"),
    (re.compile(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)"), r"\1 is \2; use one of \3"),
    (re.compile(r"argument (\S+): expected one argument"), r"\1 needs a value"),
    (re.compile(r"the following arguments are required: (.*)"), r"\1 is missing"),
)
"""Messages of argparse, and our wording of them."""


class Parser(argparse.ArgumentParser):
    """Reports mistakes in one line with exit code 2. The options of a command are added when that command is used."""

    fill: Callable[[Parser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        self._refuse_first(sys.argv[1:] if args is None else args)
        found, left = super().parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            self.error(f"{word!r} is not known here{_meant(word, self._option_string_actions)}")
        return found, left

    def _refuse_first(self, words: Sequence[str]) -> None:
        """An option that nobody knows is what is wrong, and not what lacks because of it."""
        for word in words:
            name = word.partition("=")[0]
            if not name.startswith("--") or name == "--":
                return
            if not any(known.startswith(name) for known in self._option_string_actions):
                self.error(f"{name!r} is not known here{_meant(name, self._option_string_actions)}")

    def error(self, message: str) -> NoReturn:
        for said, ours in REWORDED:
            message = said.sub(ours, message)
        safe = SECRET.sub(r"\1:…", message)
        raise BadInput(f"{safe}{' ' if safe.endswith('?') else '; '}see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"{value!r} is no command{_meant(value, action.choices)}")
        super()._check_value(action, value)


def _meant(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, CLOSE)
    return f"; did you mean {close[0]!r}?" if close else ""


def add_options(parser: argparse._ActionsContainer, kind: type[DataclassInstance]) -> None:
    either: dict[str, argparse._ActionsContainer] = {}
    for each in _declared(kind):
        match each.how:
            case Argument(metavar=metavar):
                nargs = "*" if each.is_repeated else None if each.default is MISSING else "?"
                how = {"type": each.type, "default": None, "metavar": metavar, "help": each.help}
                parser.add_argument(each.name, nargs=nargs, **how)
            case Option(either=word) if each.flag not in parser._option_string_actions:  # parts may share one
                place = parser
                if word:
                    place = either.get(word) or parser.add_mutually_exclusive_group()
                    either[word] = place
                place.add_argument(each.flag, default=argparse.SUPPRESS, **_how(each, each.how))
            case Section(title=title):
                same = (group for group in parser._action_groups if group.title == title)
                add_options(next(same, None) or parser.add_argument_group(title), each.kind)
            case None if each.is_part:
                add_options(parser, each.kind)


def _how(each: _Field, option: Option) -> dict[str, Any]:
    text = argparse.SUPPRESS if option.hidden else each.help
    if each.kind is bool:
        return {"action": "store_true", "help": text}
    how = {"type": each.type, "metavar": option.metavar, "choices": option.choices, "help": text}
    if option.many:
        return {**how, "nargs": "+"}
    return {**how, "action": "append"} if each.is_repeated else how


def read_options(kind: type[Kind], said: Mapping[str, Any]) -> Kind:
    """A dataclass with the parser's results; fields that were not given have their defaults. Raises BadInput."""
    given: dict[str, Any] = {"debug": said["debug"]} if issubclass(kind, Command) else {}
    for each in _declared(kind):
        if each.is_part:
            given[each.name] = read_options(each.kind, said)
        elif each.how is not None and (value := said.get(each.key)) not in (None, []):
            given[each.name] = tuple(value) if isinstance(value, list) else value
            for one in value if isinstance(value, list) else (value,):
                _check_text(each.called, one)
            if isinstance(each.how, Option):
                each.how.check(each.flag, value)
    return kind(**given)


def _check_text(called: str, value: object) -> None:
    """Raises BadInput for text that cannot be a file name; otherwise there would be a traceback wherever it is first
    opened."""
    if not isinstance(value, str | Path):
        return
    text = str(value)
    if "\0" in text:
        raise BadInput(f"{called} has a NUL character, which no name has")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadInput(f"{called} is {text[:60]!r}, which is not UTF-8 text; give the file or folder another name")
    longest = max(map(len, map(os.fsencode, value.parts)), default=0) if isinstance(value, Path) else 0
    if longest > MOST_NAME_BYTES:
        raise BadInput(f"{called} has a name of {longest} bytes in it; a file or folder has {MOST_NAME_BYTES} at most")


def words_of(options: DataclassInstance) -> list[str]:
    """The command line words for these options, without arguments and without defaults."""
    words: list[str] = []
    for each in _declared(type(options)):
        value = getattr(options, each.name)
        if each.is_part:
            words += words_of(value)
        elif isinstance(each.how, Option) and value != each.default:
            if value is True:
                words.append(each.flag)
            elif each.how.many:
                words += [each.flag, *map(str, value)]
            else:
                values = value if isinstance(value, tuple) else (value,)
                words += [word for one in values for word in _said(each.flag, str(one))]
    return words


def _said(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]  # else it were an option of its own


@dataclass(frozen=True, kw_only=True)
class _Field:
    name: str
    kind: Any
    how: Option | Argument | Section | None
    default: Any

    @property
    def flag(self) -> str:
        return getattr(self.how, "flag", "") or f"--{self.name.replace('_', '-')}"

    @property
    def called(self) -> str:
        """The name of the field in an error message."""
        return self.how.metavar if isinstance(self.how, Argument) else self.flag

    @property
    def key(self) -> str:
        """The name of the parser's result."""
        return self.name if isinstance(self.how, Argument) else self.flag.strip("-").replace("-", "_")

    @property
    def type(self) -> Any:
        """`int` of `int`, of `int | None` and of `tuple[int, ...]`."""
        return next((each for each in get_args(self.kind) if each not in (NoneType, Ellipsis)), self.kind)

    @property
    def is_repeated(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_part(self) -> bool:
        return is_dataclass(self.kind)

    @property
    def help(self) -> str:
        """The help text, with the default if the text does not mention it."""
        text: str = getattr(self.how, "help", "")
        is_told = "default" in text or not self.default or isinstance(self.default, bool | tuple)
        return text if is_told or self.default is MISSING else f"{text} (default {self.default})"


def _declared(kind: type[DataclassInstance]) -> Iterator[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        how = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, HOW)), None)
        yield _Field(name=each.name, kind=get_args(hint)[0] if how else hint, how=how, default=each.default)


HOW = (Option, Argument, Section)
