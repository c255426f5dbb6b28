from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tui.commands.join
from dht.errors import BadInvite, DirectoryBusy, HomefiresError
from dht.identity import Identity
from dht.invite import issue
from dht.process import lock_directory
from peer.node.control.saved_settings import read_table
from tui.cli import main
from tui.commands.consent import consents
from tui.commands.join import JoinCommand, run_join
from tui.output.output import PlainOutput
from tui.processes.children import Output, python_module

Fake = Callable[[str], None]


@pytest.fixture
def invite() -> str:
    identity = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
    return issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))


@pytest.mark.outside
def test_a_peer_is_followed_to_its_end(fake_children: Fake, invite: str, tmp_path: Path) -> None:
    fake_children("well")
    stream = io.StringIO()
    assert run_join(JoinCommand(invite=invite, directory=tmp_path / "peer", name="alice"), PlainOutput(stream)) == 0
    assert "data in " + str(tmp_path / "peer") in stream.getvalue()
    assert "alice: started" in stream.getvalue()
    assert "round 3" in stream.getvalue()


def test_a_second_join_joins_nothing_and_names_attach(invite: str, tmp_path: Path) -> None:
    stream = io.StringIO()
    with lock_directory(tmp_path), pytest.raises(DirectoryBusy, match="look at it with: homefires attach"):
        run_join(JoinCommand(invite=invite, directory=tmp_path), PlainOutput(stream))
    assert stream.getvalue() == ""


@pytest.mark.outside
def test_the_default_folder_is_that_of_the_run(fake_children: Fake, invite: str, tmp_path: Path) -> None:
    fake_children("well")
    run_join(JoinCommand(invite=invite, name="alice"), Output())
    assert (tmp_path / "data" / "homefires" / "runs" / "mine-abababab").is_dir()


@pytest.mark.outside
def test_what_the_person_chose_reaches_the_peer(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", "pass"]

    monkeypatch.setattr(tui.commands.join, "python_module", command)
    join = JoinCommand(
        invite=invite,
        directory=tmp_path,
        name="al",
        devices="cpu",
        upload="8",
        download="50.5",
        listen=("/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1"),
        peers=("/ip4/192.0.2.1/tcp/1/p2p/x",),
    )
    run_join(join, Output())
    chosen = ["--set", "settings.name=al", "--set", "settings.devices=cpu"]
    chosen += ["--set", "settings.upload_mbps=8", "--set", "settings.download_mbps=50.5"]
    kept = tmp_path / "invite"
    assert seen[:5] == ["peer", "join", str(kept), "--dir", str(tmp_path)]
    assert seen[5:] == ["--listen", "/ip4/0.0.0.0/tcp/1", "--listen", "/ip6/::/tcp/1", "--peer", *join.peers, *chosen]
    assert kept.read_text() == invite
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_peer_in_the_background_outlives_us_or_is_kept_running(invite: str, tmp_path: Path) -> None:
    """Whoever keeps it running is what outlives us then; the peer ends with that one."""
    log = tmp_path / "peer.log"
    alone, kept = (JoinCommand(invite=invite, directory=tmp_path, keep_running=keep) for keep in (False, True))
    assert alone.lasting_argv(tmp_path, log) == [*alone.argv(tmp_path), "--stay"]
    keeper = [sys.executable, "-m", "tui.processes.supervisor", str(log), "--"]
    assert kept.lasting_argv(tmp_path, log) == [*keeper, *kept.argv(tmp_path)]


@pytest.mark.outside
def test_a_peer_that_is_kept_running_has_its_settings_in_its_folder(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its command line they would undo after a crash what its owner has set since."""
    seen = program(monkeypatch, "pass")
    words = ["--name", "al", "--devices", "cpu", "--upload", "8", "--download", "50.5", "--set", "upload_mbps=9"]
    assert main(["join", invite, "--dir", str(tmp_path), "--keep-running", "--yes", "--ui", "none", *words]) == 0
    assert seen == ["peer", "join", str(tmp_path / "invite"), "--dir", str(tmp_path)]
    chosen = {"name": "al", "devices": ["cpu"], "upload_mbps": 9, "download_mbps": 50.5}
    assert read_table(tmp_path) == chosen


@pytest.mark.parametrize("limit", ["0", "0.0", "00"])
def test_no_upload_at_all_is_not_taken_for_no_limit(
    limit: str, invite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join", invite, "--dir", str(tmp_path / "p"), "--yes", "--ui", "none", "--upload", limit]) == 2
    assert f"--upload is {limit}, and a peer that may use nothing cannot take part" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--upload", "5Mbit", "--upload is '5Mbit'; give megabits per second, as in --upload 5"),
        ("--download", "-1", "--download is '-1'; give megabits per second"),
        ("--listen", "127.0.0.1:4005", "'127.0.0.1:4005': not an address; write one such as /ip4/"),
    ],
)
def test_what_the_peer_would_refuse_is_said_before_anybody_is_asked(
    option: str, value: str, words: str, invite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a service."""
    chosen = ["--dir", str(tmp_path / "p"), "--yes", f"{option}={value}"]
    assert main(["join", invite, *chosen, "--ui", "none"]) == 2
    assert words in capsys.readouterr().err
    if option == "--listen":
        assert main(["service", "install", invite, "--print", *chosen]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_folder_of_other_things_is_no_peers(invite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that was brought there before is."""
    place = tmp_path / "photos"
    place.mkdir()
    (place / "sea.jpg").touch()
    assert main(["join", invite, "--dir", str(place), "--yes", "--ui", "none"]) == 2
    said = f"homefires: --dir {place} is not an empty folder, nor a peer's; name a new one\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in place.iterdir()] == ["sea.jpg"]
    (place / "identity.key").touch()
    assert JoinCommand(invite=invite, directory=place).place() == place


def test_a_bad_invite_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInvite):
        run_join(JoinCommand(invite="hf1:rubbish", directory=tmp_path / "peer"), Output())
    assert not (tmp_path / "peer").exists()


@pytest.mark.outside
def test_a_childs_crash_names_its_log(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.commands.join, "python_module", lambda *_: python_module("no_such_module"))
    with pytest.raises(HomefiresError, match=r"exit code 1; its log is .*peer\.log"):
        run_join(JoinCommand(invite=invite, directory=tmp_path), Output())
    assert "no_such_module" in (tmp_path / "peer.log").read_text()


@pytest.mark.outside
def test_how_a_machine_without_room_trains_is_kept_for_the_peer(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been typed. Who names a device has decided."""
    decided: list[bool] = []

    def chooses(join: JoinCommand, *, is_decided: bool, **asked: Any) -> tuple[str, ...]:
        decided.append(is_decided)
        assert consents(join, is_decided=is_decided, **asked) == ()
        return ("offload=yes",)

    program(monkeypatch, "pass")
    monkeypatch.setattr(tui.commands.join, "consents", chooses)
    words = ["join", invite, "--dir", str(tmp_path), "--ui", "none", "--yes"]
    assert main(words) == 0
    assert read_table(tmp_path) == {"offload": True}
    for more in (["--devices", "cpu"], ["--set", "stages=2"], ["--set", "offload=no"], ["--set", "nice=3"]):
        main([*words, *more])
    assert decided == [False, True, True, True, False]


@pytest.mark.outside
def test_settings_that_a_peer_refuses_are_not_kept(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a device that is not there: the next start finds what the owner had before."""
    words = ["join", invite, "--dir", str(tmp_path), "--ui", "none", "--yes"]
    program(monkeypatch, "pass")
    assert main([*words, "--set", "nice=3", "--set", "upload_mbps=8"]) == 0
    program(monkeypatch, "print('homefires: no such device', file=__import__('sys').stderr); raise SystemExit(2)")
    assert main([*words, "--set", "devices=cuda", "--set", "upload_mbps=9"]) == 2
    assert read_table(tmp_path) == {"nice": 3, "upload_mbps": 8}


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Every child is this Python program; returns the command lines."""
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", text]

    monkeypatch.setattr(tui.commands.join, "python_module", command)
    return seen
