"""Names that do nothing keep nobody out."""

from __future__ import annotations

from dataclasses import replace

from peer.consensus.protocol.block import MAX_MEMBERS
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.rounds import coordinator
from peer.consensus.rounds.transition import Transition
from tests.peer.consensus.rounds.build import HEAD, NAMES, owner, state_of

BITS = digest("θ")
IDLE, HONEST = 61 + 64, 3
ROUNDS = 60


def asked_in(round: int, guests: list[str]) -> tuple[str, ...]:
    """Whom a coordinator asks to take part, of voters and of guests that all stand where it stands."""
    head = replace(HEAD, round=5, parent=digest("parent", round))
    said = Heartbeat(head.anchor, 5, 0, BITS, True, 1, 1, False)
    heard = {name: (said, 1.0) for name in (*NAMES, *guests) if name != owner()}
    turn = Transition(state_of(owner(), head=head, heard=heard, in_step=True, state_digest=BITS), 2.0)
    coordinator._begin(turn, 0)
    assert turn.state.lead is not None
    return turn.state.lead.asked


def test_an_honest_guest_gets_a_seat_however_many_idle_names_come_earlier_in_the_alphabet() -> None:
    """Seats are drawn each round by what was fixed a round before: every voter has one, and each guest as often as
    the others."""
    idle, honest = [f"a{index:03}" for index in range(IDLE)], [f"z{index}" for index in range(HONEST)]
    rounds = [asked_in(round, idle + honest) for round in range(ROUNDS)]
    for asked in rounds:
        assert len(asked) == MAX_MEMBERS
        assert {*NAMES} - {owner()} <= {*asked}
    share = (MAX_MEMBERS - len(NAMES)) / (IDLE + HONEST)
    for guest in honest:
        seats = sum(guest in asked for asked in rounds)
        assert 0.5 * share <= seats / ROUNDS <= 1.5 * share
