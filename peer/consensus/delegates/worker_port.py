"""Sends a lead's requests to its workers, and turns their answers into inputs of its round machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from peer.consensus.delegates.worker_messages import (
    CompareMean,
    FetchMeans,
    GiveMean,
    GiveObjects,
    GiveParts,
    GiveRow,
    MeanCompared,
    MeanHeld,
    MeasureShare,
    ShareMeasured,
    WorkerRequest,
    decode_request,
    encode_request,
)
from peer.consensus.protocol.messages import FETCH_MOST, BallotId, GetObjects, MeanData, encode
from peer.consensus.rounds import interface
from peer.consensus.rounds.interface import CheckMean, DelegateHolds, Input, MeanChecked, ShowRow

ASKED_MOST = 1 << 17
"""Answers that are waited for: two rounds of the most parts."""


class WorkerPort(Protocol):
    """What a lead asks of its workers. None of it waits: what comes of it comes as an input, or not at all."""

    def give_parts(
        self, worker: str, to: str, place: BallotId, attempt: int, parts: tuple[tuple[int, tuple[bytes, ...]], ...]
    ) -> None:
        """Have (part, Merkle path) sent as `PartData`; `to` may be the lead itself."""

    def measure(self, worker: str, anchor: bytes, part: int, direction: bytes) -> None:
        """Have a part of our own contribution measured; it ends as `OwnMeasured`."""

    def check(self, worker: str, effect: CheckMean) -> None:
        """Have a mean compared with its rows; it ends as `MeanChecked`."""

    def show_row(self, worker: str, effect: ShowRow, path: tuple[bytes, ...]) -> None:
        """Have the bytes sent that we gave to a mean."""

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
        self, send: Callable[[str, bytes], None], deliver: Callable[[Input], None],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._send, self._deliver, self._clock = send, deliver, clock
        self._asked: dict[tuple[bytes, int], str] = {}

    def give_parts(
        self, worker: str, to: str, place: BallotId, attempt: int, parts: tuple[tuple[int, tuple[bytes, ...]], ...]
    ) -> None:
        self._order(worker, GiveParts(to, place, attempt, parts))

    def measure(self, worker: str, anchor: bytes, part: int, direction: bytes) -> None:
        self._await((anchor, part), worker)
        self._order(worker, MeasureShare(anchor, part, direction))

    def check(self, worker: str, effect: CheckMean) -> None:
        self._await((effect.digest, effect.part), worker)
        self._order(
            worker,
            CompareMean(
                effect.digest, effect.part, effect.contributors, effect.names, effect.weights, effect.declared,
                effect.anchor, effect.missing, effect.scale, effect.pull, effect.direction, effect.basis,
            ),
        )  # fmt: skip

    def show_row(self, worker: str, effect: ShowRow, path: tuple[bytes, ...]) -> None:
        self._order(worker, GiveRow(effect.to, effect.place, effect.part, effect.digest, effect.contributors, path))

    def _await(self, what: tuple[bytes, int], worker: str) -> None:
        if len(self._asked) >= ASKED_MOST:
            del self._asked[next(iter(self._asked))]
        self._asked[what] = worker

    def fetch(self, worker: str, source: str, digests: tuple[bytes, ...]) -> None:
        for first in range(0, len(digests), FETCH_MOST):
            self._order(worker, FetchMeans(source, digests[first : first + FETCH_MOST]))

    def give_objects(self, worker: str, to: str, digests: tuple[bytes, ...]) -> None:
        self._order(worker, GiveObjects(to, digests))

    def give_mean(self, worker: str, to: str, mean: MeanData) -> None:
        self._order(worker, GiveMean(to, replace(mean, payload=b"")))

    def bring(self, worker: str, digest: bytes) -> None:
        self._send(worker, encode(GetObjects((digest,))))

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
            case ShareMeasured(anchor, part) if self._asked.get((anchor, part)) == sender:
                del self._asked[anchor, part]
                self._deliver(interface.OwnMeasured(self._clock(), anchor, part, order.figures))
            case MeanCompared(digest, part, bits, fault, basis) if self._asked.get((digest, part)) == sender:
                del self._asked[digest, part]
                self._deliver(MeanChecked(self._clock(), digest, part, bits, fault, basis))
            case _:
                raise ValueError("no answer to what was asked")
