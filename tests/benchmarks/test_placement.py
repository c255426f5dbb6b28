"""The placement's bars, on figures that are given; and a quick run of all of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.placement import METHODS, Figures, Row, judge, read

CLUSTERS = read(quick=False)["search"]["at_most_s"]


def row(scenario: str = "case5_worldwide", method: str = "ours", cost_s: float = 3.0, processor_s: float = 4.0) -> Row:
    return Row(
        scenario=scenario, method=method, seed=0, cost_s=cost_s, evaluations=9, reached_after=9,
        processor_s=processor_s,
    )  # fmt: skip


def clusters(**changes: float) -> list[Row]:
    """Ten searches of each cluster; the last one with `changes`."""
    rows = [row(scenario) for scenario in CLUSTERS for _ in range(10)]
    return [*rows[:-1], dataclasses.replace(rows[-1], **changes)]


def compared(**costs: float) -> list[Row]:
    """In the mean, what each method reaches."""
    given = {"ours": 49.22, "first layouts alone": 50.0, "random starts": 57.0} | costs
    return [
        row(scenario, method, given[method]) for scenario in ("case2_spot", "case5_worldwide") for method in METHODS
    ]


def figures(**changes: object) -> Figures:
    """Figures that meet every bar, and `changes` of them."""
    given = Figures(
        references=[("case2_spot, block", [49.5, 7.3, 42.2], [49.6, 7.3, 42.3])], search=clusters(),
        methods=compared(), found=200, instances=200, per_s=1.0,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def test_figures_that_meet_every_bar() -> None:
    assert all(bar.met for bar in judge(read(quick=False), figures()))


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"references": [("a", [10.0], [10.2])]}, [0]),
        ({"search": clusters(cost_s=49.3)}, [5]),
        ({"search": clusters(processor_s=5.1)}, [5]),
        ({"methods": compared(ours=58.0)}, [6, 7]),
        ({"found": 199}, [8]),
    ],
)
def test_each_bar_can_be_missed(change: dict[str, object], missed: list[int]) -> None:
    bars = judge(read(quick=False), figures(**change))
    assert [number for number, bar in enumerate(bars) if not bar.met] == missed


@pytest.mark.nightly
@pytest.mark.outside
def test_a_quick_run_meets_every_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one seed: the references, the world-wide case, the comparison and ten small instances."""
    path = tmp_path / "figures.json"
    assert main(["placement", "--quick", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert [bar["name"] for bar in written["bars"] if not bar["met"]] == []
    assert "| case5_worldwide |" in capsys.readouterr().out
