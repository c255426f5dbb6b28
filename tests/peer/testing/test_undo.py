"""What the model of a peer does when a block leaves its chain: the books are those of the chain it is on."""

from __future__ import annotations

from peer.consensus.rounds import forks
from peer.consensus.rounds.transition import Transition
from peer.testing.memory_peer import PARTS, STEPS, TRAIN_S, LogicalPeer
from peer.testing.memory_swarm import World


def at_round(rounds: int) -> tuple[World, LogicalPeer]:
    """A world in which forks are allowed, and one of its peers at this round."""
    world = World(1, 3, restart_s=12.0)
    peer = world.peers[0]
    while peer.disk.head.round < rounds:
        world.scheduler.run_until(world.now + 0.1)
    return world, peer


def test_what_undone_blocks_counted_is_owed_again() -> None:
    """And the tensors are those of the earlier anchor."""
    world, peer = at_round(4)
    early, anchor = peer.ledger.copy(), peer.disk.heads[1]
    history = list(world.history[0])
    theta = [0] * PARTS
    for block in peer.disk.blocks[:2]:
        theta = [a + b for a, b in zip(theta, _step(peer, block.update.parts), strict=True)]
    undone = peer.disk.undo(anchor)
    peer.undone(undone, anchor)
    world.scheduler.run_until(world.now + TRAIN_S[1] / STEPS)  # the step that it makes
    world.check()
    assert [block.update.round for block in undone] == [4, 3]
    assert (peer.ledger.anchor, peer.ledger.round, peer.ledger.theta) == (anchor.anchor, 2, theta)
    assert peer.ledger.counted != early.counted
    assert world.history[0] == history[:2]
    assert peer.disk.blocks[-1].update.round == 2


def test_a_crash_before_the_books_follow_is_made_good_at_the_start() -> None:
    """The ledger on disk stands on the branch that was left; those blocks are still there."""
    world, peer = at_round(4)
    anchor = peer.disk.heads[1]
    peer.disk.undo(anchor)
    world.check()
    peer.crash()
    world.check()
    assert peer.disk.ledger.round == 4
    peer.boot()
    world.check()
    assert (peer.ledger.anchor, peer.ledger.round) == (anchor.anchor, 2)


def test_what_was_offered_for_an_anchor_is_offered_again() -> None:
    """It may be in somebody's hands already."""
    world, peer = at_round(4)
    head = peer.disk.heads[1]
    offered = peer.disk.offered(head.anchor)
    peer.undone(peer.disk.undo(head), head)
    assert peer.disk.offered(head.anchor) == offered == world.contributions[peer.name, head.anchor]
    peer.crash()
    peer.boot()
    assert peer.driver.state.header == peer.disk.header(head.anchor)


def test_a_peer_that_goes_back_remembers_its_vote() -> None:
    """It voted there for what it undoes, and others may still count on that."""
    world, peer = at_round(4)
    head = peer.disk.heads[1]
    turn = Transition(peer.driver.state, world.now)
    forks.rollback_to(turn, head)
    assert turn.state.acceptor == peer.disk.load_acceptors()[head.instance]
    assert turn.state.acceptor.accepted is not None


def test_a_peer_remembers_as_many_anchors_as_it_keeps_rounds() -> None:
    """What it offered for older ones cannot be undone any more."""
    world, peer = at_round(12)
    kept = world.rules(peer.name).keep_rounds
    assert {rounds for rounds, *_ in peer.disk.contributions.values()} >= set(range(12 - kept, 12))
    assert min(rounds for rounds, *_ in peer.disk.contributions.values()) == 12 - kept
    oldest = peer.disk.heads[-kept - 1]
    peer.undone(peer.disk.undo(oldest), oldest)
    world.check()


def _step(peer: LogicalPeer, parts: tuple[bytes, ...]) -> list[int]:
    return [int.from_bytes(peer.disk.objects.get(part, b""), "big", signed=True) for part in parts]
