"""A lead's words to its workers, and theirs as inputs of its round machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from peer.consensus.delegates.worker_messages import (
    FetchMeans,
    GiveMean,
    GiveObjects,
    GiveParts,
    MeanHeld,
    MeasureOwn,
    OwnMeasured,
    WorkerRequest,
    decode_request,
    encode_request,
)
from peer.consensus.protocol.messages import FETCH_MOST, BallotId, GetObjects, MeanData, Message, encode
from peer.consensus.rounds.interface import DelegateHolds, Input, PartMeasured

MEASURES_MOST = 1 << 17
"""Answers that are waited for: two rounds of the most parts."""


class WorkerPort(Protocol):
    """What a lead asks of its workers. None of it waits: what comes of it comes as an input, or not at all."""

    def give_parts(
        self, worker: str, to: str, place: BallotId, attempt: int, parts: tuple[tuple[int, tuple[bytes, ...]], ...]
    ) -> None:
        """Have (part, Merkle path) sent as `PartData`; `to` may be the lead itself."""

    def measure(self, worker: str, place: BallotId, part: int, direction: bytes) -> None:
        """Have a part of our own contribution measured; it ends as `PartMeasured`."""

    def fetch(self, worker: str, source: str, digests: tuple[bytes, ...]) -> None:
        """Have it ask `source` itself; it ends as `DelegateHolds`, at once if the bytes are there."""

    def give_objects(self, worker: str, to: str, digests: tuple[bytes, ...]) -> None:
        """Somebody asked the lead for bytes that only its worker has."""

    def give_mean(self, worker: str, to: str, mean: MeanData) -> None:
        """The same of a mean, which comes with its signature."""

    def bring(self, worker: str, digest: bytes) -> None:
        """The lead needs these bytes itself; they come as `ObjectData`."""


class WorkerOrders:
    """Implements `WorkerPort` by frames that `send` carries in order; answers go to `deliver`."""

    def __init__(
        self, me: str, send: Callable[[str, bytes], None], deliver: Callable[[Input], None],
        clock: Callable[[], float], encode_message: Callable[[Message], bytes] = encode,
    ) -> None:  # fmt: skip
        self._me, self._send, self._deliver, self._clock, self._encode = me, send, deliver, clock, encode_message
        self._measuring: dict[tuple[BallotId, int], str] = {}

    def give_parts(
        self, worker: str, to: str, place: BallotId, attempt: int, parts: tuple[tuple[int, tuple[bytes, ...]], ...]
    ) -> None:
        self._order(worker, GiveParts(to, place, attempt, parts))

    def measure(self, worker: str, place: BallotId, part: int, direction: bytes) -> None:
        if len(self._measuring) >= MEASURES_MOST:
            del self._measuring[next(iter(self._measuring))]
        self._measuring[place, part] = worker
        self._order(worker, MeasureOwn(place, part, direction))

    def fetch(self, worker: str, source: str, digests: tuple[bytes, ...]) -> None:
        for first in range(0, len(digests), FETCH_MOST):
            self._order(worker, FetchMeans(source, digests[first : first + FETCH_MOST]))

    def give_objects(self, worker: str, to: str, digests: tuple[bytes, ...]) -> None:
        self._order(worker, GiveObjects(to, digests))

    def give_mean(self, worker: str, to: str, mean: MeanData) -> None:
        self._order(worker, GiveMean(to, replace(mean, payload=b"")))

    def bring(self, worker: str, digest: bytes) -> None:
        self._send(worker, self._encode(GetObjects((digest,))))

    def _order(self, worker: str, order: WorkerRequest) -> None:
        self._send(worker, encode_request(order))

    def on_frame(self, sender: str, frame: bytes) -> None:
        """An answer of an authenticated peer. Whether it is a worker of mine for these layers, the machine knows.

        Raises ValueError for what is no answer.
        """
        order = decode_request(frame)
        match order:
            case MeanHeld(digest, size, mean):
                self._deliver(DelegateHolds(self._clock(), sender, digest, size, mean))
            case OwnMeasured(place, part) if self._measuring.get((place, part)) == sender:
                del self._measuring[place, part]
                self._deliver(PartMeasured(self._clock(), place, self._me, part, order.figures))
            case _:
                raise ValueError("no answer to what was asked")
