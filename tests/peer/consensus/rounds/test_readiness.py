"""A peer that comes late: it replays what was decided from whoever gives it, and counts once it is in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import (
    Blocks,
    GetBlocks,
    GetObjects,
    Heartbeat,
    Message,
    ObjectData,
    Prepare,
    Promise,
    VoteCast,
    decode,
)
from peer.consensus.rounds.block_sync import ASK_EVERY_S, REFUSE_S
from peer.consensus.rounds.interface import (
    Effect,
    Input,
    ObjectStored,
    Received,
    Send,
    StoreObject,
    Submitted,
    Tell,
    Tick,
)
from peer.consensus.rounds.machine import begin, step
from peer.consensus.rounds.state import State
from peer.consensus.rounds.transition import Transition
from peer.planning.simulate.memory_network import LinkModel
from peer.schema.events import AlertRaised, PeerStateChanged, TransferProgressed
from peer.testing.memory_peer import LogicalPeer
from peer.testing.memory_swarm import World
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    PAYLOADS,
    block,
    header,
    owner,
    place,
    rules,
    state_of,
    update,
)

BITS, OTHER_BITS = digest_of(b"bits"), digest_of(b"other bits")
LATE_S = 200.0
"""Some twenty-five rounds."""
FRAMES: dict[int, type[Message]] = {kind.code: kind for kind in (GetObjects, ObjectData, Blocks, Promise)}


def old_world(seed: int = 1, founders: int = 3, link: LinkModel | None = None, seconds: float = LATE_S) -> World:
    """A world that has been at it for so long."""
    world = World(seed, founders, link)
    world.scheduler.run_until(seconds)
    return world


def run_until(world: World, done: Callable[[], bool], within_s: float) -> float:
    """Seconds until `done`; fails when it takes longer than `within_s`."""
    started = world.now
    while not done():
        assert world.now - started < within_s, f"not within {within_s} s"
        world.scheduler.run_until(world.now + 0.05)
    return world.now - started


def spy(world: World, on_frame: Callable[[str, str, Message], None]) -> None:
    """Show every frame of FRAMES that is sent."""

    def look(sender: str, receiver: str, frame: bytes) -> bool:
        if frame[1] in FRAMES:
            on_frame(sender, receiver, decode(frame))
        return False

    world.network.drops = look


def rounds_with(peer: LogicalPeer) -> list[int]:
    """The rounds whose group this peer is in."""
    return [
        block.update.round
        for block in peer.disk.blocks
        if peer.name in {header.peer for header in block.update.members}
    ]


def said(peer: LogicalPeer, state: str) -> list[str]:
    return [event.why for event in peer.reports if isinstance(event, PeerStateChanged) and event.state == state]


# ---- in a swarm ----


@pytest.mark.slow
def test_a_joiner_overtakes_a_run_of_many_rounds() -> None:
    """Fifty rounds in three seconds of a network with 10 to 50 ms: no pause between two blocks or two answers."""
    world = old_world(seconds=400.0)
    behind = world.peers[0].disk.head.round
    assert behind >= 40
    late = world.join()
    assert run_until(world, lambda: late.driver.state.in_step, 10.0) < 6.0
    assert late.disk.head.round >= behind
    world.check()


@pytest.mark.slow
def test_a_joiner_takes_part_in_the_second_round_after_its_arrival() -> None:
    """Whatever moment it arrives at; as a member of one round it votes in the next."""
    for seed in range(2):
        world = old_world(seed, 4, seconds=60.0 + seed)
        arrival = max(peer.disk.head.round for peer in world.peers)
        late = world.join()
        world.scheduler.run_until(world.now + 60.0)
        assert rounds_with(late)[0] <= arrival + 2
        assert late.name in world.peers[0].driver.state.head.electorate
        world.check()


@pytest.mark.slow
def test_a_joiner_says_how_far_it_is() -> None:
    """At most once a second, in words and bytes; at the end that it is in step."""
    world = old_world(link=LinkModel(delay_s=(0.5, 1.0)))
    late = world.join()
    run_until(world, lambda: late.driver.state.in_step, 60.0)
    ready = said(late, "READY")
    assert len(ready) == 1
    assert ready[0].startswith(f"in step at round {late.disk.head.round} after ")
    words = said(late, "SYNCING")
    assert any(" of " in why and " from p" in why for why in words), words
    transfers = [event for event in late.reports if isinstance(event, TransferProgressed)]
    assert [event.bytes_done for event in transfers] == sorted(event.bytes_done for event in transfers)
    assert all(event.bytes_done <= event.bytes_total for event in transfers)
    different = {part: late.disk.objects[part] for block in late.disk.blocks for part in block.update.parts}
    assert transfers[-1].bytes_done == transfers[-1].bytes_total
    assert transfers[-1].bytes_done == pytest.approx(sum(map(len, different.values())), rel=0.05)
    assert len(words) <= world.now - LATE_S + 1


@pytest.mark.slow
def test_nobody_who_stayed_in_step_is_told_so() -> None:
    """A peer that misses a single commit makes no noise."""
    world = old_world(link=LinkModel(delay_s=(0.01, 0.3), loss=0.1))
    assert all(said(peer, "READY") == said(peer, "SYNCING") == [] for peer in world.peers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_nothing_of_a_joiner_counts_before_it_is_in_step(seed: int) -> None:
    """Over a bad network too, it promises nothing and so is in no group."""
    world = old_world(seed, 3, LinkModel(delay_s=(0.01, 0.3), loss=0.1, duplication=0.05))
    late = world.join()

    def look(sender: str, receiver: str, message: Message) -> None:
        if sender == late.name and isinstance(message, Promise):
            state = late.driver.state
            assert state.in_step or late.name in state.head.electorate

    spy(world, look)
    world.scheduler.run_until(LATE_S + 120.0)
    assert rounds_with(late)
    world.check()


@pytest.mark.slow
def test_a_joiner_with_other_bits_does_not_take_part() -> None:
    """It says so, with both digests, follows the chain, trains on nothing and is in no group; the others go on."""
    world = old_world()
    late = world.join()
    late.state_digest = lambda: OTHER_BITS  # type: ignore[method-assign]
    world.scheduler.run_until(LATE_S + 60.0)
    alerts = [event for event in late.reports if isinstance(event, AlertRaised) and event.code == "STATE"]
    assert alerts[0].level == "error"
    assert OTHER_BITS.hex()[:12] in alerts[0].text
    assert world.peers[0].state_digest().hex()[:12] in " ".join(event.text for event in alerts)
    assert not late.driver.state.in_step
    assert late.disk.head.round >= world.peers[0].disk.head.round - 1
    assert rounds_with(late) == []
    assert not late.disk.contributions


@pytest.mark.slow
def test_a_joiner_is_in_step_though_no_round_can_commit() -> None:
    """Two of three voters are away: it catches up from the third, compares bits with it, trains, and waits."""
    world = old_world()
    for peer in world.peers[1:]:
        peer.crash()
    world.scheduler.run_until(LATE_S + 30.0)
    head = world.peers[0].disk.head
    late = world.join()
    run_until(world, lambda: late.driver.state.in_step, 20.0)
    assert late.disk.head.round == head.round
    for peer in world.peers[1:3]:
        peer.boot()
    world.scheduler.run_until(world.now + 40.0)
    assert rounds_with(late)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 20])
def test_the_source_may_die_in_the_middle(blocks: int) -> None:
    """The one that gave the blocks so far is gone: the others are asked within seconds."""
    world = old_world(founders=4)
    late = world.join()
    run_until(world, lambda: len(late.disk.blocks) >= blocks, 10.0)
    source = next(peer for peer in world.peers if peer.name == late.driver.state.block_source)
    source.crash()
    assert run_until(world, lambda: late.driver.state.in_step, 20.0) < 10.0
    world.check()


@pytest.mark.slow
def test_a_source_that_forges_is_left_for_an_honest_one() -> None:
    """p0 gives blocks with an inflated weight and bytes of its own: the joiner says so and gets the true ones."""
    world = old_world()
    late = world.join()
    forged = 0

    def forge(sender: str, receiver: str, frame: bytes) -> bool:
        nonlocal forged
        if (sender, receiver) != ("p0", late.name) or frame[1] not in (Blocks.code, ObjectData.code):
            return False
        message, lie = decode(frame), ObjectData(b"", b"8 forged")
        if isinstance(message, Blocks):
            first, *rest = message.blocks
            lie = Blocks((replace(first, update=replace(first.update, weight=10**6)), *rest))  # type: ignore[assignment]
        forged += 1
        world.scheduler.call_in(0.001, late.driver.deliver, Received(world.now, sender, lie))
        return True

    world.network.drops = forge
    assert run_until(world, lambda: late.driver.state.in_step, 20.0) < 12.0
    assert forged
    texts = [event.text for event in late.reports if isinstance(event, AlertRaised)]
    assert any("p0" in text and "certificate" in text for text in texts)
    assert not any("p1" in text or "p2" in text for text in texts)
    world.check()


@pytest.mark.slow
def test_a_joiner_that_is_killed_goes_on_where_it_was() -> None:
    """What is in the chain on its disk is not fetched again."""
    world = old_world()
    late = world.join()
    run_until(world, lambda: len(late.disk.blocks) >= 20, 10.0)
    late.crash()
    have = {part for block in late.disk.blocks for part in block.update.parts}
    length = len(late.disk.blocks)
    world.scheduler.run_until(world.now + 5.0)
    asked: set[bytes] = set()
    chains: list[int] = []

    def look(sender: str, receiver: str, message: Message) -> None:
        if sender == late.name and isinstance(message, GetObjects):
            asked.update(message.digests)
        if receiver == late.name and isinstance(message, Blocks) and message.blocks:
            chains.append(message.blocks[0].update.round)

    spy(world, look)
    late.boot()
    run_until(world, lambda: late.driver.state.in_step, 20.0)
    later = {part for block in late.disk.blocks[length:] for part in block.update.parts}
    assert asked
    assert not asked & (have - later)
    assert min(chains) == length + 1
    world.check()


@pytest.mark.slow
def test_a_peer_that_slept_through_many_rounds_is_a_newcomer_again() -> None:
    """It does not train on an anchor that is long past, and says when it is in step."""
    world = World(3, 4)
    world.scheduler.run_until(30.0)
    sleeper = world.peers[0]
    sleeper.stall(150.0)
    world.scheduler.run_until(181.0)
    run_until(world, lambda: sleeper.driver.state.in_step and len(sleeper.disk.blocks) > 10, 20.0)
    assert len(said(sleeper, "READY")) == 1
    world.scheduler.run_until(world.now + 40.0)
    assert rounds_with(sleeper)[-1] > 15
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_peer_that_slept_asks_for_every_part_once(seed: int) -> None:
    """It wakes to the old proposals of its round and to the chain: what it fetches for one is not asked for again."""
    world = World(seed, 3)
    world.scheduler.run_until(30.0 + seed)
    sleeper, asked = world.peers[0], list[bytes]()

    def on_frame(sender: str, receiver: str, message: Message) -> None:
        if sender == sleeper.name and isinstance(message, GetObjects):
            asked.extend(message.digests)

    spy(world, on_frame)
    sleeper.stall(30.0)
    run_until(world, lambda: bool(asked) and sleeper.driver.state.in_step, 60.0)
    assert len(asked) == len(set(asked))


# ---- one rule at a time ----


def head_of(round: int = 0, state: bytes = BITS, anchor: bytes = HEAD.anchor) -> Heartbeat:
    return Heartbeat(anchor, round, 0, state, True, 1, 1, False)


def joiner(**changes: object) -> State:
    """A newcomer at HEAD that has computed it."""
    return replace(begin(rules("x"), HEAD, 0.0), state_digest=BITS, **changes)  # type: ignore[arg-type]


def sent(effects: tuple[Effect, ...], kind: type[Message]) -> list[tuple[tuple[str, ...], Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def alerts(effects: tuple[Effect, ...]) -> list[AlertRaised]:
    return [e.event for e in effects if isinstance(e, Tell) and isinstance(e.event, AlertRaised)]


def test_a_newcomer_answers_no_coordinator_until_it_is_in_step() -> None:
    """One voter with the same bits at the same anchor is enough to begin."""
    asked = Received(4.0, owner(), Prepare(place()))
    state, effects = step(joiner(), asked)
    assert not sent(effects, Promise)
    state, _ = step(state, Received(1.0, "p1", head_of()))
    assert state.in_step
    state, effects = step(state, asked)
    assert sent(effects, Promise)


def test_a_voter_answers_before_it_has_compared_its_bits() -> None:
    """A vote needs the bytes, not the tensors: a swarm that restarts as a whole must be able to go on."""
    voter = next(name for name in NAMES if name != owner())
    state = replace(state_of(voter), in_step=False)
    _, effects = step(state, Received(4.0, owner(), Prepare(place())))
    assert sent(effects, Promise)


def test_bits_count_only_at_my_anchor_and_from_voters() -> None:
    """A stranger's word, an older HEAD or an empty digest leaves a newcomer where it is."""
    for sender, head in (
        ("y", head_of()), ("p1", head_of(anchor=digest_of(b"old"))), ("p1", head_of(state=b"")),
    ):  # fmt: skip
        state, _ = step(joiner(), Received(1.0, sender, head))
        assert not state.in_step


def test_one_voter_that_miscomputes_keeps_nobody_out() -> None:
    """Two against one, in either order."""
    state, effects = step(joiner(), Received(1.0, "p0", head_of(state=OTHER_BITS)))
    assert not state.in_step
    assert [alert.code for alert in alerts(effects)] == ["STATE"]
    state, _ = step(state, Received(2.0, "p1", head_of()))
    assert state.in_step


def test_a_newcomer_asks_the_voters_for_their_bits() -> None:
    """They answer with their HEAD, not only when their time to say it comes."""
    _, effects = step(joiner(), Tick(1.0))
    assert {to for to, _ in sent(effects, GetBlocks)} == {("p0",), ("p1",), ("p2",)}
    voter = replace(state_of("p0"), state_digest=BITS)
    voter, effects = step(voter, Received(1.0, "x", GetBlocks((HEAD.anchor,))))
    assert [to for to, message in sent(effects, Heartbeat)] == [("x",)]
    _, effects = step(voter, Received(1.1, "x", GetBlocks((HEAD.anchor,))))
    assert not sent(effects, Heartbeat)


def test_a_coordinator_asks_only_newcomers_with_the_same_bits() -> None:
    """Who has not computed the anchor yet, or computed something else, is not waited for."""
    later = replace(HEAD, round=1)
    state = replace(state_of(later.leader(0), head=later), state_digest=BITS)
    for peer, bits in (("x", BITS), ("y", b""), ("z", OTHER_BITS)):
        state, _ = step(state, Received(1.0, peer, head_of(state=bits)))
    state, _ = run(state, Submitted(1.5, header(later.leader(0))))
    state, effects = step(state, Tick(1.5 + state.rules.gather_s))
    ((to, _),) = sent(effects, Prepare)
    assert "x" in to
    assert not {"y", "z"} & set(to)


def behind(*, source: str = "p1", blocks: tuple[Block, ...] | None = None) -> tuple[State, tuple[Effect, ...]]:
    """A newcomer that knows p1 and p2 to be ahead and has got a chain from `source`."""
    state = joiner()
    for peer in ("p1", "p2"):
        state, _ = step(state, Received(1.0, peer, head_of(1, anchor=digest_of(b"later"))))
    return step(state, Received(3.1, source, Blocks(blocks or (block(),))))


FORGED = {
    "votes of a minority": lambda: block(voters=NAMES[:1]),
    "a vote for another update": lambda: Block(update(time=1), block().votes),
    "a forged signature": lambda: Block(update(), tuple(replace(v, signature=b"\x01" * 64) for v in block().votes)),
    "an update that may not follow": lambda: block(update(weights=((1, 1, 1),))),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_block_is_refused_and_another_peer_is_asked(what: str) -> None:
    """It says who sent it and why; nothing is taken from that peer for a while, and the next is asked at once."""
    state, effects = behind(blocks=(FORGED[what](),))
    assert state.blocks == ()
    (alert,) = alerts(effects)
    assert alert.code == "CHAIN"
    assert "p1" in alert.text
    assert "certificate" in alert.text
    asked = [to for to, _ in sent(effects, GetBlocks)]
    assert asked[0] == ("p2",)
    assert ("p1",) not in asked
    state, effects = step(state, Received(3.2, "p1", Blocks((block(),))))
    assert state.blocks == ()
    state, effects = step(state, Received(3.3, "p2", Blocks((block(),))))
    assert len(state.blocks) == 1
    assert next(to for to, _ in sent(effects, GetObjects)) == ("p2",)
    now = 3.3
    while now < 3.1 + REFUSE_S:
        now += 0.5
        state, effects = step(state, Tick(now))
        assert ("p1",) not in [to for to, _ in sent(effects, GetObjects)]
    state, _ = step(state, Tick(now + 1.0))
    assert not state.refused_sources


def test_good_blocks_before_a_forged_one_are_taken() -> None:
    """The honest part of an answer is certified by itself."""
    state, effects = behind(blocks=(block(), block(update(parent=HEAD.after(update()).anchor, round=2))))
    assert [item.update.round for item in state.blocks] == [1]
    assert [alert.code for alert in alerts(effects)] == ["CHAIN"]


def test_forged_bytes_are_not_stored_and_another_source_is_asked() -> None:
    """They do not have the digest; the source that should have sent the right ones counts as silent."""
    state, effects = behind()
    asked = [to for to, _ in sent(effects, GetObjects)]
    assert asked == [("p1",), ("p2",)]
    state, effects = step(state, Received(3.2, "p1", ObjectData(b"", b"8 forged")))
    assert not [e for e in effects if isinstance(e, StoreObject)]
    until = state.wanted.asked[0].until
    assert until < 3.1 + 3.0
    for payload in PAYLOADS:
        if digest_of(payload) in state.wanted.asked[1].digests:
            state, _ = step(state, ObjectStored(3.3, digest_of(payload), len(payload)))
    state, effects = step(state, Tick(until))
    assert ("p2",) in [to for to, _ in sent(effects, GetObjects)]


def test_parts_are_asked_of_two_sources_each_for_something_else() -> None:
    """What one gives is not asked of the other."""
    _, effects = behind()
    digests = [message.digests for _, message in sent(effects, GetObjects)]  # type: ignore[attr-defined]
    assert len(digests) == 2
    assert not set(digests[0]) & set(digests[1])
    assert {*digests[0], *digests[1]} == {digest_of(payload) for payload in PAYLOADS}


def test_what_is_under_way_is_not_asked_for_again() -> None:
    """Though something else is needed more urgently meanwhile: what comes of it then is taken."""
    first, *others = (digest_of(payload) for payload in PAYLOADS)
    turn = Transition(state_of("p0"), 1.0)
    for digests in ([first, *others], [first], [digest_of(b"an update")], [first, *others]):
        turn.fetch(digests, ("p1", "p2"), lanes=2)
    asked = Counter(digest for _, message in sent(tuple(turn.effects), GetObjects) for digest in message.digests)  # type: ignore[attr-defined]
    assert asked == dict.fromkeys([first, *others, digest_of(b"an update")], 1)
    turn.fetch([first], ("p1", "p2"))
    _, effects = step(turn.state, Received(1.2, "p2", ObjectData(b"", PAYLOADS[1])))
    assert StoreObject(others[0], PAYLOADS[1]) in effects


def test_a_vote_that_comes_after_the_blocks_has_nothing_asked_for_twice() -> None:
    """Who stood still finds in its streams a vote, then the blocks of three rounds, then the vote that decides the
    first of these rounds for itself."""
    world = World(1, 3)
    world.scheduler.run_until(30.0)
    *others, late = world.peers
    start, votes = late.disk.head, {}

    def cut_off(sender: str, receiver: str, frame: bytes) -> bool:
        message = decode(frame)
        if receiver == late.name and isinstance(message, VoteCast) and message.place.anchor == start.anchor:
            votes[sender] = message
        return late.name in (sender, receiver)

    world.network.drops = cut_off
    run_until(world, lambda: min(peer.disk.head.round for peer in others) == start.round + 3, 60.0)
    blocks = others[0].disk.blocks_after(start.anchor)
    first, last = votes.items()
    state, asked = late.driver.state, Counter[bytes]()
    found = [first, (others[0].name, Blocks(blocks)), last]
    events = [Received(world.now, sender, message) for sender, message in found]
    sizes = {part: len(others[0].disk.objects[part]) for block in blocks for part in block.update.parts}
    held = [ObjectStored(world.now, part, size) for part, size in sizes.items()]
    for event in (*events, *held):
        state, effects = step(state, event)
        asked.update(digest for _, message in sent(effects, GetObjects) for digest in message.digests)  # type: ignore[attr-defined]
    assert state.head.round == start.round + 3
    assert set(asked.values()) == {1}


def test_of_several_branches_apart_each_is_asked_in_its_turn() -> None:
    """Two with many rounds and no answer that helps do not keep the heaviest from being asked."""
    state, asked = state_of("p0", in_step=True), set[str]()
    said = {"p1": (20, 30), "x": (19, 25), "y": (18, 25), "p2": (5, 99)}
    for second in range(10):
        events: list[Input] = [Tick(float(second))]
        for name, (round, weight) in said.items() if second % 3 == 0 else ():
            head = Heartbeat(digest_of(name.encode()), round, weight, b"", True, 1, 1, False)
            events.insert(0, Received(float(second), name, head))
        for event in events:
            state, effects = step(state, event)
            sent = [effect for effect in effects if isinstance(effect, Send)]
            asked |= {effect.to[0] for effect in sent if isinstance(effect.message, GetBlocks)}
    assert asked == set(said)


def test_the_same_question_is_answered_once_in_a_while_unless_the_asker_got_on() -> None:
    """A flood of GET costs little; a peer that has applied what it was given does not wait."""
    later = HEAD.after(update())
    state = replace(
        state_of("p0"), head=replace(later, round=2, anchor=digest_of(b"newest")),
        ancestors={HEAD.anchor: 0, later.anchor: 1, digest_of(b"newest"): 2},
    )  # fmt: skip

    def answered(now: float, anchor: bytes) -> bool:
        nonlocal state
        state, effects = step(state, Received(now, "x", GetBlocks((anchor,))))
        return bool(effects)

    assert answered(1.0, HEAD.anchor)
    assert not answered(1.1, HEAD.anchor)
    assert answered(1.2, later.anchor)
    assert not answered(1.3, later.anchor)
    assert not answered(1.3, HEAD.anchor)
    assert answered(1.2 + ASK_EVERY_S, HEAD.anchor)


def test_a_peer_that_is_outvoted_about_its_bits_takes_part_no_more() -> None:
    """In step until then: two voters say the same other bits at its anchor. One alone would be no reason."""
    state = replace(state_of("p0"), head=replace(HEAD, round=1), in_step=True, state_digest=b"m" * 32)
    other = Heartbeat(HEAD.anchor, 1, 0, b"o" * 32, False, 0, 0, False)
    state, effects = step(state, Received(1.0, "p1", other))
    assert state.in_step
    state, effects = step(state, Received(2.0, "p2", other))
    assert not state.in_step
    assert "STATE" in [alert.code for alert in alerts(effects)]
