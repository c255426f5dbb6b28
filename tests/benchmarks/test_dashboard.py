"""The dashboard's benchmark at work on a small load, and its bars on figures that are given."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from peer.schema.events import parse_line
from peer.testing.child_process import HANG_S
from tests.benchmarks import dashboard
from tests.benchmarks.dashboard import MARKS, QUICK, Figures
from tests.benchmarks.dashboard_stream import Stream
from tests.benchmarks.terminal import Terminal
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


def figures(**changes: object) -> Figures:
    """Figures that meet every bar, and `changes` of them."""
    given = Figures(
        first_paint_s=0.7, first_paint_cpu_s=0.5, cpu_share=0.03, cpu_share_of={"1": 0.02, "2": 0.04},
        peak_bytes=80 * 2**20, keys_s=[0.03, 0.05], open_s=2.5, open_cpu_s=2.0, open_peak_bytes=130 * 2**20,
    )  # fmt: skip
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def test_figures_that_meet_every_bar() -> None:
    assert all(bar.met for bar in dashboard.judge(figures()))


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        ({"cpu_share_of": {"1": 0.01, "2": 0.16}}, "under 15 % of one core on every screen"),
        ({"peak_bytes": 151 * 2**20}, "under 150 MiB resident"),
        ({"open_peak_bytes": 151 * 2**20}, "under 150 MiB resident"),
        ({"keys_s": [0.01, 0.11]}, "key to paint under 100 ms"),
        ({"first_paint_s": 1.1}, "first paint under 1 s"),
        ({"open_s": 3.1}, "opens the recording in under 3 s"),
    ],
)
def test_each_bar_can_be_missed(change: dict[str, object], bar: str) -> None:
    assert [item.name for item in dashboard.judge(figures(**change)) if not item.met] == [bar]


@pytest.mark.nightly
@pytest.mark.outside
def test_a_small_load_gives_figures_of_every_screen(tmp_path: Path) -> None:
    measured = dashboard.measure(QUICK, tmp_path)
    assert set(measured.cpu_share_of) == set(MARKS)
    assert len(measured.keys_s) == QUICK.keys
    assert 0 < measured.first_paint_cpu_s < measured.first_paint_s * 2
    assert min(measured.peak_bytes, measured.open_peak_bytes) > 2**20
    assert measured.open_s > 0


def test_the_stream_is_the_same_every_time_and_all_of_it_is_understood() -> None:
    lines = [*Stream(peers=30).starts(0.0), *(Stream(peers=30).line(index, 0.05 * index) for index in range(1000))]
    again = [*Stream(peers=30).starts(0.0), *(Stream(peers=30).line(index, 0.05 * index) for index in range(1000))]
    assert lines == again
    swarm = apply_all(SwarmState(), [parse_line(line) for line in lines])
    assert (len(swarm.peers), swarm.skipped) == (30, 0)
    assert swarm.round > 1
    assert {penalty.code for penalty in swarm.penalty_log} == {"LATE", "ANOMALY", "CLIPPED"}
    assert swarm.evaluations
    assert any(view.network for view in swarm.peers.values())


@pytest.mark.outside
def test_a_terminal_shows_what_is_typed_and_knows_what_it_takes() -> None:
    program = "sum(range(10**7)); print('here is', input('say: '))"
    with Terminal([sys.executable, "-c", program], columns=40, rows=10) as terminal:
        terminal.wait_for("say:", HANG_S)
        assert terminal.cpu_s() > 0
        assert terminal.peak_bytes() > 2**20
        terminal.press("it\r")
        terminal.wait_for("here is it", HANG_S)


@pytest.mark.outside
def test_text_that_is_not_drawn_in_time_is_an_error_that_tells_what_was() -> None:
    program = "print('\\x1b[31mred\\x1b[0m herring'); input()"
    with Terminal([sys.executable, "-c", program], columns=40, rows=10) as terminal:
        terminal.wait_for("red herring", HANG_S)
        with pytest.raises(TimeoutError, match="red herring"):
            terminal.wait_for("whale", 0.1)
