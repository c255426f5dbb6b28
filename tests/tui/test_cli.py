from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tui.cli
import tui.commands.status
from dht.errors import DiskFull, RoundsFailed
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import EventLine, PeerStarted, format_line
from peer.testing.child_process import HANG_S
from tests.tui.terminals import Terminal

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "demo", "bootstrap", "join", "watch", "attach", "status", "pause", "resume", "finish", "leave", "set", "snooze",
    "explain",
)  # fmt: skip
HELP_S = 0.3
YARDSTICK = "import pydantic.main"
YARDSTICKS = 3.0
"""On a busy or slow machine, help may take so many times what this library alone takes there: here it is twice."""


def homefires(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tui", *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        stdin=subprocess.DEVNULL,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    """One line on stderr that begins with our name and holds `words`; nothing on stdout."""
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("homefires: ")
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


@pytest.mark.cold
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_answers_at_once(command: str) -> None:
    """Below 0.3 s of processor time, in one of five tries: nothing heavy is imported."""
    for _ in range(5):
        begun_s = children_s()
        done = homefires(*filter(None, [command]), "--help")
        took_s = children_s() - begun_s
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: homefires {command}".rstrip())
        if took_s < HELP_S:
            return
        begun_s = children_s()
        subprocess.run([sys.executable, "-c", YARDSTICK], check=True, timeout=HANG_S)
        allowed_s = YARDSTICKS * (children_s() - begun_s)
        if took_s < allowed_s:
            return
    pytest.fail(f"{took_s:.2f} s at last, allowed are {allowed_s:.2f} s")


def test_an_interrupt_at_a_question_leaves_the_prompt_a_line_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = Terminal([sys.executable, "-m", "tui", "new", str(tmp_path / "run.toml")], environment)
    try:
        asked.wait_for("[smollm2-135m-code] ")
        asked.press("\x03")
        assert asked.finish() == 130
        assert asked.text.endswith("\n"), asked.text
    finally:
        asked.close()


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is listed with a summary, and its own help says the same with all that it takes."""
    assert tui.cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name, (_, summary) in tui.cli.COMMANDS.items():
        assert " " in name or f"    {name} " in listed.replace("\n", " ")
        assert tui.cli.main([*name.split(), "--help"]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"usage: homefires {name}")
        assert f"{summary[0].upper()}{summary[1:]}." in " ".join(told.split())


def test_who_says_nothing_is_greeted(capsys: pytest.CaptureFixture[str]) -> None:
    """With the two commands that matter."""
    assert tui.cli.main([]) == 0
    told = capsys.readouterr().out
    assert len(told.splitlines()) < 10
    assert all(words in told for words in ("homefires demo", "homefires join INVITE", "homefires --help"))


def test_no_error_repeats_an_invite(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever sees a screen, or a log, would be let in."""
    for words in (["watch", "hf1:ab", "hf1:secret-1"], ["demo", "--peers", "hf1:secret-1"], ["hfc1:secret-1"]):
        assert tui.cli.main(words) == 2
        assert "secret" not in capsys.readouterr().err


def children_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dmeo"], ["'dmeo'", "did you mean 'demo'? see homefires --help"]),
        (["--versoin"], ["'--versoin'", "did you mean '--version'? see homefires --help"]),
        (["demo", "--versoin"], ["'--versoin'", "see homefires demo --help"]),
        (["jion"], ["'jion'", "did you mean 'join'?"]),
        (["service", "instal"], ["did you mean 'install'? see homefires service --help"]),
        (["demo", "--per", "3"], ["'--per'", "did you mean '--peers'? see homefires demo --help"]),
        (["members", "x", "--end", "it", "--renew"], ["--renew", "not allowed with argument --end"]),
        (["export", "here", "--dir", "there"], ["the folder is here, and --dir there"]),
        (["demo", "--peers", "many"], ["--peers is 'many'; write a whole number"]),
        (["demo", "--data", "/nowhere"], ["--data /nowhere does not exist"]),
        (["demo", "--ui", "fancy"], ["--ui is 'fancy'; use one of 'auto', 'tui'"]),
        (["join"], ["INVITE is missing; see homefires join --help"]),
        (["demo", "--peers", "17"], ["--peers is 17", "1 to 16"]),
        (["demo", "--rounds", "0"], ["--rounds is 0"]),
        (["demo", "--devices", "abacus"], ["--devices", "'abacus'", "'cuda'"]),
        (["demo", "--ui", "tui"], ["--ui tui", "stdin is not a terminal", "--ui plain"]),
        (["attach"], ["needs a terminal", "stdin is not a terminal"]),
        (["bootstrap", "micro", "--ui", "tui"], ["--ui", "'tui'", "'plain'"]),
        (["watch", "nowhere.jsonl"], ["nowhere.jsonl is no file, no folder and no invite"]),
        (["watch", "hf1:rubbish"], ["invite"]),
        (["pause"], ["no run was joined yet", "--dir"]),
        (["demo", "--spec", "nowhere.toml"], ["nowhere.toml cannot be read", "tiny"]),
        (["bootstrap"], ["SPEC", "homefires bootstrap --help"]),
        (["join", "hf1:rubbish"], ["invite"]),
        (["join", "not-an-invite"], ["hf1:"]),
        (["status", "--dir", "/nowhere"], ["/nowhere holds no events"]),
        (["status"], ["no run was joined yet", "--dir"]),
        (["set"], ["no run was joined yet", "--dir"]),
        (["snooze", "long"], ["HOURS", "'long'"]),
        (["explain", "ANOMLY"], ["'ANOMLY'", "did you mean ANOMALY?"]),
    ],
)
def test_a_persons_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: list[str]) -> None:
    assert_one_line(homefires(*arguments), 2, *words)


@pytest.mark.outside
def test_a_misspelt_key_names_the_file_the_key_and_the_closest_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[run]\nname = "x"\nfuonders = 3\n[model]\narchitecture = "llama"\ncontext = 8\n')
    assert_one_line(homefires("bootstrap", str(path)), 2, str(path), "'run.fuonders'", "'founders'")


@pytest.mark.outside
def test_a_forged_invite_is_refused_before_anything_starts(tmp_path: Path) -> None:
    address = "/ip4/127.0.0.1/tcp/4001/p2p/" + (identity := Identity.generate()).peer_id
    invite = issue(identity, run="mine", spec_hash=b"\0" * 32, addrs=(address,))
    middle = len(invite) // 2
    forged = invite[:middle] + ("A" if invite[middle] != "A" else "B") + invite[middle + 1 :]
    assert_one_line(homefires("join", forged, "--dir", str(tmp_path / "peer")), 2, "invite")
    assert not (tmp_path / "peer").exists()


@pytest.mark.outside
def test_debug_adds_the_traceback_on_either_side_of_the_command() -> None:
    for arguments in (["--debug", "demo", "--peers", "0"], ["demo", "--peers", "0", "--debug"]):
        done = homefires(*arguments)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("homefires: --peers is 0")


def test_the_exit_code_is_that_of_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(directory: Path, *, as_json: bool) -> str:
        raise RoundsFailed("round 7: peer-2 differs")

    monkeypatch.setattr(tui.commands.status, "describe_directory", fail)
    assert tui.cli.main(["status", "--dir", "."]) == 7
    assert capsys.readouterr().err == "homefires: round 7: peer-2 differs\n"


def test_a_bug_is_one_line_and_its_traceback_lies_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(directory: Path, *, as_json: bool) -> str:
        raise KeyError("ours")

    monkeypatch.setattr(tui.commands.status, "describe_directory", fail)
    assert tui.cli.main(["status", "--dir", "."]) == 1
    log = tmp_path / "data" / "homefires" / "error.log"
    assert capsys.readouterr().err == f"homefires: this is a bug: KeyError: 'ours'; the details are in {log}\n"
    assert "Traceback" in log.read_text()


@pytest.mark.outside
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    """`homefires … | head` ends quietly."""
    event = PeerStarted(name="alice", version="0")
    (tmp_path / "events.jsonl").write_text(format_line(EventLine(seq=0, t=0.0, run="r", peer="p", event=event)))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tui", "status", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.outside
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """An ordinary file where a folder should be: named, with what to do; not a bug of ours."""
    (tmp_path / "file").write_text("")
    done = homefires("demo", "--spec", "micro", "--dir", str(tmp_path / "file" / "below"))
    assert_one_line(done, 2, "file", "--dir")


@pytest.mark.outside
def test_a_terminal_that_is_closed_is_no_bug(tmp_path: Path) -> None:
    """Whoever closes the window wants no more words, and no log of an error."""
    ours, theirs = os.openpty()
    os.close(ours)
    recording = ROOT / "tests" / "tui" / "recordings" / "demo.jsonl"
    argv = [sys.executable, "-m", "tui", "watch", str(recording), "--ui", "plain"]
    own = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        argv, cwd=ROOT, env=own, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, timeout=HANG_S
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, b"")
    assert not list(tmp_path.rglob("error.log"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, code: int
) -> None:
    """It has an exit code of its own, whoever met it."""

    def fail(directory: Path, *, as_json: bool) -> str:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tui.commands.status, "describe_directory", fail)
    assert tui.cli.main(["status", "--dir", "."]) == DiskFull.exit_code
    assert capsys.readouterr().err == "homefires: the disk is full; make room, or write to another disk\n"
    assert not list(tmp_path.rglob("error.log"))
