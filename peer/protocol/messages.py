"""What peers say to each other in a round (the protocol, §4).

Everything that arrives is checked here for type, size and range before anything else sees it: `unpacked`
raises ValueError and nothing more. Whatever is passed on to third parties (pledges, norms, means,
proposals, votes) carries its author's signature; the rest is authenticated by the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from peer.protocol.block import (  # fmt: skip
    ALL_MEMBERS,
    MAX_BALLOT,
    MAX_MEMBERS,
    MAX_PARTS,
    Block,
    ContributionHeader,
    SignedNorms,
    Update,
    Vote,
    peers,
)
from peer.protocol.encoding import (
    DIGEST_BYTES,
    Keys,
    blobs,
    boolean,
    integer,
    octets,
    pack,
    printable,
    row,
    rows,
    text,
)

FETCH_MOST = 1024
"""Digests in one fetch."""
GET_MOST = 32
"""Anchors in one GET."""
FETCH_BYTES = 16 << 20
"""What one fetch is answered with at most, so that a small question never costs the answerer a whole model."""


@dataclass(frozen=True, slots=True)
class BallotId:
    """Where in the run a message belongs."""

    anchor: bytes
    instance: bytes
    ballot: int

    def packed(self) -> tuple[Any, ...]:
        return (self.anchor, self.instance, self.ballot)

    @classmethod
    def unpacked(cls, value: Any) -> Self:
        anchor, instance, ballot = row(value, 3)
        return cls(octets(anchor, DIGEST_BYTES), octets(instance, DIGEST_BYTES), integer(ballot, 0, MAX_BALLOT))


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages. `cap_bytes` bounds a frame of this type."""

    code: ClassVar[int]
    cap_bytes: ClassVar[int] = 1 << 20

    def packed(self) -> tuple[Any, ...]:
        raise NotImplementedError

    @classmethod
    def unpacked(cls, value: Any) -> Message:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Coordinator to the electorate and all ready peers: may I lead this ballot, and who is in?

    `electorate` is empty for the electorate of the chain; in a takeover it names the peers that take over.
    """

    code = 1
    cap_bytes = 1 << 13
    place: BallotId
    electorate: tuple[str, ...] = ()

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.electorate)

    @classmethod
    def unpacked(cls, value: Any) -> Prepare:
        place, electorate = row(value, 2)
        return cls(BallotId.unpacked(place), peers(electorate))


@dataclass(frozen=True, slots=True)
class Promise(Message):
    """The answer: what I contribute, and what I have accepted before (ballot, digest of the update).

    `other` is the same for another instance of this anchor (a takeover).
    """

    code = 2
    cap_bytes = 1 << 16
    place: BallotId
    pledge: ContributionHeader
    accepted: tuple[int, bytes] | None = None
    other: tuple[int, bytes] | None = None

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.pledge.packed(), self.accepted, self.other)

    @classmethod
    def unpacked(cls, value: Any) -> Promise:
        place, pledge, accepted, other = row(value, 4)
        return cls(BallotId.unpacked(place), ContributionHeader.unpacked(pledge), _accepted(accepted), _accepted(other))


@dataclass(frozen=True, slots=True)
class Nack(Message):
    """I have promised a later ballot."""

    code = 3
    cap_bytes = 1 << 10
    place: BallotId
    promised: int

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.promised)

    @classmethod
    def unpacked(cls, value: Any) -> Nack:
        place, promised = row(value, 2)
        return cls(BallotId.unpacked(place), integer(promised, 0, MAX_BALLOT))


@dataclass(frozen=True, slots=True)
class Start(Message):
    """Coordinator to members: these are the members; send your parts."""

    code = 4
    cap_bytes = 4 << 20
    place: BallotId
    pledges: tuple[ContributionHeader, ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), tuple(pledge.packed() for pledge in self.pledges))

    @classmethod
    def unpacked(cls, value: Any) -> Start:
        place, pledges = row(value, 2)
        return cls(
            BallotId.unpacked(place), tuple(ContributionHeader.unpacked(item) for item in rows(pledges, MAX_MEMBERS))
        )


@dataclass(frozen=True, slots=True)
class PartData(Message):
    """X: one encoded part of a member's contribution, with its path to the pledged root.

    `giver` is empty if it is the sender's own; an auditor passes on what others gave it. Attempt 2 is evidence
    for an objection.
    """

    code = 5
    cap_bytes = (16 << 20) + (1 << 12)
    place: BallotId
    attempt: int
    part: int
    path: tuple[bytes, ...]
    payload: bytes
    giver: str = ""

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.attempt, self.part, self.path, self.payload, self.giver)

    @classmethod
    def unpacked(cls, value: Any) -> PartData:
        place, attempt, part, path, payload, giver = row(value, 6)
        return cls(
            BallotId.unpacked(place), integer(attempt, 0, 2), integer(part, 0, MAX_PARTS), blobs(path, 17),
            octets(payload), text(giver),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Norms(Message):
    """Reducer to coordinator: whose bytes I hold, and what I measured."""

    code = 6
    cap_bytes = 4 << 20
    place: BallotId
    measurements: SignedNorms

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.measurements.packed())

    @classmethod
    def unpacked(cls, value: Any) -> Norms:
        place, measurements = row(value, 2)
        return cls(BallotId.unpacked(place), SignedNorms.unpacked(measurements))


@dataclass(frozen=True, slots=True)
class NormTable(Message):
    """Coordinator to members: all signed measurements, so that everyone computes the same weights."""

    code = 7
    cap_bytes = 8 << 20
    place: BallotId
    measured: tuple[SignedNorms, ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), tuple(item.packed() for item in self.measured))

    @classmethod
    def unpacked(cls, value: Any) -> NormTable:
        place, measured = row(value, 2)
        return cls(BallotId.unpacked(place), tuple(SignedNorms.unpacked(item) for item in rows(measured, MAX_MEMBERS)))


@dataclass(frozen=True, slots=True)
class MeanData(Message):
    """MEAN: the encoded mean of one part, the same bytes to all members.

    Without bytes it is the word of an auditor to the coordinator: what this part comes to when it is reduced again.
    """

    code = 8
    cap_bytes = (16 << 20) + (1 << 12)
    place: BallotId
    attempt: int
    part: int
    reducer: str
    contributors: int
    digest: bytes
    signature: bytes
    payload: bytes = b""
    basis: bytes = b""
    """What it was computed from, by its digest: two honest means of a part differ if their TABLEs did."""

    def signed_payload(self) -> bytes:
        return pack((self.place.packed(), self.attempt, self.part, self.contributors, self.digest, self.basis))

    def signed(self, keys: Keys) -> MeanData:
        return replace(self, signature=keys.sign("mean", self.signed_payload()))

    def genuine(self, keys: Keys) -> bool:
        return keys.verify(self.reducer, "mean", self.signed_payload(), self.signature)

    def packed(self) -> tuple[Any, ...]:
        return (
            self.place.packed(), self.attempt, self.part, self.reducer, self.contributors,
            self.digest, self.signature, self.payload, self.basis,
        )  # fmt: skip

    @classmethod
    def unpacked(cls, value: Any) -> MeanData:
        place, attempt, part, reducer, contributors, digest, signature, payload, basis = row(value, 9)
        return cls(
            BallotId.unpacked(place), integer(attempt, 0, 1), integer(part, 0, MAX_PARTS), text(reducer),
            integer(contributors, 0, ALL_MEMBERS), octets(digest, DIGEST_BYTES),
            octets(signature, 64), octets(payload), octets(basis, most=DIGEST_BYTES),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GetMeans(Message):
    """Coordinator to members: send me the means of these parts if you have them."""

    code = 9
    place: BallotId
    parts: tuple[int, ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.parts)

    @classmethod
    def unpacked(cls, value: Any) -> GetMeans:
        place, parts = row(value, 2)
        return cls(BallotId.unpacked(place), tuple(integer(part, 0, MAX_PARTS) for part in rows(parts, MAX_PARTS)))


@dataclass(frozen=True, slots=True)
class Reassign(Message):
    """Coordinator to members: send these parts to these reducers too; nobody has a mean of them."""

    code = 17
    cap_bytes = 8 << 20
    place: BallotId
    parts: tuple[tuple[int, str], ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.parts)

    @classmethod
    def unpacked(cls, value: Any) -> Reassign:
        place, parts = row(value, 2)
        pairs = (row(item, 2) for item in rows(parts, MAX_PARTS))
        return cls(BallotId.unpacked(place), tuple((integer(part, 0, MAX_PARTS), text(peer)) for part, peer in pairs))


@dataclass(frozen=True, slots=True)
class ShowInputs(Message):
    """Coordinator to an auditor: your digest of this part is not the mean's; send me the bytes you counted."""

    code = 18
    cap_bytes = 1 << 10
    place: BallotId
    part: int

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.part)

    @classmethod
    def unpacked(cls, value: Any) -> ShowInputs:
        place, part = row(value, 2)
        return cls(BallotId.unpacked(place), integer(part, 0, MAX_PARTS))


@dataclass(frozen=True, slots=True)
class Propose(Message):
    """Coordinator to the electorate and members: decide this update."""

    code = 10
    cap_bytes = 8 << 20
    place: BallotId
    update: Update
    signature: bytes

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.update.packed(), self.signature)

    @classmethod
    def unpacked(cls, value: Any) -> Propose:
        place, update, signature = row(value, 3)
        return cls(BallotId.unpacked(place), Update.unpacked(update), octets(signature, 64))


@dataclass(frozen=True, slots=True)
class VoteCast(Message):
    """A voter holds the bytes and accepts the update."""

    code = 11
    cap_bytes = 1 << 12
    place: BallotId
    vote: Vote

    def packed(self) -> tuple[Any, ...]:
        return (self.place.packed(), self.vote.packed())

    @classmethod
    def unpacked(cls, value: Any) -> VoteCast:
        place, vote = row(value, 2)
        return cls(BallotId.unpacked(place), Vote.unpacked(vote))


@dataclass(frozen=True, slots=True)
class GetObjects(Message):
    """Send me the bytes of these digests. An answer stops after `FETCH_BYTES`; the rest is asked for again."""

    code = 12
    cap_bytes = 1 << 16
    digests: tuple[bytes, ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.digests,)

    @classmethod
    def unpacked(cls, value: Any) -> GetObjects:
        (digests,) = row(value, 1)
        return cls(blobs(digests, FETCH_MOST))


@dataclass(frozen=True, slots=True)
class ObjectData(Message):
    """BYTES: the answer to a fetch; `digest` is computed by the receiver from the payload."""

    code = 13
    cap_bytes = (16 << 20) + (1 << 12)
    digest: bytes
    payload: bytes

    def packed(self) -> tuple[Any, ...]:
        return (self.payload,)

    @classmethod
    def unpacked(cls, value: Any) -> ObjectData:
        (payload,) = row(value, 1)
        return cls(b"", octets(payload))


@dataclass(frozen=True, slots=True)
class GetBlocks(Message):
    """Send me what follows the newest of these anchors that is on your chain; mine, the newest first."""

    code = 14
    cap_bytes = 1 << 12
    anchors: tuple[bytes, ...]

    def packed(self) -> tuple[Any, ...]:
        return (self.anchors,)

    @classmethod
    def unpacked(cls, value: Any) -> GetBlocks:
        (anchors,) = row(value, 1)
        found = blobs(anchors, GET_MOST)
        if not found:
            raise ValueError("expected an anchor")
        return cls(found)


@dataclass(frozen=True, slots=True)
class Blocks(Message):
    """CHAIN: committed updates in order, each with its certificate. Without any: the sender has no way from what it was
    asked about to where it stands."""

    code = 15
    cap_bytes = 16 << 20
    blocks: tuple[Block, ...]

    def packed(self) -> tuple[Any, ...]:
        return (tuple(block.packed() for block in self.blocks),)

    @classmethod
    def unpacked(cls, value: Any) -> Blocks:
        (blocks,) = row(value, 1)
        return cls(tuple(Block.unpacked(item) for item in rows(blocks, 64)))


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """HEAD: where a peer is and whether it is ready (ready record, liveness sign and head record in one)."""

    code = 16
    cap_bytes = 1 << 11
    anchor: bytes
    round: int
    weight: int
    state: bytes
    ready: bool
    tokens: int
    steps: int
    leaving: bool
    name: str = ""
    """What its owner calls it."""
    stuck_s: int = field(default=0, compare=False)
    """For how long it has been ready without a decision."""

    def packed(self) -> tuple[Any, ...]:
        return (
            self.anchor, self.round, self.weight, self.state, self.ready, self.tokens, self.steps, self.leaving,
            self.name, self.stuck_s,
        )  # fmt: skip

    @classmethod
    def unpacked(cls, value: Any) -> Heartbeat:
        anchor, round, weight, state, ready, tokens, steps, leaving, name, stuck_s = row(value, 10)
        return cls(
            octets(anchor, DIGEST_BYTES), integer(round, 0), integer(weight, 0), octets(state, most=DIGEST_BYTES),
            boolean(ready), integer(tokens, 0), integer(steps, 0), boolean(leaving), printable(name),
            integer(stuck_s, 0),
        )  # fmt: skip


def _accepted(value: Any) -> tuple[int, bytes] | None:
    if value is None:
        return None
    ballot, update = row(value, 2)
    return integer(ballot, 0, MAX_BALLOT), octets(update, DIGEST_BYTES)
