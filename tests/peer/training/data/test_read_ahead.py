"""Reading beside the step: nobody waits for what could be read before, and nothing is lost where it cannot."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from dht.errors import BadSpec, Unreachable
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data.read_ahead import ReadAhead
from peer.training.data.sampler import ShardSampler
from tests.peer.training.data.numbered_source import NumberedSource


class WatchedSource(NumberedSource):
    """`before` is called with each place by whoever reads it."""

    def __init__(self, before: Callable[[int, int], object] = lambda shard, position: None) -> None:
        super().__init__(dict.fromkeys(range(DATA_SHARDS), 10))
        self.before = before
        self.read: Counter[tuple[int, int]] = Counter()

    def window(self, shard: int, position: int) -> npt.NDArray[np.int32]:
        self.before(shard, position)
        self.read[shard, position] += 1
        return super().window(shard, position)


@pytest.fixture
def spec() -> RunSpec:
    return specs.from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 2}})


def test_the_next_batch_is_read_before_it_is_asked_for(spec: RunSpec) -> None:
    """By the thread that reads, while nobody asks."""
    ready = threading.Event()
    source = WatchedSource(lambda shard, position: ready.set() if shard == 11 else None)
    batches = ShardSampler(source, spec, "a", ["a"], {})
    batches.next(4)
    assert ready.wait(10)
    assert [shard for shard, _, _ in batches.ranges()] == [0, 1, 2, 3]


def test_what_is_only_read_ahead_is_nowhere_in_the_state(spec: RunSpec) -> None:
    """A sampler that begins where another stood gives what the other gives next."""
    one, other = (ShardSampler(WatchedSource(), spec, "a", ["a"], {}) for _ in range(2))
    one.next(70)
    other.restore(one.state())
    assert one.next(200).tolist() == other.next(200).tolist()
    assert one.state() == other.state()


def test_a_membership_change_reads_no_window_twice(spec: RunSpec) -> None:
    """Each is read once by one of the two: only what was read ahead and never used may be read by another."""
    sources = [WatchedSource(), WatchedSource()]
    one, other = (ShardSampler(source, spec, me, ["a", "b"], {}) for source, me in zip(sources, "ab", strict=True))
    used = [tuple(row) for batches in (one, other) for row in batches.next(60)[:, :2].tolist()]
    cursors = {shard: end for batches in (one, other) for shard, _, end in batches.ranges()}
    one.reassign(["a"], cursors)
    used += [tuple(row) for row in one.next(200)[:, :2].tolist()]
    assert len(used) == len(set(used)) == 320
    assert max(sources[0].read.values()) == 1


def test_a_window_that_does_not_come_is_away_and_comes_later(spec: RunSpec) -> None:
    """After the patience of who waits; and then it is there, and nothing was counted as read meanwhile."""
    go_on = threading.Event()
    ahead = ReadAhead(WatchedSource(lambda shard, position: go_on.wait(30)), patience_s=0.05)
    ahead.expect([(0, 0), (0, 1)])
    with pytest.raises(Unreachable, match="have not come for"):
        ahead.windows([(0, 0), (0, 1)])
    assert ahead.waited_s >= 0.05
    go_on.set()
    patient = ReadAhead(WatchedSource(), patience_s=10)
    patient.expect([(0, 0), (0, 1)])
    assert [window.tolist() for window in patient.windows([(0, 0), (0, 1)])] == [[0, 0, 0], [0, 1, 0]]


def test_a_failure_loses_nothing_and_repeats_nothing(spec: RunSpec) -> None:
    """A source that fails at every seventh read: the batches are those of one that never does."""
    numbers = iter(range(1, 10_000))

    def fail(shard: int, position: int) -> None:
        if next(numbers) % 7 == 0:
            raise Unreachable("away")

    failing, sound = WatchedSource(fail), WatchedSource()
    batches, expected = (ShardSampler(source, spec, "a", ["a"], {}) for source in (failing, sound))
    failures = 0
    for _ in range(20):
        while True:
            before = batches.state()
            try:
                found = batches.next(10)
                break
            except Unreachable:
                failures += 1
                assert batches.state() == before
        assert found.tolist() == expected.next(10).tolist()
    assert failures
    assert set(failing.read.values()) == {1}


def test_what_ends_a_source_ends_the_step(spec: RunSpec) -> None:
    def refuse(shard: int, position: int) -> None:
        raise BadSpec("too little text")

    with pytest.raises(BadSpec, match="too little text"):
        ShardSampler(WatchedSource(refuse), spec, "a", ["a"], {}).next(1)
