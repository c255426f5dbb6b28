"""A command is a dataclass, and each of its options is a field: name, type, default and help, written once.

    @dataclass(frozen=True, kw_only=True)
    class BundleCommand(Command):
        to: Annotated[Path | None, Option("the zip file to write", "FILE")] = None

`--to FILE` comes of that. `bool` is a switch, `tuple[str, ...]` an option that can be repeated, and a field that is a
dataclass itself has its options among those of the command.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from math import inf
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_type_hints

from dht.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")
SECRET = re.compile(r"\b(hf1|hfc1):[\w=-]+")
"""An invite or the line of a cluster, which no error repeats."""
CLOSE = 0.6
"""What is so much alike was meant; of 1."""


@dataclass(frozen=True)
class Option:
    """How a field is said: `--FIELD-NAME`, or another `flag`."""

    help: str
    metavar: str | None = None
    flag: str = ""
    choices: Collection[str] | None = None
    either: str = ""
    """Options that have this word in common exclude each other."""
    many: bool = False
    """It takes several words at once."""
    hidden: bool = False
    within: tuple[float, float] | None = None
    """The least and the most; infinity is no value."""

    def check(self, flag: str, value: float) -> None:
        """Raises BadInput."""
        least, most = self.within or (value, value)
        if value == inf or not least <= value <= most:
            usual = f"it must be {least:g} or more" if most == inf else f"use {least:g} to {most:,.15g}"
            raise BadInput(f"{flag} is {f'{value:g}' if isinstance(value, float) else value}; {usual}")


@dataclass(frozen=True)
class Argument:
    """A field that is said by its place, without a flag. It may be left out if the field has a default."""

    help: str
    metavar: str


@dataclass(frozen=True)
class Section:
    """The heading under which the options of a field are listed that is a dataclass."""

    title: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a command line asked for, and what is done about it."""

    debug: bool = field(default=False, repr=False)

    def run(self) -> int:
        """Do it; the exit code."""
        raise NotImplementedError


class Parser(argparse.ArgumentParser):
    """Mistakes are one line and exit code 2. What a command takes is added when it is the one that was typed."""

    fill: Callable[[Parser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        found, left = super().parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            self.error(f"{word!r} is not known here{_meant(word, self._option_string_actions)}")
        return found, left

    def error(self, message: str) -> NoReturn:
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
    """Have a parser take the fields of a dataclass."""
    either: dict[str, argparse._ActionsContainer] = {}
    for name, hint, said, default in _declared(kind):
        match said:
            case Argument(metavar=metavar):
                how = {"type": _type_of(hint), "default": None, "metavar": metavar, "help": _help(said, default)}
                parser.add_argument(name, nargs=_nargs(hint, default), **how)
            case Option() if (flag := _flag(name, said)) not in parser._option_string_actions:  # parts may share one
                place = parser
                if said.either:
                    place = either.get(said.either) or parser.add_mutually_exclusive_group()
                    either[said.either] = place
                place.add_argument(flag, default=argparse.SUPPRESS, **_how(hint, said, default))
            case Section(title=title):
                same = (group for group in parser._action_groups if group.title == title)
                add_options(next(same, None) or parser.add_argument_group(title), hint)
            case None if isinstance(hint, type) and is_dataclass(hint):
                add_options(parser, hint)


def _how(hint: Any, option: Option, default: Any) -> dict[str, Any]:
    """What `add_argument` is told of an option."""
    text = argparse.SUPPRESS if option.hidden else _help(option, default)
    if hint is bool:
        return {"action": "store_true", "help": text}
    how = {"type": _type_of(hint), "metavar": option.metavar, "choices": option.choices, "help": text}
    if option.many:
        return {**how, "nargs": "+"}
    return {**how, "action": "append"} if _is_tuple(hint) else how


def _help(how: Option | Argument, default: Any) -> str:
    is_told = "default" in how.help or not default or isinstance(default, bool | tuple) or default is MISSING
    return how.help if is_told else f"{how.help} (default {default})"


def read_options(kind: type[Kind], said: Mapping[str, Any]) -> Kind:
    """The dataclass, from what a parser has found; what was not said is as its fields say."""
    given: dict[str, Any] = {"debug": said["debug"]} if issubclass(kind, Command) else {}
    for name, hint, how, _ in _declared(kind):
        if how is None and not is_dataclass(hint):
            continue
        value = said.get(_flag(name, how).strip("-").replace("-", "_") if isinstance(how, Option) else name)
        if isinstance(hint, type) and is_dataclass(hint):
            given[name] = read_options(hint, said)
        elif value is not None and value != []:
            given[name] = tuple(value) if isinstance(value, list) else value
            if isinstance(how, Option) and how.within is not None:
                how.check(_flag(name, how), value)
    return kind(**given)


def words_of(options: DataclassInstance) -> list[str]:
    """The command line of these options, without arguments and without what is as by default."""
    words: list[str] = []
    for name, hint, how, default in _declared(type(options)):
        value = getattr(options, name)
        if is_dataclass(hint):
            words += words_of(value)
        elif isinstance(how, Option) and value != default:
            flag = _flag(name, how)
            if value is True:
                words.append(flag)
            elif how.many:
                words += [flag, *map(str, value)]
            else:
                values = value if isinstance(value, tuple) else (value,)
                words += [word for each in values for word in _said(flag, str(each))]
    return words


def _said(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]  # else it were an option of its own


def _declared(kind: type[DataclassInstance]) -> Iterator[tuple[str, Any, Option | Argument | Section | None, Any]]:
    """Of each field: name, type, how it is said, and default."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint = hints[each.name]
        how = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, HOW)), None)
        yield each.name, getattr(hint, "__origin__", hint) if how else hint, how, each.default


HOW = Option | Argument | Section


def _flag(name: str, option: Option) -> str:
    return option.flag or f"--{name.replace('_', '-')}"


def _is_tuple(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is tuple


def _type_of(hint: Any) -> Any:
    """`int` of `int`, of `int | None` and of `tuple[int, ...]`."""
    return next((each for each in get_args(hint) if each not in (NoneType, Ellipsis)), hint)


def _nargs(hint: Any, default: Any) -> str | None:
    if _is_tuple(hint):
        return "*"
    return None if default is MISSING else "?"
