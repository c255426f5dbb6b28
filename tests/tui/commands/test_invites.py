"""Invites that people give by a file, and children that are given one: a command line can be read by everybody."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tui.commands.consent
import tui.commands.doctor
import tui.commands.watch
from dht.identity import Identity
from dht.invite import issue
from tui.cli import main
from tui.commands.consent import introduce
from tui.commands.doctor import DoctorCommand, run_doctor
from tui.commands.options import DisplayOptions
from tui.commands.watch import WatchCommand, watch_in_dashboard, watch_in_lines
from tui.processes.children import Output


@pytest.fixture
def invite() -> str:
    identity = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
    return issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,), token=b"secret")


def examine(invite: str) -> None:
    run_doctor(DoctorCommand(invite=invite, as_json=True), io.StringIO())


def ask(invite: str) -> None:
    introduce(invite)


def watch(invite: str) -> None:
    watch_in_lines(WatchCommand(what=invite), Output())


def look(invite: str) -> None:
    watch_in_dashboard(WatchCommand(what=invite), DisplayOptions(), Output())


@pytest.mark.outside
@pytest.mark.parametrize("start", [examine, ask, watch, look])
def test_a_child_is_given_a_file_that_its_owner_alone_can_read(
    start: Callable[[str], None], invite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there as long as the child is, and gone afterwards."""
    files: list[Path] = []

    def command(module: str, *words: str) -> list[str]:
        assert invite not in words
        files.append(Path(words[1]))
        assert files[-1].read_text() == invite
        assert stat.S_IMODE(files[-1].stat().st_mode) == 0o600
        program = f'open({str(files[-1])!r}).read(); print(\'{{"verdict": {{"sentence": ""}}}}\')'
        return [sys.executable, "-c", program]

    for module in (tui.commands.consent, tui.commands.doctor, tui.commands.watch):
        monkeypatch.setattr(module, "python_module", command)
    start(invite)
    assert len(files) == 1
    assert not files[0].exists()


@pytest.mark.outside
def test_an_invite_may_be_a_file_wherever_people_name_one(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an editor or a mail program left it there."""
    file = tmp_path / "from-the-organiser.txt"
    file.write_text(f"\n  {invite[:40]}\n{invite[40:]}\n\n")
    monkeypatch.setattr(tui.commands.watch, "follow", lambda *words: 0)
    assert main(["watch", str(file), "--ui", "none"]) == 0
    assert main(["service", "install", str(file), "--dir", str(tmp_path / "p"), "--print"]) == 0
    assert "a peer of mine" in capsys.readouterr().out
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("command", ["join", "doctor", "service install"])
def test_what_is_neither_an_invite_nor_a_file_of_one_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)) * 1000)
    for named in (str(tmp_path / "missing"), str(tmp_path), str(noise), "x" * 5000):
        assert main([*command.split(), named]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no invite" in line
        assert len(line) < 300
