"""The fuzzer runs, and sees what it looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.benchmarks.__main__ import main
from tests.benchmarks.fuzz import QUICK, Outcome, fuzz
from tests.benchmarks.fuzz_targets import Forged


@pytest.mark.nightly
@pytest.mark.outside
def test_quick_finds_no_crash_and_no_forgery(tmp_path: Path) -> None:
    """Of every target some examples are refused and some are not: else it would be blind."""
    figures = tmp_path / "fuzz.json"
    assert main(["fuzz", "--quick", "--json", str(figures)]) == 0
    told = json.loads(figures.read_text())
    assert told["examples"] >= QUICK
    for name, target in told["targets"].items():
        assert target["counts"]["refused"] > 0, name
        assert sum(target["counts"].values()) > target["counts"]["refused"], name


def test_a_crash_a_forgery_and_a_leak_are_seen() -> None:
    def forged(value: int) -> str:
        raise Forged("believed")

    for check, says in ((lambda value: str(1 // 0), "ZeroDivisionError"), (forged, "forged: believed")):
        outcome = fuzz(st.integers(), check, 10, 1)
        assert says in outcome.failures[0]
        assert not outcome.met
    assert not Outcome(growth_mib=65.0).met
    assert Outcome(examples=1, growth_mib=63.0).met
