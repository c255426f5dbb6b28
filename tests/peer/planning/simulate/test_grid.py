"""Groups in a grid: what a seat holds after a round, what a loss costs, and that an estimate is like the thing."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput
from peer.consensus.rounds.transition import FETCH_RETRY_S
from peer.planning.simulate import estimate
from peer.planning.simulate.estimate import Estimate
from peer.planning.simulate.grid import Grid, check_sides, gather, seated, sides_for, wire_bytes
from peer.planning.simulate.grid_part import FarPart, groups_along
from peer.planning.simulate.group import Group
from peer.planning.simulate.run_summary import figures_of
from peer.planning.simulate.scenario import Churn, ChurnEvent
from peer.schema.events import EventLine, RoundCommitted
from peer.schema.spec import load
from tests.peer.planning.simulate.scenarios import setting, spec


@pytest.mark.parametrize(
    ("peers", "sides"), [(64, (64,)), (65, (9, 8)), (512, (8, 8, 8)), (4096, (16, 16, 16)), (10_000, (10, 10, 10, 10))]
)
def test_sides_are_short_and_few(peers: int, sides: tuple[int, ...]) -> None:
    """No group has more than 16 members beyond one group, and there is a seat for everybody."""
    assert sides_for(peers) == sides
    assert math.prod(sides) >= peers


@pytest.mark.parametrize(
    ("sides", "peers", "says"), [((4, 4), 17, "16 seats for 17"), ((65, 2), 100, "groups of 65"), ((8, 8), 20, "empty")]
)
def test_a_grid_that_does_not_fit_is_refused(sides: tuple[int, ...], peers: int, says: str) -> None:
    """With the numbers."""
    with pytest.raises(BadInput, match=says):
        check_sides(sides, peers)


def test_two_seats_share_one_group_at_most() -> None:
    """Along each side every seat is in one group."""
    sides = (2, 3, 4)
    together: set[tuple[int, int]] = set()
    for side in range(3):
        groups = groups_along(sides, side)
        assert sorted(groups.ravel()) == list(range(24))
        pairs = {(int(a), int(b)) for group in groups for a in group for b in group if a < b}
        assert not pairs & together
        together |= pairs


def test_every_seat_has_something_to_hear_from_every_other() -> None:
    """What any one learns reaches all, side by side: rows, then columns."""
    sides = (3, 4)
    knows = [{seat} for seat in range(12)]
    for side in range(2):
        for group in groups_along(sides, side):
            together = set().union(*(knows[seat] for seat in group))
            for seat in group:
                knows[seat] = together
    assert all(known == set(range(12)) for known in knows)


def test_all_begin_each_round_together() -> None:
    """Nobody crashes, and all are members in every round; a round is training, two agreements and a gathering."""
    grid = Grid(setting(peers=16, rounds=3, spread=0.05), (4, 4))
    grid.run()
    figures = grid.figures()
    assert (figures.rounds, figures.members, figures.penalties) == (3, 16.0, {})
    for earlier, later in pairwise(grid.began):
        assert 10.0 < np.median(later - earlier) < 14.0
        assert later.max() - later.min() < 1.0


@pytest.mark.parametrize("kind", [Grid, Estimate])
def test_a_grid_counts_the_tokens_that_a_group_counts(kind: type[Grid]) -> None:
    """Also in the first rounds, which are shorter: the shipped spec ramps up."""
    of = setting(rounds=2, spec=load("tiny"), seed=4)
    group, grid = Group(of), kind(of, (2, 2))
    group.run()
    grid.run()
    one = figures_of(group.tally, 4, of.spec.round.fragments, 0)
    assert grid.figures().tokens_per_s == pytest.approx(one.tokens_per_s, rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("pace", ["steps", "speed", "time"])
def test_an_estimate_gives_everyone_the_part_that_its_pace_gives_it(pace: str) -> None:
    """Of slow peers and fast ones, and where the time does not suffice for all steps."""
    of = setting(peers=25, rounds=6, spec=spec(pace=pace, max_train_s=15.0, gather_s=40.0))
    slow = tuple(dataclasses.replace(machine, step_s=1.0) for machine in of.machines[::2])
    of = dataclasses.replace(of, machines=tuple(slow[at // 2] if at % 2 == 0 else of.machines[at] for at in range(25)))
    exact, drawn = Grid(of, (5, 5)), Estimate(of, (5, 5))
    exact.run()
    drawn.run()
    assert drawn.figures().tokens_per_s == pytest.approx(exact.figures().tokens_per_s, rel=0.1)


def test_a_grid_in_which_nothing_is_decided_made_no_round() -> None:
    """A step takes longer than anybody waits."""
    grid = Grid(setting(rounds=2, step_s=1e6), (2, 2))
    grid.run()
    figures = grid.figures()
    assert (figures.rounds, figures.tokens_per_s, figures.members) == (0, 0.0, 0.0)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_grid() -> None:
    """To the last bit; another seed another."""
    first, again, other = (Grid(setting(peers=12, rounds=2, spread=0.1, seed=seed), (3, 4)) for seed in (1, 1, 2))
    for grid in (first, again, other):
        grid.run()
    assert np.array_equal(first.began, again.began)
    assert not np.array_equal(first.began, other.began)


@pytest.mark.slow
def test_a_lost_seat_costs_its_row_and_its_column_a_wait_and_nobody_the_round() -> None:
    """The others go on without it, and with whoever has its seat afterwards. Its mates see that it is gone: what they
    wait for is its shard, which another has."""
    churn = Churn(schedule=(ChurnEvent(at_s=15.0, peer=5, what="crash"), ChurnEvent(at_s=60.0, peer=5, what="return")))
    grid = Grid(setting(peers=16, rounds=9, churn=churn), (4, 4))
    grid.run()
    gave = [int((~np.isnan(trained)).sum()) for trained in grid.trained_s]
    assert gave[0] == gave[-1] == 16
    assert min(gave) == 15
    gaps = [float(np.median(later) - np.median(earlier)) for earlier, later in pairwise(grid.began)]
    assert gaps[0] + 1.0 < max(gaps) < gaps[0] + FETCH_RETRY_S + 1.0
    assert gaps[-1] == pytest.approx(gaps[0], rel=0.15)


def test_newcomers_take_empty_seats() -> None:
    """The one that has been empty for the longest time; a seat that is taken is not returned to."""
    changes = (
        ChurnEvent(at_s=1.0, peer=3, what="leave"), ChurnEvent(at_s=2.0, peer=1, what="crash"),
        ChurnEvent(at_s=3.0, peer=-1, what="join"), ChurnEvent(at_s=4.0, peer=-1, what="join"),
        ChurnEvent(at_s=5.0, peer=-1, what="join"), ChurnEvent(at_s=6.0, peer=1, what="return"),
    )  # fmt: skip
    found = seated(setting(peers=4, churn=Churn(schedule=changes)))
    assert [(change.what, change.peer) for change in found] == [
        ("leave", 3), ("crash", 1), ("join", 3), ("join", 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_newcomers_crash_and_leave_as_founders_do() -> None:
    """By their own numbers, those among them that found no seat; so churn does not die out."""
    changes = (
        ChurnEvent(at_s=0.5, peer=-1, what="join"), ChurnEvent(at_s=1.0, peer=3, what="leave"),
        ChurnEvent(at_s=2.0, peer=-1, what="join"), ChurnEvent(at_s=3.0, peer=4, what="crash"),
        ChurnEvent(at_s=4.0, peer=5, what="crash"), ChurnEvent(at_s=5.0, peer=5, what="return"),
        ChurnEvent(at_s=6.0, peer=5, what="leave"), ChurnEvent(at_s=7.0, peer=3, what="return"),
    )  # fmt: skip
    found = seated(setting(peers=4, churn=Churn(schedule=changes)))
    assert [(change.at_s, change.what, change.peer) for change in found] == [
        (1.0, "leave", 3), (2.0, "join", 3), (4.0, "crash", 3), (5.0, "return", 3), (6.0, "leave", 3),
    ]  # fmt: skip
    lasting = seated(setting(peers=100, rounds=2000, churn=Churn(crashes=1.0, joins=1.0)))
    lost = [change.at_s for change in lasting if change.what == "crash"]
    half_s = lasting[-1].at_s / 2
    assert sum(at > half_s for at in lost) > 0.4 * len(lost)


def test_a_process_that_was_ended_is_told_in_one_line() -> None:
    """Whatever is asked of it."""
    part, other = multiprocessing.Pipe()
    other.close()
    far = FarPart(part)
    for ask in (lambda: far.begin(0, np.zeros(4)), far.end, far.sums):
        with pytest.raises(BadInput, match="was ended, most likely for lack of memory"):
            ask()


def test_a_row_of_one_is_told_as_one() -> None:
    """The last row of a grid that is not full."""
    of = setting(peers=3, rounds=1, attackers=("zeros",))
    grid = Grid(of, (2, 2))
    grid.simulated = [[1], *grid.simulated[1:]]
    assert grid.told() == "the one peer of one row of 2, in seat 1"


def test_who_gathers_waits_for_the_last_of_its_mates_and_for_its_line() -> None:
    """A mate that is gone costs the usual silence: another seat holds the same."""
    of = setting(peers=4)
    times = gather(of, (2, 2), 0, np.array([1.0, 2.0, 3.0, 4.0]))
    alone = gather(of, (2, 2), 0, np.array([1.0, 2.0, np.nan, 4.0]))
    assert times[0] == pytest.approx(3.05, abs=0.2)
    assert times[1] == pytest.approx(4.05, abs=0.2)
    assert alone[0] == pytest.approx(1.0 + 2.0 + 0.05, abs=0.2)
    assert np.isnan(alone[2])


def test_gathering_takes_the_line_of_each_pair() -> None:
    """Of a place that is known, too, where no peer says what its own line carries."""
    of = dataclasses.replace(
        setting(peers=4, preset="homogeneous", upload_mbps=0, download_mbps=0), layer_sizes=(10**8,)
    )
    shard_s = 8 * wire_bytes(of) / 2 / 1e9
    assert shard_s > 0.1
    assert gather(of, (2, 2), 0, np.zeros(4)) == pytest.approx(0.05 + shard_s)


def test_a_slow_sender_keeps_its_mates_waiting_and_a_slow_receiver_itself() -> None:
    """Mates 0 and 2: what one sends the other has to take in."""
    of = dataclasses.replace(setting(peers=4, upload_mbps=100, download_mbps=100), layer_sizes=(10**8,))
    shard_bits = 8 * wire_bytes(of) / 2
    usual_s = 0.05 + shard_bits / 1e8
    slow = dataclasses.replace(of.machines[2], upload_bps=1e6, download_bps=2e6)
    found = gather(dataclasses.replace(of, machines=(*of.machines[:2], slow, of.machines[3])), (2, 2), 0, np.zeros(4))
    assert found == pytest.approx([0.05 + shard_bits / 1e6, usual_s, shard_bits / 2e6, usual_s])


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five groups along a side two are simulated, for four rounds."""
    monkeypatch.setattr(estimate, "SAMPLES", 2)
    monkeypatch.setattr(estimate, "CALIBRATED", 4)


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
def test_an_estimate_is_like_the_thing() -> None:
    """Within a twentieth in time, tokens and bytes, from a few groups along each side."""
    of = setting(peers=25, rounds=6, spread=0.05)
    exact, drawn = Grid(of, (5, 5)), Estimate(of, (5, 5))
    exact.run()
    drawn.run()
    one, other = exact.figures(), drawn.figures()
    assert drawn.sums()[0].messages < 0.4 * exact.sums()[0].messages
    assert other.messages == pytest.approx(one.messages, rel=0.1)
    assert other.rounds_per_hour == pytest.approx(one.rounds_per_hour, rel=0.05)
    assert other.tokens_per_s == pytest.approx(one.tokens_per_s, rel=0.05)
    assert other.bytes_sent == pytest.approx(one.bytes_sent, rel=0.05)


@pytest.fixture
def some_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five groups along a side three are simulated, for six rounds."""
    monkeypatch.setattr(estimate, "SAMPLES", 3)
    monkeypatch.setattr(estimate, "CALIBRATED", 6)


@pytest.mark.slow
@pytest.mark.usefixtures("some_samples")
@pytest.mark.parametrize(
    ("options", "slow"),
    [
        ({"step_s": 0.02, "upload_mbps": 1.0}, ()),
        ({"step_s": 0.2, "upload_mbps": 1.0, "spread": 0.3}, ()),
        ({"spread": 0.02, "seed": 1, "spec": spec(gather_s=40.0)}, (0, 6, 8, 14, 23)),
    ],
    ids=["agreement takes longer than training", "nobody is ready with the others", "some take twice as long"],
)
def test_drawn_rounds_take_as_long_as_simulated_ones(options: dict[str, Any], slow: tuple[int, ...]) -> None:
    """Half of the rounds are drawn: within a tenth of what they take message by message."""
    of = setting(peers=25, rounds=12, **options)
    machines = list(of.machines)
    for seat in slow:
        machines[seat] = dataclasses.replace(machines[seat], step_s=2 * machines[seat].step_s)
    of = dataclasses.replace(of, machines=tuple(machines))
    exact, drawn = Grid(of, (5, 5)), Estimate(of, (5, 5))
    seconds, tokens = [], []
    for grid in (exact, drawn):
        grid.run()
        seconds.append(float(np.median(grid.began[-1]) - np.median(grid.began[6])))
        tokens.append(float(np.nansum(grid.tokens[6:])))
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)
    assert tokens[1] == pytest.approx(tokens[0], rel=0.1)


@pytest.mark.usefixtures("few_samples")
def test_an_estimate_of_a_grid_in_which_nothing_is_decided_made_no_round() -> None:
    """Nor in the rounds that are drawn."""
    drawn = Estimate(setting(peers=9, rounds=6, step_s=1e6), (3, 3))
    drawn.run()
    assert (drawn.figures().rounds, drawn.figures().tokens_per_s) == (0, 0.0)


@pytest.mark.usefixtures("few_samples")
def test_an_estimate_tells_the_events_of_a_row_that_is_simulated() -> None:
    """Not of row 0, which is drawn: rows 2 and 3 lose somebody. It says whose they are."""
    changes = tuple(ChurnEvent(at_s=15.0, peer=seat, what="crash") for seat in (7, 8))
    lines: list[EventLine] = []
    drawn = Estimate(setting(peers=25, rounds=6, seed=2, churn=Churn(schedule=changes)), (5, 5), lines.append)
    drawn.run()
    assert {line.peer for line in lines} == {f"0.2.p{place:03d}" for place in range(5)}
    rounds = {line.event.round for line in lines if isinstance(line.event, RoundCommitted)}
    assert rounds == {1, 2, 3, 4}
    seats = "the 5 peers of one row of 5, in seats 2, 7, 12, 17 and 22"
    assert drawn.told() == f"{seats}, for the first 4 of 6 rounds"


@pytest.mark.slow
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("attackers", [("nan",), ("nan",) * 5])
def test_an_estimate_counts_the_penalties_of_attackers(attackers: tuple[str, ...]) -> None:
    """One of five rows has one, or each of them: as many in all as message by message, and those of a row are told."""
    of = setting(peers=25, rounds=4, attackers=attackers)
    told: list[EventLine] = []
    exact, drawn = Grid(of, (5, 5)), Estimate(of, (5, 5), told.append)
    exact.run()
    drawn.run()
    assert exact.figures().penalties == drawn.figures().penalties == {"NONFINITE": 4 * len(attackers)}
    commits = [line.event for line in told if isinstance(line.event, RoundCommitted)]
    assert {penalty["code"] for event in commits for penalty in event.penalties} == {"NONFINITE"}
    assert drawn.told().endswith("(nan among them)")


def test_an_estimate_simulates_a_row_for_each_kind_of_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows of six."""
    monkeypatch.setattr(estimate, "SAMPLES", 4)
    kinds = ("nan", "zeros")
    drawn = Estimate(setting(peers=36, rounds=1, attackers=kinds), (6, 6))
    assert drawn.chosen(0)[0] in drawn.attacked().values()
    assert set(drawn.attacked().values()) == {4, 5} <= set(drawn.chosen(0))
    assert len(drawn.chosen(0)) == 4
    assert drawn.mine.sides[0].sums().attackers == Counter(kinds)


@pytest.mark.usefixtures("few_samples")
def test_an_estimate_knows_who_is_gone() -> None:
    """A seat gives nothing from the round in which it is lost until somebody has it again when one begins."""
    back_s = 70.0
    churn = Churn(
        schedule=(ChurnEvent(at_s=55.0, peer=7, what="crash"), ChurnEvent(at_s=back_s, peer=7, what="return"))
    )
    drawn = Estimate(setting(peers=25, rounds=9, churn=churn), (5, 5))
    drawn.run()
    gave = [not np.isnan(trained[7]) for trained in drawn.trained_s]
    begins = [float(np.median(began)) for began in drawn.began[:-1]]
    assert begins[6] < back_s < begins[7]
    assert gave == [True, True, True, True, True, False, False, True, True]
