"""Inside a ballot: whose bytes and means are taken, and from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.layout import Part, divide
from peer.consensus.protocol.messages import GetMeans, MeanData, PartData
from peer.consensus.protocol.norms import PartNorms, declare
from peer.consensus.rounds.interface import (
    BufferPart,
    MeasurePart,
    PartMeasured,
    Received,
    ReducePart,
    SendMean,
    StoreObject,
    Tick,
)
from peer.consensus.rounds.member import _is_as_declared
from peer.consensus.rounds.state import State
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import (
    LEADER,
    OTHERS,
    PLACE,
    figures_for,
    mean_of,
    measuring,
    mine,
    part_from,
    reducing,
    run,
)
from tests.peer.consensus.rounds.build import PAYLOADS, header, place, rules


def test_a_pledged_part_is_kept_once() -> None:
    """Under the sender that pledged it."""
    state = reducing()
    (part,) = mine(state, LEADER)
    _, effects = measuring(state, part_from(OTHERS[0], part), part_from(OTHERS[0], part))
    assert [effect.sender for effect in effects if isinstance(effect, BufferPart)] == [OTHERS[0]]


@pytest.mark.parametrize("spoil", ["payload", "path", "size", "sender", "part"])
def test_a_part_that_was_not_pledged_is_refused(spoil: str) -> None:
    """Other bytes, another path, size, sender or reducer."""
    state = reducing()
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


# ---- measuring ----


def reductions(effects: list[object]) -> list[ReducePart]:
    return [item for item in effects if isinstance(item, ReducePart)]


def member(me: str) -> tuple[State, int]:
    """The same exchange as a member that does not lead sees it; what it gives itself is measured."""
    leader = reducing()
    assert leader.exchange is not None
    (part,) = mine(leader, me)
    index = [header.peer for header in leader.exchange.members].index(me)
    exchange = replace(leader.exchange, received={part: 1 << index}, taken={}, refused={})
    return replace(leader, rules=rules(me), lead=None, exchange=exchange, header=exchange.members[index]), part


def test_what_is_not_measured_does_not_count_yet() -> None:
    """The parts of all are here, and nothing is averaged until the last one is measured."""
    state, part = member(OTHERS[0])
    state, effects = run(state, *(part_from(name, part) for name in (LEADER, OTHERS[1])))
    assert [item.giver for item in effects if isinstance(item, MeasurePart)] == [LEADER, OTHERS[1]]
    first, second = figures_for(effects)
    state, effects = run(state, first)
    assert reductions(effects) == []
    assert state.exchange is not None
    assert not state.exchange.closed
    _, effects = run(state, second)
    (reduce,) = reductions(effects)
    assert (reduce.part, reduce.contributors) == (part, 7)
    assert reduce.declared == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("square", [4.0, 1.01, 0.9, float("nan"), float("inf")])
def test_who_gives_another_norm_than_it_declared_is_left_out(square: float) -> None:
    """At once, and nobody waits for it: its row would make the mean one that nobody takes."""
    state, part = member(OTHERS[0])
    state, effects = run(state, *(part_from(name, part) for name in (LEADER, OTHERS[1])))
    first, second = figures_for(effects)
    state, effects = run(state, replace(first, square=square), second)
    (reduce,) = reductions(effects)
    assert state.exchange is not None
    assert reduce.contributors == 7 & ~(1 << state.exchange.names.index(LEADER))
    assert reduce.missing > 0


def test_a_part_does_not_have_the_norm_of_its_whole_layer() -> None:
    """No reducer holds both parts of it: who gave all of the layer's norm in each would give √2 times that."""
    two = (Part(0, 0, 2), Part(0, 2, 2))
    state, _ = member(OTHERS[0])
    turn = Transition(replace(state, rules=replace(state.rules, parts=two, part_bytes=(8, 8))), 4.1)
    said = header(LEADER, norms=declare(divide(two, 1)[0], dict.fromkeys(range(2), PartNorms(1.0))))
    assert _is_as_declared(turn, said, 0, 1.0)
    assert not _is_as_declared(turn, said, 0, 2.0)


def test_sums_in_another_order_are_no_lie() -> None:
    state, part = member(OTHERS[0])
    state, effects = run(state, *(part_from(name, part) for name in (LEADER, OTHERS[1])))
    first, second = figures_for(effects)
    _, effects = run(state, replace(first, square=1.0005), replace(second, square=0.9995))
    (reduce,) = reductions(effects)
    assert reduce.contributors == 7


def test_a_part_measured_after_the_close_is_not_in_the_mean() -> None:
    """What has come by then is what counts."""
    state, part = member(OTHERS[0])
    state, effects = run(state, part_from(LEADER, part), Tick(7.0))
    assert state.exchange is not None
    index = state.exchange.names.index(OTHERS[0])
    assert [item.members for item in reductions(effects)] == [(OTHERS[0],)]
    state, _ = run(state, *figures_for(effects))
    assert state.exchange is not None
    assert state.exchange.received == {part: 1 << index}


@pytest.mark.parametrize("spoil", ["payload", "path", "size"])
def test_a_refused_part_does_not_hold_the_round(spoil: str) -> None:
    """Nothing else of its sender is waited for, and nothing else is taken: the part is averaged without it at once."""
    state, part = member(OTHERS[0])
    message = part_from(LEADER, part).message
    assert isinstance(message, PartData)
    bad = {
        "payload": replace(message, payload=message.payload[::-1]),
        "path": replace(message, path=message.path[:-1]),
        "size": replace(message, payload=message.payload * 2),
    }[spoil]
    state, effects = measuring(state, part_from(OTHERS[1], part), Received(4.2, LEADER, bad))
    (reduce,) = reductions(effects)
    assert state.exchange is not None
    assert reduce.contributors == 7 & ~(1 << state.exchange.names.index(LEADER))
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
    assert state.exchange.received[part].bit_count() == 2


def test_what_was_measured_for_another_ballot_or_stranger_counts_nothing() -> None:
    """Measuring takes a while; meanwhile the exchange may be another one."""
    state, part = member(OTHERS[0])
    late = [
        PartMeasured(4.2, place(3), LEADER, part, 1.0),
        PartMeasured(4.2, PLACE, "stranger", part, 1.0),
        PartMeasured(4.2, PLACE, LEADER, part, 1.0),
        PartMeasured(4.2, PLACE, LEADER, (part + 1) % 3, 1.0),
    ]
    after, effects = run(state, *late)
    assert effects == []
    assert after.exchange == state.exchange


@pytest.mark.parametrize("contributors", [0, 8, 1 << 63])
def test_a_mean_of_nobody_or_strangers_is_refused(contributors: int) -> None:
    """The coordinator would propose an update that is not valid."""
    state = reducing()
    (part,) = mine(state, OTHERS[0])
    after, effects = run(state, mean_of(state, part, contributors))
    assert after.exchange is not None
    assert part not in after.exchange.means
    assert effects == []
    after, effects = run(state, mean_of(state, part, 7))
    assert any(isinstance(effect, StoreObject) for effect in effects)


def test_a_mean_with_other_bytes_than_its_digest_names_is_refused() -> None:
    """Its signature holds, for that is over the digest; what was kept under it would not be what the others have."""
    state = reducing()
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
    state = reducing(tokens=0)
    (part,) = mine(state, LEADER)
    assert state.exchange is not None
    idle = 1 << state.exchange.names.index(OTHERS[1])
    exchange = replace(state.exchange, received={part: 0})
    state, _ = measuring(replace(state, exchange=exchange), part_from(OTHERS[1], part))
    assert state.exchange is not None
    assert state.exchange.received == {part: idle}
    _, effects = run(state, Tick(state.exchange.closes_at))
    assert reductions(effects) == []


def test_only_the_coordinator_is_given_means_it_wants() -> None:
    """Each part once: a small frame is not answered with a model again and again."""
    state = reducing()
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
