"""The anchor applies agreed parts and names its own bits."""

from __future__ import annotations

import dataclasses

import msgpack
import numpy as np
import pytest
import torch
from blake3 import blake3

from peer.codec.codec import Codec
from peer.protocol.block import VOID, Update
from peer.protocol.encoding import digest_of
from peer.protocol.layout import Part as Piece
from peer.spec import RunSpec
from peer.train.outer import OuterState, advance
from tests.peer.rounds.build import update

Objects = dict[bytes, bytes]


def make_anchor() -> OuterState:
    return OuterState.initial(torch.arange(10, dtype=torch.float32))


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


def moving() -> OuterState:
    """An anchor with momentum."""
    anchor = make_anchor()
    anchor.apply([(slice(0, 10), torch.linspace(-1, 1, 10))], learning_rate=0.7, momentum=0.9)
    return anchor


def test_a_part_that_is_rolled_back_stays_as_it_is() -> None:
    """Momentum is untouched, and does not move the parameters; a void part is a zero mean, which lets it run out."""
    anchor, before = moving(), moving()
    parts = [(slice(0, 3), None), (slice(3, 6), None), (slice(6, 10), torch.ones(4))]
    anchor.apply(parts, learning_rate=0.7, momentum=0.9, rolled_back={1})
    for vector, old in ((anchor.theta, before.theta), (anchor.momentum, before.momentum)):
        assert torch.equal(vector[3:6], old[3:6])
        assert not torch.equal(vector[:3], old[:3])
        assert not torch.equal(vector[6:], old[6:])
    assert anchor.round == before.round + 1


LAYOUT = (Piece(0, 0, 4), Piece(0, 4, 2), Piece(1, 6, 4))


def decided(*means: tuple[float, ...] | None, contributors: tuple[int, ...] = (7, 7, 7)) -> tuple[Update, Objects]:
    """An update that follows `moving`, with these means."""
    payloads = [None if mean is None else Codec("float32").encode(np.array(mean, np.float32)) for mean in means]
    objects = {digest_of(payload): payload for payload in payloads if payload is not None}
    parts = tuple(VOID if payload is None else digest_of(payload) for payload in payloads)
    return dataclasses.replace(update(), round=2, parts=parts, contributors=contributors), objects


def test_a_round_whose_layers_are_all_rolled_back_changes_no_bit(spec: RunSpec) -> None:
    """It counts as a round, and the data behind it as read; the next round is as if it had not been."""
    exact = dataclasses.replace(spec, codec=dataclasses.replace(spec.codec, wire="float32"))
    anchor, before = moving(), moving()
    item, objects = decided(None, None, None)
    advance(anchor, item, exact, LAYOUT, objects.__getitem__)
    assert anchor.theta.numpy().tobytes() == before.theta.numpy().tobytes()
    assert anchor.momentum.numpy().tobytes() == before.momentum.numpy().tobytes()
    assert anchor.round == before.round + 1
    assert anchor.cursors == {0: 5}
    void, nothing = decided(None, None, None, contributors=(0, 0, 7))
    advance(before, void, exact, LAYOUT, nothing.__getitem__)
    assert not torch.equal(before.theta[:6], anchor.theta[:6]), "a void layer runs on"
    assert torch.equal(before.theta[6:], anchor.theta[6:])


def test_one_layer_is_rolled_back_beside_others_that_move(spec: RunSpec) -> None:
    """All parts of it, and no other."""
    exact = dataclasses.replace(spec, codec=dataclasses.replace(spec.codec, wire="float32"))
    anchor, before = moving(), moving()
    item, objects = decided(None, None, (1.0, 2.0, 3.0, 4.0))
    advance(anchor, item, exact, LAYOUT, objects.__getitem__)
    assert torch.equal(anchor.theta[:6], before.theta[:6])
    assert torch.equal(anchor.momentum[:6], before.momentum[:6])
    assert not torch.equal(anchor.momentum[6:], before.momentum[6:])


@pytest.mark.parametrize("cuts", [[(0, 6), (5, 10)], [(5, 10), (0, 5)]])
def test_parts_come_in_order(cuts: list[tuple[int, int]]) -> None:
    """No element moves twice."""
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
    """BLAKE3-256 over little-endian θ, m and the sorted cursors."""
    anchor = OuterState(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), 5, {9: 1, 2: 7})
    bits = b"".join(bytes.fromhex(word) for word in ("0000803f", "00000040", "00004040", "00008040"))
    expected = blake3(bits + msgpack.packb([[2, 7], [9, 1]])).digest()
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
