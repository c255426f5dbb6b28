"""The overlap benchmark: what it makes of event lines, and its bars on figures that are given."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from peer.schema.events import Event, EventLine, InnerProgressed, RoundCommitted
from peer.schema.spec import RunSpec, load
from peer.testing.swarm_contract import changed_spec
from peer.training.model.footprint import size_of
from tests.benchmarks import overlap, overlap_report
from tests.benchmarks.overlap import Plan, of_peer, of_rounds
from tests.benchmarks.overlap_figures import Alone, Measured, OfPeer, OfRound

ALONE = [
    Alone(slower=1, step_s=1.0, tokens_per_s=32.0, load=0.1),
    Alone(slower=4, step_s=4.0, tokens_per_s=8.0, load=0.1),
]
SLOWER = (1.0, 1.0, 1.0, 4.0)


def measured(mode: str, slower: tuple[float, ...] = SLOWER, **changes: Any) -> Measured:
    """A run of two rounds of 16 s at full speed, in which a hundredth is exposed; `changes` of its peers and rounds."""
    peers = [
        OfPeer(
            step_s=times, step_tokens=32, tokens=round(1024 / times), made_in_s=32.0, round_s=[16.0, 16.0],
            exposed_s=[0.16, 0.16], bytes_sent=[100, 100],
        )
        for times in slower
    ]  # fmt: skip
    tokens = round(sum(512 / times for times in slower))
    rounds = [
        OfRound(round=number, seconds=16.0, tokens=tokens, weights=[1] * len(slower), void=0, penalties=[])
        for number in (1, 2)
    ]
    run = Measured(mode=mode, slower=list(slower), repeat=0, peers=peers, rounds=rounds, load=0.3, swarm_load=0.2)
    of_peer = {key: value for key, value in changes.items() if hasattr(peers[0], key)}
    of_round = {key: value for key, value in changes.items() if hasattr(rounds[0], key)}
    of_run = {key: value for key, value in changes.items() if hasattr(run, key) and key not in (of_peer | of_round)}
    run = dataclasses.replace(
        run, peers=[dataclasses.replace(peer, **of_peer) for peer in peers],
        rounds=[dataclasses.replace(each, **of_round) for each in rounds],
    )  # fmt: skip
    return dataclasses.replace(run, **of_run)


SPEED = "streaming: tokens per second at least 0.98 of what the peers make alone"
EQUAL, WITH_EQUAL, WITH_SLOW = (1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 3.0)


def good() -> list[Measured]:
    return [
        measured("blocking", exposed_s=[4.0, 4.0]), measured("layerwise", exposed_s=[3.0, 3.0]), measured("streaming"),
        measured("streaming", EQUAL), measured("streaming", WITH_SLOW),
        measured("streaming", EQUAL, repeat=1, made_in_s=32.1), measured("streaming", WITH_SLOW, repeat=1),
        measured("streaming", WITH_EQUAL, made_in_s=32.2), measured("streaming", WITH_EQUAL, repeat=1),
    ]  # fmt: skip


def missed(runs: list[Measured], alone: list[Alone] = ALONE) -> list[str]:
    return [bar.name for bar in overlap_report.judge(alone, runs) if not bar.met]


def test_figures_that_meet_every_bar() -> None:
    assert missed(good()) == []
    assert len(overlap_report.judge(ALONE, good())) == 10


@pytest.mark.parametrize(
    ("place", "run", "name"),
    [
        (0, measured("blocking", exposed_s=[8.0, 8.0]), "the exchange takes 15% to 40% of a blocking round"),
        (1, measured("layerwise", exposed_s=[4.1, 4.1]), "layerwise exposes less than blocking"),
        (2, measured("streaming", exposed_s=[0.16, 0.7]), "streaming: at most 2% of a round exposed"),
        (2, measured("streaming", tokens=250), SPEED),
        (2, measured("streaming", weights=[1, 1, 0, 1]), SPEED),
        (2, measured("streaming", load=0.7), "load of everything on this machine at most 60% of the cores"),
    ],
)  # fmt: skip
def test_each_bar_can_be_missed(place: int, run: Measured, name: str) -> None:
    runs = good()
    runs[place] = run
    assert missed(runs) == [name]


def test_a_slow_peer_that_costs_the_others_something_is_seen() -> None:
    """A tenth longer rounds, where runs of the same kind differ by nothing."""
    runs = [measured("streaming", EQUAL, repeat=at) for at in (0, 1)]
    runs += [measured("streaming", WITH_SLOW, repeat=at, seconds=17.6, made_in_s=35.2) for at in (0, 1)]
    differ = "by no more than runs of the same kind differ"
    runs += [measured("streaming", WITH_EQUAL, repeat=at, seconds=17.6, made_in_s=35.2) for at in (0, 1)]
    assert missed([measured("streaming"), *runs]) == [
        f"a slower peer changes the others' {what} {differ}" for what in ("round time", "tokens/s")
    ]  # that it is a fourth peer costs it, not that it is slow


def test_a_peer_beyond_its_pace_is_seen() -> None:
    runs = good()
    runs[3] = measured("streaming", EQUAL, tokens=1060)
    assert "nobody is faster than its device" in missed(runs)


def line(t: float, event: Event) -> EventLine:
    return EventLine(seq=0, t=t, run="r", peer="p", event=event)


def stepped(t: float) -> EventLine:
    return line(t, InnerProgressed(round=0, step=1, steps=4, loss=1.0, tokens=32, tokens_per_s=1.0, learning_rate=0.1))


def committed(t: float, round: int, **weights: int) -> EventLine:
    event = RoundCommitted(
        round=round, digest="d", state="s", group=list(weights), weights=weights, penalties=[{"code": "LATE"}],
        tokens=96, bytes_sent=7, bytes_received=7, round_s=5.0, exposed_s=0.5,
    )  # fmt: skip
    return line(t, event)


def test_tokens_are_counted_between_steps_at_the_same_place_of_a_round() -> None:
    """Rounds of 5 s: three steps, and an exchange of 2 s. Three steps in five seconds, wherever one looks."""
    lines = [
        committed(0.0, 1, a=9), *map(stepped, (1.0, 2.0, 3.0)), committed(5.0, 2, a=9), *map(stepped, (6.0, 7.0, 8.0)),
        committed(10.0, 3, a=0), *map(stepped, (11.0, 12.0)),
    ]  # fmt: skip
    peer = of_peer(lines, 1.0, 32, 1, 3)
    assert peer.tokens_per_s == pytest.approx(3 * 32 / 5)
    assert peer.round_s == [5.0, 5.0]
    assert peer.exposed == [0.1, 0.1]
    assert [(each.tokens, each.weights) for each in of_rounds(lines, ["a", "b"], 1, 3)] == [
        (96, [9, None]), (96, [0, None]),
    ]  # fmt: skip


def test_the_plan_and_the_spec() -> None:
    """Every mode is a spec, in which a round by time takes what the steps of one by speed take."""
    assert 4.5e6 < size_of(load(str(overlap.SPEC))).parameters < 5e6
    for quick in (False, True):
        plan = Plan.read(quick)
        assert {"blocking", "layerwise", "streaming"} <= set(plan.modes)
        for sets in plan.modes.values():
            table = changed_spec(str(overlap.SPEC), sets).round
            assert table.pace == "speed" or table.max_train_s == pytest.approx(table.steps * plan.step_s)
        assert not plan.equals["repeats"] or plan.equals["mode"] in plan.modes


@pytest.mark.nightly
@pytest.mark.outside
def test_two_peers_and_one_alone(base: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes, the smallest model, two rounds."""
    plan = dataclasses.replace(
        Plan.read(quick=True), step_s=0.2, slower=(1.0, 1.0), warm_rounds=1, rounds=2, alone_s=1.0,
        modes={"streaming": ['round.overlap="streaming"', "round.steps=10"]},
    )  # fmt: skip
    (alone,), (run,) = overlap.measure(tmp_path / "swarm", base, plan)
    most = overlap.step_tokens(base) / plan.step_s
    # A window may begin just before a step ends, and holds one more then.
    assert 0 < alone.tokens_per_s <= (1 + plan.step_s / plan.alone_s) * most
    assert 0 < run.made_per_s <= (1 + 1 / 10) * 2 * most
    assert all(each.tokens % overlap.step_tokens(base) == 0 and each.tokens > 0 for each in run.rounds)
    assert "streaming, slower by 1, 1: rounds of" in capsys.readouterr().out
    overlap_report.draw([alone], [run], tmp_path / "picture.png")
    assert len(overlap_report.table([alone], [run]).splitlines()) == 3
