"""The chaos benchmark: what it runs, and what it says of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests import plans
from tests.benchmarks.__main__ import main
from tests.benchmarks.chaos import SHARES, jobs


def test_the_mixture_is_the_same_however_it_is_cut() -> None:
    """A run that was ended is continued with the next number; every schedule is a new one."""
    whole = list(jobs(0, 300))
    assert [*jobs(0, 130), *jobs(130, 170)] == whole
    assert len(set(whole)) == 300
    assert Counter(plan for plan, _ in whole) == {plan: 3 * share for plan, share in SHARES.items()}


@pytest.mark.nightly
@pytest.mark.slow
def test_it_writes_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each kind of fault, and the count of all."""
    assert main(["chaos", "--schedules", "12", "--first", "64", "--jobs", "1", "--json", str(tmp_path / "out")]) == 0
    written = json.loads((tmp_path / "out").read_text())
    assert sum(row["schedules"] for row in written["rows"].values()) == 12
    assert "12 schedules" in capsys.readouterr().out
    assert written["failures"] == []


def test_a_failure_is_named_and_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plan and the number that run it again."""

    def broken(case: object) -> Counter[str]:
        raise AssertionError("two firm updates")

    monkeypatch.setattr("tests.chaos.run", broken)
    result = plans.run_one("matrix", 7)
    assert str(result).startswith("matrix 7 (train restart): AssertionError('two firm updates')")
    assert main(["chaos", "--replay", "matrix", "7"]) == 1
    assert "1 failed" in plans.summary([result])
