"""`status` reads few lines of a long log, and says what all of them say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import tui.swarm.decisive_lines
from peer.schema.events import read_lines
from tui.commands import status
from tui.swarm.decisive_lines import decisive_lines

RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"
KEEP = 20_000


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text().splitlines()]


def repeated(times: int) -> Iterator[dict[str, Any]]:
    """What one peer of the recording tells, again and again with later rounds: a long run."""
    told = rows()
    mine = [row for row in told if row["peer"] == told[-1]["peer"] and row["type"] != "PeerStopped"]
    length_s, rounds = mine[-1]["t"] - mine[0]["t"] + 1, max(row.get("round", 0) for row in mine)
    for turn in range(times):
        for row in mine:
            later = {key: row[key] + turn * rounds for key in ("round", "until_round") if key in row}
            yield {**row, "t": row["t"] + turn * length_s, **later}


def written(folder: Path, lines: Iterator[dict[str, Any]], *, files: int = 1) -> Path:
    texts = [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]
    folder.mkdir()
    each = -(-len(texts) // files)
    for number in range(files):
        name = "events.jsonl" if number == 0 else f"events.jsonl.{number}"
        first = (files - 1 - number) * each
        (folder / name).write_text("".join(texts[first : first + each]))
    return folder


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> tuple[str, Any]:
    """Some seconds after the last line, when others are there still."""
    with monkeypatch.context() as patch:
        if whole:
            patch.setattr(status, "decisive_lines", lambda paths: chain.from_iterable(map(read_lines, paths)))
        now = json.loads((folder / "events.jsonl").read_text().splitlines()[-2])["t"] + 3.0
        words, table = (status.describe_directory(folder, as_json=as_json, now=now) for as_json in (False, True))
    return words, json.loads(table)


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is read whatever it says."""
    monkeypatch.setattr(tui.swarm.decisive_lines, "NEWEST_BYTES", KEEP)
    monkeypatch.setattr(tui.swarm.decisive_lines, "NEWEST_ROUNDS", 2)


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("files", [1, 3])
def test_a_long_log_says_the_same(files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "peer", repeated(6), files=files)
    assert told(folder, monkeypatch, whole=False) == told(folder, monkeypatch, whole=True)


@pytest.mark.usefixtures("newest")
def test_the_log_of_many_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a demo, merged; and of each moment of it: what came after does not help."""
    whole = rows()
    for end in range(200, len(whole), 97):
        folder = written(tmp_path / f"{end}", iter(whole[:end]))
        assert told(folder, monkeypatch, whole=False) == told(folder, monkeypatch, whole=True), end


@pytest.mark.usefixtures("newest")
def test_of_an_older_client_every_line_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds do not say what each peer gave: progress does."""
    folder = written(tmp_path / "peer", ({k: v for k, v in row.items() if k != "given"} for row in repeated(2)))
    assert told(folder, monkeypatch, whole=False) == told(folder, monkeypatch, whole=True)


@pytest.mark.usefixtures("newest")
def test_lines_that_are_cut_are_counted_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "peer", repeated(3))
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:50], lines[50][:40], "\n", "no line\n", *lines[50:], lines[-1][:30]]))
    said = told(folder, monkeypatch, whole=False)
    assert said == told(folder, monkeypatch, whole=True)
    assert said[1]["skipped"] == 3


def test_of_a_full_file_a_sixth_is_read(tmp_path: Path) -> None:
    """16 MiB, as large as a log becomes before it rotates. Reading a line costs more than anything else."""
    folder = written(tmp_path / "peer", repeated(96))
    size = (folder / "events.jsonl").stat().st_size
    assert size > 15 << 20
    lines = sum(1 for _ in decisive_lines([folder / "events.jsonl"]))
    assert lines < (folder / "events.jsonl").read_bytes().count(b"\n") / 5
