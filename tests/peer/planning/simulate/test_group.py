"""One group of simulated peers: the real round machine, with declared times."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise

import pytest

from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import Machine, uniform_peers
from peer.planning.plan.peers_file import declared_by
from peer.planning.plan.round_traffic import traffic_of
from peer.planning.simulate.group import Group
from peer.planning.simulate.run_summary import figures_of
from peer.planning.simulate.scenario import Churn, ChurnEvent, Scenario
from peer.schema.events import EventLine, PeerStarted, RoundCommitted, RoundStarted, format_line, parse_line
from tests.peer.planning.simulate.scenarios import setting, spec


def ran(of: Scenario) -> tuple[Group, list[EventLine]]:
    """A group after its rounds, with all its lines."""
    lines: list[EventLine] = []
    group = Group(of, sink=lines.append)
    group.run()
    return group, lines


def test_a_round_takes_the_declared_steps_and_an_agreement() -> None:
    """Twenty steps of half a second; agreeing and sending is exposed, for nothing is overlapped."""
    group, _ = ran(setting())
    figures = figures_of(group.tally, 4, 1, group.network.messages)
    assert figures.rounds == 4
    assert 10.0 < figures.median_round_s < 12.0
    assert figures.exposed_share == pytest.approx(1 - 10.0 / figures.median_round_s, abs=0.03)
    assert figures.tokens_per_s == pytest.approx(4 * 20 * 512 / figures.median_round_s, rel=0.05)
    assert figures.penalties == {}


@pytest.mark.slow
def test_nine_in_ten_rounds_are_within_the_bounds_that_are_told() -> None:
    """Of rounds that are unlike."""
    group, _ = ran(setting(rounds=20, spread=0.2))
    figures = figures_of(group.tally, 4, 1, 0)
    gaps = [later - earlier for earlier, later in pairwise(group.tally.times())]
    assert figures.low_round_s < figures.median_round_s < figures.high_round_s
    assert sum(figures.low_round_s <= gap <= figures.high_round_s for gap in gaps) == 17  # of 19: one beyond each end


def test_the_same_seed_gives_the_same_lines() -> None:
    """To the last digit; another seed gives others."""
    first, again = (ran(setting(spread=0.1))[1] for _ in range(2))
    assert [format_line(line) for line in first] == [format_line(line) for line in again]
    assert [line.t for line in ran(setting(spread=0.1, seed=2))[1]] != [line.t for line in first]


def test_nobody_notices_whether_somebody_listens() -> None:
    """What happens is the same without a sink, but for the lines."""
    told, _ = ran(setting(spread=0.1))
    alone = Group(setting(spread=0.1))
    alone.run()
    assert alone.tally.times() == told.tally.times()
    assert alone.network.messages == told.network.messages


def test_the_lines_are_those_of_a_run() -> None:
    """Each can be read again; each peer counts from 0, starts, begins rounds and commits them with one digest."""
    _, lines = ran(setting())
    assert all(parse_line(format_line(line)) is not None for line in lines)
    for name in {line.peer for line in lines}:
        numbers = [line.seq for line in lines if line.peer == name]
        assert numbers == list(range(len(numbers)))
    kinds = Counter(type(line.event) for line in lines)
    started = [line.event for line in lines if isinstance(line.event, PeerStarted)]
    assert [event.trains for event in started] == [setting().spec.in_words] * 4
    assert kinds[RoundStarted] == 16
    commits = [line.event for line in lines if isinstance(line.event, RoundCommitted)]
    assert len(commits) == 16
    assert len({(event.round, event.digest, event.state) for event in commits}) == 4
    assert all(sum(event.weights.values()) > 65_000 and event.bytes_sent > 0 for event in commits)


def test_who_sends_slowly_averages_less_and_sends_less() -> None:
    """Of three peers one has a tenth of the others' line: it hardly sends more than its own part."""
    alike = dataclasses.replace(setting(peers=3), part_elements=4096)
    slow, *others = alike.machines
    sent = Counter[str]()
    for line in ran(dataclasses.replace(alike, machines=(dataclasses.replace(slow, upload_bps=1e6), *others)))[1]:
        if isinstance(line.event, RoundCommitted):
            sent[line.peer] += line.event.bytes_sent
    least, *more = sorted(sent.values())
    assert len(more) == 2
    assert least < 0.85 * more[0]


@pytest.mark.parametrize(
    ("name", "peers", "near", "far"),
    [("homogeneous", 2, (0.05, 1e9), None), ("aws", 20, (0.005, 2e9), (0.124, 0.482e9))],
)
def test_two_peers_of_one_place_have_a_line_between_them(
    name: str, peers: int, near: tuple[float, float], far: tuple[float, float] | None
) -> None:
    """The diagonal of the matrices; the first two of twenty are in Oregon, the last is in Ireland."""
    links = Group(setting(peers=peers, preset=name)).network
    inside = links.way("p000", "p001")
    assert (inside.delay_s, inside.bps) == near
    if far is not None:
        across = links.way("p000", f"p{peers - 1:03d}")
        assert (across.delay_s, across.bps) == far


def test_peers_of_a_file_are_as_far_apart_as_it_says() -> None:
    """And send at the rate of their lines; of a line of which nothing is said a gigabit per second is assumed."""
    row = {"step_s": 0.5, "upload_mbps": 10.0, "download_mbps": 50.0}
    rows = [{"name": "a", "region": "x", "count": 2, **row}, {"name": "b", "region": "y", **row}]
    declared = declared_by({"peer": rows, "delays_ms": {"x y": 200}}, "peers.toml")
    links = Group(setting(declared=declared)).network
    assert [links.way("p000", to).delay_s for to in ("p001", "p002")] == [0.005, 0.2]
    assert links.way("p000", "p002").bps == 1e9


def test_fragments_whose_parts_differ_in_number_and_size() -> None:
    """Each part counts with about its own bytes."""
    run = dataclasses.replace(spec(fragments=3), codec=dataclasses.replace(spec().codec, part_elements=20_000))
    options = setting(rounds=6, spec=run)
    group = Group(options)
    assert len({len(sizes) for sizes in group.rules(group.name_of(0)).sizes}) > 1
    group.run()
    figures = figures_of(group.tally, 4, 3, group.network.messages)
    planned = traffic_of(shape_of(run), run, uniform_peers(4, Machine(name="p", upload_mbps=10.0)))
    assert figures.bytes_sent == pytest.approx(planned.up_bytes, rel=0.2)


def test_streaming_hides_the_exchange() -> None:
    """A line that takes as long as training costs rounds nothing while steps go on."""
    waiting, streaming = (
        figures_of(ran(setting(rounds=6, upload_mbps=0.5, spec=spec(overlap=overlap)))[0].tally, 4, 1, 0)
        for overlap in ("none", "streaming")
    )
    assert waiting.exposed_share > 0.1
    assert streaming.exposed_share < waiting.exposed_share / 3
    assert streaming.median_round_s < 0.95 * waiting.median_round_s
    assert streaming.tokens_per_s > waiting.tokens_per_s
    assert streaming.tokens_per_s == pytest.approx(4 * 20 * 512 / streaming.median_round_s, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("pace", "penalties"), [("steps", True), ("speed", False), ("time", False)])
def test_a_slow_peer_costs_what_the_pace_says(pace: str, penalties: bool) -> None:
    """With H steps for all it is late once waits are learned; with a share by speed or time it never is."""
    of = setting(rounds=8, spec=spec(pace=pace, max_train_s=10.0 if pace == "time" else 60.0, gather_s=40.0))
    machines = (*of.machines[:3], dataclasses.replace(of.machines[3], step_s=2.0))
    group, _ = ran(dataclasses.replace(of, machines=machines))
    late = {peer for found in group.tally.rounds.values() for peer, code in found.penalties if code == "LATE"}
    assert (late == {"p003"}) is penalties
    assert penalties or not late


def test_a_crashed_peer_is_missed_for_two_rounds_and_comes_back() -> None:
    """ABSENT while it counts in the electorate; after its return it is a member again."""
    churn = Churn(schedule=(ChurnEvent(at_s=15.0, peer=2, what="crash"), ChurnEvent(at_s=70.0, peer=2, what="return")))
    group, _ = ran(setting(rounds=9, churn=churn))
    codes = [dict(found.penalties).get("p002") for found in group.tally.rounds.values()]
    assert codes.count("ABSENT") >= 2
    assert "p002" in group.tally.rounds[9].members
    assert "p002" not in group.tally.rounds[3].members


def test_a_newcomer_takes_part_and_one_who_leaves_does_not() -> None:
    """It has a snapshot first; whoever leaves says so, and is nobody's absentee."""
    churn = Churn(schedule=(ChurnEvent(at_s=12.0, peer=-1, what="join"), ChurnEvent(at_s=26.0, peer=0, what="leave")))
    group, _ = ran(setting(rounds=7, churn=churn))
    last = group.tally.rounds[7]
    assert "p004" in last.members
    assert "p000" not in last.members
    assert not any(code == "ABSENT" for found in group.tally.rounds.values() for peer, code in found.penalties)


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "code"), [("times_100", "ANOMALY"), ("nan", "NONFINITE"), ("zeros", "ANOMALY")])
def test_attackers_are_found_by_the_product_s_own_judge(attack: str, code: str) -> None:
    """And nobody else is."""
    of = setting(peers=5, rounds=8, attackers=(attack,))
    group, _ = ran(of)
    found = Counter(pair for round in group.tally.rounds.values() for pair in round.penalties)
    assert found["p004", code] > 0
    assert {peer for peer, _ in found} == {"p004"}


def test_clocks_that_are_wrong_change_nothing() -> None:
    """But for who leads: an update says the time, and its digest draws the next coordinator."""
    right, wrong = (ran(setting(skew_s=skew_s, spec=spec(min_round_s=0)))[0] for skew_s in (0.0, 3.0))
    assert wrong.tally.times() == pytest.approx(right.tally.times(), rel=0.02)
    assert wrong.tally.penalties() == right.tally.penalties() == Counter()
