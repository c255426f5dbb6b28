"""The churn benchmark: its schedule, and all of it with the smallest model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from peer.schema.spec import RunSpec
from tests.benchmarks import churn, churn_report
from tests.benchmarks.churn import Plan
from tests.benchmarks.churn_figures import Kept, acts_of, peer_seconds


def test_a_schedule_in_order() -> None:
    events = [{"at_s": 5, "stall": 2, "for_s": 4}, {"at_s": 1, "crash": 0, "back_after_s": 6}, {"at_s": 8, "join": 3}]
    assert [(act.at_s, act.what, act.peer) for act in acts_of(events)] == [
        (1.0, "kill", 0), (5.0, "halt", 2), (7.0, "back", 0), (8.0, "join", 3), (9.0, "go on", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("event", [{"at_s": 1.0}, {"at_s": 1.0, "join": 1, "leave": 2}])
def test_an_event_that_says_not_exactly_one_thing_is_refused(event: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must say one of"):
        acts_of([event])


def test_who_is_dead_or_stopped_could_make_nothing() -> None:
    """Two founders for 10 s; one is gone from 2 to 4, the other from 7 on, and a third comes at 9."""
    acts = acts_of([
        {"at_s": 2, "crash": 0, "back_after_s": 2}, {"at_s": 7, "leave": 1}, {"at_s": 9, "join": 2},
        {"at_s": 11, "leave": 0},
    ])  # fmt: skip
    assert peer_seconds(acts, 2, 10.0) == pytest.approx(8 + 7 + 1)


def test_the_longest_time_without_a_round_has_two_ends() -> None:
    kept = Kept(
        system="ours", churn=True, shaper="", seconds=30.0, peer_seconds=60.0, step_tokens_per_s=10.0,
        commits_s=[4.0, 12.0], tokens=300, made=400, loss=1.0, losses=[1.0], load=0.1,
    )  # fmt: skip
    assert kept.longest_s == 18.0
    assert kept.of_present == 0.5
    assert dataclasses.replace(kept, commits_s=[]).longest_s == 30.0


def test_the_plan() -> None:
    """Founders come first; whoever is struck is there, and who comes back had gone."""
    for quick in (False, True):
        plan = Plan.read(quick)
        acts = acts_of(plan.events)
        there, away = set(range(plan.founders)), set()
        for act in acts:
            assert act.at_s < plan.seconds
            match act.what:
                case "join":
                    assert act.peer == len(there | away)
                    there.add(act.peer)
                case "back" | "go on":
                    assert act.peer in away
                    away.remove(act.peer)
                    there.add(act.peer)
                case _:
                    there.remove(act.peer)
                    away.add(act.peer)
            assert len(there) >= 2, f"nobody is left at {act.at_s}"
    assert {act.what for act in acts_of(Plan.read(quick=False).events)} == {
        "join", "leave", "kill", "back", "halt", "go on",
    }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.outside
def test_a_crash_in_each_system(base: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, the smallest model: a peer is killed and comes back, while the others, who are most, go on."""
    plan = dataclasses.replace(
        Plan.read(quick=True), step_s=0.2, founders=3, seconds=10.0,
        events=[{"at_s": 2.5, "crash": 1, "back_after_s": 1.0}],
    )  # fmt: skip
    spec = dataclasses.replace(
        base, run=dataclasses.replace(base.run, founders=3), round=dataclasses.replace(base.round, restart_s=0.0)
    )  # fmt: skip
    kept = churn.measure(tmp_path / "run", spec, plan, churns=(True,))
    assert [(each.system, each.churn) for each in kept] == [(churn.OURS, True), (churn.RIVAL, True)]
    for each in kept:
        assert bool(each.commits_s) == (each.of_present > 0)
        assert each.of_present <= 1.1
        assert [(act.what, act.peer) for act in each.acts] == [("kill", 1), ("back", 1)]
        assert each.acts[0].at_s >= 2.5
    assert kept[0].commits_s, "ours has made no round"  # whether the rival can is what the benchmark asks
    assert f"{kept[0].acts[0].at_s:.0f} s kill 1" in churn_report.table(kept)
    calm = dataclasses.replace(kept[0], churn=False)
    assert "nobody comes or goes" in churn_report.table([calm, *kept])
    churn_report.draw(kept, tmp_path / "picture.png")
    assert "tokens/s counted" in capsys.readouterr().out
