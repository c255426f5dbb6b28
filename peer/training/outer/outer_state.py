"""The outer state of a run, layer by layer: all peers of a round hold it with the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from peer.consensus.codec.state_digest import layer_digest, state_digest
from peer.consensus.protocol.block import CURSOR_END
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.layout import Part
from peer.training.outer.copy_stream import CHUNK_ELEMENTS, copy_over, host_chunks


class OuterState:
    """Parameters θ and outer momentum m, flat float32 by layer, on any device; the round number, and data cursors.

    It has all layers, or neighbouring ones: the first of them is number `first_layer` of the model and begins at
    element `first_element` of its flat vector. Methods count layers from that one.
    """

    def __init__(
        self, theta: Sequence[Tensor], momentum: Sequence[Tensor], round: int, cursors: Mapping[int, int], *,
        first_layer: int = 0, first_element: int = 0,
    ) -> None:  # fmt: skip
        assert [each.numel() for each in theta] == [each.numel() for each in momentum]
        assert all(each.dtype == torch.float32 and each.dim() == 1 for each in (*theta, *momentum))
        self.theta, self.momentum = tuple(theta), tuple(momentum)
        self.round = round
        self.cursors = dict(cursors)
        self.layers = range(first_layer, first_layer + len(self.theta))
        """The numbers that they have in the model."""
        self._starts = [first_element]
        for layer in self.theta:
            self._starts.append(self._starts[-1] + layer.numel())

    @classmethod
    def initial(cls, theta: Sequence[Tensor]) -> OuterState:
        """Anchor 0 of a run whose first parameters are `theta`, which it keeps and changes in place."""
        return cls(theta, [torch.zeros_like(layer) for layer in theta], 0, {})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each layer."""
        return tuple(layer.numel() for layer in self.theta)

    def of(self, part: Part) -> slice:
        """Where a part of the model lies in its layer."""
        first = part.start - self._starts[part.layer - self.layers.start]
        return slice(first, first + part.size)

    def holding(self, part: Part) -> tuple[Tensor, Tensor]:
        """θ and m of a part of the model that lies in one of these layers."""
        theta, momentum = self.layer(part.layer - self.layers.start)
        return theta[self.of(part)], momentum[self.of(part)]

    @torch.no_grad()
    def become(self, other: OuterState) -> None:
        """Take over its values, in place."""
        for mine, its in zip((*self.theta, *self.momentum), (*other.theta, *other.momentum), strict=True):
            copy_over(its, mine)
        self.round, self.cursors = other.round, dict(other.cursors)

    def arrive(self, ranges: Iterable[tuple[int, int, int]], windows_most: int) -> None:
        """Advance the cursors past `ranges`, each by at most `windows_most`; this is the next round's anchor.

        A cursor stays moved, and who moved it cannot be asked later: so a lie moves it no further than work could. A
        cursor at or beyond `CURSOR_END`, which no run reaches, was set by a lie and begins at 0 again.
        """
        before = {shard: cursor for shard, cursor in self.cursors.items() if cursor < CURSOR_END}
        self.cursors = dict(before)
        for shard, _, end in ranges:
            reached = min(end, before.get(shard, 0) + windows_most)
            self.cursors[shard] = max(self.cursors.get(shard, 0), reached)
        self.round += 1

    def chunk_digests(self, layer: int) -> tuple[bytes, ...]:
        """Of a layer's θ and then its m."""
        return tuple(map(digest_of, self.chunks(layer)))

    def chunks(self, layer: int) -> Iterator[memoryview]:
        """The bytes of a layer's θ and then its m, CHUNK_BYTES at a time; each is valid until the next is asked for."""
        return chain.from_iterable(map(host_chunks, self.layer(layer)))

    @torch.no_grad()
    def fill(self, layer: int, chunks: Iterable[bytes]) -> None:
        """Load a layer's θ and then its m from their bytes, cut as `chunks` gives them."""
        places = chain.from_iterable(torch.split(vector, CHUNK_ELEMENTS) for vector in self.layer(layer))
        for place, payload in zip(places, chunks, strict=True):
            place.copy_(torch.from_numpy(np.frombuffer(payload, "<f4").astype(np.float32)))

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """θ and m of a layer."""
        return self.theta[number], self.momentum[number]

    def layer_digests(self) -> tuple[bytes, ...]:
        """See `peer.consensus.codec.state_digest`, and so below."""
        return tuple(layer_digest(self.chunk_digests(number)) for number in range(len(self.theta)))

    def state_digest(self) -> bytes:
        """Of a state that has all layers."""
        return state_digest(self.layer_digests(), self.cursors.items())
