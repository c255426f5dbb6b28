"""From fields to options, and back to the words that a child is told."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

from dht.errors import BadInput
from tui.cli import COMMANDS, parse
from tui.command_line import Argument, Option, Parser, Section, add_options, read_options, words_of


@dataclass(frozen=True, kw_only=True)
class Roof:
    tiles: Annotated[int, Option("how many", "N", within=(1, 9))] = 3
    colour: Annotated[str, Option("of each", choices=("red", "black"))] = "red"


@dataclass(frozen=True, kw_only=True)
class House:
    where: Annotated[Path, Argument("its place", "PLACE")]
    guests: Annotated[tuple[str, ...], Argument("who comes", "NAME")] = ()
    rooms: Annotated[int | None, Option("how many (default: enough)", "N")] = None
    doors: Annotated[tuple[str, ...], Option("one more; repeatable", "SIDE", "--door")] = ()
    warm: Annotated[bool, Option("with a fire", either="hearth")] = False
    cold: Annotated[bool, Option("without", either="hearth")] = False
    roof: Annotated[Roof, Section("the roof")] = field(default_factory=Roof)
    noted: str = "not an option"


def house(line: str) -> House:
    parser = Parser(prog="house")
    add_options(parser, House)
    return read_options(House, vars(parser.parse_args(shlex.split(line))))


def test_what_nobody_says_is_as_the_fields_say() -> None:
    assert house("here") == House(where=Path("here"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--rooms 4", {"rooms": 4}),
        ("--door north --door=-south", {"doors": ("north", "-south")}),
        ("--warm", {"warm": True}),
        ("--tiles 5 --colour black", {"roof": Roof(tiles=5, colour="black")}),
    ],
)
def test_an_option_is_a_field_and_a_field_is_words_again(line: str, said: dict[str, Any]) -> None:
    """A value that looks like an option stays one word with its flag."""
    built = house(f"here {line}")
    assert built == House(where=Path("here"), **said)
    assert words_of(built) == shlex.split(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "PLACE is missing; see house --help"),
        ("here --tiles 10", "--tiles is 10; use 1 to 9"),
        ("here --warm --cold", "--cold: not allowed with argument --warm"),
        ("here --room 4 --dor x", "'--dor' is not known here; did you mean '--door'? see house --help"),
        ("here --rooms hfc1:secret", "--rooms is 'hfc1:…'; write a whole number"),
    ],
)
def test_a_slip_is_one_line(line: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        house(line)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_help_lists_each_option_once_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        house("--help")
    told = capsys.readouterr().out
    assert "the roof:\n  --tiles N             how many (default 3)" in told
    assert "how many (default: enough)\n" in told


@pytest.mark.parametrize("name", [name for name, (module, _) in COMMANDS.items() if module])
def test_every_command_can_be_said(name: str) -> None:
    """Its fields are all options, or words in their places."""
    with pytest.raises(SystemExit):
        parse([*name.split(), "--help"])
