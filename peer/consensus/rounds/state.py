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
from peer.consensus.protocol.encoding import COUNT, DIGEST, Packed, digest_of, each, fields, integer, optional
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.messages import BallotId, Heartbeat, MeanData, PartData, Prepare, Promise, RowDispute
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.protocol.refusals import Refusal
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.timeouts import Deadlines

# ---- what never changes in a run ----


@dataclass(frozen=True, slots=True)
class Acceptor(Packed):
    """A voter's memory for one instance (Paxos): it never promises less and never forgets what it accepted."""

    readers = (
        DIGEST, DIGEST, partial(integer, low=-1), optional(fields(COUNT, DIGEST)), optional(fields(COUNT, DIGEST)),
        each(Vote.unpacked, MAX_MEMBERS), optional(Stuck.unpacked), each(Restart.unpacked, MAX_RESTARTS),
    )  # fmt: skip

    anchor: bytes
    instance: bytes
    promised: int = -1
    checked: tuple[int, bytes] | None = None
    """The ballot in which this voter said that it checked an update, and that update."""
    accepted: tuple[int, bytes] | None = None
    """The newest update of which this voter knows that a quorum has checked it."""
    certificate: tuple[Vote, ...] = ()
    """The votes of that quorum."""
    stuck: Stuck | None = None
    """Once this is sent the voter votes no more in this instance."""
    restarts: tuple[Restart, ...] = ()
    """The restarts at this anchor that led to this instance, and the one that decided something in it."""


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
    refused: frozenset[str] = frozenset()
    """Members whose header cannot be counted; nobody waits for them."""
    expected: frozenset[int] | None = None
    """Parts whose mean may still come; None before Start."""
    wanted: bool = False
    repaired: frozenset[int] = frozenset()
    """Parts that were given to other reducers."""
    update: bytes = b""
    """Digest of the adopted or proposed update."""
    nacked: frozenset[str] = frozenset()
    """Voters that say they promised a later ballot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentState:
    """A member's side of second attempts: parts that are reduced again."""

    redo: Mapping[int, str] = field(default_factory=dict)
    """For each part to repair, its new reducer."""
    orders: int = 0
    """Reassign messages so far."""
    replaced: frozenset[str] = frozenset()
    """Reducers that are replaced: probably dead."""
    received: Mapping[int, int] = field(default_factory=dict)
    """For each part that I may reduce again, bits over the members whose bytes I hold."""
    closes_at: float = 0.0
    replaced_until: float = 0.0
    started: frozenset[int] = frozenset()
    """Parts whose second reduction has begun."""
    means: Mapping[int, MeanData] = field(default_factory=dict)
    """The means of my second reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A member's side of a ballot: the members, the reducer of each part, and what has arrived."""

    place: BallotId
    round: int = 0
    """The round of the anchor, which decides the fragment to average."""
    members: tuple[ContributionHeader, ...]
    reducers: tuple[str, ...]
    received: Mapping[int, int]
    """For each part that I reduce, bits over the members whose bytes I hold and have measured."""
    taken: Mapping[int, int] = field(default_factory=dict)
    """The same for all members that have sent the part."""
    refused: Mapping[int, int] = field(default_factory=dict)
    """Those of them that sent something else than they pledged."""
    closes_at: float
    began_at: float = 0.0
    part_at: Mapping[str, float] = field(default_factory=dict)
    """When the newest part of each member came."""
    closed: bool = False
    means: Mapping[int, MeanData] = field(default_factory=dict)
    mean_at: Mapping[str, float] = field(default_factory=dict)
    """When the newest mean of each reducer came."""
    basis: bytes = b""
    """Digest of the headers from which means are computed."""
    judgement: AggregationResult
    """The result of judging those headers."""
    again: ReassignmentState = ReassignmentState()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(header.peer for header in self.members)

    def index_of(self, peer: str) -> int | None:
        """The index of a member; None for a stranger."""
        return self.names.index(peer) if peer in self.names else None

    def spoken_for(self, rules: Rules, sender: str, part: int) -> tuple[int, ...]:
        """Members whose bytes of a part this peer may send: itself, and those whose delegate for that layer it is."""
        parts = rules.fragment(self.round).parts
        if part >= len(parts):
            return ()
        layer = parts[part].layer
        return tuple(
            index for index, header in enumerate(self.members)
            if header.peer == sender or (header.delegates and header.holder_of(layer) == sender)
        )  # fmt: skip

    def giver_of(self, rules: Rules, sender: str, message: PartData) -> int | None:
        """Index of the member that pledged these bytes as this part; None if no member did for which `sender`
        speaks."""
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
        """The peer that sends and receives a part for this member: itself, or a delegate."""
        return self.members[index].holder_of(rules.fragment(self.round).parts[part].layer)

    def holders_of(self, rules: Rules, part: int) -> tuple[str, ...]:
        """The peers that get the mean of a part, each once: the members, or their delegates."""
        layer = rules.fragment(self.round).parts[part].layer
        return tuple(dict.fromkeys(header.holder_of(layer) for header in self.members))


@dataclass(frozen=True, slots=True)
class Misconduct:
    """In which round I saw a peer lie, and how."""

    round: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """An update that a coordinator proposed, with the signature that binds it to a ballot."""

    ballot: int
    update: Update
    signature: bytes
    certificate: tuple[Vote, ...] = ()
    basis: bytes = b""
    """Digest of its headers. What is found of a mean holds for these alone: it may be named under others."""


Mean = tuple[bytes, int, int, bytes]
"""A mean under certain headers: (digest, part, contributors, basis)."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What one source was asked for and has not given yet."""

    source: str
    digests: frozenset[bytes]
    until: float
    """When the source is taken for silent; each answer moves this on."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """Bytes this peer is fetching."""

    digests: tuple[bytes, ...] = ()
    """In the order in which they are needed."""
    sources: tuple[str, ...] = ()
    lanes: int = 1
    """How many sources may be asked at a time, each for something else."""
    from_at: float = float("-inf")
    """No source is asked before this time; the bytes may arrive unasked."""
    asked: tuple[FetchRequest, ...] = ()
    """Requests under way. Bytes that are no longer among `digests` are still accepted: they may be needed again."""
    silent: frozenset[str] = frozenset()
    """Sources that did not answer; they are asked again when all others have failed, too."""

    def only(self, digests: frozenset[bytes]) -> FetchState:
        """The same for those that are among `digests`."""
        left = tuple(digest for digest in self.digests if digest in digests)
        cut = (replace(item, digests=item.digests & digests) for item in self.asked)
        asked = tuple(item for item in cut if item.digests)
        return replace(self, digests=left, asked=asked) if left else FetchState(asked=asked)

    def is_expected(self, digest: bytes) -> bool:
        """Whether these bytes were asked for, or will be."""
        return digest in self.digests or any(digest in item.digests for item in self.asked)

    def awaited(self) -> tuple[FetchRequest, ...]:
        """Digests under way that are still wanted."""
        return tuple(item for item in self.asked if not item.digests.isdisjoint(self.digests))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProgress:
    """The progress of a peer that is not in step."""

    began_at: float
    first_round: int
    received_bytes: int = 0
    """Encoded parts that were fetched."""
    said_at: float = float("-inf")
    said: str = ""
    alerted: bytes = b""
    """The anchor at which people were told that the others have another digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How the ballots of one anchor went, as far as this peer saw: people are told if none succeeds."""

    over: int = 0
    """Ballots that this peer began or promised and that have ended, by a later one or by their coordinator."""
    under_way: bool = False
    """Whether the last ballot that it began or promised has not ended yet."""
    failure: str = ""
    """Why the last ballot that it led failed."""
    refusals: tuple[Refusal, ...] = ()
    """The newest refusals, one for each peer and rule, the newest last."""
    alerted: bool = False
    """Whether people were told that the run stands still at this anchor."""


@dataclass(frozen=True, kw_only=True)  # without slots: a copy is eight times as fast, and each step makes one
class State:
    """One peer's view of the run. `step` turns it into the next one."""

    rules: Rules
    head: ChainHead
    ancestors: Mapping[bytes, int]
    """Every anchor on my chain, the head included, to its round."""
    acceptor: Acceptor
    """The voter's memory of the present instance."""
    trail: tuple[ChainEntry, ...] = ()
    """My newest blocks, oldest first: those that I give to peers that are behind."""
    deadlines: Deadlines
    """How long a first ballot waits, learned from `trail`."""
    ready_at: Mapping[str, float] = field(default_factory=dict)
    """When I first heard that each peer is ready for the round from this anchor; without peers that sit out."""
    header: ContributionHeader | None = None
    """The header that I fixed for this anchor; None while training."""
    sits_out: bool = False
    """My owner paused me before I was ready for this anchor, so I am ready whenever the others are."""
    resumed_at: float = float("inf")
    """When I resumed training after a pause in which I contributed what I had: from then on I wait like everybody."""
    progress: float = 0.0
    """Share of this round's inner steps (or time) that is done."""
    first_progress: tuple[float, float] | None = None
    """When I first heard of that progress, and how large it was."""
    train_s: int = 0
    """How long all of the round's training takes at that rate; 0 while that is not known."""
    expected_by: Mapping[str, float] = field(default_factory=dict)
    """When each voter must be ready: by its own first report, with slack."""
    freeze_asked_at: float | None = None
    unanswered: Prepare | None = None
    """A request that waits for my submission."""
    postponed: tuple[Prepare, float] | None = None
    """A request that waits for its turn, and when it came; of several, the first in order."""
    leaving: bool = False
    offered: ContributionHeader | None = None
    """What the trainer has submitted for this anchor; it is signed once its norms are measured."""
    own: Mapping[int, PartNorms] = field(default_factory=dict)
    """The norms measured so far, by part."""
    measured_at: float = float("-inf")
    """When that measurement was last asked for."""
    submitted_at: float = 0.0
    began_at: float = 0.0
    """When this process began."""
    stood_at: float = 0.0
    """When I came to this anchor."""
    last_progress_at: float = 0.0
    """When something of this instance last moved."""
    ballot_at: float = float("-inf")
    """When the ballot that I promised last made progress; −∞ if it began before this process."""
    said_at: float = float("-inf")
    state_digest: bytes = b""
    """H(θ, m) of the head, once the trainer has computed it."""
    lead: CoordinatorState | None = None
    exchange: MemberState | None = None
    past: MemberState | None = None
    """The exchange of the last committed round: evidence may come late."""
    silent: Mapping[str, int] = field(default_factory=dict)
    """Peers for which I waited in vain, and after how many waits that is forgotten."""
    mute: tuple[str, ...] = ()
    """Those that had not checked a proposal by then."""
    seen_lying: Mapping[str, Misconduct] = field(default_factory=dict)
    """Peers that I have seen lying since this process began."""
    early: tuple[tuple[str, PartData | MeanData], ...] = ()
    """Parts and means that arrived before their Start."""
    proposals: Mapping[bytes, Proposal] = field(default_factory=dict)
    votes: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    checks: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    """The votes of phase 0; `prepared` holds those of phase 1."""
    prepared: Mapping[tuple[int, bytes], Mapping[str, Vote]] = field(default_factory=dict)
    checked_at: float = float("-inf")
    """When I voted in phase 0."""
    faults: Mapping[Mean, str] = field(default_factory=dict)
    """The fault of a mean; empty for a correct one."""
    checking: Mapping[Mean, float] = field(default_factory=dict)
    """Means that are being compared with their rows, and when that was asked for."""
    shown: Mapping[tuple[str, tuple[bytes, int, int]], tuple[str, RowDispute]] = field(default_factory=dict)
    """What was shown for this anchor, and by which peer; by contributor and mean."""
    wrong: frozenset[str] = frozenset()
    """Peers whose evidence for this anchor proved nothing."""
    forwarded: frozenset[tuple[int, str]] = frozenset()
    """In which ballot, and about which contributor, I have passed evidence on."""
    objections: Mapping[str, tuple[tuple[bytes, int, int], float]] = field(default_factory=dict)
    """Peers that object to their row of a mean at this anchor, and when I heard that."""
    unproven: Mapping[str, int] = field(default_factory=dict)
    """The round in which a voter objected and did not prove it."""
    unseen: tuple[int, bytes] | None = None
    """What others say they have checked in the ballot that I promised, and I have not seen."""
    roster: Roster = NO_ROSTER
    """The newest list that the organiser has signed, as far as I have heard."""
    alone_since: float = float("inf")
    """Since when I have heard no quorum."""
    stucks: Mapping[str, Stuck] = field(default_factory=dict)
    """Voters that vote no more in this instance."""
    stuck_said_at: float = float("-inf")
    """When I last asked the organiser's node."""
    organiser_at: float = float("-inf")
    """When it last answered."""
    spoke_at: Mapping[str, float] = field(default_factory=dict)
    """When each voter last led a ballot of this anchor, answered one or voted in it."""
    voted_at: Mapping[str, float] = field(default_factory=dict)
    """When each other voter last voted in this instance, and I first did: then there was something to vote for."""
    decided: tuple[int, bytes] | None = None
    attempts: Attempts = Attempts()
    dead_ballots: frozenset[int] = frozenset()
    """Ballots of this instance whose coordinator proposed two updates."""
    equivocators: frozenset[str] = frozenset()
    """Peers that proposed two updates since this process began: they are asked for nothing and not elected."""
    quarantined: frozenset[str] = frozenset()
    """They lead nothing, and are no members where a quorum is left without them; their votes count."""
    held: Mapping[bytes, int] = field(default_factory=dict)
    """Digests whose bytes are on my disk, with their sizes: of this anchor's proposals and of blocks to apply."""
    afar: frozenset[bytes] = frozenset()
    """Those of them that only delegates of mine hold."""
    wanted: FetchState = FetchState()
    blocks: tuple[Block, ...] = ()
    """Committed updates that I must still apply, in order, each with a valid certificate."""
    last: ChainHead | None = None
    """The head after all of `blocks`."""
    block_source: str = ""
    voters: frozenset[str] = frozenset()
    """All peers that were ever elected on my chain, as far as it is here."""
    strangers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Peers that say they have no way from my chain to theirs: since when, and when they last said so."""
    heard: Mapping[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    unreachable: Mapping[str, float] = field(default_factory=dict)
    """Peers that my streams cannot reach, and since when."""
    strangers_told_at: float = float("-inf")
    """When people were last told of a claim by a peer that the chain does not name."""
    yielded_at: float = float("-inf")
    """When I last looked for those who went on by a Restart that outranks my chain."""
    alerted_at: float = float("-inf")
    asked: Mapping[str, tuple[bytes, float]] = field(default_factory=dict)
    """Which peer was asked lately what follows which anchor, and when."""
    told: Mapping[str, tuple[bytes, float]] = field(default_factory=dict)
    """Which peer was told lately what follows which anchor, and when."""
    refused_sources: Mapping[str, float] = field(default_factory=dict)
    """Peers that gave blocks without a valid certificate, and until when nothing is accepted from them."""
    outbid: int = -1
    """The highest ballot of this instance that another voter has told me to have promised: mine begins above it."""
    skipped: int = 0
    """Ballots of this instance that nobody led. They lengthen no later wait, else a peer could skip some for that."""
    delegates: tuple[Delegate, ...] = ()
    """Which homes of mine keep which layers now. What they hold counts as held by me."""
    in_step: bool = False
    """Whether this peer's head and digest are those of the electorate."""
    applied_round: int = 0
    """The newest round that the trainer has computed."""
    catch_up: SyncProgress | None = None

    @property
    def tip(self) -> ChainHead:
        """The newest head that I know with its certificate: mine, or the one after the blocks to apply."""
        return self.last if self.blocks and self.last is not None else self.head

    @property
    def named(self) -> frozenset[str]:
        """The peers that vote or have voted, are a member or a home of one, or whose work was counted."""
        head, headers = self.head, self._headers_lately()
        homes = (home for header in headers for _, _, home in header.delegates)
        members, earning = (header.peer for header in headers), (tenure.peer for tenure in head.tenures)
        return self.voters.union(head.electorate, head.members, members, earning, homes)

    def is_owed(self, peer: str) -> bool:
        """Whether a peer gets all objects that it asks for: a present or former voter, a peer that the organiser knows,
        or a home of one of these. Any other member cost its owner no more than one contribution."""
        owed = self.voters.union(self.head.electorate, self.head.roster.known)
        headers = (header for header in self._headers_lately() if header.peer in owed)
        return peer in owed or any(peer == home for header in headers for _, _, home in header.delegates)

    def _headers_lately(self) -> list[ContributionHeader]:
        """The headers of the last round and of the present one."""
        headers = [*self.trail[-1].block.update.members] if self.trail else []
        return [*headers, *self.exchange.members] if self.exchange is not None else headers

    def updates(self) -> Iterator[Update]:
        """All updates that are known here: proposed, decided, waiting, and the newest of my chain."""
        yield from (proposal.update for proposal in self.proposals.values())
        yield from (block.update for block in self.blocks)
        yield from (step.block.update for step in reversed(self.trail))

    def named_as(self, digest: bytes) -> frozenset[tuple[int, int]]:
        """The layers whose mean this is according to the updates known here, each with its encoded size. None if no
        update names it; several where means have the same bytes, such as those of parts that nothing moves."""
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
        return self.head.electorate

    @property
    def instance(self) -> bytes:
        return self.acceptor.instance
