"""Inside a ballot: whose bytes, norms and means are taken, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.block import NormRow, SignedNorms
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import GetMeans, MeanData, Norms, NormTable, PartData
from peer.consensus.protocol.norms import PartNorms, bits_of
from peer.consensus.rounds.interface import (
    BufferPart,
    MeasurePart,
    PartMeasured,
    Received,
    ReducePart,
    Send,
    SendMean,
    StoreObject,
    Tell,
    Tick,
)
from peer.consensus.rounds.state import State
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import (
    FIGURES,
    LEADER,
    OTHERS,
    PLACE,
    figures_for,
    gathering,
    mean_of,
    measuring,
    mine,
    norms_of,
    part_from,
    run,
    table_of,
)
from tests.peer.consensus.rounds.build import NAMES, PARTS, PAYLOADS, place, rules


def test_a_pledged_part_is_kept_once() -> None:
    """Under the sender that pledged it."""
    state = gathering()
    (part,) = mine(state, LEADER)
    _, effects = measuring(state, part_from(OTHERS[0], part), part_from(OTHERS[0], part))
    assert [effect.sender for effect in effects if isinstance(effect, BufferPart)] == [OTHERS[0]]


@pytest.mark.parametrize("spoil", ["payload", "path", "size", "sender", "part"])
def test_a_part_that_was_not_pledged_is_refused(spoil: str) -> None:
    """Other bytes, another path, size, sender or reducer."""
    state = gathering()
    (part,) = mine(state, LEADER)
    honest = part_from(OTHERS[0], part)
    message = honest.message
    assert isinstance(message, PartData)
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
        ((65_536, 7),),
    ):
        after, _ = run(state, norms_of(state, OTHERS[0], received))
        assert after.lead is not None
        assert OTHERS[0] not in after.lead.norms
    honest = norms_of(state, OTHERS[0], ((part, 3),))
    stranger = replace(honest, sender=OTHERS[1])
    unsigned = replace(honest, message=norms_with(honest, signature=b"s" * 64))
    for forged in (stranger, unsigned):
        after, _ = run(state, forged)
        assert after.lead is not None
        assert after.lead.norms == {}
    after, _ = run(state, honest)
    assert after.lead is not None
    assert OTHERS[0] in after.lead.norms


# ---- measuring ----


def norms_in(effects: list[object]) -> list[SignedNorms]:
    """What I say of what I have, sent to the coordinator."""
    sent = [item.message for item in effects if isinstance(item, Send)]
    return [message.measurements for message in sent if isinstance(message, Norms)]


def norms_with(honest: Received, **changes: object) -> Norms:
    assert isinstance(honest.message, Norms)
    found = replace(honest.message.measurements, **changes)  # type: ignore[arg-type]
    return Norms(PLACE, found)


def member(me: str) -> tuple[State, int]:
    """The same exchange as a member that does not lead sees it; what it gives itself is measured."""
    leader = gathering()
    assert leader.exchange is not None
    (part,) = mine(leader, me)
    index = [header.peer for header in leader.exchange.members].index(me)
    exchange = replace(
        leader.exchange, received={part: 1 << index}, figures={part: {index: FIGURES}}, taken={}, refused={},
        mine=dict.fromkeys(range(len(PAYLOADS)), FIGURES),
    )  # fmt: skip
    return replace(leader, rules=rules(me), lead=None, exchange=exchange, header=exchange.members[index]), part


def test_what_is_not_measured_does_not_count_yet() -> None:
    """The parts of all are here, and nothing is said of them until the last one is measured."""
    state, part = member(OTHERS[0])
    state, effects = run(state, *(part_from(name, part) for name in (LEADER, OTHERS[1])))
    assert [item.giver for item in effects if isinstance(item, MeasurePart)] == [LEADER, OTHERS[1]]
    assert norms_in(effects) == []
    first, second = figures_for(effects, PartNorms(4.0))
    state, effects = run(state, first)
    assert norms_in(effects) == []
    assert state.exchange is not None
    assert not state.exchange.closed
    state, effects = run(state, second)
    assert state.exchange is not None
    (found,) = norms_in(effects)
    assert found.received == ((part, 7),)
    names = [header.peer for header in state.exchange.members]
    assert found.rows == (
        NormRow(PARTS[part].layer, tuple(bits_of(1.0 if name == OTHERS[0] else 4.0) for name in names)),
    )


def test_a_part_measured_after_the_close_is_not_in_the_mean() -> None:
    """What was signed is what counts; and it is said with a name."""
    state, part = member(OTHERS[0])
    state, effects = run(state, part_from(LEADER, part), Tick(7.0))
    (found,) = norms_in(effects)
    assert state.exchange is not None
    index = [header.peer for header in state.exchange.members].index(OTHERS[0])
    assert found.received == ((part, 1 << index),)
    state, _ = run(state, *figures_for(effects))
    assert state.exchange is not None
    assert state.exchange.received == {part: 1 << index}
    table = table_of(state, norms_of(state, OTHERS[0], found.received))
    _, effects = run(state, table)
    assert [item.members for item in effects if isinstance(item, ReducePart)] == [(OTHERS[0],)]


@pytest.mark.parametrize("spoil", ["payload", "path", "size"])
def test_a_refused_part_does_not_hold_the_round(spoil: str) -> None:
    """Nothing else of its sender is waited for, and nothing else is taken: NORMS go out without it at once."""
    state, part = member(OTHERS[0])
    message = part_from(LEADER, part).message
    assert isinstance(message, PartData)
    bad = {
        "payload": replace(message, payload=message.payload[::-1]),
        "path": replace(message, path=message.path[:-1]),
        "size": replace(message, payload=message.payload * 2),
    }[spoil]
    state, effects = measuring(state, part_from(OTHERS[1], part), Received(4.2, LEADER, bad))
    (found,) = norms_in(effects)
    assert state.exchange is not None
    names = [header.peer for header in state.exchange.members]
    assert found.received == ((part, 7 & ~(1 << names.index(LEADER))),)
    assert found.rows[0].squares[names.index(LEADER)] == 0
    assert run(state, part_from(LEADER, part))[1] == []


def test_a_better_part_after_a_refused_one_is_not_taken() -> None:
    """A peer may not try until something fits."""
    state, part = member(OTHERS[0])
    message = part_from(LEADER, part).message
    assert isinstance(message, PartData)
    bad = Received(4.1, LEADER, replace(message, payload=message.payload[::-1]))
    state, effects = run(state, bad, part_from(LEADER, part))
    assert effects == []


def test_a_duplicate_is_measured_once() -> None:
    """Also if it comes before the first is measured."""
    state, part = member(OTHERS[0])
    state, effects = run(state, part_from(LEADER, part), part_from(LEADER, part))
    assert [type(item) for item in effects] == [BufferPart, MeasurePart]
    state, effects = run(state, *figures_for(effects) * 2, part_from(LEADER, part))
    assert effects == []
    assert state.exchange is not None
    assert len(state.exchange.figures[part]) == 2


def test_what_was_measured_for_another_ballot_or_stranger_counts_nothing() -> None:
    """Measuring takes a while; meanwhile the exchange may be another one."""
    state, part = member(OTHERS[0])
    late = [
        PartMeasured(4.2, place(3), LEADER, part, FIGURES),
        PartMeasured(4.2, PLACE, "stranger", part, FIGURES),
        PartMeasured(4.2, PLACE, LEADER, part, FIGURES),
        PartMeasured(4.2, PLACE, LEADER, (part + 1) % 3, FIGURES),
    ]
    after, effects = run(state, *late)
    assert effects == []
    assert after.exchange == state.exchange


def test_a_table_is_checked_as_a_whole() -> None:
    """One forged row in it, and nothing of it is believed."""
    state = gathering()
    norms = [norms_of(state, name, tuple((part, 7) for part in mine(state, name))) for name in NAMES]
    forged = replace(norms[0], message=norms_with(norms[0], signature=b"s" * 64))
    reversed_ = table_of(state, *norms)
    assert isinstance(reversed_.message, NormTable)
    backwards = replace(reversed_, message=NormTable(PLACE, reversed_.message.measured[::-1]))
    twice = replace(reversed_, message=NormTable(PLACE, (reversed_.message.measured[0],) * 2))
    for bad in (table_of(state, forged, *norms[1:]), backwards, twice, replace(reversed_, sender=OTHERS[0])):
        after, effects = run(state, bad)
        assert all(isinstance(effect, Tell) for effect in effects), "it is refused, and people are told"
        assert after.exchange == state.exchange
    after, effects = run(state, reversed_)
    assert after.exchange is not None
    assert after.exchange.tabled
    assert [type(item) for item in effects if isinstance(item, ReducePart)] == [ReducePart]


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
    assert any(isinstance(effect, StoreObject) for effect in effects)


def test_a_mean_with_other_bytes_than_its_digest_names_is_refused() -> None:
    """Its signature holds, for that is over the digest; what was kept under it would not be what the others have."""
    state = gathering()
    (part,) = mine(state, OTHERS[0])
    honest = mean_of(state, part, 7)
    assert isinstance(honest.message, MeanData)
    other = replace(honest, message=replace(honest.message, payload=honest.message.payload[::-1]))
    after, effects = run(state, other)
    assert after.exchange is not None
    assert part not in after.exchange.means
    assert effects == []


def test_a_part_that_only_idle_members_gave_is_not_reduced() -> None:
    """Its weights would be zero; it becomes void."""
    state = gathering(tokens=0)
    (part,) = mine(state, LEADER)
    assert state.exchange is not None
    names = [item.peer for item in state.exchange.members]
    idle = 1 << names.index(OTHERS[1])
    state, _ = measuring(state, *(part_from(name, part) for name in OTHERS))
    _, effects = run(state, table_of(state, norms_of(state, LEADER, ((part, idle),))))
    assert not any(isinstance(effect, ReducePart) for effect in effects)
    _, effects = run(state, table_of(state, norms_of(state, LEADER, ((part, 7),))))
    assert [effect.part for effect in effects if isinstance(effect, ReducePart)] == [part]


def test_only_the_coordinator_is_given_means_it_wants() -> None:
    """Each part once: a small frame is not answered with a model again and again."""
    state = gathering()
    assert state.exchange is not None
    (part,) = mine(state, OTHERS[0])
    state, _ = run(state, mean_of(state, part, 7))
    state = replace(state, held={digest_of(PAYLOADS[part]): len(PAYLOADS[part])})
    me = OTHERS[1]
    member = replace(state, rules=replace(state.rules, me=me, keys=ModelKeys(me)))
    wanted = GetMeans(PLACE, (part,) * 50)
    _, effects = run(member, Received(6.0, LEADER, wanted))
    assert [type(effect) for effect in effects] == [SendMean]
    _, effects = run(member, Received(6.0, OTHERS[0], wanted))
    assert effects == []
