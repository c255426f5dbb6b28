"""The joiner's bars, on figures that are given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from peer.model.size import size_of
from peer.spec import load
from tests.benchmarks import join
from tests.benchmarks.join import Figures, Joined


def figures(**changes: object) -> Figures:
    """A newcomer that meets every bar, and `changes` of what it did."""
    joined = Joined(seconds=60.0, bytes_received=1, others_round_s=[52.0, 54.0], load=0.5, counted_after_rounds=1)
    changed = dataclasses.replace(joined, **changes)  # type: ignore[arg-type]
    return Figures(parameters=1, round_s=[49.0, 51.0], load=0.4, join=changed, join_with_faults=joined)


def test_figures_that_meet_every_bar() -> None:
    assert all(bar.met for bar in join.judge(figures()))


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        ({"seconds": 75.1}, "in step within 1.5 rounds"),
        ({"others_round_s": [50.0, 61.0]}, "the others' rounds take at most 10 % longer meanwhile"),
        ({"load": 0.61}, "load of at most 60 % of the cores"),
    ],
)
def test_each_bar_can_be_missed(change: dict[str, object], bar: str) -> None:
    assert [item.name for item in join.judge(figures(**change)) if not item.met] == [bar]


def test_the_run_has_fifty_million_parameters() -> None:
    assert size_of(load(str(join.SPEC))).parameters >= 50_000_000


def test_a_lying_donor_lies_in_every_chunk(tmp_path: Path) -> None:
    """Also in the last one, which is shorter; the size stays."""
    path = tmp_path / "snapshots" / "00000002-ab" / "vectors"
    path.parent.mkdir(parents=True)
    before = bytes(2 * join.CHUNK + 5)
    path.write_bytes(before)
    join.damage_snapshots(tmp_path)
    after = path.read_bytes()
    assert len(after) == len(before)
    assert [place for place in range(len(before)) if after[place]] == [0, join.CHUNK, 2 * join.CHUNK]
    with pytest.raises(AssertionError, match="no snapshot"):
        join.damage_snapshots(tmp_path / "snapshots")
