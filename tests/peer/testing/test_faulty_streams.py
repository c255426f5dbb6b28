"""Each switch does what it says, for its time, and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from peer.planning.simulate.memory_network import LinkModel, MemoryNetwork, Scheduler
from peer.testing.faulty_streams import FaultyStreams


class Pair:
    """Alice, whose streams have switches, and Bob, to whom she sends over a link without delay."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.network = MemoryNetwork(self.scheduler, Random(1), LinkModel(delay_s=(0.0, 0.0)))
        self.alice = self.switched("alice")
        self.bob = self.network.connect("bob")
        self.at_bob: list[tuple[float, bytes]] = []
        self.at_alice: list[bytes] = []
        self.bob.listen(lambda sender, frame: self.at_bob.append((self.scheduler.now, frame)))
        self.alice.listen(lambda sender, frame: self.at_alice.append(frame))

    def switched(self, name: str) -> FaultyStreams:
        clock = self.scheduler
        return FaultyStreams(self.network.connect(name), lambda: clock.now, clock.call_in, Random(1))


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_long_line_delays_everything_that_arrives_alike(pair: Pair) -> None:
    """In order, whoever sends, and what others hear is not later for it."""
    pair.alice.delay(0.03)
    for number in range(3):
        pair.scheduler.call_at(0.01 * number, pair.bob.send, "alice", bytes([number]))
    pair.alice.send("bob", b"at once")
    heard: list[tuple[float, bytes]] = []
    pair.alice.listen(lambda sender, frame: heard.append((round(pair.scheduler.now, 6), frame)))
    pair.scheduler.run_until(1.0)
    assert heard == [(0.03, b"\x00"), (0.04, b"\x01"), (0.05, b"\x02")]
    assert pair.at_bob == [(0.0, b"at once")]


def test_a_throttled_peer_sends_one_frame_after_the_other(pair: Pair) -> None:
    """Each arrives when its last byte has left."""
    pair.alice.throttle(bytes_per_s=10, seconds=60)
    for size in (10, 20, 5):
        pair.alice.send("bob", bytes(size))
    pair.scheduler.run_until(10)
    assert [(at, len(frame)) for at, frame in pair.at_bob] == [(1.0, 10), (3.0, 20), (3.5, 5)]


def test_large_frames_wait_behind_small_ones_and_are_made_when_their_turn_comes(pair: Pair) -> None:
    """One that is no longer wanted by then costs nothing."""
    pair.alice.throttle(bytes_per_s=10, seconds=60)
    made: list[float] = []
    pair.alice.send("bob", b"first 10 b")
    pair.alice.send_bulk("bob", lambda: made.append(pair.scheduler.now) or b"large")  # type: ignore[func-returns-value]
    pair.alice.send_bulk("bob", lambda: None)
    pair.alice.send("bob", b"small")
    pair.scheduler.run_until(10)
    assert [frame for _, frame in pair.at_bob] == [b"first 10 b", b"small", b"large"]
    assert made == [1.5]


def test_when_the_time_is_over_everything_that_waits_leaves_in_order(pair: Pair) -> None:
    """Also what is given to it at that moment, and what was under way."""
    pair.alice.throttle(bytes_per_s=0, seconds=4)
    for number in range(3):
        pair.alice.send("bob", bytes([number]))
    pair.scheduler.call_at(4.0, pair.alice.send, "bob", b"\x03")
    pair.scheduler.run_until(10)
    assert pair.at_bob == [(4.0, bytes([number])) for number in range(4)]


def test_corrupt_frames_differ_and_are_as_many_as_asked_for(pair: Pair) -> None:
    """Small and large ones alike; sizes stay."""
    pair.alice.corrupt(2)
    frames = [bytes(100), bytes(200), bytes(300)]
    pair.alice.send("bob", frames[0])
    pair.alice.send_bulk("bob", lambda: frames[1])
    pair.alice.send("bob", frames[2])
    pair.scheduler.run_until(1)
    arrived = [frame for _, frame in pair.at_bob]
    assert [len(frame) for frame in arrived] == [100, 200, 300]
    assert [frame == sent for frame, sent in zip(arrived, frames, strict=True)] == [False, False, True]
    assert pair.alice.frames_corrupted == 2


def test_a_cut_works_in_both_directions_for_its_time(pair: Pair) -> None:
    """Only between the peers it names."""
    carol = pair.network.connect("carol")
    at_carol: list[bytes] = []
    carol.listen(lambda sender, frame: at_carol.append(frame))
    pair.alice.cut(["bob"], seconds=5)
    for streams, to in ((pair.alice, "bob"), (pair.bob, "alice"), (pair.alice, "carol")):
        streams.send(to, b"during")
    pair.alice.send_bulk("bob", lambda: b"large")
    pair.scheduler.run_until(5)
    pair.alice.send("bob", b"after")
    pair.bob.send("alice", b"after")
    pair.scheduler.run_until(6)
    assert (pair.at_alice, [frame for _, frame in pair.at_bob], at_carol) == ([b"after"], [b"after"], [b"during"])
    assert pair.alice.frames_cut == 3


def test_a_share_of_the_frames_is_lost_in_both_directions(pair: Pair) -> None:
    """About as many as asked for; none afterwards."""
    pair.alice.lose(rate=0.5, seconds=5)
    for _ in range(100):
        pair.alice.send("bob", b"out")
        pair.bob.send("alice", b"in")
    pair.scheduler.run_until(5)
    assert 30 < len(pair.at_bob) < 70
    assert 30 < len(pair.at_alice) < 70
    assert pair.alice.frames_lost == 200 - len(pair.at_bob) - len(pair.at_alice)
    pair.alice.send("bob", b"after")
    pair.scheduler.run_until(6)
    assert pair.at_bob[-1] == (5.0, b"after")


def test_a_share_of_the_frames_arrives_twice(pair: Pair) -> None:
    """The second time later; large frames too."""
    pair.alice.duplicate(rate=1.0, late_s=4.0, seconds=5)
    pair.alice.send("bob", b"small")
    pair.alice.send_bulk("bob", lambda: b"large")
    pair.scheduler.run_until(5)
    assert [frame for at, frame in pair.at_bob if at == 0.0] == [b"small", b"large"]
    assert sorted(frame for at, frame in pair.at_bob if 0.0 < at <= 4.0) == [b"large", b"small"]
    assert pair.alice.frames_doubled == 2


def test_frames_overtake_each_other(pair: Pair) -> None:
    """Each once, within the time, in another order."""
    pair.alice.reorder(late_s=2.0, seconds=5)
    sent = [bytes([number]) for number in range(10)]
    for frame in sent[:5]:
        pair.alice.send("bob", frame)
    for frame in sent[5:]:
        pair.alice.send_bulk("bob", lambda frame=frame: frame)
    pair.scheduler.run_until(2)
    arrived = [frame for _, frame in pair.at_bob]
    assert arrived != sent
    assert sorted(arrived) == sent
    assert pair.alice.frames_delayed == 10


def test_a_restart_forgets_what_waits_and_keeps_the_switches(pair: Pair) -> None:
    """What a dead process had queued is not sent by the next one."""
    pair.alice.throttle(bytes_per_s=1, seconds=60)
    pair.alice.send("bob", b"old")
    pair.alice.send("bob", b"older")
    pair.scheduler.run_until(1)
    pair.alice.reconnect(pair.network.connect("alice"))
    pair.alice.send("bob", b"new")
    pair.scheduler.run_until(20)
    assert pair.at_bob == [(4.0, b"new")]
