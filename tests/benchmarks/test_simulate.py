"""The benchmark of the simulator runs, and its bars can be missed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.simulate import held_bytes, judge_drawn, judge_fidelity, judge_size, watched
from tests.fidelity import Story

REAL = Story(groups=[[0, 1], [0, 1]], penalties=[[], [(1, "LATE")]], round_s=[5.0, 6.0, 5.2])


@pytest.mark.outside
def test_quick_runs(tmp_path: Path) -> None:
    """Small grids, both ways; every figure is written."""
    figures = tmp_path / "simulate.json"
    assert main(["simulate", "--quick", "--json", str(figures)]) == 0
    large = json.loads(figures.read_text())["large"]
    assert [large[name]["peers"] for name in ("exact", "drawn", "largest")] == [20, 20, 36]
    assert large["exact"]["rounds"] == 3
    unlike = json.loads(figures.read_text())["unlike"]
    assert unlike["exact"]["peers"] == unlike["drawn"]["peers"] == 20
    assert unlike["drawn"]["how"] != unlike["exact"]["how"]


def test_another_story_is_seen() -> None:
    """Groups, penalties, or times that are a sixth off."""
    assert all(bar.met for bar in judge_fidelity(REAL, REAL))
    for other in (
        replace(REAL, groups=[[0, 1], [0]]), replace(REAL, penalties=[[(1, "LATE")], []]),
        replace(REAL, round_s=[6.2, 6.2, 6.2]),
    ):  # fmt: skip
        assert sum(not bar.met for bar in judge_fidelity(REAL, other)) == 1


FAMILY = """
import subprocess, sys
held = bytearray(b"1") * 50_000_000
child = "import sys; held = bytearray(b'1') * 50_000_000; print('ready', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", child], stdin=sys.stdin)
child.wait()
"""


@pytest.mark.outside
def test_memory_is_that_of_all_processes() -> None:
    """A parent and its child with fifty million bytes each; nobody holds anything afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as family:  # fmt: skip
        assert family.stdout is not None
        assert family.stdout.readline() == "ready\n"
        assert held_bytes(family.pid) > 100_000_000
        family.communicate()
    assert held_bytes(family.pid) == 0


@pytest.mark.outside
def test_a_simulation_that_fails_is_no_measurement() -> None:
    """It raises; another is measured."""
    with pytest.raises(subprocess.CalledProcessError):
        watched([sys.executable, "-c", "raise SystemExit(3)"])
    assert watched([sys.executable, "-c", "print(7)"])[0] == "7\n"


def test_too_long_too_large_and_too_far_apart_are_seen() -> None:
    """Each by itself."""
    exact = {
        "peers": 4, "rounds": 9, "how": "", "took_s": 1.0, "gib": 0.1,
        "rounds_per_hour": 10.0, "tokens_per_s": 5.0, "bytes_sent": 7, "members": 4.0,
    }  # fmt: skip
    assert all(bar.met for bar in (*judge_size(exact, 9), *judge_drawn(exact, exact)))
    assert [bar.met for bar in judge_size(exact | {"took_s": 301.0}, 9)] == [False, True]
    assert [bar.met for bar in judge_size(exact | {"gib": 4.1}, 9)] == [True, False]
    assert [bar.met for bar in judge_size(exact, 10)] == [False, True]
    assert [bar.met for bar in judge_drawn(exact, exact | {"tokens_per_s": 5.3})] == [True, False, True, True]
