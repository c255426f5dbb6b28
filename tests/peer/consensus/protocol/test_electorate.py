"""Names that every peer computes alike."""

from __future__ import annotations

import pytest

from peer.consensus.protocol.electorate import instance_of, order, quorum
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.head import ChainHead, genesis_anchor, next_anchor


@pytest.mark.parametrize(
    ("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7), (16, 11), (64, 43)]
)
def test_two_quorums_share_an_honest_voter(voters: int, needed: int) -> None:
    """Of n voters f = (n - 1) // 3 may lie, from four on; of three none."""
    liars = (voters - 1) // 3 if voters > 3 else 0
    assert quorum(range(voters)) == needed
    assert 2 * needed - voters > liars
    assert needed <= voters - liars, "those who do not lie are a quorum by themselves"


def test_who_led_longest_ago_leads_next() -> None:
    """Ties are broken by a lot that depends on nothing but the round and the name."""
    assert order({"a": 7, "b": 3, "c": 5}) == ("b", "c", "a")
    tied = order({"a": 4, "b": 4, "c": 4})
    assert sorted(tied) == ["a", "b", "c"]
    assert tied == order({"c": 4, "b": 4, "a": 4})
    assert len({order(dict.fromkeys("abcde", round)) for round in range(50)}) > 20


def test_ballots_of_different_peers_never_clash() -> None:
    """Each ballot number has one owner, and the owners repeat."""
    head = ChainHead(anchor=b"a" * 32, round=3, weight=0, electorate=("a", "b", "c"), members=("a", "b", "c"))
    owners = [head.leader(ballot) for ballot in range(9)]
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
    assert instance_of(b"a" * 32, ("p", "q")) != instance_of(b"a" * 32, ("p", "q"), 1)
