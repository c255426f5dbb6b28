"""Where the encoding of means is another than that of contributions, each has its own size."""

from __future__ import annotations

from dataclasses import replace

from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.layout import cut
from peer.schema.spec import from_mapping
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.build import PART_BYTES, rules


def test_rules_know_both_sizes() -> None:
    """One size alone is that of both."""
    plain = rules("p0")
    assert plain.bytes_of_means == plain.part_bytes == PART_BYTES
    sizes = tuple(2 * size + 1 for size in PART_BYTES)
    other = replace(plain, mean_bytes=sizes, fragments=2)
    for round in (0, 1):
        numbers = other.fragment(round).numbers
        assert other.bytes_in(round) == tuple(PART_BYTES[number] for number in numbers)
        assert other.means_in(round) == tuple(sizes[number] for number in numbers)


def test_the_spec_says_them() -> None:
    """`sparse`: 116 bytes of each 4,096 elements, 642 in the mean; what a voter calls finite is a mean."""
    spec = from_mapping(
        {"run": {"name": "r"}, "model": {"architecture": "llama", "context": 8}, "codec": {"wire": "sparse"}}
    )
    found = rules_of(spec, cut((5000, 100), 4096 * 4), ModelKeys("p0"), me="p0")
    assert found.part_bytes == (232, 116)
    assert found.bytes_of_means == (1284, 642)
    assert found.finite(bytes(642))
    assert not found.finite(b"\xff" * 642)
    assert Codec("sparse").of_means.part_bytes(5000) == 1284
