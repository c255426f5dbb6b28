"""Bytes by peer: what was counted is what passed, and strangers without number take no room."""

from __future__ import annotations

from dht.streams.traffic import PeerTraffic, TrafficCounter


def test_each_peer_and_all_together() -> None:
    tally = TrafficCounter()
    tally.add("alice", sent=10)
    tally.add("bob", received=5)
    tally.add("alice", sent=1, received=2)
    assert dict(tally.peers) == {"alice": PeerTraffic(11, 2), "bob": PeerTraffic(0, 5)}
    assert tally.total == PeerTraffic(11, 7)


def test_who_was_silent_longest_is_forgotten_and_stays_in_the_total() -> None:
    """Alice spoke first, and again: Bob goes."""
    tally = TrafficCounter(most=2)
    for peer in ("alice", "bob", "alice", "carol"):
        tally.add(peer, sent=1)
    assert list(tally.peers) == ["alice", "carol"]
    assert tally.peers["alice"] == PeerTraffic(sent=2)
    assert tally.total == PeerTraffic(sent=4)


def test_the_one_active_last_stands_last() -> None:
    tally = TrafficCounter()
    for peer in ("alice", "bob", "alice"):
        tally.add(peer, received=1)
    assert list(tally.peers) == ["bob", "alice"]
