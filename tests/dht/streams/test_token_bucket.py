"""The token bucket and the turns: never too much, nobody starves, what is urgent goes first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.streams.shaper import IDLE_MOST, SHARES, Lane, TokenBucket, WeightedTurns

PIECE = 1000
REQUESTS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, PIECE)), min_size=1, max_size=60)


@given(REQUESTS, st.floats(1.0, 1e9), st.integers(PIECE, 10 * PIECE))
def test_never_more_than_rate_times_time_and_one_burst(
    requests: list[tuple[float, int]], rate: float, burst: int
) -> None:
    """In every window, however the bytes are asked for, if everybody passes as soon as it may."""
    now = 100.0
    bucket = TokenBucket(rate, burst, now)
    passed: list[tuple[float, int]] = []
    for pause_s, size in requests:
        now += pause_s
        while (wait_s := bucket.wait_s(size, now)) > 0:
            now += max(wait_s, 1e-6)
        bucket.take(size, now)
        passed.append((now, size))
    for first in range(len(passed)):
        total = 0
        for at, size in passed[first:]:
            total += size
            assert total <= (rate * (at - passed[first][0]) + burst) * (1 + 1e-6)


@given(st.floats(10.0, 1e9), st.floats(0, 0.5))
def test_the_rate_is_kept_though_the_timer_is_late(rate: float, late: float) -> None:
    """Late by up to half a burst each time: what was missed passes at once."""
    size = 10
    bucket = TokenBucket(rate, 4 * size, 0.0)
    now = passed = 0.0
    while passed < 200 * size:
        wait_s = bucket.wait_s(size, now)
        if wait_s > 0:
            now += wait_s + 1e-9 + late * size / rate
            continue
        bucket.take(size, now)
        passed += size
    assert passed / now == pytest.approx(rate, rel=0.03)


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    bucket = TokenBucket(10.0, 10, 5.0)
    bucket.take(10, 5.0)
    assert bucket.wait_s(10, 1.0) == 1.0
    assert bucket.wait_s(10, 5.0) == 1.0
    assert bucket.wait_s(10, 6.0) == 0.0


def test_more_than_a_burst_at_once_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        TokenBucket(10.0, 10, 0.0).wait_s(11, 0.0)


# ---- turns ----


def served(turns: WeightedTurns[str], most: int = 10**6) -> list[str]:
    """Everything that waits, in its order."""
    order: list[str] = []
    while turns.first() is not None and len(order) < most:
        order.append(turns.pop())
    return order


def test_what_is_urgent_overtakes_what_waits() -> None:
    """A small frame comes when large pieces of other lanes have been waiting long."""
    turns: WeightedTurns[str] = WeightedTurns()
    for number in range(20):
        turns.put(Lane.TRANSFER, "a", PIECE, f"transfer {number}")
        turns.put(Lane.BULK, "b", PIECE, f"bulk {number}")
    served(turns, 7)
    turns.put(Lane.CONTROL, "c", 100, "control")
    turns.put(Lane.CONTROL, "d", 100, "control")
    assert served(turns, 2) == ["control", "control"]


def test_parts_of_a_round_pass_before_state_transfers() -> None:
    """A transfer gets its small share meanwhile: it does not starve."""
    turns: WeightedTurns[str] = WeightedTurns()
    for _ in range(200):
        turns.put(Lane.TRANSFER, "newcomer", PIECE, "transfer")
        turns.put(Lane.BULK, "member", PIECE, "bulk")
    count = Counter(served(turns, 170))
    assert count["bulk"] / count["transfer"] == pytest.approx(SHARES[Lane.BULK] / SHARES[Lane.TRANSFER], rel=0.1)


def test_flights_and_parts_take_turns() -> None:
    """Neither may have the most of a line; of two whose turn it is the flight goes first."""
    turns: WeightedTurns[str] = WeightedTurns()
    for _ in range(50):
        turns.put(Lane.BULK, "member", PIECE, "part")
        turns.put(Lane.FLOW, "home", PIECE, "flight")
    order = served(turns, 100)
    assert order[:8] == ["flight", "part"] * 4
    assert Counter(order[:60])["part"] == pytest.approx(30, abs=1)


def test_a_flood_of_control_frames_stops_nobody() -> None:
    turns: WeightedTurns[str] = WeightedTurns()
    for _ in range(2000):
        turns.put(Lane.CONTROL, "greedy", PIECE, "control")
    for _ in range(5):
        turns.put(Lane.BULK, "member", PIECE, "bulk")
        turns.put(Lane.TRANSFER, "newcomer", PIECE, "transfer")
    count = Counter(served(turns, 400))
    assert count["bulk"] == 5
    assert count["transfer"] >= 1


def test_a_greedy_peer_delays_another_by_one_piece() -> None:
    """What waits for one peer does not stand before what comes for another later."""
    turns: WeightedTurns[str] = WeightedTurns()
    for _ in range(100):
        turns.put(Lane.BULK, "greedy", PIECE, "greedy")
    served(turns, 50)
    for _ in range(3):
        turns.put(Lane.BULK, "modest", PIECE, "modest")
    assert served(turns, 6).count("modest") == 3


def test_who_asks_for_its_next_piece_only_after_the_last_gets_no_less() -> None:
    """As a stream does, which writes one piece at a time."""
    turns: WeightedTurns[str] = WeightedTurns()
    count: Counter[str] = Counter()
    for _ in range(300):
        turns.put(Lane.BULK, "many", PIECE, "many")
    turns.put(Lane.BULK, "one", PIECE, "one")
    for _ in range(200):
        who = turns.pop()
        count[who] += 1
        if who == "one":
            turns.put(Lane.BULK, "one", PIECE, "one")
    assert count["one"] == pytest.approx(100, abs=2)


def test_silence_saves_nothing_up() -> None:
    """A peer that was silent long gets half from then on, not all until it has caught up."""
    turns: WeightedTurns[str] = WeightedTurns()
    for _ in range(300):
        turns.put(Lane.BULK, "steady", PIECE, "steady")
    served(turns, 200)
    for _ in range(50):
        turns.put(Lane.BULK, "late", PIECE, "late")
    assert served(turns, 40).count("late") == pytest.approx(20, abs=1)


PUTS = st.lists(
    st.tuples(st.sampled_from(list(Lane)), st.sampled_from("abcde"), st.integers(1, PIECE)), min_size=1, max_size=200
)


@given(PUTS, st.integers(0, 50))
def test_everything_passes_once_and_in_order_of_its_peer_and_lane(
    puts: list[tuple[Lane, str, int]], early: int
) -> None:
    turns: WeightedTurns[tuple[Lane, str, int]] = WeightedTurns()
    order: list[tuple[Lane, str, int]] = []
    for number, (lane, peer, size) in enumerate(puts):
        turns.put(lane, peer, size, (lane, peer, number))
        if number % 50 < early and turns.first() is not None:
            order.append(turns.pop())
    while turns.first() is not None:
        order.append(turns.pop())
    assert sorted(order) == sorted((lane, peer, number) for number, (lane, peer, _) in enumerate(puts))
    for lane in Lane:
        for peer in "abcde":
            numbers = [number for its_lane, its_peer, number in order if (its_lane, its_peer) == (lane, peer)]
            assert numbers == sorted(numbers)


@given(st.lists(st.integers(1, PIECE), min_size=2, max_size=12), st.integers(1, 100))
def test_peers_of_a_lane_get_alike_whatever_the_size_of_their_pieces(sizes: list[int], pieces: int) -> None:
    """While all of them want more, none is ahead of another by more than both their pieces."""
    turns: WeightedTurns[int] = WeightedTurns()
    got = [0] * len(sizes)
    for peer, size in enumerate(sizes):
        turns.put(Lane.BULK, str(peer), size, peer)
    for _ in range(pieces):
        peer = turns.pop()
        got[peer] += sizes[peer]
        turns.put(Lane.BULK, str(peer), sizes[peer], peer)
        for other in range(len(sizes)):
            assert abs(got[peer] - got[other]) <= sizes[peer] + sizes[other]


def test_peers_without_number_are_not_remembered() -> None:
    turns: WeightedTurns[str] = WeightedTurns()
    for number in range(10_000):
        turns.put(Lane.CONTROL, f"peer-{number}", 10, "")
        turns.pop()
    assert len(turns._peers[Lane.CONTROL]._ends) <= IDLE_MOST + 2
