"""Inside a ballot: whose bytes, norms and means are taken, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.rounds import merkle
from peer.rounds.machine import step
from peer.rounds.messages import MeanSent, Norms, PartSent, Promise, Table, Want
from peer.rounds.names import digest_of
from peer.rounds.state import Event, Frozen, Keep, Received, Reduce, SendMean, Stage, State, Store, Tick
from peer.testing.integers import ModelKeys
from tests.peer.rounds.build import NAMES, PAYLOADS, leaves_of, owner, part_of, place, pledge, state_of

LEADER = owner(0)
OTHERS = tuple(name for name in NAMES if name != LEADER)
PLACE = place(0)


def run(state: State, *events: Event) -> tuple[State, list[object]]:
    effects: list[object] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def gathering(**of_second: int) -> State:
    """The coordinator of ballot 0 after START; `of_second` changes the pledge of one of the others."""
    pledges = [pledge(OTHERS[0]), pledge(OTHERS[1], **of_second)]
    promises = [Received(4.0, item.peer, Promise(PLACE, item)) for item in pledges]
    state, _ = run(state_of(LEADER), Frozen(0.0, pledge(LEADER)), Tick(4.0), *promises)
    assert state.exchange is not None
    assert state.lead is not None
    assert state.lead.stage is Stage.GATHERING
    return state


def mine(state: State, peer: str) -> tuple[int, ...]:
    """The parts that `peer` reduces."""
    assert state.exchange is not None
    return tuple(part for part, reducer in enumerate(state.exchange.reducers) if reducer == peer)


def part_from(peer: str, part: int) -> Received:
    path = merkle.path(leaves_of(peer), part)
    return Received(4.1, peer, PartSent(PLACE, 0, part, path, part_of(peer, part)))


def norms_of(peer: str, received: tuple[tuple[int, int], ...]) -> Received:
    return Received(4.2, peer, Norms(PLACE, peer, received).signed(ModelKeys(peer)))


def mean_of(state: State, part: int, contributors: int) -> Received:
    assert state.exchange is not None
    reducer, payload = state.exchange.reducers[part], PAYLOADS[part]
    mean = MeanSent(PLACE, 0, part, reducer, contributors, digest_of(payload), b"", payload)
    return Received(4.3, reducer, mean.signed(ModelKeys(reducer)))


def test_a_pledged_part_is_kept_once() -> None:
    """Under the sender that pledged it."""
    state = gathering()
    (part,) = mine(state, LEADER)
    _, effects = run(state, part_from(OTHERS[0], part), part_from(OTHERS[0], part))
    assert [effect.sender for effect in effects if isinstance(effect, Keep)] == [OTHERS[0]]


@pytest.mark.parametrize("spoil", ["payload", "path", "size", "sender", "part"])
def test_a_part_that_was_not_pledged_is_refused(spoil: str) -> None:
    """Other bytes, another path, size, sender or reducer."""
    state = gathering()
    (part,) = mine(state, LEADER)
    honest = part_from(OTHERS[0], part)
    message = honest.message
    assert isinstance(message, PartSent)
    forged = {
        "payload": replace(honest, message=replace(message, payload=message.payload[::-1])),
        "path": replace(honest, message=replace(message, path=message.path[:-1])),
        "size": replace(honest, message=replace(message, payload=message.payload + b"x")),
        "sender": replace(honest, sender=OTHERS[1]),
        "part": part_from(OTHERS[0], mine(state, OTHERS[0])[0]),
    }
    _, effects = run(state, forged[spoil])
    assert effects == []


def test_norms_are_about_the_parts_of_their_reducer() -> None:
    """All of them, each once, and only members that gave something."""
    state = gathering()
    (part,) = mine(state, OTHERS[0])
    (other,) = mine(state, OTHERS[1])
    for received in (
        (),
        ((other, 7),),
        ((part, 7), (part, 7)),
        ((part, 7), (other, 7)),
        ((part, 15),),
        ((part, 1 << 63),),
    ):
        after, _ = run(state, norms_of(OTHERS[0], received))
        assert after.lead is not None
        assert OTHERS[0] not in after.lead.norms
    after, _ = run(state, norms_of(OTHERS[0], ((part, 3),)))
    assert after.lead is not None
    assert OTHERS[0] in after.lead.norms


@pytest.mark.parametrize("contributors", [0, 8, 1 << 63])
def test_a_mean_of_nobody_or_strangers_is_refused(contributors: int) -> None:
    """The coordinator would propose an update that is not valid."""
    state = gathering()
    (part,) = mine(state, OTHERS[0])
    after, effects = run(state, mean_of(state, part, contributors))
    assert after.exchange is not None
    assert part not in after.exchange.means
    assert effects == []
    after, effects = run(state, mean_of(state, part, 7))
    assert any(isinstance(effect, Store) for effect in effects)


def test_a_part_that_only_idle_members_gave_is_not_reduced() -> None:
    """Its weights would be zero; it becomes void."""
    state = gathering(tokens=0)
    (part,) = mine(state, LEADER)
    assert state.exchange is not None
    names = [item.peer for item in state.exchange.members]
    idle = 1 << names.index(OTHERS[1])
    table = Table(PLACE, (Norms(PLACE, LEADER, ((part, idle),)).signed(ModelKeys(LEADER)),))
    _, effects = run(state, Received(5.0, LEADER, table))
    assert not any(isinstance(effect, Reduce) for effect in effects)
    both = Table(PLACE, (Norms(PLACE, LEADER, ((part, 7),)).signed(ModelKeys(LEADER)),))
    _, effects = run(state, Received(5.0, LEADER, both))
    assert [effect.part for effect in effects if isinstance(effect, Reduce)] == [part]


def test_only_the_coordinator_is_given_means_it_wants() -> None:
    """Each part once: a small frame is not answered with a model again and again."""
    state = gathering()
    assert state.exchange is not None
    (part,) = mine(state, OTHERS[0])
    state, _ = run(state, mean_of(state, part, 7))
    state = replace(state, held={digest_of(PAYLOADS[part]): len(PAYLOADS[part])})
    me = OTHERS[1]
    member = replace(state, rules=replace(state.rules, me=me, keys=ModelKeys(me)))
    wanted = Want(PLACE, (part,) * 50)
    _, effects = run(member, Received(6.0, LEADER, wanted))
    assert [type(effect) for effect in effects] == [SendMean]
    _, effects = run(member, Received(6.0, OTHERS[0], wanted))
    assert effects == []
