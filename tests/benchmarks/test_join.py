"""The joiner's bars, on figures that are given."""

from __future__ import annotations

import dataclasses

import pytest

from peer.schema.spec import load
from peer.training.model.footprint import size_of
from tests.benchmarks import join
from tests.benchmarks.join import Figures, Joined


def figures(**changes: object) -> Figures:
    """A newcomer that meets every bar, and `changes` of what it did."""
    joined = Joined(
        seconds=60.0, snapshot_bytes=1, bytes_received=1, others_round_s=[52.0, 54.0], load=0.5,
        counted_after_rounds=1, left_out=[],
    )  # fmt: skip
    changed = dataclasses.replace(joined, **changes)  # type: ignore[arg-type]
    with_faults = dataclasses.replace(joined, load=None, killed_at=0.1)
    return Figures(parameters=1, round_s=[49.0, 51.0], load=0.4, join=changed, join_with_faults=with_faults)


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


def test_a_donor_that_is_killed_too_late_shows_nothing() -> None:
    given = figures()
    given.join_with_faults.killed_at = 1.0
    assert [item.name for item in join.judge(given) if not item.met] == [
        "succeeds with one donor killed and one that lies"
    ]


@pytest.mark.slow
def test_the_run_has_fifty_million_parameters() -> None:
    assert size_of(load(str(join.SPEC))).parameters >= 50_000_000
