"""Batches read each shard's windows once per pass, and know what they read."""

from __future__ import annotations

from collections import Counter

import pytest

from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data.data_shards import shards_of
from peer.training.data.sampler import ShardSampler
from tests.peer.training.data.numbered_source import NumberedSource


@pytest.fixture
def spec() -> RunSpec:
    return specs.from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 2}})


def even_source() -> NumberedSource:
    return NumberedSource(dict.fromkeys(range(DATA_SHARDS), 10))


def test_a_batch_has_context_and_one_token(spec: RunSpec) -> None:
    """Tokens are (sequences, context + 1), int64."""
    tokens_BT = ShardSampler(even_source(), spec, "a", ["a"], {}).next(5)
    assert tokens_BT.shape == (5, 3)
    assert str(tokens_BT.dtype) == "torch.int64"


def test_ranges_say_exactly_what_was_read(spec: RunSpec) -> None:
    """The windows in the batches are the windows in the ranges."""
    batches = ShardSampler(even_source(), spec, "a", ["a", "b"], {3: 7})
    batches.next(11)
    batches.mark()
    read = {(int(row[0]), int(row[1])) for row in batches.next(200)}
    assert len(read) == 200
    assert read == {(shard, at) for shard, start, end in batches.ranges() for at in range(start, end)}


def test_reading_starts_at_the_cursors(spec: RunSpec) -> None:
    """The first window of a shard is the one its cursor points to."""
    batches = ShardSampler(even_source(), spec, "a", ["a"], {shard: shard * 2 for shard in range(DATA_SHARDS)})
    batches.next(DATA_SHARDS)
    assert batches.ranges() == tuple((shard, 2 * shard, 2 * shard + 1) for shard in range(DATA_SHARDS))


def test_a_cursor_that_a_lie_has_moved_to_the_end_is_none(spec: RunSpec) -> None:
    """That shard is read from its beginning, as all read it that take this anchor; its own place as well."""
    end = (1 << 63) - 1
    batches = ShardSampler(even_source(), spec, "a", ["a"], {0: end, 1: 4})
    batches.next(DATA_SHARDS)
    batches.restore({**batches.state(), "positions": [(0, end), *((shard, 7) for shard in range(1, DATA_SHARDS))]})
    batches.reassign(["a"], {0: end})
    batches.mark()
    batches.next(DATA_SHARDS)
    assert batches.ranges()[:2] == ((0, 0, 1), (1, 7, 8))


def test_two_peers_never_read_the_same(spec: RunSpec) -> None:
    """Shards of different peers are disjoint."""
    shards = [set(ShardSampler(even_source(), spec, peer, ["a", "b", "c"], {}).shards) for peer in "abc"]
    assert sum(map(len, shards)) == len(set.union(*shards)) == DATA_SHARDS


def test_shards_are_read_in_proportion_to_their_size(spec: RunSpec) -> None:
    """After one pass worth of windows each shard was read once over, give or take a window."""
    sizes = {shard: 1 + 3 * shard for shard in range(DATA_SHARDS)}
    batches = ShardSampler(NumberedSource(sizes), spec, "a", ["a"], {})
    read = Counter(int(row[0]) for row in batches.next(sum(sizes.values())))
    assert all(abs(read[shard] - size) <= 1 for shard, size in sizes.items())


def test_a_kept_shard_goes_on_and_a_new_one_starts_at_its_cursor(spec: RunSpec) -> None:
    """When a peer leaves, the others keep their place, even ahead of the committed cursors."""
    batches = ShardSampler(even_source(), spec, "a", ["a", "b"], {})
    kept = set(batches.shards)
    batches.next(4 * len(kept))
    batches.mark()
    batches.reassign(["a"], dict.fromkeys(range(DATA_SHARDS), 2))
    batches.next(DATA_SHARDS * 4)
    starts = {shard: start for shard, start, _ in batches.ranges()}
    assert {shard: starts[shard] for shard in kept} == dict.fromkeys(kept, 4)
    assert {starts[shard] for shard in set(starts) - kept} == {2}


def test_a_shard_that_the_run_is_ahead_of_jumps(spec: RunSpec) -> None:
    """Nobody reads again what the run has already committed."""
    batches = ShardSampler(even_source(), spec, "a", ["a"], {})
    batches.next(DATA_SHARDS)
    batches.reassign(["a"], dict.fromkeys(range(DATA_SHARDS), 5))
    batches.next(DATA_SHARDS)
    assert (0, 0, 1) in batches.ranges()
    assert (0, 5, 6) in batches.ranges()


def test_a_peer_without_shards_reads_all(spec: RunSpec) -> None:
    """In a group so large that nothing falls to it, a peer still has data."""
    crowd = [f"peer{number}" for number in range(400)]
    idle = next(peer for peer in crowd if not shards_of(peer, crowd))
    assert len(ShardSampler(even_source(), spec, idle, crowd, {}).shards) == DATA_SHARDS


def test_the_same_peer_reads_the_same_again(spec: RunSpec) -> None:
    """Nothing about the order is drawn at random."""
    first, second = (ShardSampler(even_source(), spec, "a", group, {}).next(500) for group in (["a", "b"], ["b", "a"]))
    assert first.equal(second)


def test_private_text_is_read_whole_and_by_cursors_of_its_own() -> None:
    """Whoever else takes part, and however far the run has come in texts of others."""
    data = {"source": "files", "path": "your own", "private": True}
    model = {"architecture": "llama", "context": 2}
    private = specs.from_mapping({"run": {"name": "t"}, "model": model, "data": data})
    batches = ShardSampler(even_source(), private, "a", ["a", "b"], dict.fromkeys(range(DATA_SHARDS), 100))
    batches.next(DATA_SHARDS)
    batches.reassign(["a", "b", "c"], dict.fromkeys(range(DATA_SHARDS), 200))
    batches.next(DATA_SHARDS)
    assert batches.ranges() == tuple((shard, 0, 2) for shard in range(DATA_SHARDS))
