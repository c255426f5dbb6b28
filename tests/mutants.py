"""`python -m tests.mutants`: change the code in ways that a test must notice, one after the other, and see which does.

`mutants.toml` says what is changed and which tests are run then, in a temporary copy of the tree. A mutant is *caught*
if one of those tests fails, or if they do not end in time; else it *survived*, and the suite has a hole.

    --list         say what there is, and do nothing
    --only NAME    this one alone
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = Path(__file__).with_suffix(".toml")
PACKAGES = ("bootstrap", "dht", "peer", "tui")
COPIED = (*PACKAGES, "tests", "pyproject.toml", "README.md")
LIMIT_S = 600.0
"""Tests of a mutant that take longer hang because of it."""
BEFORE_S = 3600.0
"""The same for all tests of all mutants together, before anything is changed."""
HUNG = f"the time-out of {LIMIT_S:.0f} s"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
"""A line of pytest's summary that names a test."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of behaviour."""

    name: str
    why: str
    """What it breaks."""
    file: str
    old: str
    """Occurs once in `file`."""
    new: str
    tests: list[str]
    """Files or ids of tests, any of which may catch it."""


def read() -> list[Mutant]:
    """All there are."""
    return [Mutant(**fields) for fields in tomllib.loads(MUTANTS.read_text())["mutant"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Say of each mutant what became of it; 1 if one survived."""
    options = _parser().parse_args(arguments)
    mutants = [mutant for mutant in read() if options.only in (None, mutant.name)]
    if options.list:
        print(*(f"{mutant.name}: {mutant.file}; {mutant.why}" for mutant in mutants), sep="\n")
        return 0
    if not mutants:
        raise SystemExit(f"no mutant is called {options.only}")
    with tempfile.TemporaryDirectory(prefix="hf-mutants-") as name:
        tree = copy_to(Path(name))
        _require_pass(tree, mutants)
        verdicts = [(mutant, _try(tree, mutant)) for mutant in mutants]
    _print_table(verdicts)
    return 0 if all(caught_by for _, caught_by in verdicts) else 1


def copy_to(tree: Path) -> Path:
    """A copy of all that tests need, from which Python imports in place of what is installed."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, tree / name)
    say_where = f"import {', '.join(PACKAGES)}, tests.mutants\nfor each in ({', '.join(PACKAGES)}, tests.mutants): "
    where = _run(tree, ["-c", f"{say_where}print(each.__file__)"], LIMIT_S)[1].split()
    assert len(where) == len(PACKAGES) + 1, where
    assert all(Path(file).is_relative_to(tree) for file in where), f"these are not of the copy {tree}: {where}"
    return tree


def _require_pass(tree: Path, mutants: Sequence[Mutant]) -> None:
    """A test that fails without a mutant catches none."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, output = _pytest(tree, tests, BEFORE_S)
    if code != 0:
        raise SystemExit(f"{output}\nthe tests do not pass as the code is: nothing was tried")


def _try(tree: Path, mutant: Mutant) -> str:
    """What catches this mutant; empty if nothing does."""
    with _applied(tree / mutant.file, mutant):
        code, output = _pytest(tree, mutant.tests, LIMIT_S)
    caught_by = HUNG if code is None else next(iter(FAILED.findall(output)), "")
    if code and not caught_by:
        raise SystemExit(f"{output}\n{mutant.name}: its tests did not run")
    print(f"{mutant.name}: {f'caught by {caught_by}' if caught_by else 'SURVIVED'}", flush=True)
    return caught_by


@contextmanager
def _applied(path: Path, mutant: Mutant) -> Iterator[None]:
    """The file holds the mutant in this block."""
    whole = path.read_text()
    assert whole.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has not what it changes, once"
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(whole)


def _pytest(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    return _run(tree, ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests], limit_s)


def _run(tree: Path, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """(exit code, output) of a Python in the copy; None if it was ended, with all that it started, at the time-out."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def _print_table(verdicts: Sequence[tuple[Mutant, str]]) -> None:
    print("\n| Mutant | File | What it breaks | Caught by |\n| --- | --- | --- | --- |")
    for mutant, caught_by in verdicts:
        print(f"| {mutant.name} | `{mutant.file}` | {mutant.why} | {caught_by or '**SURVIVED**'} |")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Mutants that the tests must notice.")
    parser.add_argument("--only", metavar="NAME", help="this mutant alone")
    parser.add_argument("--list", action="store_true", help="say which there are")
    return parser


if __name__ == "__main__":
    sys.exit(main())
