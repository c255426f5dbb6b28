"""Peers that lost the majority go on without it, if the run allows that, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block, Tenure, Update
from peer.consensus.protocol.electorate import coordinator, instance_of
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.membership import VOTES_AFTER
from peer.consensus.protocol.messages import Blocks, Heartbeat, Nack, Prepare, Promise
from peer.consensus.rounds.interface import Leaving, Received, Send, Tell, Tick
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.planning.simulate.memory_store import ModelKeys
from peer.schema.events import AlertRaised
from peer.testing.memory_peer import LogicalPeer
from tests.model_swarm import FaultyWorld
from tests.peer.consensus.rounds.build import HEAD, NAMES, header, place, rules, state_of, update, vote

TAKEOVER_S = 12.0


def world_of(peers: int, seed: int = 1, takeover_s: float = TAKEOVER_S) -> FaultyWorld:
    """A healthy swarm some rounds after its start."""
    world = FaultyWorld(seed, peers, takeover_s=takeover_s)
    world.scheduler.run_until(20.0)
    return world


def rounds_of(world: FaultyWorld) -> list[int]:
    return [peer.disk.head.round for peer in world.peers]


def alerts(peer: LogicalPeer, code: str) -> list[str]:
    return [event.text for event in peer.reports if isinstance(event, AlertRaised) and event.code == code]


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "gone"), [(2, 1), (3, 2), (4, 3), (5, 3), (7, 5)])
def test_the_rest_goes_on_when_the_majority_has_died(peers: int, gone: int) -> None:
    """It says so once, the blocks are weak at first, and from then on it decides by itself."""
    world = world_of(peers)
    for peer in world.peers[:gone]:
        peer.crash()
    at_death = max(rounds_of(world))
    world.scheduler.run_until(20.0 + 2 * TAKEOVER_S + 40.0)
    rest = world.peers[gone:]
    assert all(peer.disk.head.round >= at_death + 3 for peer in rest), rounds_of(world)
    assert any(not block.firm for block in rest[0].disk.blocks)
    assert rest[0].disk.blocks[-1].firm
    assert rest[0].disk.head.electorate == tuple(peer.name for peer in rest)
    assert sum(len(alerts(peer, "TAKEOVER")) for peer in rest) >= 1
    world.check()


def test_the_majority_goes_on_at_once_and_the_minority_waits_its_time() -> None:
    """Of five peers two are cut off: three never wait, two wait `takeover_s`, and not for less."""
    world = world_of(5)
    world.network.partition([world.peers[0].name, world.peers[1].name])
    before = rounds_of(world)
    world.scheduler.run_until(20.0 + 0.9 * TAKEOVER_S)
    assert rounds_of(world)[0] <= before[0] + 1
    assert not alerts(world.peers[0], "TAKEOVER")
    world.scheduler.run_until(20.0 + 2 * TAKEOVER_S + 20.0)
    assert not any(alerts(peer, "TAKEOVER") for peer in world.peers[2:])
    assert rounds_of(world)[0] > before[0] + 1
    assert all(block.firm for block in world.peers[4].disk.blocks)


def test_without_takeover_a_lost_majority_stops_the_run() -> None:
    """`takeover_s = 0`: rather no round than a fork."""
    world = world_of(3, takeover_s=0.0)
    for peer in world.peers[:2]:
        peer.crash()
    world.scheduler.run_until(20.0 + TAKEOVER_S)
    before = rounds_of(world)[2]
    world.scheduler.run_until(200.0)
    assert rounds_of(world)[2] == before


def test_of_two_peers_one_leaves_politely_and_the_other_goes_on() -> None:
    """It waits `takeover_s` once and is its own electorate from then on (n = 2)."""
    world = world_of(2)
    leaver, other = world.peers
    leaver.driver.deliver(Leaving(world.now))
    world.scheduler.run_until(21.0)
    leaver.crash()
    world.scheduler.run_until(20.0 + 60.0)
    assert other.disk.head.electorate == (other.name,)
    assert other.disk.head.round > leaver.disk.head.round


def test_what_the_lost_majority_may_have_decided_is_carried_through() -> None:
    """A voter that had accepted an update tells those who take over, and they finish that one: no fork."""
    update = b"u" * 32
    state, electorate = _stuck(accepted=(0, update)), ("p0", "x")
    _, effects = step(state, Received(100.0, *_prepare(electorate)))
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    promises = [message for message in sent if isinstance(message, Promise)]
    assert [(promise.accepted, promise.other) for promise in promises] == [(None, (0, update))]


def test_what_they_finish_keeps_its_date_and_is_taken_all_the_same() -> None:
    """It was proposed before anybody had to wait, and a majority of the electorate pledged itself to it."""
    patient = replace(rules("x"), takeover_s=60.0)
    assert not validation.check_block(patient, HEAD, _taken_over(update(time=1)))
    alone = update(members=(header("p0"),), contributors=(1, 1, 1), coordinator="p0", time=1)
    assert validation.check_block(patient, HEAD, _taken_over(alone))
    assert not validation.check_block(patient, HEAD, _taken_over(replace(alone, time=60)))


def test_peers_that_have_not_earned_a_vote_take_nothing_over() -> None:
    """Names cost nothing: a block that they decide among themselves is refused, whenever it is dated."""
    waited = replace(rules("p0"), takeover_s=60.0)
    block = replace(_taken_over(update(time=100)), electorate=("x", "y"))
    assert validation.check_block(waited, HEAD, block) == "it is decided by peers that have not earned a vote"


def test_what_is_said_to_be_taken_over_is_not_taken_before_the_time() -> None:
    """By the clock of whoever hears it: a coordinator that holds all headers could date as it likes."""
    early = _taken_over(update(time=1))

    def queued(now: float) -> int:
        state = state_of("x", rules=replace(rules("x"), takeover_s=60.0))
        state, _ = step(state, Received(now, "p0", Blocks((early,))))
        return len(state.blocks)

    assert (queued(30.0), queued(56.0)) == (0, 1)


def test_who_sees_a_majority_at_work_takes_over_from_nobody() -> None:
    """Where rounds are longer than `takeover_s` one voter could decide alone; here p0 did, and p2 looks at that."""
    alone = _taken_over(update(members=(header("p0"),), contributors=(1, 1, 1), coordinator="p0", time=60))

    def queued(now: float, *here: str, ready_s: float = 0.0) -> int:
        state = state_of("p2", rules=replace(rules("p2"), takeover_s=60.0), in_step=True, header=header("p2"))
        said = Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False)
        state = replace(state, heard=dict.fromkeys(here, (said, now - 1)), submitted_at=now - ready_s)
        state, _ = step(state, Received(now, "p0", Blocks((alone,))))
        return len(state.blocks)

    assert queued(100.0, "p1") == 0, "two of three train: they will decide"
    assert queued(100.0) == 1, "nobody else is here"
    assert queued(1000.0, "p1", ready_s=170.0) == 0
    assert queued(1000.0, "p1", ready_s=190.0) == 1, "those who are here get nowhere"


def test_a_peer_follows_a_takeover_only_when_it_is_stuck_itself() -> None:
    """And only if it is one of those who take over, called by whose turn it is, as the chain's electorate names it."""
    electorate = ("p0", "x")
    sender, message = _prepare(electorate)
    stuck = _stuck()
    assert _answers(stuck, sender, message)
    assert not _answers(replace(stuck, submitted_at=95.0), sender, message), "it has not waited long enough"
    assert not _answers(replace(stuck, header=None), sender, message), "it is not ready"
    assert not _answers(replace(stuck, rules=replace(stuck.rules, takeover_s=0.0)), sender, message), "not in this run"
    assert not _answers(_hearing(stuck, "p2", "x"), sender, message), "it hears a majority"
    assert not _answers(replace(stuck, heard={}), sender, message), "it hears nobody of them: names cost nothing"
    assert not _answers(stuck, "p1", message), "it is not the sender's turn"
    assert not _answers(stuck, sender, replace(message, electorate=("p0", "y"))), "the name is of another instance"
    assert not _answers(stuck, *_prepare(("x", "y"))), "it is not among them"
    assert not _answers(_stuck(rounds=VOTES_AFTER - 1), sender, message), "who calls it has not earned a vote"


def test_a_promise_to_the_chains_own_electorate_stays_a_promise() -> None:
    """A peer that took part in a takeover and comes back has forgotten nothing."""
    state = _stuck()
    state = replace(state, acceptor=replace(state.acceptor, promised=7))
    state, _ = step(state, Received(100.0, *_prepare(("p0", "x"))))
    assert state.weak
    state = _hearing(state, *NAMES)
    late = place(next(ballot for ballot in range(7) if coordinator(HEAD.anchor, NAMES, ballot) != "p0"))
    state, effects = step(state, Received(101.0, coordinator(HEAD.anchor, NAMES, late.ballot), Prepare(late)))
    assert not state.weak
    assert state.acceptor.promised == 7
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [Nack]


def test_a_voter_left_alone_at_a_restart_trains_on() -> None:
    """Nobody is there to compare bits with: after `takeover_s` it counts as in step, since there is no other truth."""
    state = replace(
        state_of("p0"), rules=replace(rules("p0"), takeover_s=30.0), in_step=False, head=replace(HEAD, round=1),
        state_digest=b"s" * 32,
    )  # fmt: skip
    state, _ = step(state, Tick(1.0))
    state, _ = step(state, Tick(25.0))
    assert not state.in_step
    state, effects = step(state, Tick(32.0))
    assert state.in_step
    assert any(isinstance(effect, Tell) for effect in effects)


def _stuck(accepted: tuple[int, bytes] | None = None, rounds: int = VOTES_AFTER) -> State:
    """p0, ready at 0 s, hearing only x, whose work was accepted in so many rounds; 60 s until a takeover."""
    head = replace(HEAD, tenures=(Tenure("x", rounds, 0),))
    state = state_of("p0", header=header("p0"), in_step=True, head=head)
    acceptor = replace(state.acceptor, promised=0 if accepted else -1, accepted=accepted)
    return _hearing(replace(state, rules=replace(rules("p0"), takeover_s=60.0), acceptor=acceptor), "x")


def _taken_over(item: Update) -> Block:
    """The block that p0 makes of an update alone."""
    alone = replace(place(), instance=instance_of(HEAD.anchor, ("p0",)))
    signature = ModelKeys("p0").sign("propose", pack((alone.packed(), item.digest)))
    return Block(item, (vote("p0", item, instance=alone.instance, proposal_signature=signature),), ("p0",))


def _prepare(electorate: tuple[str, ...]) -> tuple[str, Prepare]:
    """One who may call `electorate` together, other than p0, and its message."""
    ballot = next(ballot for ballot in range(2) if coordinator(HEAD.anchor, electorate, ballot) != "p0")
    where = replace(place(ballot), instance=instance_of(HEAD.anchor, electorate))
    return coordinator(HEAD.anchor, electorate, ballot), Prepare(where, electorate)


def _hearing(state: State, *peers: str) -> State:
    said = Heartbeat(HEAD.anchor, 0, 0, b"", True, 1, 1, False, "", 99)
    return replace(state, heard={peer: (said, 99.5) for peer in peers if peer != "p0"})


def _answers(state: State, sender: str, message: Prepare) -> bool:
    _, effects = step(state, Received(100.0, sender, message))
    return any(isinstance(effect, Send) and isinstance(effect.message, Promise) for effect in effects)


def test_those_who_took_over_return_to_the_chains_electorate_when_all_are_back() -> None:
    """It is the chain's own instance again, not a takeover by the same peers, and nobody is told of a loss."""
    state, _ = step(_stuck(), Received(100.0, *_prepare(("p0", "x"))))
    assert state.weak
    said = Heartbeat(HEAD.anchor, 0, 0, b"", True, 1, 1, False, "", 999)
    state = replace(state, heard={peer: (said, 299.0) for peer in NAMES if peer != "p0"}, last_progress_at=100.0)
    state, effects = step(state, Tick(300.0))
    sent = {effect.message for effect in effects if isinstance(effect, Send)}
    (prepare,) = (message for message in sent if isinstance(message, Prepare))
    assert not state.weak
    assert prepare.place.instance == HEAD.instance
    assert prepare.electorate == ()
    events = [effect.event for effect in effects if isinstance(effect, Tell)]
    assert not any(isinstance(event, AlertRaised) for event in events)
