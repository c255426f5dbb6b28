"""The events and effects of the round machine: what its driver tells it, and what it asks its driver to do."""

from __future__ import annotations

from dataclasses import dataclass

from peer.consensus.protocol.block import (
    VOID,
    WEIGHT_ONE,
    Block,
    ContributionHeader,
    Delegate,
    Restart,
    Roster,
    Stuck,
    Update,
)
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import BallotId, Heartbeat, MeanData, Message
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.state import Acceptor
from peer.schema.events import Event as Reported

# ---- events: what the driver tells the machine ----


@dataclass(frozen=True, slots=True)
class Input:
    """Base of all events. `now` is in seconds of a clock that never goes back."""

    now: float


@dataclass(frozen=True, slots=True)
class Tick(Input):
    """Time passed; the driver sends one every `TICK_S`. `wall_offset_s` is Unix time minus the clock."""

    wall_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Received(Input):
    """A message from an authenticated peer."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class TrainingProgress(Input):
    """The trainer has done this share of the round."""

    share: float


@dataclass(frozen=True, slots=True)
class Submitted(Input):
    """The trainer encoded the residual for this anchor and wrote it to disk. The header is not yet signed."""

    header: ContributionHeader


@dataclass(frozen=True, slots=True)
class Paused(Input):
    """The trainer makes no more steps. It contributes what it has made for this anchor so far, or nothing: an empty
    root."""

    header: ContributionHeader


@dataclass(frozen=True, slots=True)
class Resumed(Input):
    """The trainer makes steps again."""


@dataclass(frozen=True, slots=True)
class PartReduced(Input):
    """The mean of a part is computed, encoded and on disk under this digest."""

    place: BallotId
    part: int
    contributors: int
    digest: bytes
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class PartMeasured(Input):
    """The square of the norm of a part that came, which `MeasurePart` asked for."""

    place: BallotId
    giver: str
    part: int
    square: float


@dataclass(frozen=True, slots=True)
class OwnMeasured(Input):
    """The norms of a part of my own contribution, which `MeasureOwn` asked for."""

    anchor: bytes
    part: int
    figures: PartNorms


@dataclass(frozen=True, slots=True)
class ObjectStored(Input):
    """Bytes asked for by `StoreObject` are on disk."""

    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class DelegatesChanged(Input):
    """From now on these homes of mine keep these layers, and no other home does. What other round machines know of it
    stands in my headers."""

    delegates: tuple[Delegate, ...]


@dataclass(frozen=True, slots=True)
class DelegateHolds(Input):
    """A home of mine says that the bytes of a mean are on its disk; it has checked their digest, size and numbers.

    `mean` is what its reducer signed, without the bytes, if they came from there.
    """

    worker: str
    digest: bytes
    size: int
    mean: MeanData | None = None


@dataclass(frozen=True, slots=True)
class Applied(Input):
    """The trainer has computed this anchor; `state` is H(θ, m), empty of a home that keeps some layers only."""

    anchor: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class PeersUnreachable(Input):
    """From now on exactly these peers cannot be reached from here, as the streams have found."""

    peers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Leaving(Input):
    """This peer takes part in the round it is in, if it can, and not in the next."""


@dataclass(frozen=True, slots=True)
class OrganiserAnswered(Input):
    """The organiser's node has answered `AskOrganiser`, with the Restart by which this peer goes on if there is one."""

    restart: Restart | None


@dataclass(frozen=True, slots=True)
class RosterHeard(Input):
    """A list of the organiser, from any source: its signature is checked here."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Quarantined(Input):
    """From now on exactly these peers are in quarantine. They are asked for nothing new and are not followed any more.
    What has begun with them ends as usual, and their votes count while they are in the electorate."""

    peers: frozenset[str]


@dataclass(frozen=True, slots=True)
class MeanChecked(Input):
    """What `CheckMean` found: one of SUM, ROW, NORM, or nothing wrong."""

    digest: bytes
    part: int
    contributors: int
    fault: str
    basis: bytes = b""


@dataclass(frozen=True, slots=True)
class RowChecked(Input):
    """Whether a row of a mean is the sketch of the bytes that its contributor showed."""

    giver: str
    digest: bytes
    part: int
    contributors: int
    right: bool
    basis: bytes = b""


SUM = "it is not what its rows come to"
ROW = "its row is not what the bytes come to that were given"
NORM = "its rows are larger than was declared"


# ---- effects: what the machine asks of the driver, to be done in this order ----


@dataclass(frozen=True, slots=True)
class Effect:
    """Base of all effects."""


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Send a message to each of these peers."""

    to: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class SendParts(Effect):
    """Send my encoded parts, each as `PartData`, to their reducer. A delegate of mine sends those that it holds."""

    to: str
    place: BallotId
    parts: tuple[int, ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class SendMean(Effect):
    """Send a mean; the driver fills in the bytes its digest names."""

    to: tuple[str, ...]
    mean: MeanData


@dataclass(frozen=True, slots=True)
class SendObjects(Effect):
    """Answer a fetch with the bytes that are on my disk."""

    to: str
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendBlocks(Effect):
    """Send the blocks after this anchor; if the disk has none, say so and where I am. `after` is empty if we share no
    anchor."""

    to: str
    after: bytes
    head: Heartbeat


@dataclass(frozen=True, slots=True)
class PersistAcceptor(Effect):
    """Have this on disk (fsync) before any later effect. `update` comes with an accepted value."""

    acceptor: Acceptor
    update: Update | None = None


@dataclass(frozen=True, slots=True)
class AskOrganiser(Effect):
    """Show the organiser's node that I am stuck, or ask whether it is there; `OrganiserAnswered` follows if it
    answers."""

    stuck: Stuck | None


@dataclass(frozen=True, slots=True)
class BufferPart(Effect):
    """Keep a member's encoded part in memory until it is reduced."""

    place: BallotId
    sender: str
    part: int
    payload: bytes
    path: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasurePart(Effect):
    """Decode a part that came, or is my own if `payload` is empty, and measure its norm; then `PartMeasured`."""

    place: BallotId
    giver: str
    part: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class MeasureOwn(Effect):
    """Decode a part of my contribution for this anchor and measure it, also against the last committed mean of that
    part, whose digest is `direction`; then `OwnMeasured`."""

    anchor: bytes
    part: int
    direction: bytes = VOID


@dataclass(frozen=True, slots=True)
class ReducePart(Effect):
    """Average the kept parts of these members with these integer weights, encode once, store; then `PartReduced`.
    `missing` is the weight of members that offered this part and are not among them; `pull` is the weight of the last
    committed mean, whose digest is `direction`; everything is multiplied by `scale` over 65,536 in the end.
    Contributions that are not finite do not count; if all are, nothing follows."""

    place: BallotId
    part: int
    contributors: int
    members: tuple[str, ...]
    weights: tuple[int, ...]
    attempt: int = 0
    missing: int = 0
    scale: int = WEIGHT_ONE
    pull: int = 0
    direction: bytes = VOID
    rows: tuple[str, ...] = ()
    """All contributors, in the order of their rows."""
    declared: tuple[float, ...] = ()
    """The norm that each of them declared for the layer."""


@dataclass(frozen=True, slots=True)
class CheckMean(Effect):
    """Compare a mean that is held with its rows, and the row about me with what I gave; then `MeanChecked`."""

    digest: bytes
    part: int
    contributors: int
    names: tuple[str, ...]
    """Of the contributors, in the order of their rows."""
    weights: tuple[int, ...]
    declared: tuple[float, ...]
    """The norm that each declared for the layer: no row of a part may be larger."""
    anchor: bytes
    missing: int = 0
    scale: int = WEIGHT_ONE
    pull: int = 0
    """As in `ReducePart`; -1 if the mean is pulled to the last committed one and that is unknown here: then the sum is
    not checked."""
    direction: bytes = VOID
    basis: bytes = b""
    """Digest of the headers that say all this, since others may name the same mean."""


@dataclass(frozen=True, slots=True)
class CheckRow(Effect):
    """Compare row number `rank` of a mean that is held with these bytes; then `RowChecked`."""

    giver: str
    digest: bytes
    part: int
    contributors: int
    rank: int
    payload: bytes
    declared: float
    """The norm that its contributor declared for the layer."""
    anchor: bytes
    basis: bytes = b""


@dataclass(frozen=True, slots=True)
class ShowRow(Effect):
    """Send everybody a `RowDispute` with the bytes that I gave to this mean."""

    to: tuple[str, ...]
    place: BallotId
    part: int
    digest: bytes
    contributors: int


@dataclass(frozen=True, slots=True)
class StoreObject(Effect):
    """Write bytes to disk under their digest; then `ObjectStored`."""

    digest: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class CommitBlock(Effect):
    """Append a block to the chain on disk and hand it to the trainer. `awaited` names bytes of later blocks that are
    already on disk and must stay."""

    block: Block
    head: ChainHead
    awaited: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class NeedSnapshot(Effect):
    """The others left my chain and no peer has the blocks in between: start from a snapshot."""

    why: str


@dataclass(frozen=True, slots=True)
class RequestSubmit(Effect):
    """Ask the trainer to submit after its next inner step."""


@dataclass(frozen=True, slots=True)
class Tell(Effect):
    """Tell the people."""

    event: Reported
