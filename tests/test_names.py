"""The plan of the house: rooms of a size, one name for one thing, and no circle between rooms."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("bootstrap", "dht", "peer", "tui")
MODULES_MOST = 16
LINES_MOST = 500
ENTRANCES = {"__init__", "__main__"}
TWICE = {"machine", "state"}
"""A pure machine and its state: the round's and, to come, the peer's life."""
THE_FIELDS_WORDS = {"encoding"}


@cache
def modules() -> tuple[Path, ...]:
    """Of the product, without those that only open a package."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(sorted(path.relative_to(ROOT) for path in found if path.stem not in ENTRANCES))


def twice(pairs: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Names that stand for several things, with their places."""
    found = defaultdict(list)
    for name, path in pairs:
        found[name].append(str(path))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_room_holds_what_one_look_takes_in() -> None:
    rooms = defaultdict(list)
    for path in modules():
        rooms[str(path.parent)].append(path.stem)
    assert {room: len(found) for room, found in rooms.items() if len(found) > MODULES_MOST} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_has_a_name_of_its_own_in_its_package(package: str) -> None:
    ours = [(path.stem, path) for path in modules() if path.parts[0] == package and path.stem not in TWICE]
    assert twice(ours) == {}


def test_a_public_class_has_a_name_of_its_own() -> None:
    classes = (
        (node.name, path)
        for path in modules()
        for node in tree_of(ROOT / path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert twice(classes) == {}


def test_a_module_is_called_after_a_thing_and_not_after_a_doing() -> None:
    assert [str(path) for path in modules() if path.stem.endswith("ing") and path.stem not in THE_FIELDS_WORDS] == []


def test_no_file_is_longer_than_one_concept_takes() -> None:
    lengths = {str(path): (ROOT / path).read_text().count("\n") for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MOST} == {}


@cache
def sources() -> dict[str, Path]:
    """Every module of the product by its dotted name, a package by its own."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    dotted = ((".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in dotted}


@cache
def houses() -> set[Path]:
    """The folders with folders of modules."""
    return {path.parent.parent for path in sources().values()}


def room_of(path: Path) -> str:
    """Its folder; a module that lies beside folders stands for itself, since it may be above some and below others."""
    return str((path if path.parent in houses() else path.parent).relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def rooms_below(path: Path) -> set[str]:
    """The rooms from which a module imports, also inside functions."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in sources() else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {room_of(sources()[name]) for name in found if name in sources()} - {room_of(path)}


def test_no_circle_between_rooms() -> None:
    """Raises CycleError, which names the rooms."""
    below = defaultdict[str, set[str]](set)
    for path in sources().values():
        below[room_of(path)] |= rooms_below(path)
    TopologicalSorter(below).prepare()


@pytest.mark.parametrize(
    "room", sorted({path.parent for path in modules() if (ROOT / path.parent / "README.md").exists()})
)
def test_a_readme_begins_with_the_files_of_its_room(room: Path) -> None:
    table = (ROOT / room / "README.md").read_text().partition("\n## ")[0]
    assert [path.name for path in modules() if path.parent == room and f"{path.name}`" not in table] == []


def literals(path: Path) -> Iterable[tuple[int, str]]:
    """The texts in a module for people: strings of several words that are no docstring and stand in no assertion."""
    tree = tree_of(ROOT / path)
    ours = [node for node in ast.walk(tree) if isinstance(node, ast.Assert | ast.Expr)]
    skipped = {id(part) for node in ours if not _is_call(node) for part in ast.walk(node)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for node in texts:
        if " " in node.value.strip() and id(node) not in skipped:
            yield node.lineno, node.value


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)


INSIDE = ("peer/training/", "peer/testing/")
"""Their texts are for developers."""


def test_no_text_for_people_speaks_of_an_anchor() -> None:
    """It is a word of the round's protocol; people read of the model, and of its round."""
    told = [
        f"{path}:{line}: {text}"
        for path in modules()
        if not str(path).startswith(INSIDE)
        for line, text in literals(path)
        if re.search(r"\banchors?\b", text)
    ]
    assert told == []
