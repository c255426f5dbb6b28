"""The anchor applies agreed parts and names its own bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from blake3 import blake3

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import VOID, Ranges
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.layout import Part
from peer.schema.spec import RunSpec
from peer.training.outer import outer_step
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from tests.peer.consensus.rounds.build import update
from tests.vectors import whole

LAYERS = (6, 4)


def make_anchor() -> OuterState:
    return OuterState.initial(torch.arange(10, dtype=torch.float32).split(LAYERS))


def test_the_first_anchor_has_no_momentum() -> None:
    """Round 0, nothing read."""
    anchor = make_anchor()
    assert anchor.round == 0
    assert anchor.cursors == {}
    assert not whole(anchor.momentum).any()


LAYOUT = (Part(0, 0, 3), Part(0, 3, 3), Part(1, 6, 4))
WHOLE = (Part(0, 0, 6), Part(1, 6, 4))
MEAN = np.linspace(-1, 1, 10, dtype=np.float32)
Mean = np.ndarray[Any, np.dtype[np.float32]] | None


@pytest.fixture
def exact(spec: RunSpec) -> RunSpec:
    """What a mean says is what is decoded."""
    return dataclasses.replace(
        spec, codec=dataclasses.replace(spec.codec, wire="float32"),
        outer=dataclasses.replace(spec.outer, learning_rate=0.7, momentum=0.9, momentum_warmup_rounds=0),
    )  # fmt: skip


def step(
    anchor: OuterState, spec: RunSpec, means: Sequence[Mean], layout: tuple[Part, ...] = LAYOUT,
    contributors: Sequence[int] = (7, 7, 7), ranges: Ranges = (),
) -> OuterState:  # fmt: skip
    """`anchor`, after an update with these means; a part without a mean and with contributors is rolled back."""
    payloads = [None if mean is None else Codec("float32").encode(mean) for mean in means]
    objects = {digest_of(payload): payload for payload in payloads if payload is not None}
    item = update()
    decided = dataclasses.replace(
        item, round=anchor.round + 1, contributors=tuple(contributors)[: len(means)],
        parts=tuple(VOID if payload is None else digest_of(payload) for payload in payloads),
        members=tuple(dataclasses.replace(member, ranges=ranges) for member in item.members),
    )  # fmt: skip
    advance(anchor, decided, spec, layout, objects.__getitem__)
    return anchor


def moving(spec: RunSpec) -> OuterState:
    """An anchor with momentum."""
    return step(make_anchor(), spec, [MEAN[:6], MEAN[6:]], WHOLE)


def test_parts_are_the_whole_in_pieces(exact: RunSpec) -> None:
    """Applied part by part or at once, the bits are the same; a void part is a zero mean."""
    mean = MEAN.copy()
    mean[3:6] = 0
    at_once = step(make_anchor(), exact, [mean[:6], mean[6:]], WHOLE)
    pieces = step(make_anchor(), exact, [mean[:3], None, mean[6:]], contributors=(7, 0, 7))
    assert at_once.state_digest() == pieces.state_digest()
    assert pieces.round == 1


def test_tiles_do_not_show(exact: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size of them gives the same bits."""
    flat, mean = torch.linspace(0, 1, 1001), np.linspace(-1, 1, 1001, dtype=np.float32)
    layout = (Part(0, 0, 1001),)
    at_once = step(OuterState.initial([flat.clone()]), exact, [mean], layout)
    monkeypatch.setattr(outer_step, "TILE", 64)
    tiled = step(OuterState.initial([flat.clone()]), exact, [mean], layout)
    assert at_once.state_digest() == tiled.state_digest()
    assert not torch.equal(tiled.theta[0], flat)


def test_a_part_that_is_rolled_back_stays_as_it_is(exact: RunSpec) -> None:
    """Momentum is untouched, and does not move the parameters; a void part is a zero mean, which lets it run out."""
    anchor, before = moving(exact), moving(exact)
    step(anchor, exact, [None, None, np.ones(4, np.float32)], contributors=(0, 7, 7))
    pairs = (anchor.theta, before.theta), (anchor.momentum, before.momentum)
    for vector, old in ((whole(now), whole(then)) for now, then in pairs):
        assert torch.equal(vector[3:6], old[3:6])
        assert not torch.equal(vector[:3], old[:3])
        assert not torch.equal(vector[6:], old[6:])
    assert anchor.round == before.round + 1


def test_a_round_whose_layers_are_all_rolled_back_changes_no_bit(exact: RunSpec) -> None:
    """It counts as a round, and the data behind it as read; the next round is as if it had not been."""
    anchor, before = moving(exact), moving(exact)
    step(anchor, exact, [None, None, None], ranges=((0, 0, 5),))
    assert whole(anchor.theta).numpy().tobytes() == whole(before.theta).numpy().tobytes()
    assert whole(anchor.momentum).numpy().tobytes() == whole(before.momentum).numpy().tobytes()
    assert anchor.round == before.round + 1
    assert anchor.cursors == {0: 5}
    step(before, exact, [None, None, None], contributors=(0, 0, 7))
    assert not torch.equal(before.theta[0], anchor.theta[0]), "a void layer runs on"
    assert torch.equal(before.theta[1], anchor.theta[1])


def test_one_layer_is_rolled_back_beside_others_that_move(exact: RunSpec) -> None:
    """All parts of it, and no other."""
    anchor, before = moving(exact), moving(exact)
    step(anchor, exact, [None, None, np.array([1.0, 2.0, 3.0, 4.0], np.float32)])
    assert torch.equal(anchor.theta[0], before.theta[0])
    assert torch.equal(anchor.momentum[0], before.momentum[0])
    assert not torch.equal(anchor.momentum[1], before.momentum[1])


def test_cursors_advance_and_never_go_back(exact: RunSpec) -> None:
    """A range that was read before, by a carried contribution, changes nothing."""
    anchor = step(make_anchor(), exact, [None, None], WHOLE, ranges=((3, 0, 8), (1, 0, 2)))
    step(anchor, exact, [None, None], WHOLE, ranges=((3, 2, 5),))
    assert anchor.cursors == {1: 2, 3: 8}


def test_a_lie_moves_a_cursor_no_further_than_work_could(exact: RunSpec) -> None:
    """A peer says that it has read all the data there will ever be: the others lose what one peer reads in the rounds
    until it is too late, and no more."""
    anchor = step(make_anchor(), exact, [None, None], WHOLE, ranges=((3, 0, (1 << 63) - 1), (1, 0, 2)))
    assert anchor.cursors == {1: 2, 3: exact.windows_most}


def test_a_cursor_that_a_lie_has_moved_to_the_end_begins_anew(exact: RunSpec) -> None:
    """A run that was poisoned once goes on: with the first range that is read, or the first round."""
    anchor = make_anchor()
    anchor.cursors = {1: (1 << 63) - 1, 3: (1 << 63) - 1}
    step(anchor, exact, [None, None], WHOLE, ranges=((3, 0, 8),))
    assert anchor.cursors == {3: 8}


def test_the_digest_is_what_the_protocol_says() -> None:
    """A Merkle root over the layers' little-endian θ and m, and the sorted cursors."""
    anchor = OuterState(
        [torch.tensor([1.0]), torch.tensor([2.0])], [torch.tensor([3.0]), torch.tensor([4.0])], 5, {9: 1, 2: 7}
    )
    chunks = [blake3(bytes.fromhex(word)).digest() for word in ("0000803f", "00004040", "00000040", "00008040")]
    layers = [blake3(chunks[0] + chunks[1]).digest(), blake3(chunks[2] + chunks[3]).digest()]
    model = blake3(layers[0] + layers[1]).digest()
    assert anchor.state_digest() == blake3(msgpack.packb([model, [[2, 7], [9, 1]]])).digest()


@pytest.mark.parametrize("change", ["theta", "momentum", "cursors"])
def test_every_bit_of_state_shows_in_the_digest(change: str) -> None:
    """One unit in the last place of one element, or one cursor."""
    anchor, other = make_anchor(), make_anchor()
    if change == "cursors":
        other.cursors[0] = 1
    else:
        vector = getattr(other, change)[1]
        vector[1] = torch.nextafter(vector[1], torch.tensor(100.0))
    assert anchor.state_digest() != other.state_digest()
