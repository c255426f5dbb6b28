"""The pipeline benchmark: that it runs, and its bars on figures that are given."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import pipeline_found, pipeline_lines, pipeline_placed, pipeline_wire
from tests.benchmarks.__main__ import main
from tests.benchmarks.pipeline import read
from tests.benchmarks.pipeline_found import FoundHomes
from tests.benchmarks.pipeline_lines import Flown
from tests.benchmarks.pipeline_placed import Placed
from tests.benchmarks.pipeline_wire import Learned

FLOWN = Flown(
    setting="a", homes=2, free=1000.0, line=500.0, shaped=450.0, headers=None, flight_bytes=1, shaper="none", load=0.3
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"shaped": 449.0}, False),
        ({"line": 2000.0, "shaped": 980.0}, True),
        ({"line": 2000.0, "shaped": 979.0}, False),
    ],
)
def test_whatever_binds_is_the_bar(changes: dict[str, Any], met: bool) -> None:
    """0.9 of the line, or 0.98 of what the stages make without one."""
    (bar,) = pipeline_lines.bars_of(read(False)["lines"], [dataclasses.replace(FLOWN, **changes)])
    assert bar.met is met


def test_loss_may_be_a_hundredth_higher() -> None:
    rows = [Learned(seed=seed, steps=1, before=5.0, whole=2.0, cluster=loss) for seed, loss in ((1, 2.019), (2, 2.03))]
    assert [bar.met for bar in pipeline_wire.bars_of(read(False)["wire"], rows)] == [True, False]


@pytest.mark.parametrize(("speed", "met"), [(250.0, [True, True]), (249.0, [False, True]), (260.0, [True, False])])
def test_placed_clusters_are_faster_and_as_fast_as_forecast(speed: float, met: list[bool]) -> None:
    """Of the means."""
    forecast = 270.0 if speed < 260 else 300.0
    rows = [
        Placed(way="random", homes=[], speeds=[50.0, 150.0], forecasts=[1.0, 1.0]),
        Placed(way="placed", homes=[], speeds=[speed], forecasts=[forecast]),
    ]
    assert [bar.met for bar in pipeline_placed.bars_of(read(False)["placed"], rows)] == met


@pytest.mark.parametrize(("found", "met"), [(850.0, [True, True]), (840.0, [False, True]), (740.0, [False, False])])
def test_homes_that_found_each_other_beside_the_best_and_random_ones(found: float, met: list[bool]) -> None:
    speeds = {"found": [found], "exhaustion": [1000.0], "random": [200.0, 400.0]}
    rows = [FoundHomes(way=way, homes=[], speeds=each) for way, each in speeds.items()]
    assert [bar.met for bar in pipeline_found.bars_of(read(False)["found"], rows)] == met


def test_six_homes_find_each_other_as_well_as_the_search_knows() -> None:
    """Two clusters of three, and every home in one."""
    town = pipeline_found.Town.of(read(False)["found"])
    clusters = town.found()
    assert sorted(map(len, clusters)) == [3, 3]
    assert sorted(name for cluster in clusters for name in cluster) == sorted(town.offers)


@pytest.mark.nightly
@pytest.mark.outside
def test_homes_on_lines_and_a_cluster_beside_the_whole_model(tmp_path: Path) -> None:
    """One short step on lines is mostly its beginning and its end, and misses the bar."""
    path = tmp_path / "told.json"
    assert main(["pipeline", "--quick", "--json", str(path)]) == 0
    told = json.loads(path.read_text())
    (flown,) = told["lines"]
    assert 0 < flown["shaped"] < min(flown["free"], flown["line"])
    (learned,) = told["wire"]
    assert learned["cluster"] < learned["before"]
    placed, drawn = told["placed"]
    assert placed["homes"] != drawn["homes"]
    assert min(placed["speeds"] + drawn["speeds"]) > 0
    assert learned["cluster"] == pytest.approx(learned["whole"], rel=0.01)
