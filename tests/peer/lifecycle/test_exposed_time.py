"""The clock of what was exposed."""

from __future__ import annotations

import pytest

from peer.lifecycle import state
from peer.lifecycle.exposed_time import ExposedTime
from tests.peer.story import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(state, "time", clock)
    return clock


def test_it_runs_from_the_first_beginning_to_the_end(clock: Clock) -> None:
    """Said twice it began once; while it stands nothing is exposed."""
    exposed = ExposedTime()
    exposed.begin()
    clock.now += 2.0
    exposed.begin()
    clock.now += 1.0
    assert exposed.seconds == 3.0
    exposed.end()
    exposed.end()
    clock.now += 10.0
    assert exposed.seconds == 3.0
    exposed.begin()
    clock.now += 0.5
    exposed.end()
    assert exposed.seconds == 3.5


def test_only_what_goes_beyond_a_rest_counts(clock: Clock) -> None:
    """Work that began within it, ended in it, or took longer."""
    exposed = ExposedTime()
    exposed.rest(clock.now + 5.0)
    clock.now += 1.0
    exposed.begin()
    clock.now += 2.0
    exposed.end()
    assert exposed.seconds == 0.0
    exposed.begin()
    clock.now += 4.0
    assert exposed.seconds == 2.0
    exposed.end()
    exposed.rest(clock.now + 5.0)
    assert exposed.seconds == 2.0
