"""What members show each other of one that lies: two updates of a ballot, two means of a part, a wrong norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from peer.protocol.block import (  # fmt: skip
    MAX_PARTS,
    SignedNorms,
)
from peer.protocol.encoding import (
    DIGEST_BYTES,
    integer,
    octets,
    row,
)
from peer.protocol.messages import BallotId, MeanData, Message


@dataclass(frozen=True, slots=True)
class EquivocationProof(Message):
    """Two updates, each with the signature of the coordinator that proposed both in one ballot."""

    code = 31
    cap_bytes = 1 << 10
    place: BallotId
    first: tuple[bytes, bytes]
    second: tuple[bytes, bytes]

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.first, self.second)

    @classmethod
    def unpacked(cls, value: Any) -> EquivocationProof:
        place, first, second = row(value, 3)
        return cls(BallotId.unpacked(place), _proposed(first), _proposed(second))


@dataclass(frozen=True, slots=True)
class MeanConflict(Message):
    """Member to members: a mean that I got, without its bytes, which is not the one that is proposed."""

    code = 19
    cap_bytes = 1 << 11
    place: BallotId
    mean: MeanData

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), replace(self.mean, payload=b"").packed())

    @classmethod
    def unpacked(cls, value: Any) -> MeanConflict:
        place, packed = row(value, 2)
        mean = MeanData.unpacked(packed)
        if mean.payload:
            raise ValueError("expected a mean without its bytes")
        return cls(BallotId.unpacked(place), mean)


@dataclass(frozen=True, slots=True)
class NormDispute(Message):
    """Member to members: what this reducer signed of me for this layer is wrong; the parts follow."""

    code = 20
    cap_bytes = 4 << 20
    place: BallotId
    measurements: SignedNorms
    layer: int

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.measurements.packed(), self.layer)

    @classmethod
    def unpacked(cls, value: Any) -> NormDispute:
        place, measurements, layer = row(value, 3)
        return cls(BallotId.unpacked(place), SignedNorms.unpacked(measurements), integer(layer, 0, MAX_PARTS))


def _proposed(value: Any) -> tuple[bytes, bytes]:
    update, signature = row(value, 2)
    return octets(update, DIGEST_BYTES), octets(signature, 64)
