"""A reducer's arithmetic: keep members' encoded parts, measure and average them off the event loop, encode once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from peer.averaging.codec import Codec, Floats, tiles, weighted_mean
from peer.rounds.effects import Keep, Reduce
from peer.rounds.messages import Place
from peer.rounds.names import digest_of
from peer.rounds.state import Figures
from peer.rounds.update import VOID

LASTS_KEPT = 64
"""Decoded parts of the last committed mean that are kept, at most `LASTS_BYTES` in all: each is needed per member."""
LASTS_BYTES = 64 << 20


class Objects(Protocol):
    """Where means are stored."""

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None: ...
    def load(self, digest: bytes) -> bytes | None: ...


class Reducer:
    """`peer.averaging.driver.Arithmetic` with numpy in `executor`."""

    def __init__(
        self, codec: Codec, objects: Objects, executor: Executor, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._codec, self._objects = codec, objects
        self._executor, self._call_soon = executor, call_soon
        self._place: Place | None = None
        self._kept: dict[tuple[Place, str, int], tuple[tuple[bytes, ...], bytes]] = {}
        self._lasts: dict[bytes, Floats] = {}

    def keep(self, effect: Keep) -> None:
        if self._place != effect.place:  # what an earlier ballot left will not be reduced any more
            self._place = effect.place
            self._kept.clear()
        self._kept[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: Place, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        return self._kept.get((place, giver, part))

    def measure(self, payload: bytes, direction: bytes, done: Callable[[Figures], None]) -> None:
        working = self._executor.submit(self._figures, payload, direction)
        working.add_done_callback(lambda _: self._call_soon(lambda: done(working.result())))

    def reduce(self, effect: Reduce, done: Callable[[bytes], None]) -> None:
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

    def _figures(self, payload: bytes, direction: bytes) -> Figures:
        last = self._last(direction)
        square = dot = last_square = 0.0
        for tile in tiles(self._codec.elements(payload)):
            values = self._codec.decode_tile(payload, tile)
            square += _dot(values, values)
            if last is not None:
                dot += _dot(values, last[tile])
                last_square += _dot(last[tile], last[tile])
        return Figures(square) if last is None else Figures(square, dot, last_square)

    def _named_mean(self, payloads: list[bytes], effect: Reduce) -> tuple[bytes, bytes] | None:
        """(digest, encoded mean), if there is one."""
        mean = self._mean(payloads, effect)
        return None if mean is None else (digest_of(mean), mean)

    def _mean(self, payloads: list[bytes], effect: Reduce) -> bytes | None:
        """The encoded mean of what is finite; None if there is nothing to say."""
        last = self._last(effect.direction) if effect.pull else None
        if effect.pull and last is None and effect.direction != VOID:
            return None
        pairs = [pair for pair in zip(payloads, effect.weights, strict=True) if self._is_finite(pair[0])]
        if not pairs:
            return None
        finite, weights = zip(*pairs, strict=True)

        def mean_of(tile: slice) -> Floats:
            values = [self._codec.decode_tile(payload, tile) for payload in finite]
            return weighted_mean(
                values, weights, effect.missing, scale=effect.scale, pull=effect.pull,
                last=None if last is None else last[tile],
            )  # fmt: skip

        return self._codec.encode_tiles(self._codec.elements(finite[0]), mean_of)

    def _is_finite(self, payload: bytes) -> bool:
        """Whether it decodes to finite numbers alone."""
        return self._codec.is_finite(payload) or bool(np.isfinite(self._codec.decode(payload)).all())

    def _last(self, direction: bytes) -> Floats | None:
        """The decoded last committed mean of a part; None without one. Called in the executor's threads."""
        if direction == VOID:
            return None
        found = self._lasts.get(direction)
        if found is not None:
            return found
        payload = self._objects.load(direction)
        if payload is None:
            return None
        decoded = self._codec.decode(payload)
        if sum(values.nbytes for values in list(self._lasts.values())) + decoded.nbytes <= LASTS_BYTES:
            self._lasts[direction] = decoded
        return decoded


def _dot(left: Floats, right: Floats) -> float:
    """The inner product, in float64."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.dot(left.astype(np.float64), right.astype(np.float64)))
