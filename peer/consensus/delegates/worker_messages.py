"""Messages between the link of a lead and the links of its workers: frames beside those of the round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dht.protocol_version import PROTOCOL_VERSION, other_version
from peer.consensus.protocol.block import MAX_MEMBERS, MAX_PARTS, MEMBER_BITS, PART, WEIGHT_ONE
from peer.consensus.protocol.encoding import (
    COUNT,
    DIGEST,
    Packed,
    Read,
    each,
    fields,
    integer,
    octets,
    optional,
    pack,
    text,
    unpack,
)
from peer.consensus.protocol.messages import FETCH_MOST, BallotId, MeanData
from peer.consensus.protocol.norms import PartNorms

CAP_BYTES = 8 << 20
"""Of a frame: the paths of all parts."""


def _attempt(value: Any) -> int:
    return integer(value, 0, 1)


def _figure(value: Any) -> float:
    if type(value) is not float:
        raise ValueError("expected a figure")
    return value


def _void_or_digest(value: Any) -> bytes:
    return octets(value) if value == b"" else DIGEST(value)


_PATHS: Read = each(fields(PART, each(DIGEST, 17)), MAX_PARTS)
_DIGESTS: Read = each(DIGEST, FETCH_MOST)


@dataclass(frozen=True, slots=True)
class WorkerRequest(Packed):
    """Base of them all."""

    code: ClassVar[int]


@dataclass(frozen=True, slots=True)
class GiveParts(WorkerRequest):
    """Lead to worker: send these parts of our contribution to a reducer, each with this path; it may be me."""

    code = 64
    readers = (text, BallotId.unpacked, _attempt, _PATHS)
    to: str
    place: BallotId
    attempt: int
    parts: tuple[tuple[int, tuple[bytes, ...]], ...]


@dataclass(frozen=True, slots=True)
class MeasureShare(WorkerRequest):
    """Lead to worker: what does this part of our contribution come to, also against the mean of this digest?"""

    code = 65
    readers = (DIGEST, PART, _void_or_digest)
    anchor: bytes
    part: int
    direction: bytes


@dataclass(frozen=True, slots=True)
class FetchMeans(WorkerRequest):
    """Lead to worker: have these bytes, from this source unless they are there."""

    code = 66
    readers = (text, _DIGESTS)
    source: str
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GiveObjects(WorkerRequest):
    """Lead to worker: somebody asked me for these bytes, which only you have."""

    code = 67
    readers = (text, _DIGESTS)
    to: str
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GiveMean(WorkerRequest):
    """Lead to worker: send this mean, with its bytes."""

    code = 68
    readers = (text, MeanData.unpacked)
    to: str
    mean: MeanData


@dataclass(frozen=True, slots=True)
class CompareMean(WorkerRequest):
    """Lead to worker: is this mean what its rows come to? The fields are those of
    `peer.consensus.rounds.interface.CheckMean`."""

    code = 69
    readers = (
        DIGEST, PART, MEMBER_BITS, each(text, MAX_MEMBERS), each(partial(integer, low=0, high=WEIGHT_ONE), MAX_MEMBERS),
        each(_figure, MAX_MEMBERS), DIGEST, COUNT, COUNT, partial(integer, low=-1), _void_or_digest, DIGEST,
    )  # fmt: skip
    digest: bytes
    part: int
    contributors: int
    names: tuple[str, ...]
    weights: tuple[int, ...]
    declared: tuple[float, ...]
    anchor: bytes
    missing: int
    scale: int
    pull: int
    direction: bytes
    basis: bytes


@dataclass(frozen=True, slots=True)
class GiveRow(WorkerRequest):
    """Lead to worker: show these peers what we gave to this mean, with this path."""

    code = 70
    readers = (each(text, MAX_MEMBERS), BallotId.unpacked, PART, DIGEST, MEMBER_BITS, each(DIGEST, 17))
    to: tuple[str, ...]
    place: BallotId
    part: int
    digest: bytes
    contributors: int
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MeanHeld(WorkerRequest):
    """Worker to lead: these bytes are on my disk; with what their reducer signed if they came from there."""

    code = 72
    readers = (DIGEST, COUNT, optional(MeanData.unpacked))
    digest: bytes
    size: int
    mean: MeanData | None = None


@dataclass(frozen=True, slots=True)
class ShareMeasured(WorkerRequest):
    """Worker to lead: what a part comes to."""

    code = 73
    readers = (DIGEST, PART, _figure, _figure, optional(_figure))
    anchor: bytes
    part: int
    square: float
    dot: float
    direction: float | None

    @property
    def figures(self) -> PartNorms:
        return PartNorms(self.square, self.dot, self.direction)


@dataclass(frozen=True, slots=True)
class MeanCompared(WorkerRequest):
    """Worker to lead: what is wrong with a mean; empty if nothing is."""

    code = 74
    readers = (DIGEST, PART, MEMBER_BITS, text, DIGEST)
    digest: bytes
    part: int
    contributors: int
    fault: str
    basis: bytes


_ORDERS: dict[int, type[WorkerRequest]] = {
    kind.code: kind for kind in (
        GiveParts, MeasureShare, FetchMeans, GiveObjects, GiveMean, CompareMean, GiveRow, MeanHeld, ShareMeasured,
        MeanCompared,
    )
}  # fmt: skip


def is_order(frame: bytes) -> bool:
    """Whether a frame is for `decode_request`; all others are messages of the round."""
    return len(frame) > 1 and frame[0] == PROTOCOL_VERSION and frame[1] in _ORDERS


def encode_request(order: WorkerRequest) -> bytes:
    """A frame: version byte, type byte and msgpack."""
    return bytes((PROTOCOL_VERSION, order.code)) + pack(order.packed())


def decode_request(frame: bytes) -> WorkerRequest:
    """The order or answer in a frame. Raises ValueError for anything that is none."""
    if frame and frame[0] != PROTOCOL_VERSION:
        raise ValueError(other_version("a frame", frame[0]))
    if not is_order(frame) or len(frame) > CAP_BYTES:
        raise ValueError("no order of a lead and no answer")
    return _ORDERS[frame[1]].unpacked(unpack(memoryview(frame)[2:]))
