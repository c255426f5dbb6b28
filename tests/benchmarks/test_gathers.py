"""Gathers beside updates, with a model that is small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.gathers import judge
from tests.gather_race import Broken


@pytest.mark.nightly
@pytest.mark.outside
def test_steps_are_timed_with_the_guard_and_without(tmp_path: Path) -> None:
    """A few steps of a small model may miss the bar."""
    told = tmp_path / "gathers.json"
    words = ["--schedules", "400", "--hidden", "32", "--pairs", "2", "--json", str(told)]
    assert main(["gathers", *words]) in (0, 1)
    figures = json.loads(told.read_text())
    assert figures["failed"] == 0
    assert set(figures["broken"]) == set(Broken)
    assert len(figures["pairs"]) == 2
    assert all(seconds > 0 for pair in figures["pairs"] for seconds in pair)


def test_the_bar_of_speed_is_of_pairs() -> None:
    """One that something else held up decides nothing."""
    pairs = [(1.0, 1.0), (1.0, 9.0), (2.0, 2.0)]
    assert [bar.met for bar in judge(10, 0, {"no_wait": 1}, pairs)] == [True, True, True]
    assert [bar.met for bar in judge(10, 1, {"no_wait": 0}, [(1.0, 1.1)] * 2)] == [False, False, False]
