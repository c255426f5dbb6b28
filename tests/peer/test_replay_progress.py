"""A peer that applies the chain on its own disk says how far it is, at most once a second."""

from __future__ import annotations

from itertools import count

from peer.chain_follower import Replaying
from peer.events import PeerStateChanged


def test_a_long_chain_is_told_once_a_second() -> None:
    """Forty rounds of a quarter of a second each: nine lines, in words."""
    quarters = count(0)
    replaying = Replaying(clock=lambda: next(quarters) / 4)
    events = [event for round in range(1, 41) for event in replaying.after(round, 40)]
    assert len(events) == 9
    assert events[0] == PeerStateChanged(state="SYNCING", why="round 5 of 40 from its own disk")


def test_a_short_chain_makes_no_noise() -> None:
    """Less than a second: nothing."""
    replaying = Replaying(clock=lambda: 7.0)
    assert [event for round in range(1, 4) for event in replaying.after(round, 3)] == []
