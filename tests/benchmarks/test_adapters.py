"""The adapters benchmark: all ways begin alike, train on as many tokens, and B alone sends about half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.node.store import start_blob
from tests.benchmarks import adapters
from tests.benchmarks.__main__ import main
from tests.benchmarks.adapters import WAYS

pytestmark = [pytest.mark.outside, pytest.mark.usefixtures("in_this_process")]


def test_all_ways_begin_alike_and_read_as_much(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(adapters, "SEQUENCES", 16)
    words = ["adapters", "--spec", str(spec_path), "--quick", "--peers", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    rows = {row["variant"]: row for row in json.loads((tmp_path / "adapters.json").read_text())["rows"]}
    assert list(rows) == list(WAYS)
    assert len({round(row["points"][0]["loss"], 5) for row in rows.values()}) == 1
    assert len({row["tokens"] for row in rows.values()}) == 1
    assert len({row["loss"] for row in rows.values()}) == len(WAYS)
    assert 0.4 < rows["rounds, B"]["wire_bytes"] / rows["rounds"]["wire_bytes"] < 0.6
    table = (tmp_path / "adapters.md").read_text()
    assert all(f"| {way} |" in table for way in WAYS)
