"""A block: the update, what each member pledged to it, and the votes that certify it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Self

from peer.consensus.aggregation.peer_history import PeerHistory
from peer.consensus.protocol.encoding import (
    ANY_INTEGER,
    COUNT,
    DIGEST,
    DIGEST_BYTES,
    MAX_ENTRIES,
    SIGNATURE,
    Keys,
    Packed,
    boolean,
    digest,
    digest_of,
    each,
    fields,
    integer,
    octets,
    optional,
    pack,
    printable,
    row,
    rows,
    text,
    unpack,
)

MAX_PARTS = MAX_ENTRIES
MAX_MEMBERS = 64
ALL_MEMBERS = (1 << MAX_MEMBERS) - 1
MAX_BALLOT = 1 << 31
MAX_SKIPPED = 1 << 12
"""A ballot further ahead than this of what was promised is refused, so that nobody uses all ballots up."""
MAX_PENALTIES = 8 * MAX_MEMBERS
MAX_RECORDS = 128
MAX_TENURES = 128
MAX_REPORTS = 16
MAX_RANGES = 1024
MAX_DELEGATES = 32
MAX_EVIDENCE = 160
MAX_NORMS = 12 * MAX_PARTS
"""Bytes: three float32 for a layer, of which there are no more than parts."""
MAX_RESTARTS = 16
"""Of one anchor."""
BALLOT = partial(integer, low=0, high=MAX_BALLOT)
PART = partial(integer, low=0, high=MAX_PARTS)
MEMBER_BITS = partial(integer, low=0, high=ALL_MEMBERS)
WEIGHT_ONE = 65_536
VOID = b""
"""Stands for the digest of a part for which no mean could be agreed; it is zero for everybody."""

Ranges = tuple[tuple[int, int, int], ...]
"""Data behind a contribution: (shard, first window, window after the last)."""
CURSOR_END = 1 << 62
"""No run reads so many windows. A cursor beyond, which a lie once set, begins anew at 0."""

Penalty = tuple[str, str, int, int, int, str]
"""(peer, code, factor over 65,536, round until which it lasts, layer or -1 for all, the evidence in plain words)."""

Report = tuple[str, str]
"""(peer whom the author of a header has seen lying, the evidence in plain words)."""

Delegate = tuple[int, int, str]
"""(first layer, last layer, peer who sends and receives parts of these for the author of a header)."""

Times = tuple[int, int, int, int]
"""Milliseconds until a peer was ready, answered, had given its parts, had given its means."""
NEVER = (1 << 32) - 1
"""It did not come in time."""
NOT_AWAITED = NEVER - 1
"""Nobody waited for it, or nothing was measured."""


_SHARE = partial(integer, low=0, high=WEIGHT_ONE)
_SHARES = each(_SHARE, MAX_PARTS)
_TIMES = fields(*(partial(integer, low=0, high=NEVER),) * 4)
_EVIDENCE = partial(printable, most=MAX_EVIDENCE)
_PENALTY = fields(
    text, partial(text, most=16), _SHARE, partial(integer, low=1), partial(integer, low=-1, high=MAX_PARTS), _EVIDENCE
)


def peers(value: Any) -> tuple[str, ...]:
    """Peer ids, sorted, each once."""
    found = tuple(text(peer) for peer in rows(value, MAX_MEMBERS))
    if list(found) != sorted(set(found)):
        raise ValueError("expected sorted names, each once")
    return found


def _digest_or_empty(value: Any) -> bytes:
    return octets(value) if value == b"" else octets(value, DIGEST_BYTES)


def _reports(value: Any) -> tuple[Report, ...]:
    found: tuple[Report, ...] = each(fields(text, _EVIDENCE), MAX_REPORTS)(value)
    if [peer for peer, _ in found] != sorted({peer for peer, _ in found}):
        raise ValueError("expected reports in order, one for each peer")
    return found


@dataclass(frozen=True, slots=True)
class ContributionHeader(Packed):
    """What a member puts in for one anchor, signed before anything is sent.

    `root` is the Merkle root over its encoded parts; empty for a member that has nothing to give
    now but keeps its vote. It serves every ballot of the round; it may be signed again for a later one with other
    `reports` and `away`, never with another root. `staleness` is the age
    in rounds of the oldest work in it; nobody can measure it, so an author may understate it. `reports`
    are the peers that its author has seen lying lately, in order. Numbers are read as they come:
    `peer.consensus.protocol.bounds` says which of them a header may have. `delegates` are for a member that is several
    homes, in order of layers; the layers that they leave out are the author's. Of all others it is left out of what is
    packed.
    """

    readers = (
        text, DIGEST, _digest_or_empty, ANY_INTEGER, ANY_INTEGER, ANY_INTEGER, boolean,
        each(fields(*(ANY_INTEGER,) * 3), MAX_RANGES), ANY_INTEGER, _reports, peers, partial(octets, most=MAX_NORMS),
        SIGNATURE,
        each(fields(ANY_INTEGER, ANY_INTEGER, text), MAX_DELEGATES, least=1),
    )  # fmt: skip
    peer: str
    anchor: bytes
    root: bytes
    tokens: int
    steps: int
    bandwidth_bps: int
    leaving: bool
    ranges: Ranges = ()
    staleness: int = 0
    reports: tuple[Report, ...] = ()
    away: tuple[str, ...] = ()
    """Voters that its author, itself a voter, has not heard for `SILENT_S`."""
    norms: bytes = b""
    """What it gives comes to: `peer.consensus.protocol.norms.declare`. Empty of who gives nothing."""
    signature: bytes = b""
    delegates: tuple[Delegate, ...] = ()

    def packed(self) -> tuple[Any, ...]:
        whole = Packed.packed(self)
        return whole if self.delegates else whole[:-1]

    @classmethod
    def unpacked(cls, value: Any) -> Self:
        """Raises ValueError for anything that `packed` does not make."""
        readers = cls.readers if isinstance(value, tuple) and len(value) == len(cls.readers) else cls.readers[:-1]
        return cls(*fields(*readers)(value))

    def holder_of(self, layer: int) -> str:
        """Who sends and receives parts of a layer for this member: a delegate, or its author."""
        for first, last, peer in self.delegates:
            if first <= layer <= last:
                return peer
        return self.peer

    def payload(self) -> bytes:
        signed, delegates = self.packed()[1:12], self.delegates
        return pack((*signed, delegates) if delegates else signed)

    def signed(self, keys: Keys) -> ContributionHeader:
        return replace(self, signature=keys.sign("header", self.payload()))

    def genuine(self, keys: Keys) -> bool:
        return keys.verify(self.peer, "header", self.payload(), self.signature)


@dataclass(frozen=True, slots=True)
class Tenure(Packed):
    """How far a peer has come on its way to a vote."""

    readers = (text, partial(integer, low=0, high=255), COUNT, COUNT)
    peer: str
    accepted: int
    """Rounds in which its contribution was accepted; no more are counted than a vote takes."""
    seen: int
    """The newest of them; of a voter, the newest in which it was a member."""
    led: int = 0
    """Of a voter the round of the last update that it led, or before which it had its turn in vain; of a new one that
    in which it got its vote."""


@dataclass(frozen=True, slots=True)
class Roster(Packed):
    """The organiser's list, of which the newest counts: whom it knows, and whom it keeps out.

    Who is not on it holds less than a third of the votes together. Number 0 are the founders; without any name nobody
    is counted.
    """

    readers = (COUNT, peers, peers, partial(octets, most=64))
    number: int = 0
    known: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    signature: bytes = b""

    def payload(self) -> bytes:
        return pack((self.number, self.known, self.out))

    def signed(self, keys: Keys) -> Roster:
        return replace(self, signature=keys.sign("roster", self.payload()))


NO_ROSTER = Roster()
"""Before the organiser has listed anybody."""


@dataclass(frozen=True, slots=True)
class Update:
    """The result of a round. Its digest names the bytes of every part.

    `contributors` holds per part one bit per member; `weights` has one row for all layers, or one
    per layer that the round averages, of integers over 65,536 in the order of `members`; `weight` is the
    chain's W. A void part with contributors is rolled back: all that came for its layer was refused. `scales`
    and `pulls` are per layer what `peer.consensus.aggregation` says of them, `records` what is known of every peer's
    norms afterwards, `tenures` who has earned a vote, or is about to, and `roster` whom the organiser knows.
    Neither the instance nor the deciding ballot stands in it, so a value that is proposed again
    in a later ballot is the same update. `waited` and `took` are what its coordinator measured:
    the deadlines, and for each member when it came (`peer.consensus.rounds.timeouts`).
    """

    parent: bytes
    round: int
    time: int
    members: tuple[ContributionHeader, ...]
    elect: tuple[str, ...]
    parts: tuple[bytes, ...]
    contributors: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    penalties: tuple[Penalty, ...]
    weight: int
    ballot: int
    coordinator: str
    waited: Times = (0, 0, 0, 0)
    took: tuple[Times, ...] = ()
    scales: tuple[int, ...] = ()
    """Empty if nothing is scaled."""
    pulls: tuple[int, ...] = ()
    """Empty if there are none."""
    records: tuple[PeerHistory, ...] = ()
    tenures: tuple[Tenure, ...] = ()
    roster: Roster = NO_ROSTER
    state: bytes = b""
    """Digest of the outer state at `parent`, so that voters certify the tensors of a round with the update after it."""
    _bytes: bytes = field(default=b"", init=False, repr=False, compare=False)
    """Once they were asked for."""
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    def packed(self) -> tuple[Any, ...]:
        return (
            self.parent, self.round, self.time, tuple(header.packed() for header in self.members), self.elect,
            self.parts, self.contributors, self.weights, self.penalties, self.weight, self.ballot, self.coordinator,
            self.waited, self.took, self.scales, self.pulls,
            tuple(record.packed() for record in self.records), tuple(tenure.packed() for tenure in self.tenures),
            self.roster.packed(), self.state,
        )  # fmt: skip

    @property
    def digest(self) -> bytes:
        if not self._digest:
            object.__setattr__(self, "_digest", digest_of(self.to_bytes()))
        return self._digest

    def to_bytes(self) -> bytes:
        """Canonical msgpack; `digest` names these bytes."""
        if not self._bytes:
            object.__setattr__(self, "_bytes", pack(self.packed()))
        return self._bytes

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Raises ValueError, also for bytes that are not canonical: a digest names one update."""
        update = cls.unpacked(unpack(packed))
        if update.to_bytes() != packed:
            raise ValueError("not canonical msgpack")
        return update

    @property
    def staying(self) -> tuple[str, ...]:
        """The members that did not say they leave."""
        return tuple(header.peer for header in self.members if not header.leaving)

    def contributed(self, peer: str, part: int) -> bool:
        """Whether `peer`'s bytes of `part` are in the mean, or were judged and refused."""
        for index, member in enumerate(self.members):
            if member.peer == peer:
                return bool(self.contributors[part] >> index & 1)
        return False

    def rolled_back(self, part: int) -> bool:
        """Whether all that came for this part was refused: its parameters and momentum stay as they are."""
        return self.parts[part] == VOID and self.contributors[part] != 0

    @classmethod
    def unpacked(cls, value: Any) -> Self:
        (
            parent, round, time, members, elect, parts, contributors, weights, penalties, weight, ballot, coordinator,
            waited, took, scales, pulls, records, tenures, roster, state,
        ) = row(value, 20)  # fmt: skip
        headers = each(ContributionHeader.unpacked, MAX_MEMBERS)(members)
        return cls(
            octets(parent, DIGEST_BYTES), integer(round, 1), integer(time, 0), headers,
            each(text, MAX_MEMBERS)(elect), each(_digest_or_empty, MAX_PARTS)(parts),
            each(MEMBER_BITS, MAX_PARTS)(contributors),
            tuple(_weights(item, len(headers)) for item in rows(weights, MAX_PARTS)),
            each(_PENALTY, MAX_PENALTIES)(penalties),
            integer(weight, 0), integer(ballot, 0, MAX_BALLOT), text(coordinator),
            _TIMES(waited), _took(took, len(headers)), _SHARES(scales), _SHARES(pulls),
            each(PeerHistory.unpacked, MAX_RECORDS)(records),
            each(Tenure.unpacked, MAX_TENURES)(tenures), Roster.unpacked(roster), _digest_or_empty(state),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vote(Packed):
    """`voter` holds the bytes of `update` and stands to it in `ballot`, as far as `phase` says.

    The coordinator's signature over its proposal travels along, so that two conflicting proposals
    of one ballot are seen by everybody.
    """

    readers = (text, DIGEST, BALLOT, DIGEST, SIGNATURE, SIGNATURE, partial(integer, low=0, high=2))
    voter: str
    instance: bytes
    ballot: int
    update: bytes
    proposal_signature: bytes
    signature: bytes = b""
    phase: int = 2
    """0: I have checked it, and what it says of me is true. 1: all whom it counts have said so, or have had time to
    object. 2: I know a quorum that says that."""

    def payload(self) -> bytes:
        return pack((self.instance, self.ballot, self.update, self.proposal_signature, self.phase))

    def signed(self, keys: Keys) -> Vote:
        return replace(self, signature=keys.sign("vote", self.payload()))

    def genuine(self, keys: Keys) -> bool:
        return keys.verify(self.voter, "vote", self.payload(), self.signature)


@dataclass(frozen=True, slots=True)
class Stuck(Packed):
    """`voter` votes no more on what follows `anchor`, as one of this electorate, before the Restart of this number; and
    what it has accepted there."""

    readers = (
        text, DIGEST, peers, partial(integer, low=1, high=MAX_RESTARTS), optional(fields(BALLOT, DIGEST)),
        each(Vote.unpacked, MAX_MEMBERS), SIGNATURE,
    )  # fmt: skip
    voter: str
    anchor: bytes
    electorate: tuple[str, ...]
    number: int
    accepted: tuple[int, bytes] | None = None
    certificate: tuple[Vote, ...] = ()
    signature: bytes = b""

    @property
    def about(self) -> bytes:
        """The agreement that it leaves, and the Restart that it waits for."""
        return digest(self.anchor, self.electorate, self.number)

    def payload(self) -> bytes:
        return pack((self.anchor, self.electorate, self.number, self.accepted))

    def signed(self, keys: Keys) -> Stuck:
        return replace(self, signature=keys.sign("stuck", self.payload()))

    def genuine(self, keys: Keys) -> bool:
        return keys.verify(self.voter, "stuck", self.payload(), self.signature)


@dataclass(frozen=True, slots=True)
class Restart(Packed):
    """The organiser's word that those who are stuck go on without the others, one for an anchor and number.

    What the newest of them has accepted is decided; if nobody has, they decide what follows. Fewer than are safe
    (`electorate.may_restart`) only if a person has `forced` it.
    """

    readers = (DIGEST, COUNT, each(Stuck.unpacked, MAX_MEMBERS, least=1), boolean, SIGNATURE)
    anchor: bytes
    number: int
    stuck: tuple[Stuck, ...]
    forced: bool = False
    signature: bytes = b""

    @property
    def electorate(self) -> tuple[str, ...]:
        return tuple(item.voter for item in self.stuck)

    @property
    def value(self) -> tuple[int, bytes] | None:
        return max((item.accepted for item in self.stuck if item.accepted is not None), default=None)

    @property
    def certificate(self) -> tuple[Vote, ...]:
        """Of that."""
        return next((item.certificate for item in self.stuck if self.value == item.accepted is not None), ())

    def payload(self) -> bytes:
        return pack((self.anchor, self.number, tuple(item.packed() for item in self.stuck), self.forced))

    def signed(self, keys: Keys) -> Restart:
        return replace(self, signature=keys.sign("restart", self.payload()))


@dataclass(frozen=True, slots=True)
class Block(Packed):
    """A committed update and its certificate: the votes of a quorum.

    Where the organiser let those go on who were left, its `restarts` of this anchor say who decided, in order; if the
    last of them decided the update, the votes are those by which a quorum had prepared it.
    """

    readers = (Update.unpacked, each(Vote.unpacked, MAX_MEMBERS), each(Restart.unpacked, MAX_RESTARTS))
    update: Update
    votes: tuple[Vote, ...]
    restarts: tuple[Restart, ...] = ()

    @property
    def firm(self) -> bool:
        """Whether those decided it whom the chain names."""
        return not self.restarts

    def to_bytes(self) -> bytes:
        """Canonical msgpack, as it lies in the chain."""
        return pack(self.packed())

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Raises ValueError."""
        return cls.unpacked(unpack(packed))


def givers(members: tuple[ContributionHeader, ...]) -> int:
    """One bit per member that pledged parts."""
    return sum(1 << index for index, header in enumerate(members) if header.root)


def discount(staleness: int, max_staleness: int) -> int:
    """What a stale contribution still counts, over 65,536: ⌊65,536 / (1 + (s − 2)/8)⌋ from s = 2 on, and nothing above
    the age limit.

    FedAsync's hinge (arXiv:1903.03934, §5.2) with b = 2 and a = 1/8: a round or two cost nothing.
    """
    return WEIGHT_ONE * 8 // (8 + max(0, staleness - 2)) if staleness <= max_staleness else 0


def token_share(header: ContributionHeader, tokens_cap: int, max_staleness: int) -> int:
    """What a member's contribution weighs by tokens and age, in no unit: 0 if it gave nothing."""
    return min(header.tokens, tokens_cap) * discount(header.staleness, max_staleness) if header.root else 0


def _took(value: Any, members: int) -> tuple[Times, ...]:
    """A row for each member, or nothing was measured."""
    times: tuple[Times, ...] = each(_TIMES, MAX_MEMBERS)(value)
    if times and len(times) != members:
        raise ValueError(f"expected times of {members} members")
    return times


def _weights(value: Any, members: int) -> tuple[int, ...]:
    """Any integers: others than everybody computes are held against whoever signed them, so they must be readable."""
    weights = tuple(integer(item, -(1 << 63)) for item in rows(value, MAX_MEMBERS))
    if len(weights) != members:
        raise ValueError(f"expected {members} weights")
    return weights


class PartOutcome(Enum):
    """What happens to one part of the residual when an update is applied."""

    COUNTED = "counted"
    """My bytes are in the mean, or were judged: they leave the residual; the encoding residue stays."""
    MISSED = "missed"
    """I had submitted for this anchor, but the part is void or without me: the residual ages."""
    NOT_SUBMITTED = "not submitted"
    """I had not submitted for this anchor: nothing was offered, nothing changes."""


def part_outcomes(update: Update, me: str, submitted: bool) -> tuple[PartOutcome, ...]:
    """One settlement per part for peer `me`, who had `submitted` a contribution to the update's parent or not."""
    if not submitted:
        return (PartOutcome.NOT_SUBMITTED,) * len(update.parts)
    return tuple(
        PartOutcome.COUNTED if update.contributed(me, part) else PartOutcome.MISSED for part in range(len(update.parts))
    )
