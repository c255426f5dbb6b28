"""The organiser's node and the watcher that keeps checkpoints beside it: one command, two children."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import tui.processes.supervisor
from dht.errors import HomefiresError
from peer.schema.events import CheckpointWritten, EventLine, InviteIssued, PeerStopped, RoundCommitted, format_line
from tui.cli import main, parse
from tui.command_line import words_of
from tui.commands.organiser import BootstrapCommand
from tui.output.output import JsonOutput
from tui.processes.supervisor import Backoff, RetentionOptions, serve_and_keep

SAY = "import signal, sys; say = lambda text: print(text, flush=True);"
NODE = """
import pathlib, sys, time
print(sys.argv[2], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print(sys.argv[3], flush=True)
sys.exit(int(sys.argv[4]))
"""


def line(event: object) -> str:
    return format_line(EventLine(seq=0, t=1.0, run="r", peer="", event=event))  # type: ignore[arg-type]


def node(until: Path, code: int = 0) -> list[str]:
    """Issues an invite and ends when a file is there."""
    told = (line(InviteIssued(invite="hf1:x")), line(PeerStopped(why="asked to stop", exit_code=code)))
    return [sys.executable, "-c", NODE, str(until), *told, str(code)]


class Screen(io.StringIO):
    """Has the node end when a checkpoint is told."""

    def __init__(self, done: Path) -> None:
        super().__init__()
        self._done = done

    def write(self, text: str) -> int:
        if "CheckpointWritten" in text:
            self._done.touch()
        return super().write(text)


@pytest.fixture
def watchers(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of the watchers that were started. The first one crashes; the second keeps a checkpoint."""
    asked: list[list[str]] = []
    committed = RoundCommitted(
        round=16, digest="d", state="s", group=[], weights={}, penalties=[], tokens=0, bytes_sent=0, bytes_received=0,
        round_s=0.0, exposed_s=0.0,
    )  # fmt: skip
    told = [line(committed), line(CheckpointWritten(round=16, path="p", bytes=9))]

    def command(module: str, *arguments: str) -> list[str]:
        asked.append([module, *arguments])
        says = "; ".join(f"say({text!r})" for text in told)
        code = "sys.exit(1)" if len(asked) == 1 else f"{says}; signal.pause()"
        return [sys.executable, "-c", f"{SAY} {code}"]

    monkeypatch.setattr(tui.processes.supervisor, "python_module", command)
    return asked


@pytest.mark.outside
def test_a_watcher_follows_the_invite_and_is_started_again(watchers: list[list[str]], tmp_path: Path) -> None:
    """Its checkpoints are told, its rounds are not. It ends with the node."""
    stream, aside = Screen(tmp_path / "done"), io.StringIO()
    kept = RetentionOptions(directory=tmp_path / "keep", last=2, every=64)
    output, backoff = JsonOutput(stream, aside), Backoff(first_s=0.01)
    assert serve_and_keep(node(tmp_path / "done"), tmp_path / "log", kept, output, backoff=backoff) == 0
    assert watchers[0] == watchers[1] == [
        "peer", "watch", "hf1:x", "--keep", str(tmp_path / "keep"), "--keep-last", "2", "--keep-every", "64",
    ]  # fmt: skip
    assert "CheckpointWritten" in stream.getvalue()
    assert "RoundCommitted" not in stream.getvalue()
    assert "checkpoints: ended unexpectedly with exit code 1; it is started again in 0 s" in aside.getvalue()


def test_the_watcher_of_an_admission_run_is_let_in_by_the_organisers_key(tmp_path: Path) -> None:
    """Nobody reads the token of the invite from a command line."""
    kept = RetentionOptions(directory=tmp_path / "keep", last=2, every=64, organiser=tmp_path / "b")
    assert kept.argv("hf1:x")[3:7] == ["watch", str(tmp_path / "b" / "invite"), "--organiser", str(tmp_path / "b")]


@pytest.mark.outside
def test_several_invites_have_one_watcher(watchers: list[list[str]], tmp_path: Path) -> None:
    """`--invites 5` prints five: two watchers would write into one folder."""
    told = "\n".join(line(InviteIssued(invite=f"hf1:{number}")) for number in range(3))
    argv = [sys.executable, "-c", NODE, str(tmp_path / "done"), told, line(PeerStopped(why="asked to stop")), "0"]
    kept = RetentionOptions(directory=tmp_path / "keep", last=2, every=0)
    output = JsonOutput(Screen(tmp_path / "done"), io.StringIO())
    assert serve_and_keep(argv, tmp_path / "log", kept, output, backoff=Backoff(first_s=0.01)) == 0
    assert [words[2] for words in watchers] == ["hf1:0", "hf1:0"], "the first one crashed and was started again"


@pytest.mark.outside
def test_what_the_node_fails_with_is_raised(watchers: list[list[str]], tmp_path: Path) -> None:
    kept = RetentionOptions(directory=tmp_path / "keep", last=2, every=0)
    argv, output = node(tmp_path / "done", code=4), JsonOutput(Screen(tmp_path / "done"), io.StringIO())
    with pytest.raises(HomefiresError, match="asked to stop"):
        serve_and_keep(argv, tmp_path / "log", kept, output, backoff=Backoff(first_s=0.01))


def test_a_folder_that_cannot_be_is_told_before_anybody_is_invited(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept, stream = RetentionOptions(directory=tmp_path / "file" / "keep", last=2, every=0), io.StringIO()
    with pytest.raises(NotADirectoryError):
        serve_and_keep(node(tmp_path / "done"), tmp_path / "log", kept, JsonOutput(stream, io.StringIO()))
    assert stream.getvalue() == ""


def test_what_is_kept_is_chosen_on_the_command_line() -> None:
    assert RetentionOptions().directory is None
    words = ["--keep", "k", "--keep-every", "64"]
    chosen = parse(["bootstrap", "micro", *words])
    assert isinstance(chosen, BootstrapCommand)
    assert chosen.keep == RetentionOptions(directory=Path("k"), last=3, every=64)
    assert words_of(chosen.keep) == words
    assert main(["bootstrap", "micro", "--keep", "k", "--keep-last", "0"]) == 2
