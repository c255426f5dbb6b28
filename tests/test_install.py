"""homefires as people have it: out of a wheel, beside other packages, and without what few commands need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import peer
from peer.schema.extras import EXTRAS, require_extra
from peer.testing.child_process import HANG_S
from peer.training.data.reading import plain_text
from peer.training.data.reading.data_files import DataFile
from peer.training.model import pretrained
from tui.cli import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECORDING = ROOT / "tests" / "tui" / "recordings" / "demo.jsonl"


def finish(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without what the tests' own environment says of where modules are."""
    whole = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=HANG_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with what is installed; no registry is asked."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    built = finish(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("homefires-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder of the commands of a new environment, which sees the packages that are installed here."""
    folder = wheel.parent / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    done = finish(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    outer = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "outer.pth").write_text("\n".join(outer))
    return folder / "bin"


@pytest.mark.wheel
@pytest.mark.outside
def test_the_wheel_has_the_four_packages_their_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "homefires.py", "bootstrap", "dht", "peer", "tui",
    }  # fmt: skip
    assert {f"{package}/py.typed" for package in ("bootstrap", "dht", "peer", "tui")} <= set(names)
    assert {"peer/schema/runs/tiny.toml", "tui/report/page.html.j2"} <= set(names)


@pytest.mark.wheel
@pytest.mark.outside
@pytest.mark.parametrize(("words", "told"), [("--version", f"homefires {PROJECT['version']}"), ("--help", "join")])
def test_the_command_works_from_any_folder(installed: Path, tmp_path: Path, words: str, told: str) -> None:
    """Also where folders have the names of our packages."""
    for name in ("bootstrap", "dht", "peer", "tui"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')")
    done = finish(installed / "homefires", words, cwd=tmp_path, PYTHONPATH="")
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout


@pytest.mark.wheel
@pytest.mark.swarm
@pytest.mark.nightly
@pytest.mark.cold
def test_a_demo_needs_no_extra(installed: Path, tmp_path: Path) -> None:
    """And no compiler. What an extra installs cannot be imported there, in none of the processes."""
    hidden = dict.fromkeys((*EXTRAS, "pandas"))
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    (packages / "hidden.pth").write_text(f"import sys; sys.modules.update({hidden})\n")
    assert finish(installed / "python", "-c", "import pyarrow", cwd=tmp_path, PYTHONPATH="").returncode != 0
    path = os.pathsep.join((str(installed), "/nowhere"))
    done = finish(
        installed / "homefires", "demo", "--rounds", "4", cwd=tmp_path, PYTHONPATH="", PATH=path, HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 rounds committed by all 3 peers with equal bits" in done.stdout


@pytest.mark.outside
@pytest.mark.parametrize("name", ["bootstrap", "dht", "peer", "tui"])
def test_another_package_of_our_name_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    done = finish(sys.executable, "-P", "-m", "homefires", "--version", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"homefires: another package {name!r} at {tmp_path / name} hides that of homefires; ")


def test_the_version_is_that_of_what_is_installed() -> None:
    assert peer.__version__ == version("homefires")
    with pytest.raises(AttributeError, match="peer"):
        peer.__versions__  # noqa: B018


def test_every_extra_that_is_told_installs_its_package() -> None:
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(re.match(rf"{package}\b", needed) for needed in extras[extra])
        assert not any(re.match(rf"{package}\b", needed) for needed in PROJECT["dependencies"])


def test_one_version_alone_is_asked_for_where_a_comment_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    exact = [number for number, line in enumerate(lines) if re.match(r'\s+"[\w-]+==', line)]
    assert [number for number in exact if not lines[number - 1].lstrip().startswith("#")] == []


def test_a_report_without_matplotlib_says_in_one_line_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(RECORDING), "--to", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err == (
        "homefires: report needs matplotlib, which is not installed; install homefires[report] in place of homefires\n"
    )


def test_a_model_and_a_file_that_need_an_extra_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("gguf", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf needs gguf, .*homefires\[gguf\]"):
        pretrained.adopt(pretrained.find(str(tmp_path / "model.gguf")), {})
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    file = DataFile(tmp_path / "a.txt.zst", "a.txt.zst", "text", ".zst", 4)
    with pytest.raises(ValueError, match=r"zst.* needs pyarrow, .*homefires\[hub\]"), plain_text.opened(file):
        pass
    with pytest.raises(ValueError, match=r"homefires\[hub\]"):
        require_extra("pyarrow", "a table")
