"""`homefires simulate`, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import pytest

from peer.planning.simulate import estimate
from peer.planning.simulate.grid_part import serve
from peer.schema.events import RoundCommitted, read_lines
from peer.testing.child_process import HANG_S
from tests.peer.planning.simulate.scenarios import setting
from tui.cli import main

QUICK = ("simulate", "micro", "--set", "round.steps=10", "--step-s", "0.2", "--rounds", "3", "--seed", "1")


def test_a_table_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds per hour, tokens per second, what is exposed, and the rest."""
    assert main([*QUICK, "--peers", "3"]) == 0
    text = capsys.readouterr().out
    for word in ("3 in one group, message by message", "per hour", "tokens/s", "waits", "aborts", "void", "none"):
        assert word in text


def test_json_is_one_object_and_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    """With all figures."""
    said = []
    for _ in range(2):
        assert main([*QUICK, "--json", "--attackers", "nan=1", "--skew", "2"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert json.loads(said[0])["penalties"] == {"NONFINITE": 3}


@pytest.mark.slow
def test_events_can_be_watched_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As those of a real run."""
    events = tmp_path / "events.jsonl"
    assert main([*QUICK, "--events", str(events)]) == 0
    told = [line for line in read_lines(events) if line is not None and isinstance(line.event, RoundCommitted)]
    assert len(told) == 12
    assert main(["watch", str(events), "--ui", "plain"]) == 0
    assert "round 3 · 4 peers" in capsys.readouterr().out
    assert main(["report", str(events), "--to", str(tmp_path / "report.html")]) == 0


@pytest.mark.outside
def test_a_drawn_swarm_is_the_same_in_any_number_of_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five groups along a side three are simulated, in one process and in two."""
    monkeypatch.setattr(estimate, "SAMPLES", 3)
    said = []
    for processes in ("1", "2"):
        grid = ("--peers", "25", "--grid", "5x5", "--aggregate", "--churn", "crash=9,back=20", "--processes", processes)
        assert main([*QUICK, *grid, "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "drawn from a few groups" in said[0]


@pytest.mark.outside
def test_events_of_a_grid_are_those_of_a_row_with_an_attacker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many processes; and the table says whose they are."""
    said = []
    for processes in ("1", "2"):
        events = tmp_path / f"{processes}.jsonl"
        grid = ("--peers", "12", "--grid", "3x4", "--attackers", "nan=1", "--processes", processes)
        assert main([*QUICK, *grid, "--events", str(events)]) == 0
        assert "the 3 peers of one row of 4, in seats 3, 7 and 11 (nan among them)" in capsys.readouterr().out
        said.append(events.read_text())
        commits = [line.event for line in read_lines(events) if line and isinstance(line.event, RoundCommitted)]
        assert all(len(event.penalties) == 1 for event in commits)
        assert len(commits) == 9
    assert said[0] == said[1]


@pytest.mark.outside
def test_more_than_a_group_is_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    """Chosen, or as it is said."""
    assert main([*QUICK, "--peers", "12", "--grid", "3x4", "--json"]) == 0
    assert "grid of 3 × 4, message by message" in json.loads(capsys.readouterr().out)["how"]


@pytest.mark.outside
def test_peers_of_a_file_sit_in_a_grid_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two regions that are far apart: what is agreed on takes longer than between neighbours."""
    row, median_s = "upload_mbps = 20\ndownload_mbps = 50\nstep_s = 0.2\n", []
    for region in ("near", "far"):
        peers = tmp_path / f"{region}.toml"
        first = f'[[peer]]\nname = "a"\ncount = 6\nregion = "near"\n{row}'
        peers.write_text(f'delay_ms = 500\n{first}[[peer]]\nname = "b"\ncount = 6\nregion = "{region}"\n{row}')
        assert main([*QUICK, "--peers", str(peers), "--grid", "3x4", "--json"]) == 0
        median_s.append(json.loads(capsys.readouterr().out)["median_round_s"])
    assert median_s[1] > median_s[0] + 4 * 0.4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--peers", "0"], "--peers is 0"),
        (["--peers", "ten"], "ten"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--churn", "crash=much"], "--churn crash=much"),
        (["--attackers", "bribe"], "'bribe' is no attack"),
        (["--attackers", "nan=9"], "--attackers names 9, and there are 4 peers"),
        (["--preset", "moon"], "no network is called 'moon'"),
        (["--grid", "8"], "has 8 seats"),
        (["--grid", "2xx"], "--grid is '2xx'"),
        (["--step-s", "-1"], "--step-s is -1"),
        (["--skew", "nan"], "--skew is nan"),
        (
            ["--events", "/nowhere/at/all"],
            "No such file or directory; name another file with --events",
        ),
        (["--set", "round.stops=1"], "stops"),
        (["--spread", "1000"], "--spread is 1000; use 0 to 2"),
        (["--seed=-1"], "--seed is -1"),
        (["--grid", "2x2", "--seed", str(2**63)], "--seed is 9223372036854775808"),
        (["--peers", "²"], "²: No such file"),
        (["--peers=--5"], "--5: No such file"),
        (["--grid", "2x²"], "--grid is '2x²'"),
        (["--attackers", "nan=²"], "'²' is no number of peers"),
        (["--attackers", "nan=99999999999999"], "'99999999999999' is no number of peers"),
        (["--step-s", "1e300"], "--step-s is 1e+300"),
        (["--step-s", "inf"], "--step-s is inf"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What, which value; exit code 2."""
    assert main([*QUICK, *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.outside
@pytest.mark.parametrize("grid", [(), ("--grid", "2x2")])
def test_a_run_without_a_round_says_so(grid: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of a table of zeros."""
    assert main([*QUICK, "--step-s", "1e6", *grid]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no round was made: 4 peers")
    assert out.count("\n") == 1


def test_a_file_that_is_read_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recorded changes are still there afterwards; and so are old events after another mistake."""
    changes = tmp_path / "changes.jsonl"
    changes.write_text('{"t": 1, "peer": 3, "do": "crash"}\n')
    for words in (["--churn", str(changes)], ["--rounds", "0"]):
        assert main([*QUICK, "--events", str(changes), *words]) == 2
        assert changes.read_text().startswith('{"t": 1')
    assert "is the file that is read as --churn" in capsys.readouterr().err


def test_a_short_run_has_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Not hundredths of an hour."""
    assert main([*QUICK]) == 0
    rounds = capsys.readouterr().out.splitlines()[1]
    assert rounds.split()[:3] == ["rounds", "3", "in"]
    assert rounds.split()[4] == "s,"
    assert float(rounds.split()[3]) > 0


KILLED = """
import os, signal
from tui.simulation import workers

def work(connection, wait):
    connection.send("at work")
    while not wait:
        pass
    try:
        connection.recv()
    except EOFError:
        pass

{before}
for connection in workers.start(work, [({wait},), ({wait},)]):
    connection.recv()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.outside
@pytest.mark.parametrize(
    ("wait", "before"), [(False, ""), (True, ""), (True, "workers._end_with_parent = lambda: None")]
)
def test_children_end_with_a_killed_parent(wait: bool, before: str) -> None:
    """In the middle of their work; and while they wait even if nothing but the connection tells them."""
    script = KILLED.format(wait=wait, before=before)
    family = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        family.communicate(timeout=HANG_S)  # the end of its output: nobody is left who could write to it
        assert family.returncode == -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(family.pid, signal.SIGKILL)


INTERRUPTED = """
import os, signal, sys
from tui import cli
from tui.simulation import workers

def work(*about):
    os.kill(os.getpid(), signal.SIGINT)
    print("at work", flush=True)
    while True:
        pass

workers.serve = work
sys.exit(cli.main(["simulate", "micro", "--peers", "8", "--grid", "2x4", "--rounds", "90000", "--processes", "3"]))
"""


@pytest.mark.outside
def test_an_interrupt_is_quiet_however_many_processes_there_are() -> None:
    """As from a keyboard: all of them get it, and none has a traceback to show."""
    family = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert family.stdout is not None
        assert [family.stdout.readline() for _ in range(2)] == ["at work\n"] * 2
        os.killpg(family.pid, signal.SIGINT)
        assert family.communicate(timeout=HANG_S) == ("", "")
        assert family.returncode == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(family.pid, signal.SIGKILL)


def test_rounds_are_those_of_the_spec_unless_somebody_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run without an end, twenty."""
    words = [word for word in QUICK if word not in ("--rounds", "3")]
    for rounds in (2, 0):
        assert main([*words, "--set", f"run.rounds={rounds}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rounds"] == (rounds or 20)


def test_a_part_ends_when_nobody_is_left_to_ask() -> None:
    """Without a word."""
    here, there = Pipe()
    here.close()
    serve(there, setting(), (2, 2), (), ((0,), ()))
