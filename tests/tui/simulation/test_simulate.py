"""`homefires simulate`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.schema.events import RoundCommitted, read_lines
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
    assert "round 3/3 · 4 peers" in capsys.readouterr().out
    assert main(["report", str(events), "--to", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--peers", "0"], "--peers is 0"),
        (["--peers", "ten"], "ten"),
        (["--peers", "65"], "--peers is 65, but a group ends at 64"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--churn", "crash=much"], "--churn crash=much"),
        (["--attackers", "bribe"], "'bribe' is no attack"),
        (["--attackers", "nan=9"], "--attackers names 9, and there are 4 peers"),
        (["--preset", "moon"], "no network is called 'moon'"),
        (["--step-s", "-1"], "--step-s is -1"),
        (["--skew", "nan"], "--skew is nan"),
        (
            ["--events", "/nowhere/at/all"],
            "No such file or directory; name another file with --events",
        ),
        (["--set", "round.stops=1"], "stops"),
        (["--spread", "1000"], "--spread is 1000; use 0 to 2"),
        (["--seed=-1"], "--seed is -1"),
        (["--seed", str(2**63)], "--seed is 9223372036854775808"),
        (["--peers", "²"], "²: No such file"),
        (["--peers=--5"], "--5: No such file"),
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


@pytest.mark.parametrize("option", ["--grid", "--aggregate", "--processes"])
def test_options_of_a_grid_are_unknown(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, option, "2"]) == 2
    assert f"'{option}' is not known here" in capsys.readouterr().err


def test_a_file_of_more_than_a_group_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = tmp_path / "peers.toml"
    peers.write_text('[[peer]]\nname = "a"\ncount = 65\n')
    assert main([*QUICK, "--peers", str(peers)]) == 2
    assert f"{peers} has 65 peers, but a group ends at 64\n" in capsys.readouterr().err


def test_a_run_without_a_round_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of a table of zeros."""
    assert main([*QUICK, "--step-s", "1e6"]) == 0
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


def test_rounds_are_those_of_the_spec_unless_somebody_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run without an end, twenty."""
    words = [word for word in QUICK if word not in ("--rounds", "3")]
    for rounds in (2, 0):
        assert main([*words, "--set", f"run.rounds={rounds}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rounds"] == (rounds or 20)
