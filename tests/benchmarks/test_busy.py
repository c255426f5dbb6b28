"""A round beside busy loops, with a model that is small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.busy import BEFORE, BUSY, IDLE, judge


@pytest.mark.nightly
@pytest.mark.outside
def test_a_round_is_timed_idle_and_busy(tmp_path: Path) -> None:
    """A model as small may miss the bar."""
    told = tmp_path / "busy.json"
    words = ["--hidden", "64", "--repeats", "1", "--overlap", "streaming", "--json", str(told)]
    assert main(["busy", *words]) in (0, 1)
    rounds = json.loads(told.read_text())["rounds"]["streaming"]
    assert [len(rounds[kind]) for kind in (IDLE, BUSY, BEFORE)] == [1, 1, 0]
    assert all(seconds > 0 for kind in rounds.values() for made in kind for seconds in made.values())


def test_the_bars_compare_medians() -> None:
    def rounds(*apply_s: float) -> list[dict[str, float]]:
        return [{"submit_s": 1.0, "held_s": 0.5, "apply_s": seconds} for seconds in apply_s]

    busy, before = judge("none", {IDLE: rounds(1, 1, 90), BUSY: rounds(4, 6, 5), BEFORE: rounds(1, 2, 1)})
    assert (busy.met, busy.figures) == (True, "3.00 times")
    assert (before.met, before.figures) == (True, "1.00 times")
    slower, after = judge("none", {IDLE: rounds(1), BUSY: rounds(6), BEFORE: rounds(0.5)})
    assert not slower.met
    assert not after.met
