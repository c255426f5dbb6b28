"""What owners do to simulated peers: they pause, are held, leave, and train on while a round is overdue."""

from __future__ import annotations

from typing import Any

import pytest

from peer.planning.simulate.group import Group
from peer.planning.simulate.scenario import Churn, ChurnEvent
from peer.schema.events import EventLine, InnerProgressed, PeerStateChanged, PeerStopped
from tests.peer.planning.simulate.scenarios import setting, spec


def told(*schedule: ChurnEvent, **options: Any) -> tuple[Group, list[EventLine]]:
    """A group of four to which this happens, with rounds of some 11 s."""
    lines: list[EventLine] = []
    group = Group(setting(churn=Churn(schedule=schedule), **options), sink=lines.append)
    group.run()
    return group, lines


def happens(at_s: float, what: str, peer: int = 3, **more: Any) -> ChurnEvent:
    return ChurnEvent(at_s=at_s, peer=peer, what=what, **more)


def states(lines: list[EventLine], peer: str = "p003") -> list[str]:
    """What it said of itself, each once."""
    said = [line.event for line in lines if line.peer == peer and isinstance(line.event, PeerStateChanged)]
    return [event.state for at, event in enumerate(said) if not at or event.state != said[at - 1].state]


def rounds_with(group: Group, peer: str = "p003") -> list[int]:
    """Those in which it was a member with tokens of its own."""
    return [
        update.round
        for update in (block.update for block in group.peers[0].disk.blocks)
        if any(member.peer == peer and member.tokens for member in update.members)
    ]


def steps_at(lines: list[EventLine], first_s: float, last_s: float, peer: str = "p003") -> int:
    """How often it told of steps in this time."""
    begin = lines[0].t
    return sum(
        first_s < line.t - begin <= last_s
        for line in lines
        if line.peer == peer and isinstance(line.event, InnerProgressed)
    )


def test_who_pauses_gives_what_it_has_and_votes_and_nobody_waits_for_it() -> None:
    """It makes no step meanwhile; what it gave before counts; afterwards it trains as ever."""
    group, lines = told(happens(16.0, "pause"), happens(60.0, "resume"), rounds=8)
    assert states(lines).count("PAUSED") == 1
    assert steps_at(lines, 16.1, 60.0) == 0
    assert rounds_with(group) == [1, 2, *range(6, 9)]
    assert all("p003" in found.members for found in group.tally.rounds.values())
    assert {pair for found in group.tally.rounds.values() for pair in found.penalties} == {("p003", "LATE")}
    assert max(group.tally.times()[at + 1] - group.tally.times()[at] for at in range(1, 4)) < 11.0


def test_who_is_over_its_quota_leaves_the_network_and_comes_back() -> None:
    """It says goodbye, so that it is nobody's absentee, catches up afterwards and is a member again."""
    group, lines = told(happens(16.0, "pause", why="QUOTA"), happens(60.0, "resume"), rounds=10)
    assert states(lines).count("PAUSED") >= 1
    assert not any("p003" in found.members for number, found in group.tally.rounds.items() if number in (3, 4, 5))
    assert rounds_with(group) == [1, 2, 7, 8, 9, 10]
    assert not any(code == "ABSENT" for found in group.tally.rounds.values() for _, code in found.penalties)
    assert group.peers[3].disk.head.anchor == group.peers[0].disk.head.anchor


def test_who_lost_the_others_trains_on_once_the_round_is_overdue() -> None:
    """Two of four are gone, so that no round is decided: after every deadline together the others wait no longer."""
    gone = (happens(16.0, "crash", 0), happens(16.0, "crash", 1))
    waits = spec(gather_s=5.0, ack_s=1.0, exchange_s=3.0, restart_s=0.0)
    overdue_s = 5.0 + 2 * (5.0 + 3.0)
    back = (happens(100.0, "return", 0), happens(100.0, "return", 1))
    group, lines = told(*gone, *back, rounds=5, spec=waits)
    said = [line for line in lines if line.peer == "p003" and isinstance(line.event, PeerStateChanged)]
    (at,) = (line.t - lines[0].t for line in said if "is overdue" in getattr(line.event, "why", ""))
    assert 20.0 + overdue_s < at < 25.0 + overdue_s
    assert steps_at(lines, at, 100.0) > 10
    assert group.is_done(), "and when they are back the run goes on"


@pytest.mark.parametrize("at_s", [15.0, 22.3], ids=["in training", "while a round is agreed"])
def test_who_leaves_is_gone_at_once_and_missed_by_nobody(at_s: float) -> None:
    """Its last words are told; the others lose no more than a deadline."""
    group, lines = told(happens(at_s, "leave"), rounds=6)
    (stopped,) = [line for line in lines if isinstance(line.event, PeerStopped)]
    assert stopped.peer == "p003"
    assert at_s < stopped.t - lines[0].t < at_s + 2.0
    assert lines[-1].peer != "p003"
    assert not any(code == "ABSENT" for found in group.tally.rounds.values() for _, code in found.penalties)
    assert group.tally.rounds[6].members == ("p000", "p001", "p002")
