"""A reducer dies or stalls: its parts are reduced again in the same ballot, and nobody's work is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol.block import VOID, Block
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import GetMeans, MeanData, Reassign, decode
from peer.consensus.rounds.interface import (
    BufferPart,
    Input,
    PartReduced,
    Received,
    ReducePart,
    Send,
    SendMean,
    SendParts,
    Tick,
)
from peer.consensus.rounds.reassignment import ORDERS_MOST
from peer.consensus.rounds.state import BallotPhase, State
from peer.testing.memory_peer import Crashed, LogicalPeer
from peer.testing.memory_swarm import World
from tests.peer.consensus.rounds.ballot import (
    LEADER,
    OTHERS,
    PLACE,
    mean_of,
    measuring,
    mine,
    part_from,
    reducing,
    run,
)
from tests.peer.consensus.rounds.build import NAMES, PAYLOADS, rules

ROUND = 3
"""The anchor from which the round that is struck starts."""
SEEDS = range(3)
Strike = Callable[[LogicalPeer], None]


def die(peer: LogicalPeer) -> None:
    """At once and for good."""
    raise Crashed


def die_halfway(peer: LogicalPeer) -> None:
    """As soon as half of the others have been sent its first mean."""
    half, sent = (len(peer.world.genesis.electorate) - 1) // 2, 0

    def count(sender: str, receiver: str, frame: bytes) -> bool:
        nonlocal sent
        if sender == peer.name and frame[1] == MeanData.code:
            sent += 1
            peer.fuse = 1 if sent == half else None
        return False

    peer.world.network.drops = count


def stall(peer: LogicalPeer) -> None:
    """For longer than the round."""
    peer.stall(20.0)


def struck(seed: int, peers: int, phase: str, strike: Strike, victims: int = 1) -> tuple[World, list[LogicalPeer]]:
    """A world in which reducers that do not coordinate are struck when they enter `phase` of ROUND."""
    world = World(seed, peers)
    hit: list[LogicalPeer] = []

    def look(peer: LogicalPeer, entered: str, round: int) -> None:
        exchange = peer.driver.state.exchange
        if (entered, round) != (phase, ROUND) or len(hit) == victims or exchange is None:
            return
        if peer.driver.state.lead is None and exchange.received:
            hit.append(peer)
            strike(peer)

    world.on_phase = look
    world.scheduler.run_until(65.0)
    world.check()
    return world, hit


def committed(world: World, hit: list[LogicalPeer]) -> tuple[Block, float]:
    """What the others committed in ROUND, and how long the round took the quickest of them."""
    others = [peer for peer in world.peers if peer not in hit]
    histories = [world.history[world.index[peer.name]] for peer in others]
    took_s = min(history[ROUND].at_s for history in histories) - min(history[ROUND - 1].at_s for history in histories)
    return others[0].disk.blocks[ROUND], took_s


@pytest.mark.slow
@pytest.mark.parametrize(("strike", "phase", "peers", "victims"), [
    (die, "exchange", 3, 1), (stall, "exchange", 4, 1), (die, "exchange", 7, 2),
    (stall, "reduce", 3, 1), (die, "reduce", 4, 1), (stall, "reduce", 7, 2),
])  # fmt: skip
def test_a_round_survives_its_reducers(strike: Strike, phase: str, peers: int, victims: int) -> None:
    """Before and after the parts have come: the ballot they were in commits every part, within its deadlines."""
    for seed in SEEDS[:2]:
        world, hit = struck(seed, peers, phase, strike, victims)
        waits = world.rules("p0")
        block, took_s = committed(world, hit)
        assert len(hit) == victims
        assert block.votes[0].ballot == block.update.ballot
        assert VOID not in block.update.parts
        # Train and gather; then the waits for parts, for the silent, for means and for those who have them; repair.
        assert took_s < 6.0 + waits.gather_s + 3 * waits.exchange_s + 4 * waits.ack_s
        newest = max(peer.disk.head.round for peer in world.peers)
        assert all(peer.disk.head.round >= newest - 1 for peer in world.peers if peer.alive)


@pytest.mark.slow
@pytest.mark.parametrize("peers", [3, 5])
def test_what_a_dead_reducer_had_sent_is_used(peers: int) -> None:
    """Whoever got its mean before it died has the bytes; nothing is reduced again for that."""
    repaired = 0
    for seed in SEEDS:
        world, hit = struck(seed, peers, "reduce", die_halfway)
        block, _ = committed(world, hit)
        assert len(hit) == 1
        assert not hit[0].alive
        assert block.votes[0].ballot == block.update.ballot
        assert VOID not in block.update.parts
        alerts = (event for peer in world.peers for event in peer.reports)
        repaired += any(getattr(event, "code", "") == "REPAIR" for event in alerts)
    assert repaired == 0


@pytest.mark.slow
def test_the_work_of_the_living_is_in_every_repaired_part() -> None:
    """And that of the dead where it had arrived."""
    for seed in SEEDS:
        world, hit = struck(seed, 4, "reduce", die)
        update = committed(world, hit)[0].update
        for peer in world.peers:
            parts = [part for part in range(len(update.parts)) if update.contributed(peer.name, part)]
            assert len(parts) == 3 if peer not in hit else 2 <= len(parts) <= 3


@pytest.mark.slow
def test_a_part_that_nobody_can_give_is_void_and_stays_in_the_balance() -> None:
    """Its reducer dies, and what the next one computes arrives nowhere."""
    voids = 0
    for seed in (*SEEDS, 4, 6):
        world = World(seed, 5)
        hit: list[LogicalPeer] = []

        def drops(sender: str, receiver: str, frame: bytes) -> bool:
            return frame[1] == MeanData.code and getattr(decode(frame), "attempt", 0) == 1

        def look(peer: LogicalPeer, entered: str, round: int, hit: list[LogicalPeer] = hit) -> None:
            exchange = peer.driver.state.exchange
            if (entered, round, len(hit)) != ("reduce", ROUND, 0) or exchange is None:
                return
            if peer.driver.state.lead is None and exchange.received:
                hit.append(peer)
                raise Crashed

        world.on_phase, world.network.drops = look, drops
        world.scheduler.run_until(60.0)
        world.check()
        block, _ = committed(world, hit)
        assert block.votes[0].ballot == block.update.ballot
        voids += block.update.parts.count(VOID)
    assert voids > 0


# ---- the coordinator, step by step ----


def orders_in(effects: list[object]) -> list[Reassign]:
    return [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Reassign)]


def closed(silent: str) -> tuple[State, list[object]]:
    """All but one have sent their means when the time for them is over, and nobody has those that are missing."""
    state = reducing()
    (own,), lively = mine(state, LEADER), next(name for name in OTHERS if name != silent)
    (part,) = mine(state, lively)
    state, _ = measuring(state, *(part_from(name, own) for name in OTHERS))
    state, _ = run(state, PartReduced(4.5, PLACE, own, 7, digest_of(PAYLOADS[own])), mean_of(state, part, 7))
    state = replace(state, held={digest_of(payload): len(payload) for payload in PAYLOADS})
    effects: list[object] = []
    for tenth in range(50, 200):
        state, more = run(state, Tick(tenth / 10))
        effects += more
        if orders_in(more):
            return state, effects
    raise AssertionError("nothing is given to another")


def test_the_parts_of_a_silent_reducer_are_given_to_others() -> None:
    """Once nobody has them: to members that have shown life and were not their reducers."""
    state, effects = closed(OTHERS[1])
    (redo,) = orders_in(effects)
    assert [part for part, _ in redo.parts] == list(mine(state, OTHERS[1]))
    assert all(peer in (LEADER, OTHERS[0]) for _, peer in redo.parts)
    kinds = [type(item.message) for item in effects if isinstance(item, Send)]
    assert kinds.index(GetMeans) < kinds.index(Reassign)
    assert state.lead is not None
    assert state.lead.stage is BallotPhase.REDUCING


def test_a_missing_mean_is_asked_for_and_then_reduced_again() -> None:
    """Once each; then the part is void."""
    state = reducing()
    (own,), (one,), (other,) = (mine(state, name) for name in (LEADER, *OTHERS))
    state, _ = measuring(state, *[part_from(name, own) for name in OTHERS])
    state, _ = run(state, PartReduced(4.5, PLACE, own, 7, digest_of(PAYLOADS[own])), mean_of(state, one, 7))
    state = replace(state, held={digest_of(payload): len(payload) for payload in PAYLOADS})
    asked: list[tuple[str, object]] = []
    for tenth in range(50, 200):
        state, effects = run(state, Tick(tenth / 10))
        messages = [item.message for item in effects if isinstance(item, Send)]
        asked += [(type(item).__name__, item.parts) for item in messages if isinstance(item, GetMeans | Reassign)]
        if state.lead is None or state.lead.stage is BallotPhase.PROPOSING:
            break
    (want, wanted), (redo, again) = asked
    assert (want, wanted, redo) == ("GetMeans", (other,), "Reassign")
    assert isinstance(again, tuple)
    assert again[0][0] == other
    assert again[0][1] in (LEADER, OTHERS[0])
    (proposal,) = state.proposals.values()
    assert [part for part, digest in enumerate(proposal.update.parts) if digest == VOID] == [other]


def test_a_mean_that_comes_late_is_as_good_as_a_repaired_one() -> None:
    """The update names the first that came, with the contributors that its reducer signed."""
    state, effects = closed(OTHERS[1])
    (redo,) = orders_in(effects)
    ((part, _),) = redo.parts
    state, _ = run(state, mean_of(state, part, 5, now=15.2))
    (proposal,) = state.proposals.values()
    assert proposal.update.parts[part] == digest_of(PAYLOADS[part])
    assert proposal.update.contributors[part] == 5


def test_a_repaired_mean_is_taken_from_who_was_asked_only() -> None:
    """Not from the reducer that fell silent, under another name, nor from a third."""
    state, effects = closed(OTHERS[1])
    (redo,) = orders_in(effects)
    ((part, reducer),) = redo.parts
    for stranger in set(NAMES) - {reducer}:
        after, _ = run(state, mean_of(state, part, 7, reducer=stranger, attempt=1, now=15.2))
        assert after.exchange is not None
        assert part not in after.exchange.means
    if reducer != LEADER:
        after, _ = run(state, mean_of(state, part, 7, reducer=reducer, attempt=1, now=15.2))
        assert after.exchange is not None
        assert after.exchange.means[part].attempt == 1


# ---- a member, step by step ----


def member(me: str) -> State:
    """The same ballot as one of the others sees it, once the parts have come; its part of the means is to come."""
    state = reducing()
    assert state.exchange is not None
    exchange = replace(state.exchange, received=dict.fromkeys(mine(state, me), 7), closed=True)
    state = replace(state, rules=rules(me), lead=None, exchange=exchange)
    return replace(state, header=next(item for item in exchange.members if item.peer == me))


def redo_of(*parts: tuple[int, str], now: float = 5.0) -> Received:
    return Received(now, LEADER, Reassign(PLACE, parts))


def test_a_member_sends_a_part_again_once() -> None:
    """Only when the coordinator asks, only to members, and not for ever, however often it asks."""
    me, (part,) = OTHERS[0], mine(reducing(), OTHERS[1])
    state = member(me)
    for refused in (
        Received(5.0, OTHERS[1], Reassign(PLACE, ((part, LEADER),))),
        redo_of((part, "stranger")),
        redo_of((part, OTHERS[1])),
        redo_of((65_535, LEADER)),
    ):
        assert run(state, refused)[1] == []
    state, effects = run(state, redo_of((part, LEADER), (part, me)))
    sent = [item for item in effects if isinstance(item, SendParts)]
    assert sum(len(item.parts) for item in sent) == 1
    assert all(item.attempt == 1 for item in sent)
    state, effects = run(state, redo_of((part, LEADER)), redo_of((part, me)))
    assert effects == []
    moves = [redo_of((other, LEADER), now=6.0 + other) for other in range(3)]
    _, effects = run(state, *moves)
    assert sum(isinstance(item, SendParts) for item in effects) <= ORDERS_MOST - 1


def repairing() -> tuple[State, int, list[object]]:
    """A member that reduces a part in place of the other."""
    (part,) = mine(reducing(), OTHERS[1])
    state, effects = run(member(OTHERS[0]), redo_of((part, OTHERS[0])))
    return state, part, effects


def reductions(effects: list[object]) -> list[ReducePart]:
    return [item for item in effects if isinstance(item, ReducePart)]


def test_what_is_here_is_averaged_when_the_dead_are_not_awaited_any_more() -> None:
    """Divided by the weights of those that gave."""
    state, part, effects = repairing()
    assert [item.to for item in effects if isinstance(item, SendParts)] == [OTHERS[0]]
    state, effects = measuring(state, part_from(LEADER, part, attempt=1, now=5.1), Tick(5.5))
    assert [item.sender for item in effects if isinstance(item, BufferPart)] == [LEADER]
    assert reductions(effects) == []
    _, effects = run(state, Tick(6.0))
    (reduce,) = reductions(effects)
    assert (reduce.part, reduce.attempt) == (part, 1)
    assert sorted(reduce.members) == sorted((LEADER, OTHERS[0]))
    assert len(reduce.weights) == 2


def test_a_repair_is_reduced_at_once_when_all_gave() -> None:
    """The one whose place is taken may be alive after all."""
    state, part, _ = repairing()
    state, effects = measuring(state, *(part_from(name, part, attempt=1, now=5.1) for name in (LEADER, OTHERS[1])))
    (reduce,) = reductions(effects)
    assert reduce.contributors == 7
    _, effects = run(state, PartReduced(5.2, PLACE, part, 7, digest_of(PAYLOADS[part]), attempt=1))
    (sent,) = (item for item in effects if isinstance(item, SendMean))
    assert (sent.mean.attempt, sorted(sent.to)) == (1, sorted((LEADER, OTHERS[1])))


def test_a_part_that_overtakes_its_redo_counts() -> None:
    """Streams of different peers are not ordered among each other."""
    (part,) = mine(reducing(), OTHERS[1])
    early: list[Input] = [part_from(name, part, attempt=1, now=4.9) for name in (LEADER, OTHERS[1])]
    state, effects = run(member(OTHERS[0]), *early)
    assert effects == []
    state, effects = measuring(state, redo_of((part, OTHERS[0])))
    assert len(reductions(effects)) == 1
    assert state.early == ()


def test_no_more_repairs_are_taken_on_than_there_is_memory_for() -> None:
    """Two contributions, or 16 MiB: a coordinator may name one reducer for all parts."""
    me, (own,) = OTHERS[0], mine(reducing(), OTHERS[0])
    sizes = tuple((1 if part == own else 20) << 20 for part in range(3))
    state = member(me)
    state = replace(state, rules=replace(state.rules, part_bytes=sizes))
    others = tuple(part for part in range(3) if part != own)
    state, effects = run(state, redo_of(*((part, me) for part in others)))
    assert [item.parts for item in effects if isinstance(item, SendParts)] == [others[:1]]
    assert run(state, redo_of((others[1], me)))[1] == []
