"""Names that every peer computes alike."""

from __future__ import annotations

import pytest

from peer.consensus.protocol.electorate import coordinator, instance_of, order, quorum
from peer.consensus.protocol.encoding import digest, digest_of, pack
from peer.consensus.protocol.head import genesis_anchor, next_anchor


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (64, 33)])
def test_a_quorum_is_more_than_half(voters: int, needed: int) -> None:
    """Two quorums of one electorate always share a voter."""
    assert quorum(["x"] * voters) == needed
    assert 2 * needed > voters


def test_the_order_is_a_permutation_that_differs_between_anchors() -> None:
    """The first coordinator is pseudo-random, and everybody's turn comes within n ballots."""
    voters = tuple(f"p{index}" for index in range(5))
    orders = {order(digest(number), voters) for number in range(50)}
    assert all(sorted(ranked) == sorted(voters) for ranked in orders)
    assert len(orders) > 20
    assert {coordinator(b"a" * 32, voters, ballot) for ballot in range(7, 12)} == set(voters)


def test_ballots_of_different_peers_never_clash() -> None:
    """Each ballot number has one owner, and the owners repeat."""
    voters = ("a", "b", "c")
    owners = [coordinator(b"a" * 32, voters, ballot) for ballot in range(9)]
    assert owners[:3] == owners[3:6] == owners[6:]
    assert len(set(owners[:3])) == 3


def test_the_genesis_names_run_founders_and_state() -> None:
    """The order in which founders are listed does not matter; everything else does."""
    anchor = genesis_anchor(b"r" * 32, ("b", "a"), b"s")
    assert anchor == genesis_anchor(b"r" * 32, ("a", "b"), b"s")
    others = {
        genesis_anchor(b"x" * 32, ("a", "b"), b"s"),
        genesis_anchor(b"r" * 32, ("a",), b"s"),
        genesis_anchor(b"r" * 32, ("a", "b"), b"t"),
    }
    assert len(others | {anchor}) == 4


def test_anchors_and_instances_name_their_contents() -> None:
    """A digest of the chain, and an anchor with its voters."""
    assert next_anchor(b"a" * 32, b"u" * 32) == digest_of(pack((b"a" * 32, b"u" * 32)))
    assert instance_of(b"a" * 32, ("p", "q")) != instance_of(b"a" * 32, ("p",))
    assert instance_of(b"a" * 32, ("p", "q")) != instance_of(b"b" * 32, ("p", "q"))
