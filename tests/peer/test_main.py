"""How `python -m peer join` ends, with a process that only plays the link."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from dht.addresses import ALL_INTERFACES
from dht.errors import BadInput, BadSpec, HomefiresError
from peer import __main__ as command
from peer.network.link.handle import LeaveRequested, LinkProcess
from peer.node.control import saved_settings
from peer.node.control.server import Commands
from peer.node.telemetry.reporter import Reporter
from peer.schema.settings import PeerSettings, settings_from
from peer.session import Inbox
from peer.testing.child_process import BUSY, HANG_S

FAKE = Path(__file__).parent / "network" / "link" / "fake_link.py"


@pytest.fixture(autouse=True)
def _fake_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parents[3]))
    monkeypatch.setattr(command, "_leave_on_signals", lambda *_: None)
    monkeypatch.setattr(command, "stand_back", lambda settings: "")  # niceness cannot be taken back


def ending(scene: str, directory: Path) -> tuple[str, int]:
    session = Reporter(lambda event: None)
    commands = Commands(session, "run", "me", "name", lambda: None)
    return command._ending(scene, "me", PeerSettings(), directory, session, commands)


def test_a_peer_listens_on_all_interfaces_unless_told_otherwise() -> None:
    """The launcher passes no address on when none was given."""
    assert settings_from([], listen=()).listen == ALL_INTERFACES
    assert settings_from([], listen=("/ip4/127.0.0.1/tcp/0",)).listen == ("/ip4/127.0.0.1/tcp/0",)


@pytest.mark.parametrize("name", ["x" * 33, "two\nlines", "\x1b[31m"])
def test_a_name_that_no_record_can_carry_is_refused(name: str) -> None:
    """Nobody would ever hear of a peer whose records are refused."""
    with pytest.raises(BadSpec, match="32 printable characters"):
        settings_from([f"settings.name={name}"])


@pytest.mark.outside
def test_a_mistake_that_the_trainer_finds_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as a device that is not there: nobody waits for a link that was never told to leave."""

    def fail(*args: object) -> None:
        raise BadInput("settings.devices is 'cuda'")

    monkeypatch.setattr(command, "join", fail)
    before, others = time.monotonic(), set(psutil.Process().children())
    assert ending("echo", tmp_path) == ("settings.devices is 'cuda'", BadInput.exit_code)
    assert time.monotonic() - before < 10 * BUSY
    assert capfd.readouterr().err == "homefires: settings.devices is 'cuda'\n"
    assert set(psutil.Process().children()) <= others


@pytest.mark.outside
def test_a_link_that_dies_is_a_bug_not_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, so that whoever started the peer points to the log."""

    def listen(link: LinkProcess, inbox: Inbox, *args: object) -> None:
        raise inbox.get(timeout=HANG_S)  # type: ignore[misc]

    monkeypatch.setattr(command, "join", listen)
    assert ending("dies", tmp_path) == ("the link ended unexpectedly", HomefiresError.exit_code)


@pytest.mark.outside
def test_who_leaves_as_the_link_dies_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model is built: it was asked to, and nothing went wrong."""

    def leave(link: LinkProcess, inbox: Inbox, me: str, settings: object, directory: Path, session: Reporter) -> None:
        link._process.wait(HANG_S)
        session.stopping = True
        raise LeaveRequested

    monkeypatch.setattr(command, "join", leave)
    assert ending("dies", tmp_path) == ("asked to leave", 0)


@pytest.mark.outside
def test_a_device_that_is_not_there_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is trained; what was chosen before is there for the next start."""

    def refuse(link: LinkProcess, inbox: Inbox, me: str, settings: PeerSettings, *others: object) -> None:
        raise BadInput(f"settings.devices is {settings.devices!r}")

    monkeypatch.setattr(command, "join", refuse)
    saved_settings.write(tmp_path, PeerSettings(nice=3))
    settings = settings_from(["settings.devices=cuda"], saved_settings.read_table(tmp_path))
    assert command._take_part("echo", b"run", settings, tmp_path) == BadInput.exit_code
    assert saved_settings.read_table(tmp_path) == {"nice": 3}
