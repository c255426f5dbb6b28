"""The anchor applies agreed parts and names its own bits."""

from __future__ import annotations

import hashlib

import msgpack
import pytest
import torch

from peer.train.anchor import Anchor


def make_anchor() -> Anchor:
    return Anchor.initial(torch.arange(10, dtype=torch.float32))


def test_the_first_anchor_has_no_momentum() -> None:
    """Round 0, nothing read."""
    anchor = make_anchor()
    assert anchor.round == 0
    assert anchor.cursors == {}
    assert not anchor.momentum.any()


def test_parts_are_the_whole_in_pieces() -> None:
    """Applied part by part or at once, the bits are the same; a void part is a zero mean."""
    mean = torch.linspace(-1, 1, 10)
    mean[3:6] = 0
    whole, pieces = make_anchor(), make_anchor()
    whole.apply([(slice(0, 10), mean)], learning_rate=0.7, momentum=0.9)
    parts = [(slice(0, 3), mean[:3]), (slice(3, 6), None), (slice(6, 10), mean[6:])]
    pieces.apply(parts, learning_rate=0.7, momentum=0.9)
    assert whole.state_digest() == pieces.state_digest()
    assert pieces.round == 1


@pytest.mark.parametrize("cuts", [[(0, 5)], [(0, 5), (6, 10)], [(5, 10), (0, 5)]])
def test_parts_must_cover_the_vector_in_order(cuts: list[tuple[int, int]]) -> None:
    """A hole would silently leave parameters behind."""
    parts = [(slice(start, end), torch.zeros(end - start)) for start, end in cuts]
    with pytest.raises(AssertionError, match="part"):
        make_anchor().apply(parts, learning_rate=1.0, momentum=0.0)


def test_cursors_advance_and_never_go_back() -> None:
    """A range that was read before, by a carried contribution, changes nothing."""
    anchor = make_anchor()
    anchor.apply([(slice(0, 10), None)], learning_rate=1.0, momentum=0.0, ranges=[(3, 0, 8), (1, 0, 2)])
    anchor.apply([(slice(0, 10), None)], learning_rate=1.0, momentum=0.0, ranges=[(3, 2, 5)])
    assert anchor.cursors == {1: 2, 3: 8}


def test_the_digest_is_what_the_protocol_says() -> None:
    """BLAKE2b-256 over little-endian θ, m and the sorted cursors."""
    anchor = Anchor(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), 5, {9: 1, 2: 7})
    bits = b"".join(bytes.fromhex(word) for word in ("0000803f", "00000040", "00004040", "00008040"))
    expected = hashlib.blake2b(bits + msgpack.packb([[2, 7], [9, 1]]), digest_size=32).digest()
    assert anchor.state_digest() == expected


@pytest.mark.parametrize("change", ["theta", "momentum", "cursors"])
def test_every_bit_of_state_shows_in_the_digest(change: str) -> None:
    """One unit in the last place of one element, or one cursor."""
    anchor, other = make_anchor(), make_anchor()
    if change == "cursors":
        other.cursors[0] = 1
    else:
        vector = getattr(other, change)
        vector[7] = torch.nextafter(vector[7], torch.tensor(100.0))
    assert anchor.state_digest() != other.state_digest()
