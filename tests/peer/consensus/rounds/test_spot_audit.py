"""Some parts are reduced twice: a mean that its contributors' bytes do not give is found out, proved and put right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import VOID, Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.head import MISDECLARED
from peer.consensus.protocol.messages import MeanData, PartData, ShowInputs, decode
from peer.consensus.protocol.norms import row_for
from peer.consensus.rounds.interface import (
    BufferPart,
    Input,
    PartReduced,
    Received,
    ReducePart,
    Send,
    SendInputs,
    SendParts,
    Tell,
    Tick,
)
from peer.consensus.rounds.state import BallotPhase, State
from peer.planning.simulate.memory_network import LinkModel
from peer.schema.events import AlertRaised, PenaltyImposed
from peer.testing.memory_peer import IntegerSums, LogicalPeer, ModelKeys, decoded
from peer.testing.memory_swarm import World
from tests.model_swarm import CALM_S, FAULT_S, FaultyWorld, random_faults
from tests.peer.consensus.rounds.ballot import (
    LEADER,
    OTHERS,
    PLACE,
    gathering,
    mean_of,
    measuring,
    mine,
    norms_of,
    part_from,
    run,
)
from tests.peer.consensus.rounds.build import NAMES, PART_BYTES, PAYLOADS, header, leaves_of, part_of, rules

SECONDS = 90.0
LIAR = "p1"


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Called with an attempt: from now on LIAR gets every reduction of that attempt wrong."""

    def lie(attempt: int) -> None:
        honest = IntegerSums.reduce

        def reduce(sums: IntegerSums, effect: ReducePart, done: Callable[[bytes], None]) -> None:
            owner = sums.disk.owner
            assert isinstance(owner, LogicalPeer)
            if owner.name == LIAR and effect.attempt == attempt:
                first = (effect.place, effect.members[0], effect.part)
                path, payload = sums.parts[first]
                sums.parts[first] = (path, (decoded(payload) + 8).to_bytes(8, "big", signed=True))
                honest(sums, effect, done)
                sums.parts[first] = (path, payload)
            else:
                honest(sums, effect, done)

        monkeypatch.setattr(IntegerSums, "reduce", reduce)

    return lie


def true_mean(world: World, update: Update, part: int) -> int:
    """What the bytes of those contributors give that count: a liar that most have caught does not."""
    layer = world.rules(LIAR).parts[part].layer
    return 16 * sum(
        decoded(world.contributions[member.peer, update.parent][part])
        for member, weight in zip(update.members, row_for(update.weights, layer), strict=True)
        if weight and update.contributed(member.peer, part)
    )


def wrong_parts(world: World) -> tuple[int, int]:
    """(parts whose committed mean is wrong, parts) of all rounds that LIAR did not coordinate."""
    disk = world.peers[0].disk
    parts = [
        decoded(disk.objects[digest]) == true_mean(world, block.update, part)
        for block in disk.blocks
        if block.update.coordinator != LIAR
        for part, digest in enumerate(block.update.parts)
        if digest != VOID
    ]
    return parts.count(False), len(parts)


def penalties(world: World, *, without: str = "") -> list[PenaltyImposed]:
    reports = (event for peer in world.peers if peer.name != without for event in peer.reports)
    return [event for event in reports if isinstance(event, PenaltyImposed) and event.code == "MISDECLARED"]


@pytest.mark.slow
@pytest.mark.parametrize("peers", [2, 3, 5])
def test_a_round_without_lies_is_not_delayed(peers: int) -> None:
    """With every part audited an update is proposed as soon as a TABLE, a mean or verdict, and what is written need."""
    world = World(7, peers, audit=1.0)
    tabled: dict[tuple[str, int], float] = {}
    waits: list[float] = []

    def look(peer: LogicalPeer, entered: str, round: int) -> None:
        if peer.driver.state.lead is not None and entered == "reduce":
            tabled[peer.name, round] = world.now
        if (peer.name, round) in tabled and entered == "commit":
            waits.append(world.now - tabled[peer.name, round])

    world.on_phase = look
    world.scheduler.run_until(SECONDS)
    world.check()
    assert len(waits) > 5
    assert max(waits) < 3 * max(world.network.link.delay_s)
    assert penalties(world) == []
    assert not any(isinstance(event, AlertRaised) for peer in world.peers for event in peer.reports)


@pytest.mark.slow
@pytest.mark.parametrize("peers", [2, 3, 5])
def test_a_lying_reducer_is_caught_and_put_right(peers: int, lies: Callable[[int], None]) -> None:
    """No wrong mean is committed in a ballot that somebody else coordinates; liars are named, nobody else is."""
    lies(0)
    world = World(3, peers, audit=1.0)
    world.liars.add(LIAR)
    world.scheduler.run_until(SECONDS)
    world.check()
    wrong, parts = wrong_parts(world)
    assert (wrong, parts > 10) == (0, True)
    assert {event.about for event in penalties(world)} == {LIAR}
    convicted = [row for block in world.peers[0].disk.blocks for row in block.update.penalties if row[1] == MISDECLARED]
    assert {row[0] for row in convicted} == ({LIAR} if peers > 2 else set()), "nobody on the word of one"
    assert all(block.update.ballot <= 1 for block in world.peers[0].disk.blocks), "nobody waits for a liar"


def test_the_coordinator_and_the_auditor_say_so(lies: Callable[[int], None]) -> None:
    """With the evidence, and what it costs."""
    lies(0)
    world = World(3, 5, audit=1.0)
    world.liars.add(LIAR)
    world.scheduler.run_until(SECONDS)
    witnesses = {peer.name for peer in world.peers for event in peer.reports if isinstance(event, PenaltyImposed)}
    assert len(witnesses - {LIAR}) >= 3
    first = penalties(world)[0]
    assert (first.factor, first.code) == (0.0, "MISDECLARED")
    assert "counted again" in first.evidence


def test_lies_pass_where_nobody_looks(lies: Callable[[int], None]) -> None:
    """The test above can fail."""
    lies(0)
    world = World(3, 3, audit=1e-9)
    world.scheduler.run_until(SECONDS)
    assert wrong_parts(world)[0] > 0
    assert penalties(world) == []


def test_a_false_accusation_changes_nothing(lies: Callable[[int], None]) -> None:
    """The auditor shows honest bytes, as it must, and they prove the reducer right."""
    lies(1)
    world = World(3, 4, audit=1.0)
    world.liars.add(LIAR)
    world.scheduler.run_until(SECONDS)
    world.check()
    wrong, parts = wrong_parts(world)
    assert (wrong, parts > 10) == (0, True)
    assert penalties(world, without=LIAR) == []
    doubts = [event for peer in world.peers for event in peer.reports if getattr(event, "code", "") == "AUDIT"]
    assert len(doubts) > 3
    assert all(block.update.ballot <= 1 for block in world.peers[0].disk.blocks), "nobody waits for a liar"


def passed_on(frame: bytes) -> bool:
    """Whether this is a part that somebody sends for another."""
    message = decode(frame)
    return isinstance(message, PartData) and message.giver != ""


def test_an_accuser_that_shows_nothing_costs_a_deadline(lies: Callable[[int], None]) -> None:
    """And then it is not believed; the ballot commits."""
    lies(1)
    world = World(3, 4, audit=1.0)
    world.liars.add(LIAR)
    world.network.drops = lambda sender, receiver, frame: passed_on(frame)
    world.scheduler.run_until(SECONDS)
    world.check()
    assert wrong_parts(world)[0] == 0
    assert penalties(world, without=LIAR) == []
    assert len(world.peers[0].disk.blocks) >= 5
    assert all(block.update.ballot <= 1 for block in world.peers[0].disk.blocks), "nobody waits for a liar"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_faults_are_not_lies(seed: int) -> None:
    """Crashes, stalls, partitions, lost and old messages: nobody who is honest is accused, or doubted."""
    link = LinkModel(delay_s=(0.01, 0.3), loss=0.1, duplication=0.05, old=0.03, old_s=20.0)
    world = FaultyWorld(seed, 4, link, audit=1.0)
    world.run(random_faults(FAULT_S), fault_s=FAULT_S, calm_s=CALM_S)
    codes = {getattr(event, "code", "") for peer in world.peers for event in peer.reports}
    assert not codes & {"MISDECLARED", "AUDIT"}


@pytest.mark.slow
def test_audited_bytes_are_a_fraction_of_all() -> None:
    """What is sent a second time is `audit` of what is sent at all."""
    sent = [0, 0]

    def count(sender: str, receiver: str, frame: bytes) -> bool:
        message = decode(frame)
        if isinstance(message, PartData):
            sent[message.attempt] += 1
        return False

    world = World(5, 4, audit=0.25)
    world.network.drops = count
    world.scheduler.run_until(400.0)
    assert 0.15 < sent[1] / sent[0] < 0.35


# ---- step by step ----


def audited() -> tuple[State, int, str]:
    """The coordinator with all NORMS, a part that another reduces and a third audits, and that auditor."""
    state, auditor = gathering(), OTHERS[1]
    (part,) = mine(state, OTHERS[0])
    assert state.exchange is not None
    again = replace(state.exchange.again, auditors={part: auditor})
    state = replace(state, exchange=replace(state.exchange, again=again))
    own = [part_from(name, index) for index in mine(state, LEADER) for name in OTHERS]
    norms = [norms_of(state, name, tuple((index, 7) for index in mine(state, name))) for name in OTHERS]
    state, _ = measuring(state, *own, *norms)
    assert state.lead is not None
    assert state.lead.stage is BallotPhase.REDUCING
    return state, part, auditor


def verdict_of(auditor: str, part: int, digest: bytes, contributors: int = 7, now: float = 4.4) -> Received:
    plain = MeanData(PLACE, 1, part, auditor, contributors, digest, b"")
    return Received(now, auditor, plain.signed(ModelKeys(auditor)))


def shows_in(effects: list[object]) -> list[tuple[tuple[str, ...], int]]:
    sent = [item for item in effects if isinstance(item, Send)]
    return [(item.to, item.message.part) for item in sent if isinstance(item.message, ShowInputs)]


def disputed() -> tuple[State, int, str]:
    """The same, after the mean and an auditor that says otherwise."""
    state, part, auditor = audited()
    state, effects = run(state, mean_of(state, part, 7), verdict_of(auditor, part, digest_of(b"other")))
    assert shows_in(effects) == [((auditor,), part)]
    return state, part, auditor


def shown(auditor: str, part: int, giver: str, payload: bytes) -> Received:
    path = merkle.path(leaves_of(giver), part)
    return Received(4.5, auditor, PartData(PLACE, 1, part, path, payload, giver))


def test_the_coordinator_believes_neither_and_counts_itself() -> None:
    """From bytes that their givers signed, all of them, and no others."""
    state, part, auditor = disputed()
    forged = shown(auditor, part, NAMES[0], b"x" * PART_BYTES[part])
    state, effects = run(state, forged, *(shown(auditor, part, name, part_of(name, part)) for name in NAMES))
    assert [item.sender for item in effects if isinstance(item, BufferPart)] == list(NAMES)
    (reduce,) = (item for item in effects if isinstance(item, ReducePart))
    assert (reduce.part, reduce.contributors, reduce.attempt) == (part, 7, 1)


def test_a_proven_lie_is_replaced_by_what_was_counted() -> None:
    """Whatever the auditor said."""
    state, part, _ = disputed()
    liar = state.exchange.reducers[part] if state.exchange else ""
    state, effects = run(state, PartReduced(4.6, PLACE, part, 7, digest_of(b"true"), attempt=1))
    assert state.exchange is not None
    assert state.exchange.means[part].digest == digest_of(b"true")
    (penalty,) = (item.event for item in effects if isinstance(item, Tell) and isinstance(item.event, PenaltyImposed))
    assert (penalty.about, penalty.factor) == (liar, 0.0)


def test_a_reducer_that_tells_the_auditor_something_else_is_caught() -> None:
    """The auditor counts for itself: it matters what the coordinator was sent."""
    state, part, auditor = audited()
    state, effects = run(state, verdict_of(auditor, part, digest_of(b"true")), mean_of(state, part, 7))
    assert shows_in(effects) == [((auditor,), part)]


def test_a_mean_of_others_than_its_reducer_said_is_refused() -> None:
    """Or it would slip through the audit, which is about those."""
    state, part, _ = audited()
    state, _ = run(state, mean_of(state, part, 3))
    assert state.exchange is not None
    assert part not in state.exchange.means


def test_who_cannot_prove_what_it_says_is_not_believed_again() -> None:
    """Nor asked again in this round."""
    state, part, auditor = disputed()
    state, _ = run(state, PartReduced(4.6, PLACE, part, 7, digest_of(PAYLOADS[part]), attempt=1))
    assert state.lead is not None
    assert state.lead.disbelieved == {auditor}
    assert state.exchange is not None
    assert state.exchange.means[part].attempt == 0
    silent, part, auditor = disputed()
    silent, effects = run(silent, Tick(4.9), Tick(5.5))
    assert shows_in(effects) == []
    assert silent.lead is not None
    assert silent.lead.disbelieved == {auditor}


@pytest.mark.parametrize("spoil", ["sender", "contributors", "part", "signature", "twice"])
def test_only_the_auditor_of_a_part_is_heard_about_it(spoil: str) -> None:
    """Once, and about the contributors that its reducer signed."""
    state, part, auditor = audited()
    state, _ = run(state, mean_of(state, part, 7))
    honest = verdict_of(auditor, part, digest_of(b"other"))
    message = honest.message
    assert isinstance(message, MeanData)
    stranger = next(name for name in NAMES if name != auditor)
    refused: dict[str, list[Input]] = {
        "sender": [verdict_of(stranger, part, digest_of(b"other"))],
        "contributors": [verdict_of(auditor, part, digest_of(b"other"), contributors=3)],
        "part": [verdict_of(auditor, 65_535, digest_of(b"other"))],
        "signature": [replace(honest, message=replace(message, signature=b"s" * 64))],
        "twice": [verdict_of(auditor, part, digest_of(PAYLOADS[part])), honest],
    }
    assert shows_in(run(state, *refused[spoil])[1]) == []
    assert shows_in(run(state, honest)[1]) == [((auditor,), part)]


def auditing() -> tuple[State, int, list[object]]:
    """The auditor of that part with every byte, when the TABLE has come."""
    leader, part, auditor = audited()
    assert leader.exchange is not None
    again = replace(leader.exchange.again, received={part: 0}, exactly={part: 7})
    exchange = replace(leader.exchange, received={}, again=again)
    state = replace(leader, rules=rules(auditor), lead=None, exchange=exchange, header=header(auditor))
    state, effects = run(state, *(part_from(name, part, attempt=1) for name in NAMES))
    return state, part, effects


def test_an_auditor_says_what_it_counted_and_shows_it_once() -> None:
    """Its digest goes to the coordinator without bytes; the bytes only if the coordinator asks."""
    state, part, effects = auditing()
    (reduce,) = (item for item in effects if isinstance(item, ReducePart))
    assert (reduce.part, reduce.contributors, reduce.attempt) == (part, 7, 1)
    state, effects = run(state, PartReduced(4.6, PLACE, part, 7, digest_of(b"true"), attempt=1))
    (verdict,) = (item for item in effects if isinstance(item, Send))
    assert verdict.to == (LEADER,)
    assert isinstance(verdict.message, MeanData)
    assert (verdict.message.digest, verdict.message.payload) == (digest_of(b"true"), b"")
    stranger = next(name for name in OTHERS if name != state.rules.me)
    assert run(state, Received(4.7, stranger, ShowInputs(PLACE, part)))[1] == []
    assert run(state, Received(4.7, LEADER, ShowInputs(PLACE, part + 1)))[1] == []
    _, effects = run(state, *[Received(4.7, LEADER, ShowInputs(PLACE, part))] * 3)
    assert effects == [SendInputs(LEADER, PLACE, part, NAMES)]


def test_an_auditor_that_lacks_a_part_says_nothing() -> None:
    """It cannot judge."""
    state, part, _ = auditing()
    assert state.exchange is not None
    fresh = replace(state.exchange.again, received={part: 0}, started=frozenset())
    state = replace(state, exchange=replace(state.exchange, again=fresh))
    _, effects = run(state, *(part_from(name, part, attempt=1) for name in NAMES[:2]), Tick(9.0))
    assert not any(isinstance(item, ReducePart | SendParts) for item in effects)
