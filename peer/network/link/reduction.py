"""A reducer's arithmetic: keep members' encoded parts, measure and average them off the event loop, encode once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from peer.consensus.codec.blockwise import Floats
from peer.consensus.codec.codec import Codec, tiles, weighted_mean
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import BufferPart, ReducePart
from peer.node.store.objects import ObjectStore

LASTS_BYTES = 64 << 20
"""Decoded parts of the last committed mean that are kept: each is needed once per member."""
SMALLEST, LARGEST = 1e-20, 1e30
"""An inner product in float32 has lost nothing that counts if it lies between them."""


class ReductionWorker:
    """`peer.consensus.rounds.driver.ReductionPort` with numpy in `executor`."""

    def __init__(
        self, codec: Codec, objects: ObjectStore, executor: Executor, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._codec, self._codec_of_means, self._objects = codec, codec.of_means, objects
        self._executor, self._call_soon = executor, call_soon
        self._place: BallotId | None = None
        self._kept: dict[tuple[BallotId, str, int], tuple[tuple[bytes, ...], bytes]] = {}
        self._lasts: dict[bytes, _Last] = {}

    def keep(self, effect: BufferPart) -> None:
        if self._place != effect.place:  # what an earlier ballot left will not be reduced any more
            self._place = effect.place
            self._kept.clear()
        self._kept[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: BallotId, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        return self._kept.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        working = self._executor.submit(self._figures, payload, direction)
        working.add_done_callback(lambda _: self._call_soon(lambda: done(working.result())))

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        keys = [(effect.place, member, effect.part) for member in effect.members]
        payloads = [self._kept[key][1] for key in keys]
        if not effect.attempt:  # what is reduced again may be needed as evidence
            for key in keys:
                del self._kept[key]
        working = self._executor.submit(self._named_mean, payloads, effect)

        def finish() -> None:
            named = working.result()
            if named is not None:
                self._objects.store(*named, lambda: done(named[0]))

        working.add_done_callback(lambda _: self._call_soon(finish))

    def forget(self) -> None:
        self._kept.clear()
        self._lasts.clear()

    def _figures(self, payload: bytes, direction: bytes) -> PartNorms:
        last = self._last(direction)
        square, dot, decode_tile = 0.0, 0.0, self._codec.opened(payload)
        for tile in tiles(self._codec.elements(payload)):
            values = decode_tile(tile)
            square += inner_product(values, values)
            if last is not None:
                dot += inner_product(values, last.values[tile])
        return PartNorms(square) if last is None else PartNorms(square, dot, last.square)

    def _named_mean(self, payloads: list[bytes], effect: ReducePart) -> tuple[bytes, bytes] | None:
        mean = self._mean(payloads, effect)
        return None if mean is None else (digest_of(mean), mean)

    def _mean(self, payloads: list[bytes], effect: ReducePart) -> bytes | None:
        """The encoded mean of what is finite; None if there is nothing to say."""
        last = self._last(effect.direction) if effect.pull else None
        if effect.pull and last is None and effect.direction != VOID:
            return None
        pairs = [pair for pair in zip(payloads, effect.weights, strict=True) if self._is_finite(pair[0])]
        if not pairs:
            return None
        finite, weights = zip(*pairs, strict=True)
        opened = [self._codec.opened(payload) for payload in finite]

        def mean_of(tile: slice) -> Floats:
            return weighted_mean(
                [decode_tile(tile) for decode_tile in opened], weights, effect.missing, scale=effect.scale,
                pull=effect.pull, last=None if last is None else last.values[tile],
            )  # fmt: skip

        return self._codec_of_means.encode_tiles(self._codec.elements(finite[0]), mean_of)

    def _is_finite(self, payload: bytes) -> bool:
        return self._codec.is_finite(payload) or bool(np.isfinite(self._codec.decode(payload)).all())

    def _last(self, direction: bytes) -> _Last | None:
        """The decoded last committed mean of a part; None without one. Called in the executor's threads."""
        if direction == VOID:
            return None
        found = self._lasts.get(direction)
        if found is not None:
            return found
        payload = self._objects.load(direction)
        if payload is None:
            return None
        values = self._codec_of_means.decode(payload)
        last = _Last(values, sum(inner_product(values[tile], values[tile]) for tile in tiles(values.size)))
        if sum(kept.values.nbytes for kept in list(self._lasts.values())) + values.nbytes <= LASTS_BYTES:
            self._lasts[direction] = last
        return last


@dataclass(frozen=True)
class _Last:
    """A decoded mean, and its square."""

    values: Floats
    square: float


def inner_product(left: Floats, right: Floats) -> float:
    """Of two tiles: in float32, which is eight times as fast, unless that is too small or too large for it.

    What it sums of a tile is off by 1e-6 of the norms at most; whoever compares allows a thousand times as much.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = float(np.dot(left, right))
        if SMALLEST < abs(product) < LARGEST:
            return product
        return float(np.dot(left.astype(np.float64), right.astype(np.float64)))
