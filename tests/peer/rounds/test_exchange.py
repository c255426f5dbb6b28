"""Inside a ballot: whose bytes, norms and means are taken, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.rounds.effects import Keep, Received, Reduce, SendMean, Store
from peer.rounds.messages import Norms, PartSent, Table, Want
from peer.rounds.names import digest_of
from peer.testing.integers import ModelKeys
from tests.peer.rounds.ballot import LEADER, OTHERS, PLACE, gathering, mean_of, mine, norms_of, part_from, run
from tests.peer.rounds.build import PAYLOADS


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
