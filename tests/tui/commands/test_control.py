"""What a person says to a peer that does not run: kept for its next start by a real child."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import Unreachable
from dht.process import lock_directory
from peer.node.control import saved_settings
from peer.node.limits.desired_state import Desired, Intent
from peer.node.store import elsewhere, start_blob
from peer.schema.events import PeerStarted, PeerStopped
from tests.tui.commands.test_run_end import committed, write
from tui.cli import main
from tui.folders import note_folder, peer_folders

pytestmark = pytest.mark.outside

Said = pytest.CaptureFixture[str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a peer that was started once, and is down."""
    (tmp_path / "events.jsonl").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("cmd", "wish", "said"),
    [
        ("pause", Intent.PAUSE, "it starts paused, until: homefires resume"),
        ("resume", Intent.TRAIN, "it trains when it starts"),
        ("finish", Intent.FINISH, "then pauses"),
    ],
)
def test_a_wish_is_kept_for_the_next_start(directory: Path, cmd: str, wish: Intent, said: str, capsys: Said) -> None:
    """In place of the one before, for its owner alone; the folder is free again."""
    saved_settings.write_wish(directory, Desired(Intent.PAUSE, None))
    assert main([cmd, "--dir", str(directory)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"no peer runs in {directory}; ")
    assert said in told
    assert saved_settings.read_wish(directory) == Desired(wish)
    assert stat.S_IMODE((directory / saved_settings.WISH).stat().st_mode) == 0o600
    with lock_directory(directory):
        pass


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["finish"], ["leave"], ["snooze", "2"]])
def test_after_the_end_of_its_run_a_peer_has_nothing_to_pause_or_to_come_back_to(
    directory: Path, words: list[str], capsys: Said
) -> None:
    write(directory, PeerStarted(name="a", version="0", rounds=1), committed(1), PeerStopped(why="the run is finished"))
    assert main([*words, "--dir", str(directory)]) == Unreachable.exit_code
    said = capsys.readouterr().err
    assert f"no peer runs in {directory}: its run is finished; talk to the model: homefires chat" in said
    assert "come back" not in said
    assert not (directory / saved_settings.WISH).exists()


def test_a_snooze_is_kept_until_its_end(directory: Path, capsys: Said) -> None:
    assert main(["snooze", "2", "--dir", str(directory)]) == 0
    first = saved_settings.read_wish(directory)
    assert main(["snooze", "3", "--dir", str(directory)]) == 0
    second = saved_settings.read_wish(directory)
    assert first.snoozed_until is not None
    assert second.snoozed_until is not None
    assert second.snoozed_until - first.snoozed_until == pytest.approx(3600, abs=60)
    assert "it rests until then" in capsys.readouterr().out
    assert main(["snooze", "1000", "--dir", str(directory)]) == 2
    assert "at most 10080" in capsys.readouterr().err
    assert saved_settings.read_wish(directory) == second


def test_a_damaged_wish_is_replaced(directory: Path) -> None:
    """The peer would not start with it."""
    (directory / saved_settings.WISH).write_text("{")
    assert main(["pause", "--dir", str(directory)]) == 0
    assert saved_settings.read_wish(directory).wish is Intent.PAUSE


def test_a_peer_that_just_starts_is_not_said_to_be_gone(directory: Path, capsys: Said) -> None:
    """It holds its folder and takes no commands yet: nothing is written behind its back."""
    with lock_directory(directory):
        assert main(["pause", "--dir", str(directory)]) == 3
    assert "takes no commands just now" in capsys.readouterr().err
    assert not (directory / saved_settings.WISH).exists()


def test_a_peer_that_has_started_since_we_looked_keeps_its_folder(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr("tui.commands.control.is_at_work", lambda directory: False)
    with lock_directory(directory):
        assert main(["pause", "--dir", str(directory)]) == 3
    assert "takes no commands just now" in capsys.readouterr().err
    assert not (directory / saved_settings.WISH).exists()


def test_what_cannot_be_written_is_one_line_and_the_wish_before_stays(directory: Path, capsys: Said) -> None:
    saved_settings.write_wish(directory, Desired(Intent.PAUSE))
    (directory / f"{saved_settings.WISH}.new").mkdir()  # where the file would be written first
    assert main(["resume", "--dir", str(directory)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert f"{saved_settings.WISH}.new" in told.err
    assert saved_settings.read_wish(directory).wish is Intent.PAUSE


@pytest.mark.outside
def test_a_peer_that_was_told_to_stand_still_is_not_waited_for(directory: Path, capsys: Said) -> None:
    """Its socket would take the command, and answer once it goes on."""
    code = "import fcntl,os,sys; f=open(sys.argv[1],'r+'); fcntl.flock(f,2); f.write(str(os.getpid())); f.flush()"
    lock = directory / "run" / "lock"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    stop = "; os.kill(os.getpid(), 19)"
    with subprocess.Popen([sys.executable, "-c", code + stop, str(lock)]) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            assert main(["pause", "--dir", str(directory)]) == Unreachable.exit_code
            assert f"it goes on with: kill -CONT {child.pid}" in capsys.readouterr().err
        finally:
            child.kill()


@pytest.mark.parametrize("words", [["leave"], ["leave", "--forget"]])
def test_a_misspelt_folder_is_left_by_nobody(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """It has no invite to come back with, and what peers have elsewhere stays."""
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "cache"))
    (tmp_path / "cache" / "packs" / "0ld0").mkdir(parents=True)
    assert main([*words, "--dir", str(tmp_path / "typo")]) == Unreachable.exit_code
    assert "typo, and none ever has; name the folder of one with --dir" in capsys.readouterr().err
    assert (tmp_path / "cache" / "packs" / "0ld0").exists()
    assert not (tmp_path / "typo").exists()


def test_who_leaves_for_good_leaves_nothing_elsewhere(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """But for what another peer uses; and packs of versions that noted nothing."""
    cache, other = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("other")
    monkeypatch.setenv(start_blob.CACHE, str(cache))
    for place in ("packs/ab12", "packs/0ld0", "packs/cd34", "start/aaaa", "start/bbbb", "start/cccc"):
        (cache / place).mkdir(parents=True)
        (cache / place / "tokens").write_bytes(bytes(1000))
    for place in ("packs/ab12", "packs/cd34", "start/aaaa", "start/bbbb", "start/cccc"):
        elsewhere.note(directory, cache / place)
    (cache / "packs/of").mkdir()
    for index in ("ab12", "cd34"):
        (cache / "packs/of" / f"of {index}").write_text(f"a-fingerprint {index}")
    elsewhere.note(directory, tmp_path_factory.getbasetemp())
    elsewhere.note(other, cache / "packs/cd34")
    (other / "events.jsonl").touch()
    (other / "spec.toml").write_text('digest = "bbbb"\n')
    for folder in (other, directory):
        note_folder(folder)
    assert main(["leave", "--forget", "--dir", str(directory)]) == 0
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == ["packs/cd34/tokens", "packs/of/of cd34", "start/bbbb/tokens"]
    told = capsys.readouterr().out
    assert f"removed {cache / 'packs/ab12'}, 1.0 kB" in told
    assert f"delete {directory}, and nothing is left of it here" in told
    assert peer_folders() == [other.resolve()]
    assert main(["leave", "--forget", "--dir", str(directory)]) == 0
    assert "nothing of it was elsewhere" in capsys.readouterr().out
