"""The benchmark of fields: which cases there are, and what it says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import fields as benchmark
from tests.benchmarks.__main__ import main
from tests.fields.declared import fields
from tests.fields.field_swarm import Outcome
from tests.fields.liar import WHEN, Lie

PASSED = Outcome(told={"0": 3}, rounds=5, slowest_s=120.0, share=0.75, lost=0.0)


def test_every_field_is_lied_about_in_every_role() -> None:
    cases = benchmark.cases()
    assert {(case.field, case.when) for case in cases} == {(field, when) for field in fields() for when in WHEN}
    assert len(set(cases)) == len(cases)


@pytest.mark.outside  # the record asks git for the commit
def test_it_names_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the case that shows it again, and the fields that fail in the summary."""

    def lived(lie: Lie, seed: int) -> Outcome:
        return PASSED if lie.values != ("twice",) else replace(PASSED, failures=("stopped",))

    monkeypatch.setattr(benchmark, "run_lie", lived)
    words = ["fields", "--only", "Heartbeat steps", "--when", "leads", "--jobs", "1", "--json", str(tmp_path / "out")]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "FAILED Heartbeat steps = twice, leads: stopped" in said
    assert "- Heartbeat steps: 1" in said
    rows = json.loads((tmp_path / "out").read_text())["rows"]
    assert [row["value"] for row in rows if row["failures"]] == ["twice"]


@pytest.mark.slow
def test_it_runs_its_cases() -> None:
    assert main(["fields", "--only", "Nack promised", "--value", "one more", "--when", "follows", "--jobs", "1"]) == 0
