"""The parity benchmark: every way to wait for nobody trains on the same tokens, and without any of it, it is DiLoCo."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from peer.schema.spec import RunSpec
from tests.benchmarks import parity, parity_report
from tests.benchmarks.__main__ import main
from tests.benchmarks.parity import WAYS, Way
from tests.benchmarks.rows import Row
from tests.benchmarks.variants import Point, train_diloco


@pytest.fixture(autouse=True)
def few_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences: losses are looked at here, and not how close they are."""
    monkeypatch.setattr(parity, "SEQUENCES", 16)


def silent(point: Point) -> None:
    """Progress that nobody reads."""


@pytest.mark.outside
@pytest.mark.usefixtures("in_this_process")
def test_quick_gives_a_row_of_every_kind(spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain DiLoCo is always among them, whether or not it is named."""
    chosen = ["by-time", "rebase-50", "interpolate-50", "all"]
    words = ["parity", "--spec", str(spec_path), "--peers", "2", "--quick", "--out", str(tmp_path)]
    assert main([*words, "--variants", *chosen]) == 0
    rows = json.loads((tmp_path / "parity.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == [way for way in WAYS if way in {"plain", *chosen}]
    assert [point["round"] for point in rows[0]["points"]] == [0, parity.QUICK_ROUNDS]
    assert (tmp_path / "parity.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "parity.png").exists()


# ---- what is trained


def test_without_any_difference_it_is_plain_diloco(base: RunSpec) -> None:
    """Bit for bit what the quality benchmark trains."""
    spec = parity.spec_of("plain", base, 1, 3)
    same = dataclasses.replace(spec, codec=dataclasses.replace(spec.codec, wire="float32"))
    assert parity.train("plain", spec, silent).state == train_diloco(same, silent).state


@pytest.mark.slow
def test_streaming_with_no_step_ahead_is_plain_diloco(base: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebasing by nothing, and merging with nothing of its own."""
    plain = parity.train("plain", parity.spec_of("plain", base, 1, 2), silent)
    for alpha in (None, 0.0):
        monkeypatch.setitem(WAYS, "ahead-0", Way(ahead=1e-9, alpha=alpha))
        spec = parity.spec_of("ahead-0", base, 1, 2)
        assert spec.round.overlap == "streaming"
        assert parity.train("ahead-0", spec, silent).state == plain.state


@pytest.mark.slow
def test_all_ways_train_on_as_many_tokens(base: RunSpec) -> None:
    """H = 9, where unequal peers make 13, 13, 7 (rounded up from a half) and 3 steps."""
    peers, steps = 4, 9
    inner = dataclasses.replace(base.inner, sequences=1)
    base = dataclasses.replace(base, inner=inner, round=dataclasses.replace(base.round, steps=steps))
    ways = ("by-time", "rebase-50")
    tokens = {way: parity.train(way, parity.spec_of(way, base, 1, peers), silent).points[-1].tokens for way in ways}
    assert set(tokens.values()) == {base.run.rounds * peers * steps * base.model.context}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_way_changes_what_is_learned(base: RunSpec) -> None:
    """None of them is another by a second name."""
    inner = dataclasses.replace(base.inner, sequences=1)
    base = dataclasses.replace(base, inner=inner, round=dataclasses.replace(base.round, steps=10))
    states = {way: parity.train(way, parity.spec_of(way, base, 1, 3), silent).state for way in WAYS}
    assert len(set(states.values())) == len(WAYS)


# ---- what is said about it


def rows_of(**losses: tuple[float, ...]) -> list[Row]:
    more: dict[str, Any] = {"tokens": 1000, "findings": []}
    return [
        {"variant": name.replace("_", "-"), "seed": seed, "loss": loss, **more}
        for name, values in losses.items()
        for seed, loss in enumerate(values, 1)
    ]


def test_the_bar_is_on_the_mean_over_paired_seeds() -> None:
    (met,) = parity_report.judge(rows_of(plain=(2.0, 2.1), int4=(2.02, 2.0895)))
    assert met.met
    assert met.figures == "+0.25 ± 0.75 %; +1.00 %, -0.50 %"
    (missed,) = parity_report.judge(rows_of(plain=(2.0, 2.1), interpolate_50=(2.02, 2.1021)))
    assert not missed.met


def test_what_has_no_bar_is_in_the_table() -> None:
    rows = rows_of(plain=(2.0,), rebase_25=(2.1,))
    assert parity_report.judge(rows) == []
    assert "| rebase-25 | 2.1000 | 2.1000 | +5.00 % | 1,000 | 0 |" in parity_report.table(rows)


def test_every_way_has_a_colour() -> None:
    assert set(parity_report.COLOURS) == set(WAYS)
    assert set(parity_report.BARS) <= set(WAYS)
