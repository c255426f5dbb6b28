"""Who watches believes what a quorum signed, and tells of each round what its members tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol.block import WEIGHT_ONE, Block, Vote
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.layout import cut
from peer.consensus.protocol.messages import BallotId
from peer.node.store.run_directory import ChainBase
from peer.schema.events import Event, PenaltyImposed, RoundCommitted
from peer.testing.memory_peer import PARTS, ModelKeys
from peer.testing.memory_swarm import World
from peer.tools.watch.verified_chain import Taken, WatchedChain, commit_events
from tests.peer.consensus.rounds.build import HEAD, block, header, rules, update

ROUNDS = 6


@pytest.fixture(scope="module")
def made() -> World:
    """Three peers that have made some rounds."""
    world = World(seed=3, peers=3)
    until(world, ROUNDS)
    return world


def until(world: World, round: int) -> None:
    """Let time pass until somebody is there."""
    while max(peer.disk.head.round for peer in world.peers) < round:
        assert world.now < 500
        world.scheduler.run_until(world.now + 1)


def blocks_of(world: World, peer: int = 0) -> tuple[Block, ...]:
    return tuple(world.peers[peer].disk.blocks)


def watch(world: World, head: ChainHead | None = None) -> WatchedChain:
    return WatchedChain(world.rules(""), head or world.genesis)


def rounds_of(taken: Taken) -> list[int]:
    return [step.block.update.round for step in taken.steps]


def test_every_round_from_the_genesis_on(made: World) -> None:
    chain, blocks = watch(made), blocks_of(made)
    taken = chain.take(blocks)
    assert rounds_of(taken) == [item.update.round for item in blocks]
    assert (taken.fault, taken.parted) == ("", 0)
    assert chain.head == made.peers[0].disk.head
    assert chain.anchors[:2] == (chain.head.anchor, blocks[-1].update.parent)


def test_answers_may_overlap_repeat_and_skip(made: World) -> None:
    """What is known is not told twice, and what does not follow is not taken."""
    chain, blocks = watch(made), blocks_of(made)
    assert rounds_of(chain.take(blocks[:3])) == [1, 2, 3]
    assert chain.take(blocks[:3]) == chain.take(blocks[4:]) == chain.take(()) == Taken()
    assert rounds_of(chain.take(blocks[1:5])) == [4, 5]


def lesser_quorum(item: Block) -> Block:
    return replace(item, votes=item.votes[:1])


def other_tokens(item: Block) -> Block:
    first, *more = item.update.members
    return replace(item, update=replace(item.update, members=(replace(first, tokens=99), *more)))


def other_weights(item: Block) -> Block:
    row = item.update.weights[0]
    return replace(item, update=replace(item.update, weights=((WEIGHT_ONE, *(0 for _ in row[1:])),)))


def stolen_votes(item: Block) -> Block:
    return replace(item, votes=tuple(replace(vote, voter="stranger") for vote in item.votes))


@pytest.mark.parametrize("forge", [lesser_quorum, other_tokens, other_weights, stolen_votes])
def test_what_no_quorum_signed_is_refused_and_what_came_before_is_kept(
    made: World, forge: Callable[[Block], Block]
) -> None:
    chain, blocks = watch(made), list(blocks_of(made))
    taken = chain.take([*blocks[:2], forge(blocks[2]), *blocks[3:]])
    assert rounds_of(taken) == [1, 2]
    assert taken.fault
    assert rounds_of(chain.take(blocks)) == [item.update.round for item in blocks[2:]]


def test_it_can_begin_in_the_middle(made: World) -> None:
    """From the updates that led there, which a snapshot's manifest names; what follows is checked like anything."""
    blocks = blocks_of(made)
    base = ChainBase.after([item.update for item in blocks[1:4]])
    chain = watch(made, base.head)
    assert rounds_of(chain.take(blocks)) == [item.update.round for item in blocks[4:]]
    assert chain.head == made.peers[0].disk.head


def parting(made: World, at: int) -> Block:
    """Another update of the round after so many blocks, which the whole electorate has signed as well."""
    before, item = ((made.genesis, *made.peers[0].disk.heads)[at], blocks_of(made)[at])
    other = replace(item.update, time=item.update.time + 1)
    keys = ModelKeys(item.update.coordinator)
    place = BallotId(before.anchor, before.instance, item.update.ballot)
    proposed = keys.sign("propose", pack((place.packed(), other.digest)))
    votes = (
        Vote(peer, before.instance, item.update.ballot, other.digest, proposed).signed(ModelKeys(peer))
        for peer in before.electorate
    )
    return Block(other, tuple(votes))


@pytest.mark.parametrize("at", [ROUNDS - 3, ROUNDS - 1])
def test_certificates_that_part_are_told_and_the_chain_is_not_left(made: World, at: int) -> None:
    """However long either of them is: nothing that was decided is undone, so somebody has signed what nobody may."""
    chain, blocks = watch(made), blocks_of(made)
    chain.take(blocks)
    head = chain.head
    assert chain.take([parting(made, at)]) == Taken(parted=at + 1)
    assert chain.head == head
    forged = replace(parting(made, at), votes=())
    assert chain.take([forged]).parted == 0
    assert chain.take([forged]).fault


def test_a_round_is_told_as_its_members_tell_it() -> None:
    """All that is in the chain; what it cost a peer is not. Layers have numbers, the bits are what peers say."""
    members = (header("p0"), header("p1", root=b"", tokens=0, steps=0), header("p2"))
    item = block(update(members=members, contributors=(0b101,) * 3))
    anchor = HEAD.after(item.update).anchor
    first, *penalties = commit_events(ChainEntry(HEAD, item), cut((2, 2, 1), 2), {anchor: b"\x01"}.__getitem__)
    assert isinstance(first, RoundCommitted)
    assert (first.round, first.digest, first.state) == (1, anchor.hex(), "01")
    assert first.group == ["p0", "p1", "p2"]
    assert (first.weights["p1"], sum(first.weights.values())) == (0, WEIGHT_ONE)
    assert (first.tokens, first.void) == (200, 0)
    assert first.norms["p0"] == pytest.approx(3**0.5)
    assert (first.bytes_sent, first.bytes_received, first.round_s, first.exposed_s) == (0, 0, 0.0, 0.0)
    assert [code_of(event) for event in penalties] == [("p1", "LATE", "")]
    assert [row["code"] for row in first.penalties] == ["LATE"]
    assert WatchedChain(rules(""), HEAD).take([item]).steps == (ChainEntry(HEAD, item),)


def code_of(event: Event) -> tuple[str, str, str]:
    assert isinstance(event, PenaltyImposed)
    return event.about, event.code, event.layer


def test_a_layer_weighs_by_its_size(made: World) -> None:
    """As the peers compute it, who know the model."""
    (step,) = watch(made).take(blocks_of(made)[:1]).steps
    rows = tuple(tuple(WEIGHT_ONE * (index == layer) for index in range(3)) for layer in range(PARTS))
    unlike = replace(step.block, update=replace(step.block.update, weights=rows))
    event = next(commit_events(replace(step, block=unlike), cut((1, 1, 2), 2), lambda anchor: b""))
    assert isinstance(event, RoundCommitted)
    assert list(event.weights.values()) == [WEIGHT_ONE // 4, WEIGHT_ONE // 4, WEIGHT_ONE // 2]
