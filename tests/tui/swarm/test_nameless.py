"""A watcher is nobody in the swarm: its lines carry no peer id, and what it tells of rounds counts all the same."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from peer.schema.events import AlertRaised, EventLine, PeerStateChanged, RoundCommitted
from tests.tui.watched import ROUND_S, lines_of, round_told, watched
from tui.output.plain import PlainOutput
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


@pytest.fixture
def swarm() -> SwarmState:
    return apply_all(SwarmState(), watched(5))


def test_rounds_and_penalties_count_and_the_watcher_is_no_peer(swarm: SwarmState) -> None:
    assert sorted(swarm.peers) == ["p0", "p1", "p2"]
    assert (swarm.round, swarm.rounds, [view.round for view in swarm.history]) == (5, 40, [1, 2, 3, 4, 5])
    assert swarm.penalty_log == ()
    assert (swarm.peers["p1"].idle, swarm.peers["p1"].accepted) == (1, 4)
    assert swarm.history[-1].weights["p0"] > 0
    assert swarm.behind("p0") == 0
    assert {"STARTED", "SYNCING", "COMMITTED", "IDLE"} <= {entry.code for entry in swarm.entries}


def test_what_a_round_cost_is_not_known_to_a_watcher(swarm: SwarmState) -> None:
    assert [(view.reporters, view.bytes_sent, view.exposed_s) for view in swarm.history] == [(0, 0, 0.0)] * 5
    assert (swarm.bytes_sent, swarm.reporting) == (0, [])


def test_rounds_last_as_long_as_they_come_apart_and_catching_up_has_no_speed(swarm: SwarmState) -> None:
    assert [view.round_s for view in swarm.history] == [0.0, 0.0, 0.0, ROUND_S, ROUND_S]
    tokens = swarm.history[-1].tokens
    assert [(point.round, point.value) for point in swarm.speeds] == [(4, tokens / ROUND_S), (5, tokens / ROUND_S)]


def test_a_recording_in_which_a_round_came_twice_is_read_as_it_was_told_first() -> None:
    """Clients of before could leave a chain for a heavier one."""
    first, *_ = round_told(1)
    assert isinstance(first, RoundCommitted)
    fork = AlertRaised(level="info", code="FORK", text="the peers went on apart")
    other = replace(first, digest="other", penalties=[])
    before = apply_all(SwarmState(), watched(4))
    after = apply_all(before, lines_of([(200.0, fork), (200.0, other)]))
    assert (after.round, after.history, after.penalty_log) == (before.round, before.history, before.penalty_log)
    assert after.tokens == before.tokens


def test_a_peer_that_tells_the_same_rounds_adds_what_they_cost(swarm: SwarmState) -> None:
    event = next(line.event for line in reversed(watched(5)) if isinstance(line.event, RoundCommitted))
    own = replace(event, bytes_sent=70, exposed_s=2.0)
    both = apply_all(swarm, [EventLine(seq=0, t=1200.0, run="tiny", peer="p0", event=own)])
    assert (both.history[-1].reporters, both.history[-1].bytes_sent, both.history[-1].exposed_s) == (1, 70, 2.0)


def test_the_plain_log_of_a_watcher() -> None:
    stream = io.StringIO()
    output = PlainOutput(stream, rounds=0)
    for line in watched(5):
        output.show(line)
    output.close()
    text = stream.getvalue()
    assert "watch: JOINING: looking for the run" in text
    assert "watch: READY: watching" in text
    assert "round 4/40 · 3 peers · 30.0 s · digest" in text
    assert "sent" not in text
    assert "round 1/" not in text  # it was caught up with
    assert "LATE" not in text


def test_the_plain_log_tells_who_had_nothing_to_give() -> None:
    stream = io.StringIO()
    output = PlainOutput(stream)
    ready = PeerStateChanged(state="READY", why="watching")
    for line in lines_of([(0.0, ready), *((1.0, event) for event in round_told(1))]):
        output.show(line)
    output.close()
    assert "p1: had nothing to give to round 1" in stream.getvalue()
    assert "round 1 · 3 peers · digest" in stream.getvalue()
