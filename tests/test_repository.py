"""The front door: what the README prints is what works and what `.ci/run` runs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dht import errors
from peer.planning.plan.disk_use import disk_of
from peer.schema.spec import load
from tui.cli import COMMANDS as COMMANDS_OF_TUI
from tui.folders import data_root

ROOT = Path(__file__).parents[1]

COMMANDS = (
    "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/homefires demo",
    "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_has_the_command_on_a_line_of_its_own(command: str) -> None:
    assert command in (ROOT / "README.md").read_text().splitlines()


def test_ci_takes_the_test_command_from_the_readme() -> None:
    """The first line that holds the marker which .ci/run greps for is the whole command."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert """grep -m1 -F "pip install -e '.[test]'" README.md""" in script.read_text()
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(line for line in lines if "pip install -e '.[test]'" in line) == COMMANDS[1]


def test_ci_has_a_night() -> None:
    """What a whole run leaves out is run by a command that a person can type."""
    script = (ROOT / ".ci" / "run").read_text()
    night = script.partition("= nightly ]")[2].partition("fi\n")[0]
    assert [line.strip() for line in night.splitlines() if ".venv/bin" in line] == [
        '".venv/bin/pytest -m nightly"',
        '".venv/bin/pytest -m chaos"',
        '".venv/bin/python -m tests.mutants"',
    ]


def test_every_path_of_the_readmes_tree_exists() -> None:
    tree = (ROOT / "README.md").read_text().partition("## Layout")[2].split("```")[1]
    paths = [line.split()[0] for line in tree.splitlines() if line.strip()]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readmes_tree_names_every_folder_of_code() -> None:
    """Those directly below a package; a folder within a named one is its README's matter."""
    tree = (ROOT / "README.md").read_text().partition("## Layout")[2].split("```")[1]
    named = {line.split()[0] for line in tree.splitlines() if line.strip()}
    folders = {
        f"{path.parent.relative_to(ROOT)}/" for package in ("dht", "peer", "tui", "bootstrap")
        for path in (ROOT / package).glob("*/*.py")
    }  # fmt: skip
    assert len(folders) > 10
    assert folders <= named


def test_the_console_script_is_the_command_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"homefires": "homefires:main"}
    assert project["name"] == "homefires"


def test_nobody_is_told_to_install_what_is_not_published() -> None:
    """Neither by a fix of doctor nor by a page: homefires is installed from its code."""
    files = [path for package in ("dht", "peer", "tui", "bootstrap") for path in (ROOT / package).rglob("*.*")]
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
    texts = [path for path in (*files, *pages) if path.suffix in (".py", ".md", ".toml", ".j2")]
    assert len(texts) > 300
    told = re.compile(r"(pip install|uv tool install|uvx|pipx \w+)[^\n]* homefires\b")
    assert [str(path) for path in texts if told.search(path.read_text())] == []


def test_the_manual_names_every_command_and_every_exit_code() -> None:
    manual = (ROOT / "tui" / "commands" / "README.md").read_text()
    table, codes = manual.partition("`COMMAND --help`")[0], manual.partition("## Exit codes")[2]
    verbs = {name for name, (module, _) in COMMANDS_OF_TUI.items() if module}
    assert sorted(verb for verb in verbs if f"`{verb.split()[-1]}`" not in table and f"`{verb}`" not in table) == []
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert sorted(kind.exit_code for kind in kinds if f" {kind.exit_code} " not in codes.replace("\n", " ")) == []


def test_a_checkpoint_takes_as_much_in_every_page_as_in_the_code() -> None:
    """The most that a parameter takes: of AdamW, while steps go on as a round is agreed."""
    spec = load("gpt2-small")
    spec = replace(spec, round=replace(spec.round, overlap="streaming"))
    most = disk_of(1000, 16_000, spec, 0).checkpoint // 1000
    for page in ("README.md", "tui/commands/README.md"):
        (told,) = re.findall(r"two\s+checkpoints\s+\(?at most (\d+) each", (ROOT / page).read_text())
        assert int(told) == most


def test_whoever_has_no_gpu_is_told_how_to_do_without_four_gigabytes() -> None:
    """PyPI's torch is for CUDA. The index of the other one is the same wherever homefires is installed."""
    index = "https://download.pytorch.org/whl/cpu"
    assert f"PIP_EXTRA_INDEX_URL={index}`" in (ROOT / "README.md").read_text()
    files = [ROOT / "Containerfile", *(ROOT / ".github" / "workflows").glob("*.yml")]
    named = {each for path in files for each in re.findall(r"https://download\.pytorch\.org/\S+", path.read_text())}
    assert named == {index}


def test_how_long_the_suite_takes_is_said_once() -> None:
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    assert "(../tests/README.md)" in guide
    assert not re.search(r"\bminutes?\b|: less than", guide)


def test_no_other_distribution_owns_our_names() -> None:
    """peer, dht, tui and bootstrap are common words."""
    owners = importlib.metadata.packages_distributions()
    names = ("bootstrap", "dht", "peer", "tui")
    assert {owner for name in names for owner in owners.get(name, [])} <= {"homefires"}


def test_no_test_notes_its_folders_among_the_developers_own_runs() -> None:
    assert not data_root().is_relative_to(Path("~").expanduser())


def test_tests_are_no_packages() -> None:
    """A tests/dht/__init__.py could be imported in place of the package dht."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
