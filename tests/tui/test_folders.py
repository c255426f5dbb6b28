"""Which peer a command means that names none: the one that runs, and none where several do."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dht.errors import BadInput, DiskFull, Unreachable
from dht.identity import Identity
from dht.invite import issue
from dht.process import lock_directory
from peer.node.control import saved_settings
from peer.node.limits.desired_state import Intent
from tests.tui.fake_control import FakePeer, serving
from tui.cli import main, parse
from tui.commands.consent import consents
from tui.commands.join import JoinCommand
from tui.commands.options import FolderCommand, PeerCommand
from tui.folders import folder_meant, note_folder, peer_folders, runs, writing

Said = pytest.CaptureFixture[str]
COMMANDS = (
    ["pause"], ["resume"], ["finish"], ["leave"], ["snooze"], ["snooze", "3"], ["set"], ["set", "nice=19"], ["status"],
    ["status", "--json"],
)  # fmt: skip


def folder(name: str, reported_at: float = 1000.0) -> Path:
    """Of a peer that does not run."""
    directory = runs() / name
    directory.mkdir(parents=True)
    (directory / "events.jsonl").touch()
    os.utime(directory / "events.jsonl", (reported_at, reported_at))
    return directory


@pytest.fixture
def two(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakePeer]]:
    """Peers that run, as with two GPUs. Their path is short, for the name of a socket has room for 107 bytes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("d")))
    with ExitStack() as stack:
        yield [stack.enter_context(serving(folder(name), FakePeer())) for name in ("first", "second")]


@pytest.mark.outside
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_of_two_peers_none_is_picked(two: list[FakePeer], words: list[str], capsys: Said) -> None:
    """Whichever wrote last: they are listed, and neither is asked anything."""
    assert main(words) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith("homefires: 2 peers run on this machine; name one of them: ")
    assert all(f"--dir {runs() / name}" in told.err for name in ("first", "second"))
    assert ("--all" in told.err) == (words[0] in ("pause", "resume", "snooze"))
    assert [peer.asked for peer in two] == [[], []]


@pytest.mark.outside
def test_the_named_one_is_told(two: list[FakePeer]) -> None:
    assert main(["pause", "--dir", str(runs() / "second")]) == 0
    assert [[cmd for cmd, _ in peer.asked] for peer in two] == [[], ["pause"]]


@pytest.mark.outside
@pytest.mark.parametrize("words", [["pause"], ["snooze", "3"], ["resume"]], ids=" ".join)
def test_all_are_told_also_one_that_does_not_run(two: list[FakePeer], words: list[str], capsys: Said) -> None:
    """A service may be about to start it again."""
    third = folder("third", reported_at=1.0)
    assert main([*words, "--all"]) == 0
    assert [[cmd for cmd, _ in peer.asked] for peer in two] == [[words[0]]] * 2
    wished = saved_settings.read_wish(third)
    assert (wished.wish is Intent.PAUSE, wished.snoozed_until is not None) == (
        words[0] == "pause",
        words[0] == "snooze",
    )
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.outside
def test_one_that_does_not_answer_keeps_no_other_from_being_paused(two: list[FakePeer], capsys: Said) -> None:
    """Its line is on stderr, and the exit code is its."""
    with lock_directory(folder("a hung one")):
        assert main(["pause", "--all"]) == Unreachable.exit_code
    told = capsys.readouterr()
    assert (len(told.out.splitlines()), told.err.count("\n")) == (2, 1)
    assert "a hung one" in told.err
    assert [[cmd for cmd, _ in peer.asked] for peer in two] == [["pause"]] * 2


@pytest.mark.outside
def test_all_and_one_contradict_each_other(two: list[FakePeer], capsys: Said) -> None:
    assert main(["pause", "--all", "--dir", str(runs() / "first")]) == 2
    assert "not allowed with" in capsys.readouterr().err
    assert [peer.asked for peer in two] == [[], []]


def test_the_one_that_runs_is_meant_else_the_one_that_reported_last() -> None:
    early, late = folder("early", reported_at=1000.0), folder("late", reported_at=2000.0)
    assert folder_meant() == late
    with lock_directory(early):
        assert folder_meant() == early
    for each in (early, late):
        (each / "events.jsonl").unlink()
    with pytest.raises(BadInput, match="no run was joined yet"):
        folder_meant()


# ---- folders elsewhere ----


@pytest.mark.outside
@pytest.mark.parametrize("name", ["export", "chat", "audit", "credit", "report", "bundle", "status", "attach"])
def test_every_command_means_the_same_folder(two: list[FakePeer], name: str) -> None:
    """Without one, the peer's that runs; of two it asks which. Where a folder is taken alone, `--dir` does as well."""
    command = parse([name])
    assert isinstance(command, PeerCommand)
    with pytest.raises(BadInput, match="2 peers run on this machine; name one of them: --dir"):
        command.find()
    for words in (["--dir", "here"], *([["here"]] if isinstance(command, FolderCommand) else [])):
        named = parse([name, *words])
        assert isinstance(named, PeerCommand)
        assert named.find() == Path("here")


def test_a_folder_elsewhere_is_found_once_noted(tmp_path: Path) -> None:
    """By its own path, each once; a disk that is not there now is no folder, and is one again when it is back."""
    here, there = folder("here"), tmp_path / "disk" / "peer"
    there.mkdir(parents=True)
    (there / "consent.json").touch()
    assert peer_folders() == [here]
    for _ in range(2):
        note_folder(there)
        note_folder(here)
    assert sorted(peer_folders()) == sorted([here, there])
    assert len(list(runs().iterdir())) == 2
    with lock_directory(there):
        assert folder_meant() == there
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    assert peer_folders() == [here]
    (tmp_path / "unplugged").rename(tmp_path / "disk")
    assert there in peer_folders()


@pytest.fixture
def join(tmp_path: Path) -> JoinCommand:
    identity = Identity.from_seed(b"i" * 32)
    addrs = (f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}",)
    return JoinCommand(
        invite=issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=addrs), directory=tmp_path / "elsewhere"
    )


def test_whoever_joins_elsewhere_finds_the_peer_without_naming_it(join: JoinCommand) -> None:
    assert consents(join, yes=True, stdin=io.StringIO(), screen=io.StringIO()) == ()
    assert folder_meant() == join.directory


def test_a_home_that_cannot_be_written_to_keeps_nobody_from_joining(join: JoinCommand, tmp_path: Path) -> None:
    """It is said that the folder must be named."""
    (tmp_path / "data").write_text("a file")
    assert consents(join, yes=True, stdin=io.StringIO(), screen=(screen := io.StringIO())) == ()
    assert screen.getvalue().startswith("commands find this peer with --dir alone: ")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_full_disk_leaves_no_half_of_a_new_file(was_there: bool, tmp_path: Path) -> None:
    to = tmp_path / "report.html"
    if was_there:
        to.touch()

    def write() -> None:
        with writing(to, "--to"):
            to.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFull, match="is full; name a file on another one with --to"):
        write()
    assert to.exists() == was_there
