"""Somebody who did not see a chain follows the few blocks that change who decides, and nothing that is not decided."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from peer.consensus.organiser.light_chain import follow, packed_way, read_way, way_of
from peer.consensus.protocol.block import Block, Roster
from peer.consensus.protocol.head import ChainHead
from peer.consensus.rounds.interface import RosterHeard
from peer.testing.memory_peer import ModelKeys
from peer.testing.memory_swarm import ORGANISER, World

KEYS = ModelKeys("newcomer")


@cache
def made() -> tuple[ChainHead, tuple[Block, ...]]:
    """A chain of four founders on whose list p0 to p2 are, that two of them leave without a word: the two that are left
    go on by the organiser's word."""
    world = World(5, 4, restart_s=10.0)
    known = Roster(3, ("p0", "p1", "p2")).signed(ModelKeys(ORGANISER))
    world.desk.roster = known
    world.peers[0].driver.deliver(RosterHeard(world.now, known))
    world.scheduler.run_until(60.0)
    for peer in world.peers[2:]:
        peer.crash()
    world.scheduler.run_until(400.0)
    (restart,) = world.restarts
    assert restart.electorate == ("p0", "p1")
    return world.genesis, tuple(world.peers[0].disk.blocks)


def test_a_few_blocks_lead_to_the_same_head_as_all_of_them() -> None:
    genesis, blocks = made()
    way = way_of(blocks, genesis)
    assert len(way) < len(blocks) / 3
    head = follow(KEYS, ORGANISER, genesis, way)
    assert head == follow(KEYS, ORGANISER, genesis, blocks)
    assert head.electorate == ("p0", "p1")
    assert (head.round, head.roster.number) == (blocks[-1].update.round, 3)
    assert read_way(packed_way(way)) == way


def test_it_goes_on_from_where_it_stood() -> None:
    genesis, blocks = made()
    half = len(blocks) // 2
    stands = follow(KEYS, ORGANISER, genesis, way_of(blocks[:half], genesis))
    assert follow(KEYS, ORGANISER, stands, way_of(blocks[half:], stands)) == follow(KEYS, ORGANISER, genesis, blocks)


def test_what_nobody_decided_is_not_followed() -> None:
    genesis, blocks = made()
    way = way_of(blocks, genesis)
    with pytest.raises(ValueError, match="votes"):
        follow(KEYS, ORGANISER, genesis, [replace(way[0], votes=way[0].votes[:1])])
    with pytest.raises(ValueError, match="vote of"):
        follow(KEYS, ORGANISER, genesis, way[-1:])
    with pytest.raises(ValueError, match="not in order"):
        follow(KEYS, ORGANISER, genesis, [way[0], way[0]])


def test_a_restart_counts_only_as_the_organisers_word() -> None:
    """Two of four are enough since two of the three on the list were left."""
    genesis, blocks = made()
    (block,) = [block for block in blocks if block.restarts]
    before = follow(KEYS, ORGANISER, genesis, blocks[: blocks.index(block)])
    assert follow(KEYS, ORGANISER, before, [block]).electorate == ("p0", "p1")
    with pytest.raises(ValueError, match="has not signed"):
        follow(KEYS, "somebody", before, [block])


def test_the_block_after_the_start_follows_its_anchor() -> None:
    """Signed by those who decide there, as of another branch that they decided, too."""
    genesis, blocks = made()
    with pytest.raises(ValueError, match="round 1 follows another model"):
        follow(KEYS, ORGANISER, replace(genesis, anchor=b"a" * 32), blocks[:1])
