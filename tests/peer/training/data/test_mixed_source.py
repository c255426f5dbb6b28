"""Several sources by weight: whose turn it is, and that nothing is read twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dht.errors import BadInput
from peer.consensus.protocol.rules import DATA_SHARDS
from peer.schema import spec as specs
from peer.training.data.chat.token_flags import is_flagged
from peer.training.data.mixed_source import PERIOD, HeldOutSets, MixedSource, PartOfMix
from peer.training.data.open_source import open_source
from peer.training.data.sampler import ShardSampler
from peer.training.data.tokenizer import Tokens
from tests.talks import on_talks_and_letters


class Numbered:
    """Windows that say where they are from."""

    def __init__(self, number: int, windows: dict[int, int]) -> None:
        self.number, self.windows = number, windows

    def window(self, shard: int, position: int) -> Tokens:
        return np.asarray([self.number, shard, position], np.int32)

    def held_out(self) -> npt.NDArray[np.int64]:
        return np.full((2, 3), self.number, np.int64)


def mix(*parts: tuple[float, dict[int, int]]) -> MixedSource:
    total = sum(weight for weight, _ in parts)
    return MixedSource(
        [PartOfMix(f"s{at}", weight / total, Numbered(at, windows)) for at, (weight, windows) in enumerate(parts)]
    )


EVEN = dict.fromkeys(range(DATA_SHARDS), 50)


@pytest.mark.outside
def test_every_window_of_a_source_is_read_once_and_in_order() -> None:
    """Over more than a period, whatever the weights."""
    source = mix((5, EVEN), (2, EVEN), (0.004, EVEN))
    read = [source.window(7, position).tolist() for position in range(3 * PERIOD + 5)]
    for number in range(3):
        positions = [position for at, shard, position in read if at == number]
        assert positions == list(range(len(positions)))
        assert positions, "even the lightest has its turn"


@pytest.mark.parametrize("position", [0, 1, PERIOD - 1, PERIOD, 10_000_000])
def test_a_window_does_not_depend_on_what_was_read_before(position: int) -> None:
    fresh, used = mix((1, EVEN), (3, EVEN)), mix((1, EVEN), (3, EVEN))
    for before in range(100):
        used.window(3, before)
    assert fresh.window(3, position).tolist() == used.window(3, position).tolist()


def test_no_source_is_late() -> None:
    """After any number of windows each has had its share, but for two."""
    source = mix((5, EVEN), (2, EVEN), (1, EVEN))
    had: Counter[int] = Counter()
    for position in range(2 * PERIOD):
        had[int(source.window(0, position)[0])] += 1
        for number, weight in enumerate((5, 2, 1)):
            assert abs(had[number] - (position + 1) * weight / 8) < 2


def test_a_small_source_has_its_share_though_few_shards_hold_any_of_it() -> None:
    """One peer that reads all shards in proportion to their sizes."""
    source = mix((1, EVEN), (1, {3: 2, 9: 1}), (2, EVEN))
    spec = specs.from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 2}})
    sampler = ShardSampler(source, spec, "me", ("me",), {})
    had = Counter(sampler.next(8000)[:, 0].tolist())
    assert [had[number] / 8000 for number in range(3)] == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_a_change_of_members_reads_no_window_twice() -> None:
    """One peer alone, then two that go on from what it has read."""
    source = mix((1, EVEN), (3, EVEN))
    spec = specs.from_mapping({"run": {"name": "t"}, "model": {"architecture": "llama", "context": 2}})
    first = ShardSampler(source, spec, "a", ("a",), {})
    read = first.next(700).tolist()
    cursors = {shard: end for shard, _, end in first.ranges()}
    both = ("a", "b")
    first.reassign(both, cursors)
    second = ShardSampler(source, spec, "b", both, cursors)
    read += first.next(700).tolist() + second.next(700).tolist()
    assert len({tuple(window) for window in read}) == 2100


def test_held_out_losses_are_weighed() -> None:
    sets = HeldOutSets.of(mix((1, EVEN), (3, EVEN)))
    assert [tokens_BT.tolist() for tokens_BT in sets.tokens] == [[[0] * 3] * 2, [[1] * 3] * 2]
    assert sets.predicted == 8
    assert sets.mean([4.0, 2.0]) == 2.5
    assert sets.by_source([4.0, 2.0]) == {"s0": 4.0, "s1": 2.0}
    alone = HeldOutSets.of(Numbered(0, EVEN))
    assert (alone.mean([1.7]), alone.by_source([1.7])) == (1.7, {})


def test_files_of_a_mix_lie_in_folders_by_the_names_of_their_sources(tmp_path: Path) -> None:
    """Conversations and text in one run, and one held-out set of each."""
    spec = on_talks_and_letters(specs.load("micro"), tmp_path)
    source = open_source(spec, spec.data.path)
    talks, letters = HeldOutSets.of(source).tokens
    assert is_flagged(talks)
    assert not is_flagged(letters)
    assert source.held_out().shape == (len(talks) + len(letters), spec.model.context + 1)


def test_a_mix_of_files_wants_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'talks' and 'letters'; say which .* the folders talks and letters"):
        open_source(on_talks_and_letters(specs.load("micro"), tmp_path))


def test_a_spec_says_a_mix_and_reads_it_again(tmp_path: Path) -> None:
    """And one that has none is what it was before there were any."""
    spec = on_talks_and_letters(specs.load("micro"), tmp_path)
    assert specs.parse(specs.dump(spec)) == spec
    plain = specs.load("micro")
    assert "mix" not in json.dumps(plain.tables())
    assert "format" not in json.dumps(plain.tables())
