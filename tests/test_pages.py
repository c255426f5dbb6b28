"""What stands around the code is true: pages, links, the change log, the security policy, workflows."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dht.protocol_version import PROTOCOL_VERSION, RELEASES
from tui.cli import COMMANDS

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TOOLS = {"check-jsonschema", "homefires", "lint-imports", "mypy", "pip", "pytest", "python", "ruff"}
"""What an environment of developers has, in its folder of commands."""


@cache
def pages() -> tuple[Path, ...]:
    own = (ROOT / name for name in ("bootstrap", "dht", "peer", "tests", "tui", ".github"))
    return (*sorted(ROOT.glob("*.md")), *(page for folder in own for page in sorted(folder.rglob("*.md"))))


def anchors_of(page: Path) -> set[str]:
    """Of its headings, as the host of a repository makes them."""
    heads = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_leads_somewhere() -> None:
    lost, seen = [], 0
    for page in pages():
        for link in LINK.findall(page.read_text()):
            if re.match(r"\w+:", link):
                continue
            seen += 1
            place, _, anchor = link.replace("%5B", "[").replace("%5D", "]").partition("#")
            target = page.parent / place if place else page
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert lost == []
    assert seen > 50


def test_every_test_that_the_security_policy_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 30
    assert [
        f"{path}::{name}" for path, name in named
        if not (ROOT / path).exists() or not re.search(rf"def {name}\(", (ROOT / path).read_text())
    ] == []  # fmt: skip


def test_the_change_log_begins_with_this_version_and_says_what_may_be_in_one_run() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    newest = text.partition("\n## ")[2].partition("\n## ")[0]
    assert newest.startswith(VERSION)
    short = RELEASES[PROTOCOL_VERSION]
    assert VERSION.startswith(f"{short}.")
    assert f"that of {short} is {PROTOCOL_VERSION}" in newest
    for verb in re.findall(r"`([a-z]+)`", newest.partition("### Changed")[0]):
        assert verb in COMMANDS


def test_the_reading_order_leads_through_what_is_there() -> None:
    order = (GITHUB / "CONTRIBUTING.md").read_text().partition("## Reading order")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w./]+)`", order)
    assert len(paths) > 6
    assert [path for path in paths if not (ROOT / path).exists()] == []


# ---- workflows and templates ----


def documents() -> Iterator[tuple[Path, Any]]:
    for path in sorted(GITHUB.rglob("*.yml")):
        yield path, yaml.safe_load(path.read_text())


def commands() -> Iterator[tuple[str, str]]:
    """(workflow, command) of every line that a workflow runs."""
    for path in sorted((GITHUB / "workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                for command in re.split(r"\n|&&", step.get("run", "")):
                    if command.strip():
                        yield path.name, command.strip()


def test_workflows_and_templates_are_yaml_with_what_their_host_asks_for() -> None:
    found = dict(documents())
    assert len(found) >= 7
    for path, document in found.items():
        if path.parent.name == "workflows":
            assert {"name", "permissions", "jobs"} <= document.keys(), path
            assert True in document, "YAML reads the key `on` as true"
            for name, job in document["jobs"].items():
                assert job["timeout-minutes"], f"{path}: {name} could hang for hours"
        elif path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config":
            assert {"name", "description", "body"} <= document.keys(), path


def test_every_command_of_a_workflow_exists() -> None:
    seen = set()
    for workflow, command in commands():
        program, *words = shlex.split(command)
        seen.add((workflow, command))
        if program.startswith(".ci/"):
            assert (ROOT / program).exists()
            assert words in ([], ["nightly"])
        elif program.startswith(".venv/bin/"):
            assert program.removeprefix(".venv/bin/") in TOOLS, command
        else:
            assert program in ("docker", "python3", "test"), command
        if program.endswith("pytest") and "-m" in words:
            assert words[words.index("-m") + 1] in "\n".join(PYPROJECT["tool"]["pytest"]["ini_options"]["markers"])
        for extra in re.findall(r"\.\[(\w+)\]", command):
            assert extra in PYPROJECT["project"]["optional-dependencies"]
    assert {("checks.yml", ".ci/run"), ("nightly.yml", ".ci/run nightly")} <= seen


def test_no_step_finds_the_token_that_fetched_the_code() -> None:
    """What a change runs, tests and what they install, could push with it."""
    fetched = [
        step for _, document in documents() for job in document.get("jobs", {}).values()
        for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")
    ]  # fmt: skip
    assert len(fetched) > 5
    assert [step for step in fetched if step.get("with", {}).get("persist-credentials") is not False] == []


def test_the_host_of_the_code_knows_every_key_of_its_files() -> None:
    """`.ci/run` has them checked against the host's own schemas; each kind of file has one."""
    script = (ROOT / ".ci" / "run").read_text()
    named = set(re.findall(r"--builtin-schema vendor\.\S+ (\S+)\"", script))
    files = {path.relative_to(ROOT).as_posix() for path, _ in documents()} | {"bootstrap/compose.yaml"}
    assert {file for file in files if not any(fnmatch(file, pattern) for pattern in named)} == set()


@pytest.mark.parametrize("workflow", ["checks", "release"])
def test_every_python_that_is_claimed_is_run(workflow: str) -> None:
    claimed = [
        line.rpartition(" ")[2] for line in PYPROJECT["project"]["classifiers"] if "Python :: 3." in line
    ]  # fmt: skip
    jobs = yaml.safe_load((GITHUB / "workflows" / f"{workflow}.yml").read_text())["jobs"]
    matrices = [job["strategy"]["matrix"]["python"] for job in jobs.values() if "strategy" in job]
    assert matrices == [claimed]
