"""The placement's bars, on figures that are given; and a quick run of all of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.placement import METHODS, Figures, Row, judge, read


def row(method: str = "ours", cost_s: float = 49.21, processor_s: float = 5.0) -> Row:
    return Row(
        scenario="case5_worldwide", method=method, seed=0, cost_s=cost_s, evaluations=9, reached_after=9,
        processor_s=processor_s,
    )  # fmt: skip


def figures(**changes: object) -> Figures:
    """Figures that meet every bar, and `changes` of them."""
    costs = {"ours": 49.22, "fastest links": 50.0, "Kernighan-Lin": 54.0, "evolution": 68.0}
    given = Figures(
        references=[("case2_spot, block", [49.5, 7.3, 42.2], [49.6, 7.3, 42.3])], search=[row()] * 10,
        methods=[row(method, costs[method]) for method in METHODS], found=200, instances=200, per_s=1.0,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def test_figures_that_meet_every_bar() -> None:
    assert all(bar.met for bar in judge(read(quick=False), figures()))


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"references": [("a", [10.0], [10.2])]}, 0),
        ({"search": [row()] * 9 + [row(cost_s=49.3)]}, 1),
        ({"search": [row()] * 9 + [row(processor_s=31.0)]}, 1),
        ({"methods": [row("ours", 55.0), row("Kernighan-Lin", 54.0), row("evolution", 68.0)]}, 2),
        ({"methods": [row("ours", 55.0), row("Kernighan-Lin", 56.0), row("evolution", 54.0)]}, 3),
        ({"found": 199}, 4),
    ],
)
def test_each_bar_can_be_missed(change: dict[str, object], missed: int) -> None:
    bars = judge(read(quick=False), figures(**change))
    assert [number for number, bar in enumerate(bars) if not bar.met] == [missed]


@pytest.mark.nightly
@pytest.mark.outside
def test_a_quick_run_meets_every_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one seed: the references, the world-wide case, the comparison and ten small instances."""
    path = tmp_path / "figures.json"
    assert main(["placement", "--quick", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert [bar["name"] for bar in written["bars"] if not bar["met"]] == []
    assert "| case5_worldwide |" in capsys.readouterr().out
