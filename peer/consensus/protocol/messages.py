"""The messages of a round.

Every message is checked here for types, sizes and ranges before anything else sees it: `unpacked` raises ValueError and
nothing else. What is passed on to third parties (headers, means, proposals, votes, lists) carries its author's
signature; the transport authenticates the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from dht.protocol_version import PROTOCOL_VERSION, other_version
from peer.consensus.protocol.block import (  # fmt: skip
    BALLOT,
    MAX_MEMBERS,
    MAX_PARTS,
    MAX_RESTARTS,
    MEMBER_BITS,
    PART,
    Block,
    ContributionHeader,
    Restart,
    Roster,
    Stuck,
    Update,
    Vote,
)
from peer.consensus.protocol.encoding import (
    COUNT,
    DIGEST,
    DIGEST_BYTES,
    SIGNATURE,
    Keys,
    Packed,
    boolean,
    each,
    fields,
    integer,
    octets,
    optional,
    pack,
    printable,
    require_few,
    row,
    text,
    unpack,
)

FETCH_MOST = 1024
"""Digests in one fetch."""
GET_MOST = 32
"""Anchors in one GetBlocks."""
FETCH_BYTES = 16 << 20
"""What one fetch is answered with at most, so that a small question never costs the answerer a whole model."""


@dataclass(frozen=True, slots=True)
class BallotId(Packed):
    """Where in the run a message belongs."""

    readers = (DIGEST, DIGEST, BALLOT)
    anchor: bytes
    instance: bytes
    ballot: int


_ACCEPTED, _PROPOSED = fields(BALLOT, DIGEST), fields(DIGEST, SIGNATURE)


@dataclass(frozen=True, slots=True)
class Message(Packed):
    """Base of all messages. `cap_bytes` bounds a frame of this type, and `most_values` what is in it."""

    code: ClassVar[int]
    cap_bytes: ClassVar[int] = 1 << 16
    most_values: ClassVar[int] = 1 << 13


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Coordinator to the electorate and all ready peers: may I lead this ballot, and what do you contribute?"""

    code = 1
    cap_bytes = 1 << 10
    readers = (BallotId.unpacked,)
    place: BallotId


@dataclass(frozen=True, slots=True)
class Promise(Message):
    """The answer: what I contribute, and what I have accepted before, with the votes of those that had checked it."""

    code = 2
    cap_bytes = 1 << 17
    readers = (
        BallotId.unpacked, ContributionHeader.unpacked, optional(_ACCEPTED), each(Vote.unpacked, MAX_MEMBERS),
    )  # fmt: skip
    place: BallotId
    header: ContributionHeader
    accepted: tuple[int, bytes] | None = None
    certificate: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack(Message):
    """I have promised a later ballot."""

    code = 3
    cap_bytes = 1 << 10
    readers = (BallotId.unpacked, BALLOT)
    place: BallotId
    promised: int


@dataclass(frozen=True, slots=True)
class Start(Message):
    """Coordinator to members: the list of members; send your parts."""

    code = 4
    cap_bytes = 4 << 20
    most_values = 1 << 19
    readers = (BallotId.unpacked, each(ContributionHeader.unpacked, MAX_MEMBERS))
    place: BallotId
    headers: tuple[ContributionHeader, ...]


@dataclass(frozen=True, slots=True)
class PartData(Message):
    """One encoded part of a member's contribution, with its Merkle path to the pledged root. Attempt 1 is for a
    repair."""

    code = 5
    cap_bytes = (16 << 20) + (1 << 12)
    most_values = 64
    readers = (BallotId.unpacked, partial(integer, low=0, high=1), PART, each(DIGEST, 17), octets)
    place: BallotId
    attempt: int
    part: int
    path: tuple[bytes, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class MeanData(Message):
    """The encoded mean of one part, the same bytes to all members."""

    code = 8
    cap_bytes = (16 << 20) + (1 << 12)
    most_values = 64
    readers = (
        BallotId.unpacked, partial(integer, low=0, high=1), PART, text, MEMBER_BITS, DIGEST, SIGNATURE, octets,
        partial(octets, most=DIGEST_BYTES),
    )  # fmt: skip
    place: BallotId
    attempt: int
    part: int
    reducer: str
    contributors: int
    digest: bytes
    signature: bytes
    payload: bytes = b""
    basis: bytes = b""
    """Digest of what it was computed from: two honest means of a part differ only if their headers did."""

    def signed_payload(self) -> bytes:
        return pack((self.place.packed(), self.attempt, self.part, self.contributors, self.digest, self.basis))

    def signed(self, keys: Keys) -> MeanData:
        return replace(self, signature=keys.sign("mean", self.signed_payload()))

    def genuine(self, keys: Keys) -> bool:
        return keys.verify(self.reducer, "mean", self.signed_payload(), self.signature)


@dataclass(frozen=True, slots=True)
class GetMeans(Message):
    """Coordinator to members: send me the means of these parts if you have them."""

    code = 9
    cap_bytes = 1 << 20
    most_values = 1 << 17
    readers = (BallotId.unpacked, each(PART, MAX_PARTS))
    place: BallotId
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reassign(Message):
    """Coordinator to members: send these parts to these reducers, too; nobody has a mean of them."""

    code = 17
    cap_bytes = 8 << 20
    most_values = 1 << 18
    readers = (BallotId.unpacked, each(fields(PART, text), MAX_PARTS))
    place: BallotId
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Propose(Message):
    """Coordinator to the electorate and members: decide this update."""

    code = 10
    cap_bytes = 8 << 20
    place: BallotId
    update: Update
    signature: bytes
    certificate: tuple[Vote, ...] = ()
    """The votes of an earlier ballot of this very update, if it was accepted there."""

    def packed(self) -> tuple[Any, ...]:
        return SealedPropose(self.place, self.update.to_bytes(), self.signature, self.certificate).packed()


@dataclass(frozen=True, slots=True)
class SealedPropose(Message):
    """A proposal on the wire: its coordinator's signature is checked before its update is unpacked."""

    code = Propose.code
    cap_bytes = Propose.cap_bytes
    most_values = 1 << 10
    readers = (BallotId.unpacked, octets, SIGNATURE, each(Vote.unpacked, MAX_MEMBERS))
    place: BallotId
    update: bytes
    signature: bytes
    certificate: tuple[Vote, ...] = ()

    def opened(self) -> Propose:
        """Raises ValueError."""
        return Propose(self.place, Update.from_bytes(self.update), self.signature, self.certificate)


@dataclass(frozen=True, slots=True)
class VoteCast(Message):
    """How far a voter or contributor has come with an update, by the phases of `Vote`."""

    code = 11
    cap_bytes = 1 << 12
    readers = (BallotId.unpacked, Vote.unpacked)
    place: BallotId
    vote: Vote


@dataclass(frozen=True, slots=True)
class GetObjects(Message):
    """Send me the bytes of these digests. An answer stops after `FETCH_BYTES`; the rest is asked for again."""

    code = 12
    cap_bytes = 1 << 16
    readers = (each(DIGEST, FETCH_MOST),)
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ObjectData(Message):
    """The answer to GetObjects; `digest` is computed by the receiver from the payload."""

    code = 13
    cap_bytes = (16 << 20) + (1 << 12)
    most_values = 4
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
    """Send me the blocks after the newest of these anchors that is on your chain; they are mine, the newest first."""

    code = 14
    cap_bytes = 1 << 12
    readers = (each(DIGEST, GET_MOST, least=1),)
    anchors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Blocks(Message):
    """Committed updates in order, each with its certificate; none: there is no way from your anchors to my head."""

    code = 15
    cap_bytes = 16 << 20
    blocks: tuple[Block, ...]

    def packed(self) -> tuple[Any, ...]:
        after = self.blocks[0].update.parent if self.blocks else b""
        return SealedBlocks(after, tuple(map(SealedBlock.of, self.blocks))).packed()


@dataclass(frozen=True, slots=True)
class SealedBlock(Packed):
    """A block on the wire: its votes, and the signatures of its restarts, are checked before the rest is unpacked."""

    readers = (octets, each(Vote.unpacked, MAX_MEMBERS), each(fields(octets, SIGNATURE), MAX_RESTARTS))
    update: bytes
    votes: tuple[Vote, ...]
    restarts: tuple[tuple[bytes, bytes], ...] = ()
    """Each as the bytes that the organiser signed, and the signature."""

    @classmethod
    def of(cls, block: Block) -> SealedBlock:
        restarts = tuple((restart.payload(), restart.signature) for restart in block.restarts)
        return cls(block.update.to_bytes(), block.votes, restarts)

    def opened(self) -> Block:
        """Raises ValueError."""
        return Block(Update.from_bytes(self.update), self.votes, self.opened_restarts())

    def opened_restarts(self) -> tuple[Restart, ...]:
        return tuple(SealedRestart(payload, signature).opened().restart for payload, signature in self.restarts)


@dataclass(frozen=True, slots=True)
class SealedBlocks(Message):
    """Blocks on the wire: the anchor before the first block, and the blocks."""

    code = Blocks.code
    cap_bytes = Blocks.cap_bytes
    most_values = 1 << 16
    readers = (partial(octets, most=DIGEST_BYTES), each(SealedBlock.unpacked, 64))
    after: bytes
    blocks: tuple[SealedBlock, ...]

    def opened(self) -> Blocks:
        """Raises ValueError."""
        return Blocks(tuple(block.opened() for block in self.blocks))


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """A peer's anchor and whether it is ready: the ready record, the sign of life and the record of its head in one."""

    code = 16
    cap_bytes = 1 << 11
    readers = (
        DIGEST, COUNT, COUNT, partial(octets, most=DIGEST_BYTES), boolean, COUNT, COUNT, boolean, printable, COUNT,
        MEMBER_BITS, COUNT,
    )  # fmt: skip
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
    unreachable: int = field(default=0, compare=False)
    """The peers that it cannot reach: bits over the electorate of this anchor, in its order."""
    train_s: int = field(default=0, compare=False)
    """How long all of its steps of this round take, estimated from those that it has made; 0 while unknown."""


# ---- what members show each other of one that lies ----


@dataclass(frozen=True, slots=True)
class EquivocationProof(Message):
    """Two updates, each with the signature of the coordinator that proposed both in one ballot."""

    code = 31
    cap_bytes = 1 << 10
    readers = (BallotId.unpacked, _PROPOSED, _PROPOSED)
    place: BallotId
    first: tuple[bytes, bytes]
    second: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class RowDispute(Message):
    """Member to members: this mean's row about me is not the sketch of what I gave; here is what I gave."""

    code = 21
    cap_bytes = (16 << 20) + (1 << 13)
    most_values = 64
    readers = (BallotId.unpacked, PART, DIGEST, MEMBER_BITS, each(DIGEST, 17), octets, text)
    place: BallotId
    part: int
    digest: bytes
    contributors: int
    path: tuple[bytes, ...]
    payload: bytes
    giver: str = ""
    """The contributor whose bytes they are, if it is not the sender: anybody may show what a pledge proves."""


@dataclass(frozen=True, slots=True)
class Objection(Message):
    """Voter to voters: this mean's row about me is false, and the proof is on its way. Wait with phase 1."""

    code = 22
    cap_bytes = 1 << 10
    readers = (BallotId.unpacked, PART, DIGEST, MEMBER_BITS)
    place: BallotId
    part: int
    digest: bytes
    contributors: int


# ---- when less than a quorum is left ----


@dataclass(frozen=True, slots=True)
class StuckSaid(Message):
    """Voter to the organiser and the voters: I vote no more here until the run goes on without those that are gone."""

    code = 25
    cap_bytes = 1 << 15
    readers = (Stuck.unpacked,)
    stuck: Stuck


@dataclass(frozen=True, slots=True)
class Restarted(Message):
    """The organiser to all: go on by this Restart."""

    code = 26
    cap_bytes = 2 << 20
    restart: Restart

    def packed(self) -> tuple[Any, ...]:
        return self.restart.payload(), self.restart.signature


@dataclass(frozen=True, slots=True)
class SealedRestart(Message):
    """A Restart on the wire: the bytes that the organiser signed, and the signature."""

    code = Restarted.code
    cap_bytes = Restarted.cap_bytes
    most_values = 4
    readers = (octets, SIGNATURE)
    payload: bytes
    signature: bytes

    def opened(self) -> Restarted:
        """Raises ValueError."""
        return Restarted(Restart.unpacked((*row(unpack(self.payload), 4), self.signature)))


@dataclass(frozen=True, slots=True)
class RosterSaid(Message):
    """The organiser's newest list; a peer that learns of it passes it on once."""

    code = 27
    cap_bytes = 1 << 14
    readers = (Roster.unpacked,)
    roster: Roster


# ---- as bytes on a stream ----

_TYPES: dict[int, type[Message]] = {
    kind.code: kind
    for kind in (
        Prepare, Promise, Nack, Start, PartData, MeanData, GetMeans, Reassign, Propose,
        VoteCast, GetObjects, ObjectData, GetBlocks, Blocks, Heartbeat, EquivocationProof,
        RowDispute, Objection, StuckSaid, Restarted, RosterSaid,
    )
}  # fmt: skip


Sealed = SealedPropose | SealedBlocks | SealedRestart
_SEALED: dict[int, type[Sealed]] = {kind.code: kind for kind in (SealedPropose, SealedBlocks, SealedRestart)}


def encode(message: Message) -> bytes:
    """A frame: version byte, type byte and msgpack."""
    return bytes((PROTOCOL_VERSION, message.code)) + pack(message.packed())


def decode(frame: bytes) -> Message:
    """The message in a frame. Raises ValueError for anything that is not one, before it allocates for it."""
    message = decode_sealed(frame)
    return message.opened() if isinstance(message, Sealed) else message


def decode_sealed(frame: bytes) -> Message:
    """The same, but updates and Restarts are not unpacked: see `frame_reader`."""
    if frame and frame[0] != PROTOCOL_VERSION:
        raise ValueError(other_version("a frame", frame[0]))
    if len(frame) < 2 or frame[1] not in _TYPES:
        raise ValueError("unknown frame type")
    kind = _SEALED.get(frame[1], _TYPES[frame[1]])
    if len(frame) > kind.cap_bytes:
        raise ValueError(f"{kind.__name__} of {len(frame)} bytes; at most {kind.cap_bytes}")
    packed = memoryview(frame)[2:]
    require_few(packed, kind.most_values)
    return kind.unpacked(unpack(packed))
