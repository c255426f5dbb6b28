"""A file or folder that nothing can be called so is one line, whichever command it is said to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadInput
from peer.training.data.reading.data_files import find_files
from tui.cli import COMMANDS, _imported, main
from tui.command_line import Argument, Option, _declared, read_options

LONG = 300 * "a"
NO_TEXT = os.fsdecode(b"caf\xe9")
NUL = "a\0b"


def texts_of(kind: Any) -> Iterator[Any]:
    """Every option and argument of a command that takes a path or another text."""
    for each in _declared(kind):
        if each.is_part:
            yield from texts_of(each.kind)
        elif isinstance(each.how, Option | Argument) and each.type in (str, Path) and each.kind is not bool:
            yield each


SAID = [
    pytest.param(name, each, id=f"{name} {each.called}")
    for name, (module, _) in COMMANDS.items()
    if module
    for each in texts_of(_imported(name))
]


@pytest.mark.parametrize(("command", "each"), SAID)
def test_no_command_takes_a_name_that_no_file_can_have(command: str, each: Any) -> None:
    """Where it is said, not where it is opened first: options are checked in one place."""
    bad = [NUL, NO_TEXT, *([f"x/{LONG}/y"] if each.type is Path else [])]
    for text in bad:
        value = each.type(text)
        with pytest.raises(BadInput) as caught:
            read_options(_imported(command), {"debug": False, each.key: [value] if each.is_repeated else value})
        said = str(caught.value)
        assert said.startswith(f"{each.called} ")
        assert said.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["join", LONG, "--yes"], ["plan", LONG], ["plan", "tiny", "--peers", LONG],
        ["simulate", "tiny", "--churn", LONG],
        ["demo", "--spec", LONG], ["watch", LONG], ["status", "--dir", LONG], ["join", "~nobody/x", "--yes"],
        ["new", "--model", "tiny", "--data", LONG, "--who", "everybody", "--time", "3"],
        ["new", "--model", "tiny", "--data", "~nobody-here/x", "--who", "everybody", "--time", "3"],
        ["new", "--model", LONG, "--data", "stdlib", "--who", "everybody", "--time", "3"],
        ["new", "--model", "~nobody-here/x", "--data", "stdlib", "--who", "everybody", "--time", "3"],
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)  # fmt: skip
@pytest.mark.outside
def test_a_text_that_may_be_a_file_is_one_line_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]
    assert said.startswith("homefires: ")
    assert "bug" not in said
    assert "--debug" not in said


@pytest.mark.parametrize("path", [LONG, NUL, "~nobody-here/x"])
def test_data_that_cannot_be_there_is_not_there(path: str) -> None:
    with pytest.raises(BadInput, match="not on this machine"):
        find_files(path)


def test_a_file_of_the_data_whose_name_is_no_text_is_named(tmp_path: Path) -> None:
    """Documents have names of text: a run's peers hash them."""
    (tmp_path / "good.txt").write_text("text")
    (tmp_path / f"{NO_TEXT}.txt").write_text("text")
    with pytest.raises(BadInput, match=r"caf.*UTF-8 text") as caught:
        find_files(str(tmp_path))
    assert str(caught.value).isprintable()


def test_commands_with_texts_are_all_looked_at() -> None:
    assert len(SAID) > 60
    assert dataclasses.is_dataclass(_imported("status"))
