"""The age of work that nobody has counted yet."""

from __future__ import annotations

from peer.node.lifecycle.fragments import Staleness


def test_what_is_offered_in_the_round_it_was_made_in_is_fresh() -> None:
    """Round after round."""
    age = Staleness()
    for round in range(3):
        assert age.staleness(round) == 0
        age.progressed(round)
        age.froze()
        assert age.staleness(round) == 0
        age.counted()


def test_what_is_not_counted_gets_older_with_every_round() -> None:
    """However much is learned besides."""
    age = Staleness()
    age.progressed(4)
    age.froze()
    age.progressed(5)
    assert age.staleness(5) == 1
    age.progressed(7)
    age.froze()
    assert age.staleness(7) == 3
    age.counted()
    assert age.staleness(8) == 0


def test_steps_after_the_freeze_are_one_round_old_in_the_next() -> None:
    """They were made from the anchor before."""
    age = Staleness()
    age.progressed(2)
    age.froze()
    age.progressed(2)
    age.counted()
    assert age.staleness(3) == 1


def test_work_goes_back_with_its_peer() -> None:
    """A snapshot may be of an earlier anchor: what was made since belongs there, and is fresh."""
    age = Staleness()
    age.progressed(6)
    age.went_back(4)
    assert age.staleness(4) == 0
    age.froze()
    age.counted()
    age.went_back(3)
    assert age.staleness(5) == 0
