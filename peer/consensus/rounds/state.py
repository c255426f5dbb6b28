"""The state of the round machine.

`State` is immutable. Three things must survive a crash: `Acceptor` (written before it is promised), the header with its
encoded parts (written before the machine hears of it), and the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from peer.consensus.aggregation.aggregate import AggregationResult
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import (
    MAX_MEMBERS,
    MAX_RESTARTS,
    NO_ROSTER,
    Block,
    ContributionHeader,
    Delegate,
    Restart,
    Roster,
    Stuck,
    Update,
    Vote,
)
from peer.consensus.protocol.encoding import (
    COUNT,
    DIGEST,
    Packed,
    digest_of,
    each,
    fields,
    integer,
    optional,
)
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.messages import BallotId, Heartbeat, MeanData, PartData, Prepare, Promise, RowDispute
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.timeouts import Deadlines

# ---- what never changes in a run ----


@dataclass(frozen=True, slots=True)
class Acceptor(Packed):
    """A voter's memory for one instance (Paxos): never promise less, never forget what was accepted."""

    readers = (
        DIGEST, DIGEST, partial(integer, low=-1), optional(fields(COUNT, DIGEST)), optional(fields(COUNT, DIGEST)),
        each(Vote.unpacked, MAX_MEMBERS), optional(Stuck.unpacked), each(Restart.unpacked, MAX_RESTARTS),
    )  # fmt: skip

    anchor: bytes
    instance: bytes
    promised: int = -1
    checked: tuple[int, bytes] | None = None
    """The one update of a ballot that it has said it checked."""
    accepted: tuple[int, bytes] | None = None
    """The newest update of which it knows that a quorum has checked it."""
    certificate: tuple[Vote, ...] = ()
    """Their votes."""
    stuck: Stuck | None = None
    """Once this is said it votes no more here."""
    restarts: tuple[Restart, ...] = ()
    """Of this anchor, those by which this instance came to be, and the one that decided something in it."""


# ---- roles inside a ballot ----


class BallotPhase(Enum):
    """What the coordinator of a ballot waits for."""

    PREPARING = "promises"
    ADOPTING = "the bytes of an update that was accepted before"
    REDUCING = "means"
    PROPOSING = "votes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorState:
    """The coordinator's side of a ballot."""

    ballot: int
    stage: BallotPhase
    asked: tuple[str, ...]
    until: float
    repeat_at: float
    began_at: float = 0.0
    promises: Mapping[str, Promise] = field(default_factory=dict)
    promised_at: Mapping[str, float] = field(default_factory=dict)
    unfit: frozenset[str] = frozenset()
    """Whose header cannot be counted: nobody waits for another."""
    expected: frozenset[int] | None = None
    """Parts of which a mean may come; None before START."""
    wanted: bool = False
    repaired: frozenset[int] = frozenset()
    """Parts that were given to other reducers."""
    update: bytes = b""
    """Digest of what is adopted or proposed."""
    nacked: frozenset[str] = frozenset()
    """Voters who say that they promised a later ballot."""
    refused: frozenset[bytes] = frozenset()
    """Updates of other instances whose bytes nobody gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentState:
    """A member's side of second attempts: parts that are reduced again."""

    redo: Mapping[int, str] = field(default_factory=dict)
    """For each part to repair who reduces it now."""
    orders: int = 0
    """Redo messages so far."""
    suspects: frozenset[str] = frozenset()
    """Reducers in whose place others reduce: probably dead."""
    received: Mapping[int, int] = field(default_factory=dict)
    """For each part that I may reduce again, bits over the members whose bytes I hold."""
    closes_at: float = 0.0
    suspects_until: float = 0.0
    started: frozenset[int] = frozenset()
    """Parts whose second reduction has begun."""
    means: Mapping[int, MeanData] = field(default_factory=dict)
    """What my second reductions came to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A member's side of a ballot: who is in, who reduces what, what has arrived."""

    place: BallotId
    round: int = 0
    """Of the anchor: it says which fragment is averaged."""
    members: tuple[ContributionHeader, ...]
    reducers: tuple[str, ...]
    received: Mapping[int, int]
    """For each part that I reduce, bits over the members whose bytes I hold and have measured."""
    taken: Mapping[int, int] = field(default_factory=dict)
    """The same of all who have sent it."""
    refused: Mapping[int, int] = field(default_factory=dict)
    """Of these, who sent what is not the part that they pledged."""
    figures: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Squares of their norms, by part and member."""
    closes_at: float
    began_at: float = 0.0
    part_at: Mapping[str, float] = field(default_factory=dict)
    """When the newest part of each member came."""
    closed: bool = False
    means: Mapping[int, MeanData] = field(default_factory=dict)
    mean_at: Mapping[str, float] = field(default_factory=dict)
    """When the newest mean of each reducer came."""
    basis: bytes = b""
    """Digest of the headers: what means are computed from."""
    judgement: AggregationResult
    """What comes of them."""
    again: ReassignmentState = ReassignmentState()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(header.peer for header in self.members)

    def index_of(self, peer: str) -> int | None:
        """Which member this is; None for a stranger."""
        return self.names.index(peer) if peer in self.names else None

    def spoken_for(self, rules: Rules, sender: str, part: int) -> tuple[int, ...]:
        """Members whose bytes of a part this peer may send: its own, and those whose delegate for that layer it is."""
        parts = rules.fragment(self.round).parts
        if part >= len(parts):
            return ()
        layer = parts[part].layer
        return tuple(
            index for index, header in enumerate(self.members)
            if header.peer == sender or (header.delegates and header.holder_of(layer) == sender)
        )  # fmt: skip

    def giver_of(self, rules: Rules, sender: str, message: PartData) -> int | None:
        """Index of the member that pledged these bytes as this part; None if nobody did for whom `sender` speaks."""
        sizes = rules.bytes_in(self.round)
        if message.part >= len(sizes) or len(message.payload) != sizes[message.part]:
            return None
        among = self.spoken_for(rules, sender, message.part)
        roots = [(index, self.members[index].root) for index in among if self.members[index].root]
        if not roots:
            return None
        leaf, path = digest_of(message.payload), message.path
        proven = (index for index, root in roots if merkle.proves(root, leaf, message.part, path, len(sizes)))
        return next(proven, None)

    def holder_of(self, rules: Rules, index: int, part: int) -> str:
        """Who sends and receives a part for this member: itself, or a delegate."""
        return self.members[index].holder_of(rules.fragment(self.round).parts[part].layer)

    def holders_of(self, rules: Rules, part: int) -> tuple[str, ...]:
        """Who gets the mean of a part, each once: the members, or their delegates."""
        layer = rules.fragment(self.round).parts[part].layer
        return tuple(dict.fromkeys(header.holder_of(layer) for header in self.members))


@dataclass(frozen=True, slots=True)
class Misconduct:
    """In which round I caught a peer lying, and at what."""

    round: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """An update that a coordinator proposed, with the signature that binds it to a ballot."""

    ballot: int
    update: Update
    signature: bytes
    certificate: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What one source was asked for and has not given yet."""

    source: str
    digests: frozenset[bytes]
    until: float
    """When it is taken for silent; each answer moves it on."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """Bytes this peer is fetching."""

    digests: tuple[bytes, ...] = ()
    """In the order in which they are needed."""
    sources: tuple[str, ...] = ()
    lanes: int = 1
    """How many sources may be asked at a time, each for something else."""
    from_at: float = float("-inf")
    """Nobody is asked before; the bytes may come by themselves."""
    asked: tuple[FetchRequest, ...] = ()
    """What is under way. Of it, what is not among `digests` any more is taken all the same: it may be needed again."""
    silent: frozenset[str] = frozenset()
    """Sources that did not answer; they are asked again when all others failed too."""

    def only(self, digests: frozenset[bytes]) -> FetchState:
        """What of this is among `digests`."""
        left = tuple(digest for digest in self.digests if digest in digests)
        cut = (replace(item, digests=item.digests & digests) for item in self.asked)
        asked = tuple(item for item in cut if item.digests)
        return replace(self, digests=left, asked=asked) if left else FetchState(asked=asked)

    def is_expected(self, digest: bytes) -> bool:
        """Whether these bytes were asked for, or will be."""
        return digest in self.digests or any(digest in item.digests for item in self.asked)

    def awaited(self) -> tuple[FetchRequest, ...]:
        """What is under way and still wanted."""
        return tuple(item for item in self.asked if not item.digests.isdisjoint(self.digests))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProgress:
    """How a peer that is not in step gets on."""

    began_at: float
    first_round: int
    received_bytes: int = 0
    """Encoded parts that were fetched."""
    said_at: float = float("-inf")
    said: str = ""
    alerted: bytes = b""
    """The anchor at which the people were told that the others have other bits."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a peer sent breaks a rule, one of `peer.consensus.protocol.refusals`; `why` in words."""

    peer: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How the ballots of one anchor went, as far as this peer saw: what people are told if none comes to anything."""

    over: int = 0
    """Ballots that this peer began or promised, and that ended: by a later one, or, as their coordinator, by itself."""
    under_way: bool = False
    """Whether the last one that it began or promised has not ended."""
    failure: str = ""
    """Why the last one that it led came to nothing."""
    refusals: tuple[Refusal, ...] = ()
    """One for each peer and rule, the newest last."""
    alerted: bool = False
    """Whether people were told that this anchor stands still."""


@dataclass(frozen=True, kw_only=True)  # without slots: a copy is eight times as fast, and each step makes one
class State:
    """One peer's view of the run. `step` turns it into the next one."""

    rules: Rules
    head: ChainHead
    ancestors: Mapping[bytes, int]
    """Every anchor on my chain, the head included, to its round."""
    acceptor: Acceptor
    """Of the instance in which this peer takes part now."""
    trail: tuple[ChainEntry, ...] = ()
    """My newest blocks, oldest first: as many as I give to others who are behind."""
    deadlines: Deadlines
    """How long a first ballot waits, learned from `trail`."""
    ready_at: Mapping[str, float] = field(default_factory=dict)
    """When I first heard that a peer is ready for the round from this anchor; not of those who sit out."""
    header: ContributionHeader | None = None
    """What I froze for this anchor; None while training."""
    sits_out: bool = False
    """My owner paused me before I was ready for this anchor: I am whenever the others are."""
    resumed_at: float = float("inf")
    """When I trained again after a pause in which I gave what I had: from then on I wait like anybody."""
    progress: float = 0.0
    """Share of this round's inner steps (or time) that is done."""
    first_progress: tuple[float, float] | None = None
    """When I heard of that first, and how much it was."""
    train_s: int = 0
    """How long all of it takes at that rate; 0 while it is not known."""
    expected_by: Mapping[str, float] = field(default_factory=dict)
    """By when each voter must be ready, by its own first word of that and with slack."""
    freeze_asked_at: float | None = None
    unanswered: Prepare | None = None
    """What waits for my submission."""
    postponed: tuple[Prepare, float] | None = None
    """What waits for its turn, and when it came: of several the first in order."""
    leaving: bool = False
    offered: ContributionHeader | None = None
    """What the trainer has submitted for this anchor, not signed before what it comes to is measured."""
    own: Mapping[int, PartNorms] = field(default_factory=dict)
    """What was measured of it so far, by part."""
    measured_at: float = float("-inf")
    """When that was asked for last."""
    submitted_at: float = 0.0
    began_at: float = 0.0
    """When this life of mine began."""
    stood_at: float = 0.0
    """When I came to this anchor."""
    last_progress_at: float = 0.0
    """When something of this instance last moved."""
    ballot_at: float = float("-inf")
    """When the ballot that I promised last moved: its coordinator's turn ends some time after that. So long ago that it
    is over if its coordinator has stepped back; −∞ if it began before this peer started."""
    said_at: float = float("-inf")
    state_digest: bytes = b""
    """H(θ, m) of the head, once the trainer has computed it."""
    lead: CoordinatorState | None = None
    exchange: MemberState | None = None
    past: MemberState | None = None
    """The last one that was committed: evidence may come late."""
    silent: tuple[str, ...] = ()
    """Newcomers that did not answer, or did not give what they had pledged, when I last waited for it."""
    mute: tuple[str, ...] = ()
    """Those that had not checked a proposal by then."""
    seen_lying: Mapping[str, Misconduct] = field(default_factory=dict)
    """Whom I have caught, in this life of mine."""
    early: tuple[tuple[str, PartData | MeanData], ...] = ()
    """Parts and means that overtook their START."""
    proposals: Mapping[bytes, Proposal] = field(default_factory=dict)
    votes: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    checks: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    """The votes of the first phase."""
    prepared: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    """Those of the second."""
    checked_at: float = float("-inf")
    """When I voted in that."""
    faults: Mapping[tuple[bytes, int, int], str] = field(default_factory=dict)
    """What is wrong with a mean, by its digest, part and contributors; empty of those that are right."""
    checking: Mapping[tuple[bytes, int, int], float] = field(default_factory=dict)
    """Which means are being compared with their rows, and when that was asked for."""
    shown: Mapping[tuple[str, tuple[bytes, int, int]], tuple[str, RowDispute]] = field(default_factory=dict)
    """By giver and mean what was shown here for this anchor, and by whom."""
    wrong: frozenset[str] = frozenset()
    """Who showed, for this anchor, what proves nothing."""
    forwarded: frozenset[tuple[int, str]] = frozenset()
    """In which ballot, and about whom, I have passed on what was shown to me."""
    objections: Mapping[str, tuple[tuple[bytes, int, int], float]] = field(default_factory=dict)
    """Who said for this anchor that its row of a mean is false, and when I heard that."""
    unproven: Mapping[str, int] = field(default_factory=dict)
    """In which round a voter said that and did not prove it."""
    unseen: tuple[int, bytes] | None = None
    """What others say they have checked in the ballot that I promised, and I have not seen."""
    roster: Roster = NO_ROSTER
    """The newest that the organiser has signed, as far as I have heard."""
    alone_since: float = float("inf")
    """Since when I have not heard a quorum."""
    stucks: Mapping[str, Stuck] = field(default_factory=dict)
    """Who votes no more in this instance."""
    stuck_said_at: float = float("-inf")
    """When I asked the organiser last."""
    organiser_at: float = float("-inf")
    """When it answered last."""
    spoke_at: Mapping[str, float] = field(default_factory=dict)
    """When each voter last led a ballot of this anchor, answered one or voted in it."""
    decided: tuple[int, bytes] | None = None
    attempts: Attempts = Attempts()
    dead_ballots: frozenset[int] = frozenset()
    """Ballots of this instance whose coordinator proposed two updates."""
    banned: frozenset[str] = frozenset()
    """Who did that, in this life of mine: asked for nothing, elected to nothing."""
    quarantined: frozenset[str] = frozenset()
    """Whom the organiser keeps out: they lead nothing, are no members where a quorum is left without them, and are
    not elected again. A vote of theirs counts while they are in the electorate."""
    held: Mapping[bytes, int] = field(default_factory=dict)
    """Digests whose bytes are on my disk, with their sizes: of this anchor's proposals and of blocks to apply."""
    afar: frozenset[bytes] = frozenset()
    """Those of them that lie with delegates of mine alone."""
    wanted: FetchState = FetchState()
    blocks: tuple[Block, ...] = ()
    """Committed updates that I must still apply, in order, each with a valid certificate."""
    last: ChainHead | None = None
    """The head after all of `blocks`."""
    block_source: str = ""
    voters: frozenset[str] = frozenset()
    """Everybody who has ever been elected on my chain, as far as it is here."""
    strangers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Who says that it has no way from my chain to where it is, since when, and when it said so last."""
    heard: Mapping[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    unreachable: Mapping[str, float] = field(default_factory=dict)
    """To whom my streams have no way, and since when."""
    strangers_told_at: float = float("-inf")
    """When people were told last what one of them says whom the chain does not name."""
    yielded_at: float = float("-inf")
    """When I last looked for those who went on by a Restart that outranks my chain."""
    alerted_at: float = float("-inf")
    asked: Mapping[str, tuple[bytes, float]] = field(default_factory=dict)
    """Who was asked lately what follows which anchor, and when."""
    told: Mapping[str, tuple[bytes, float]] = field(default_factory=dict)
    """Who was told lately what follows which anchor, and when."""
    doubted: Mapping[str, float] = field(default_factory=dict)
    """Who gave blocks without a valid certificate, and until when nothing is taken from it."""
    skipped: int = 0
    """Ballots of this instance that nobody led. They lengthen no later wait: else who skips ballots could."""
    delegates: tuple[Delegate, ...] = ()
    """Which homes of mine keep which layers now. What they hold I hold."""
    in_step: bool = False
    """Whether this peer stands where the electorate stands, with the same bits."""
    applied_round: int = 0
    """The newest round that the trainer has computed."""
    catch_up: SyncProgress | None = None

    @property
    def tip(self) -> ChainHead:
        """The newest head that I know of with its certificate: mine, or the one after the blocks to apply."""
        return self.last if self.blocks and self.last is not None else self.head

    def has_a_part(self, peer: str) -> bool:
        """Whether the chain names a peer, or the round that is being made does."""
        return peer in self.head.electorate or peer in self.named

    @property
    def named(self) -> frozenset[str]:
        """Who votes or has voted, is a member or a home of one, or did work that was counted."""
        head, headers = self.head, self._headers_lately()
        homes = (home for header in headers for _, _, home in header.delegates)
        members = (header.peer for header in headers)
        earning = (tenure.peer for tenure in head.tenures)
        return self.voters.union(head.electorate, head.members, members, earning, homes)

    def is_owed(self, peer: str) -> bool:
        """Whether a peer is given what it asks for, however much that is: who votes or has voted, whom the organiser
        knows, and their homes. A guest is a name that cost one contribution."""
        owed = self.voters.union(self.head.electorate, self.head.roster.known)
        headers = (header for header in self._headers_lately() if header.peer in owed)
        return peer in owed or any(peer == home for header in headers for _, _, home in header.delegates)

    def _headers_lately(self) -> list[ContributionHeader]:
        """Of the last round and of the one that is being made."""
        headers = [*self.trail[-1].block.update.members] if self.trail else []
        return [*headers, *self.exchange.members] if self.exchange is not None else headers

    def updates(self) -> Iterator[Update]:
        """All that are known here: proposed, decided, waiting, and the newest of my chain."""
        yield from (proposal.update for proposal in self.proposals.values())
        yield from (block.update for block in self.blocks)
        yield from (step.block.update for step in reversed(self.trail))

    def named_as(self, digest: bytes) -> frozenset[tuple[int, int]]:
        """Of which layers the updates that are known here say that this is a mean, each with its encoded size.

        Of none if nobody names it; of several where their bytes are the same, as those of parts that nothing moves.
        """
        return frozenset(
            (
                self.rules.fragment(update.round - 1).parts[part].layer,
                self.rules.object_bytes(update.round - 1, part, update.contributors[part]),
            )
            for update in self.updates() if digest in update.parts
            for part, name in enumerate(update.parts) if name == digest
        )  # fmt: skip

    def delegate_for(self, layer: int) -> str:
        """Which home of mine keeps a layer now; empty if this one does."""
        return next((peer for first, last, peer in self.delegates if first <= layer <= last), "")

    @property
    def electorate(self) -> tuple[str, ...]:
        """Who decides what follows."""
        return self.head.electorate

    @property
    def instance(self) -> bytes:
        return self.acceptor.instance
