"""The container file, and what starts a node on a server: all that can be known without pulling an image."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer.testing.child_process import HANG_S
from tui.cli import parse
from tui.commands.organiser import BootstrapCommand
from tui.processes.children import INTERRUPTED
from tui.processes.systemd import FINAL, FIRST_DELAY_S, LONGEST_DELAY_S, STEPS

ROOT = Path(__file__).parents[1]
CONTAINERFILE = ROOT / "Containerfile"
UNIT = ROOT / "bootstrap" / "homefires-node.service"
COMPOSE = ROOT / "bootstrap" / "compose.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest), with continued lines as one."""
    text = re.sub(r"\\\n", " ", CONTAINERFILE.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def of_last_stage() -> list[tuple[str, str]]:
    found = instructions()
    last = max(at for at, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def copied() -> list[str]:
    return [
        path for name, rest in instructions() if name == "COPY" and "--from" not in rest for path in rest.split()[:-1]
    ]  # fmt: skip


def test_it_copies_what_is_there_and_all_that_the_wheel_is_made_of() -> None:
    paths = copied()
    assert [path for path in paths if not (ROOT / path).exists()] == []
    built = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    assert built | {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} == set(paths)


def test_what_it_copies_is_not_kept_from_it() -> None:
    """And nothing else of the folder goes to whoever builds, such as keys that lie there."""
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == set(copied())
    assert any(fnmatch("peer/node/__pycache__", rule.replace("**", "*")) for rule in rules[1:])


@pytest.mark.wheel
@pytest.mark.outside
def test_homefires_is_built_from_what_it_copies(tmp_path: Path) -> None:
    """As the first stage does, with what is installed here in place of a registry."""
    source, built = tmp_path / "src", tmp_path / "built"
    source.mkdir()
    for path in copied():
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / path)
        else:
            shutil.copy(ROOT / path, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(built))
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert len(list(built.glob("homefires-*.whl"))) == 1


def test_it_runs_the_console_script_and_not_as_root() -> None:
    last = dict(of_last_stage())
    (script,) = PROJECT["project"]["scripts"]
    assert last["ENTRYPOINT"] == f'["{script}"]'
    user, _, group = last["USER"].partition(":")
    assert int(user) > 0, "a number, which can be told from root without a table of users"
    assert int(group) > 0
    names = [name for name, _ in of_last_stage()]
    assert names.index("RUN") < names.index("USER"), "nothing is changed by whoever runs it"
    assert last["VOLUME"] == last["WORKDIR"] == "/data"
    environment = dict(word.split("=", 1) for word in shlex.split(last["ENV"]))
    assert environment["HOME"] == environment["XDG_DATA_HOME"] == "/data"
    assert environment["PATH"].startswith("/opt/homefires/bin:")


def test_its_python_is_one_that_homefires_runs_with() -> None:
    (version,) = (rest.partition("=")[2] for name, rest in instructions() if (name, rest[:7]) == ("ARG", "PYTHON="))
    assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]


# ---- an organiser's server ----


def unit() -> dict[str, list[str]]:
    """By key, all values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return found


def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["node"]
    return service


def started(kind: str) -> list[str]:
    """The words after `homefires`, with the address that a person fills in."""
    words = shlex.split(unit()["ExecStart"][0])[1:] if kind == "unit" else compose()["command"]
    return [re.sub(r"^\$\{.*\}$", "/dns4/my-host.example/tcp/4001", word) for word in words]


@pytest.mark.parametrize("kind", ["unit", "compose"])
def test_a_server_starts_a_node_with_options_that_it_has(kind: str) -> None:
    command = parse(started(kind))
    assert isinstance(command, BootstrapCommand)
    assert command.node.listen == ("/ip4/0.0.0.0/tcp/4001",)
    assert command.node.announce == ("/dns4/my-host.example/tcp/4001",)
    assert command.directory is not None
    assert command.directory != command.node.page


def test_the_unit_starts_again_as_that_of_a_user_does() -> None:
    found = unit()
    assert found["RestartPreventExitStatus"] == [" ".join(map(str, FINAL))]
    assert found["SuccessExitStatus"] == [str(INTERRUPTED)]
    assert [int(found[name][0]) for name in ("RestartSec", "RestartSteps", "RestartMaxDelaySec")] == [
        FIRST_DELAY_S, STEPS, LONGEST_DELAY_S,
    ]  # fmt: skip


def test_a_server_gives_the_node_no_more_than_it_needs() -> None:
    """All that it writes lies in one folder."""
    found, service = unit(), compose()
    assert found["User"] == ["homefires"]
    assert found["ProtectSystem"] == ["strict"]
    for option in ("--dir", "--page"):
        words = started("unit")
        assert words[words.index(option) + 1].startswith(f"/var/lib/{found['StateDirectory'][0]}/")
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).samefile(CONTAINERFILE)


def test_a_web_server_beside_it_is_given_the_page_without_the_keys() -> None:
    """Nobody else can enter /data. A volume of its own has the owner that its folder has in the image."""
    words = started("compose")
    mounted = dict(volume.split(":")[:2] for volume in compose()["volumes"])
    folders = {where: volume for volume, where in mounted.items()}
    assert folders.keys() >= {"/data", words[words.index("--page") + 1]}
    assert words[words.index("--dir") + 1].startswith("/data/")
    (made,) = (rest for name, rest in of_last_stage() if name == "RUN")
    modes = {command.split()[-1]: re.findall(r"--(?:owner|mode)=(\d+)", command) for command in made.split("&&")}
    assert modes == {"/data": ["1000", "0700"], "/page": ["1000", "0755"]}
