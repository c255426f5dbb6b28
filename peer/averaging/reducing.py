"""A reducer's arithmetic: keep members' encoded parts, measure and average them off the event loop, encode once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from peer.averaging.codec import Codec, Floats, weighted_mean
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
        working = self._executor.submit(self._mean, payloads, effect)

        def finish() -> None:
            mean = working.result()
            if mean is not None:
                digest = digest_of(mean)
                self._objects.store(digest, mean, lambda: done(digest))

        working.add_done_callback(lambda _: self._call_soon(finish))

    def forget(self) -> None:
        self._kept.clear()
        self._lasts.clear()

    def _figures(self, payload: bytes, direction: bytes) -> Figures:
        values = self._codec.decode(payload)
        last = self._last(direction)
        if last is None:
            return Figures(_dot(values, values))
        return Figures(_dot(values, values), _dot(values, last), _dot(last, last))

    def _mean(self, payloads: list[bytes], effect: Reduce) -> bytes | None:
        """The encoded mean of what is finite; None if there is nothing to say."""
        last = self._last(effect.direction) if effect.pull else None
        if effect.pull and last is None and effect.direction != VOID:
            return None
        decoded = [self._codec.decode(payload) for payload in payloads]
        pairs = [pair for pair in zip(decoded, effect.weights, strict=True) if np.isfinite(pair[0]).all()]
        if not pairs:
            return None
        values, weights = zip(*pairs, strict=True)
        mean = weighted_mean(
            values, weights, effect.missing, scale=effect.scale, pull=effect.pull, last=last
        )  # fmt: skip
        return self._codec.encode(mean)

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
