"""The virtual clock and the faults of the memory network; what it shares with the real one is in test_streams."""

from random import Random

import pytest

from peer.planning.simulate.memory_network import LinkModel, MemoryNetwork, MemoryStreams, Scheduler

Frames = list[tuple[float, str, bytes]]


def network(seed: int = 1, link: LinkModel | None = None) -> tuple[Scheduler, MemoryNetwork]:
    scheduler = Scheduler()
    return scheduler, MemoryNetwork(scheduler, Random(seed), link or LinkModel(delay_s=(0.1, 0.1)))


def connect(net: MemoryNetwork, peer: str, frames: Frames) -> MemoryStreams:
    end = net.connect(peer)
    end.listen(lambda sender, frame: frames.append((round(net.scheduler.now, 6), sender, frame)))
    return end


def test_calls_run_in_order_of_time_then_of_request() -> None:
    scheduler, ran = Scheduler(), []
    for name, when in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        scheduler.call_at(when, ran.append, name)
    scheduler.call_at(1.0, scheduler.call_in, 0.5, ran.append, "between")
    scheduler.run_until(1.9)
    assert (ran, scheduler.now, len(scheduler)) == (["a", "b", "between"], 1.9, 1)
    scheduler.run_until(2.0)
    assert ran[-1] == "c"


def test_a_call_in_the_past_runs_now() -> None:
    scheduler, ran = Scheduler(5.0), []
    scheduler.call_at(1.0, lambda: ran.append(scheduler.now))
    scheduler.run_until(6.0)
    assert ran == [5.0]


def test_a_seed_decides_everything() -> None:
    def play(seed: int) -> Frames:
        link = LinkModel(delay_s=(0.01, 2.0), loss=0.2, duplication=0.2, old=0.2, old_s=5.0)
        scheduler, net = network(seed, link)
        frames: Frames = []
        alice = connect(net, "alice", frames)
        connect(net, "bob", frames)
        for number in range(100):
            alice.send("bob", bytes([number]))
        scheduler.run_until(60)
        return frames

    assert play(1) == play(1)
    assert play(1) != play(2)
    arrived = [frame for _, _, frame in play(1)]
    assert len(set(arrived)) < 100, "some are lost"
    assert len(arrived) > len(set(arrived)), "some come twice"
    assert arrived != sorted(arrived), "some are old"


def test_order_is_kept_without_old_frames() -> None:
    scheduler, net = network(1, LinkModel(delay_s=(0.0, 5.0)))
    frames: Frames = []
    alice = connect(net, "alice", frames)
    connect(net, "bob", frames)
    for number in range(50):
        alice.send("bob", bytes([number]))
    scheduler.run_until(60)
    assert [frame for _, _, frame in frames] == [bytes([number]) for number in range(50)]


def test_a_partition_separates_sides_and_those_not_named() -> None:
    scheduler, net = network()
    frames: Frames = []
    ends = {peer: connect(net, peer, frames) for peer in "abcdef"}

    def reach() -> set[str]:
        frames.clear()
        for sender, end in ends.items():
            for receiver in ends:
                if sender != receiver:
                    end.send(receiver, receiver.encode())
        scheduler.run_until(scheduler.now + 1)
        return {sender + frame.decode() for _, sender, frame in frames}

    assert len(reach()) == 30
    net.partition("ab", "cd")
    assert reach() == {"ab", "ba", "cd", "dc", "ef", "fe"}
    net.heal()
    assert len(reach()) == 30


@pytest.mark.parametrize(("both_ways", "arrived"), [(True, []), (False, ["b"])])
def test_a_cut_is_one_way_or_both(both_ways: bool, arrived: list[str]) -> None:
    scheduler, net = network()
    frames: Frames = []
    alice, bob = connect(net, "a", frames), connect(net, "b", frames)
    net.cut("a", "b", both_ways=both_ways)
    alice.send("b", b"x")
    bob.send("a", b"x")
    scheduler.run_until(1)
    assert [sender for _, sender, _ in frames] == arrived
    net.mend("b", "a")
    alice.send("b", b"x")
    scheduler.run_until(2)
    assert [sender for _, sender, _ in frames] == [*arrived, "a"]


def test_the_adversary_sees_sender_receiver_and_frame() -> None:
    scheduler, net = network()
    frames: Frames = []
    alice, _, _ = connect(net, "a", frames), connect(net, "b", frames), connect(net, "c", frames)
    net.drops = lambda sender, receiver, frame: (sender, receiver, frame) == ("a", "b", b"vote")
    for to, frame in (("b", b"vote"), ("c", b"vote"), ("b", b"other")):
        alice.send(to, frame)
    scheduler.run_until(1)
    assert [frame for _, _, frame in frames] == [b"vote", b"other"]
    assert (net.frames_sent, net.frames_lost) == (3, 1)


def test_the_adversary_delays_what_it_likes() -> None:
    """Other frames overtake it."""
    scheduler, net = network()
    frames: Frames = []
    alice = connect(net, "alice", frames)
    connect(net, "bob", frames)
    net.delays = lambda sender, receiver, frame: 5.0 if frame == b"late" else 0.0
    alice.send("bob", b"late")
    alice.send("bob", b"next")
    scheduler.run_until(10)
    assert frames == [(0.1, "alice", b"next"), (5.1, "alice", b"late")]
    net.heal()
    assert net.delays is None


def test_a_stalled_peer_gets_everything_when_it_wakes() -> None:
    scheduler, net = network()
    frames: Frames = []
    alice, _ = connect(net, "a", frames), connect(net, "b", frames)
    net.stall("b", 10.0)
    for number in range(3):
        alice.send("b", bytes([number]))
    scheduler.run_until(9.9)
    assert frames == []
    scheduler.run_until(10.0)
    assert frames == [(10.0, "a", bytes([number])) for number in range(3)]


def test_a_crashed_peer_neither_sends_nor_receives_until_it_connects_again() -> None:
    scheduler, net = network()
    frames: Frames = []
    alice, bob = connect(net, "a", frames), connect(net, "b", frames)
    alice.send("b", b"on its way")
    net.disconnect("b")
    bob.send("a", b"from the grave")
    scheduler.run_until(1)
    assert frames == []
    connect(net, "b", frames)
    bob.send("a", b"from the grave")
    alice.send("b", b"welcome back")
    scheduler.run_until(2)
    assert [frame for _, _, frame in frames] == [b"welcome back"]


def test_nobody_listens_nobody_hears() -> None:
    scheduler, net = network()
    alice, _ = net.connect("a"), net.connect("b")
    alice.send("b", b"x")
    scheduler.run_until(1)
    assert net.frames_lost == 1
