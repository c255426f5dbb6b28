"""Who reads what is a pure function of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.consensus.protocol.rules import DATA_SHARDS
from peer.training.data.data_shards import data_owner, is_held_out, shard_of, shards_of

peers = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=12)


@pytest.mark.slow
@given(peers)
def test_every_shard_has_exactly_one_reader(group: set[str]) -> None:
    """The peers' shards are disjoint and together they are all shards."""
    owned = [shard for peer in group for shard in shards_of(peer, group)]
    assert sorted(owned) == list(range(DATA_SHARDS))


@given(peers)
def test_the_order_of_peers_does_not_matter(group: set[str]) -> None:
    """Rendezvous hashing looks at names alone."""
    for shard in range(0, DATA_SHARDS, 16):
        assert data_owner(shard, sorted(group)) == data_owner(shard, sorted(group, reverse=True))


@given(peers)
def test_only_the_shards_of_a_leaver_move(group: set[str]) -> None:
    """A shard of a peer that stays has the same reader before and after another one leaves."""
    leaver = min(group)
    stay = group - {leaver}
    for shard in range(DATA_SHARDS) if stay else ():
        before = data_owner(shard, group)
        if before != leaver:
            assert data_owner(shard, stay) == before


def test_assignment_is_the_same_on_every_machine() -> None:
    """A golden value: peers of different versions must agree on these."""
    assert shards_of("b", ["a", "b", "c"]) == GOLDEN_SHARDS_OF_B
    assert [shard_of(name) for name in ("abc.py", "zipfile.py")] == GOLDEN_SHARDS_OF_FILES


def test_about_one_document_in_so_many_is_held_out() -> None:
    """The hash spreads: of 10,000 names about 500 at one in twenty."""
    count = sum(is_held_out(f"file{number}.py", 20) for number in range(10_000))
    assert 400 < count < 600


GOLDEN_SHARDS_OF_B = (6, 7, 9, 10, 17, 19, 21, 25, 30, 32, 34, 39, 40, 44, 46, 47, 48, 53, 57, 60, 61)
GOLDEN_SHARDS_OF_FILES = [41, 53]
