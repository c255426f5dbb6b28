"""A reducer's arithmetic: keep members' encoded parts, average them off the event loop, encode once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from peer.averaging.codec import Codec, weighted_mean
from peer.rounds.effects import Keep, Reduce
from peer.rounds.messages import Place
from peer.rounds.names import digest_of


class Objects(Protocol):
    """Where means are stored."""

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None: ...


class Reducer:
    """`peer.averaging.driver.Arithmetic` with numpy in `executor`."""

    def __init__(
        self, codec: Codec, objects: Objects, executor: Executor, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._codec, self._objects = codec, objects
        self._executor, self._call_soon = executor, call_soon
        self._place: Place | None = None
        self._kept: dict[tuple[Place, str, int], tuple[tuple[bytes, ...], bytes]] = {}

    def keep(self, effect: Keep) -> None:
        if self._place != effect.place:  # what an earlier ballot left will not be reduced any more
            self._place = effect.place
            self._kept.clear()
        self._kept[effect.place, effect.sender, effect.part] = (effect.path, effect.payload)

    def kept(self, place: Place, giver: str, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        return self._kept.get((place, giver, part))

    def reduce(self, effect: Reduce, done: Callable[[bytes], None]) -> None:
        keys = [(effect.place, member, effect.part) for member in effect.members]
        payloads = [self._kept[key][1] for key in keys]
        if not effect.attempt:  # what is reduced again may be needed as evidence
            for key in keys:
                del self._kept[key]
        working = self._executor.submit(self._mean, payloads, effect.weights, effect.missing)

        def finish() -> None:
            digest, mean = working.result()
            self._objects.store(digest, mean, lambda: done(digest))

        working.add_done_callback(lambda _: self._call_soon(finish))

    def forget(self) -> None:
        self._kept.clear()

    def _mean(self, payloads: list[bytes], weights: tuple[int, ...], missing: int) -> tuple[bytes, bytes]:
        values = [self._codec.decode(payload) for payload in payloads]
        mean = self._codec.encode(weighted_mean(values, weights, missing))
        return digest_of(mean), mean
