"""The Merkle tree over parts: every leaf can be proven, nothing else can."""

from __future__ import annotations

import pytest

from peer.consensus.protocol import merkle
from peer.consensus.protocol.encoding import digest_of


def leaves(count: int) -> tuple[bytes, ...]:
    return tuple(digest_of(bytes((index,))) for index in range(count))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_leaf_is_proven_at_its_own_place_only(count: int) -> None:
    """For trees of all shapes, also unbalanced ones."""
    tree = leaves(count)
    top = merkle.root(tree)
    for index, leaf in enumerate(tree):
        path = merkle.path(tree, index)
        assert merkle.proves(top, leaf, index, path, count)
        for other in range(count):
            if other != index:
                assert not merkle.proves(top, leaf, other, path, count)


def test_a_changed_leaf_path_or_root_proves_nothing() -> None:
    """Any single difference is seen."""
    tree = leaves(6)
    top, path = merkle.root(tree), merkle.path(tree, 3)
    assert not merkle.proves(top, digest_of(b"other"), 3, path, 6)
    assert not merkle.proves(digest_of(b"other"), tree[3], 3, path, 6)
    assert not merkle.proves(top, tree[3], 3, (path[0], path[2], path[1]), 6)


def test_an_inner_node_is_not_a_leaf() -> None:
    """The first two leaves glued together hash to their parent, but their path would be too short."""
    tree = leaves(4)
    inner = digest_of(tree[0] + tree[1])
    assert not merkle.proves(merkle.root(tree), inner, 0, merkle.path(tree, 0)[1:], 4)


def test_an_index_beyond_the_tree_proves_nothing() -> None:
    """The path of the last leaf of an odd level joins it with itself, but not under another number."""
    tree = leaves(3)
    assert not merkle.proves(merkle.root(tree), tree[2], 2 + 4, merkle.path(tree, 2), 3)


def test_a_path_that_is_too_long_proves_nothing() -> None:
    """One more sibling than the tree is high."""
    tree = leaves(4)
    assert not merkle.proves(merkle.root(tree), tree[1], 1, (*merkle.path(tree, 1), tree[0]), 4)
