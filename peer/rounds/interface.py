"""The vocabulary that the round machine speaks with its driver: what it is told, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from peer.events import Event as Reported
from peer.protocol.block import VOID, WEIGHT_ONE, Block, Pledge, Update
from peer.protocol.messages import HeadSent, MeanSent, Message, Place
from peer.rounds.state import Acceptor, Figures, Head

# ---- events: what the driver tells the machine ----


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. `now` is in seconds of a clock that never goes back."""

    now: float


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; the driver sends one every `TICK_S`. `wall_offset_s` is Unix time minus the clock."""

    wall_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message from an authenticated peer."""

    sender: str
    message: Message


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """The trainer has done this share of the round."""

    share: float


@dataclass(frozen=True, slots=True)
class Frozen(Event):
    """The trainer encoded the balance for this anchor and wrote it to disk. The pledge is not yet signed."""

    pledge: Pledge


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """The trainer makes no more steps. It gives what it froze for this anchor so far, or nothing: an empty root."""

    pledge: Pledge


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """The trainer makes steps again."""


@dataclass(frozen=True, slots=True)
class Reduced(Event):
    """The mean of a part is computed, encoded and on disk under this digest."""

    place: Place
    part: int
    contributors: int
    digest: bytes
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """What `Measure` found."""

    place: Place
    giver: str
    part: int
    figures: Figures
    evidence: bool = False


@dataclass(frozen=True, slots=True)
class Held(Event):
    """Bytes asked for by `Store` are on disk."""

    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Applied(Event):
    """The trainer has computed this anchor; `state` is H(θ, m)."""

    anchor: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class Leaving(Event):
    """This peer takes part in the round it is in, if it can, and not in the next."""


@dataclass(frozen=True, slots=True)
class Quarantined(Event):
    """The organiser has these peers kept out from now on; nobody else.

    They are asked for nothing new and follow no more: what has begun with them ends as it must, and while they are in
    the electorate their votes count.
    """

    peers: frozenset[str]


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
    """Send my encoded parts, each as a `PartSent`, to their reducer."""

    to: str
    place: Place
    parts: tuple[int, ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class SendKept(Effect):
    """Send the kept parts of these members, each as a `PartSent` with its giver: evidence for the coordinator."""

    to: str
    place: Place
    part: int
    givers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendMean(Effect):
    """Send a mean; the driver fills in the bytes its digest names."""

    to: tuple[str, ...]
    mean: MeanSent


@dataclass(frozen=True, slots=True)
class SendObjects(Effect):
    """Answer a fetch with the bytes that are on my disk."""

    to: str
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendChain(Effect):
    """Send the blocks that follow this anchor; if the disk has none, that there are none, and where I am.

    `after` is empty if we share no anchor.
    """

    to: str
    after: bytes
    head: HeadSent


@dataclass(frozen=True, slots=True)
class Persist(Effect):
    """Have this on disk (fsync) before any later effect. `update` comes with an accepted value."""

    acceptor: Acceptor
    update: Update | None = None


@dataclass(frozen=True, slots=True)
class Keep(Effect):
    """Keep a member's encoded part in memory until it is reduced."""

    place: Place
    sender: str
    part: int
    payload: bytes
    path: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure(Effect):
    """Decode a part and measure it, also against the last committed mean of it; then `Measured`."""

    place: Place
    giver: str
    part: int
    payload: bytes
    """Empty for a part of my own contribution."""
    direction: bytes = VOID
    """Digest of that mean, if there is one."""
    evidence: bool = False
    """Whether it was sent to prove something, not to be counted."""


@dataclass(frozen=True, slots=True)
class Reduce(Effect):
    """Average the kept parts of these members with these integer weights, encode once, store; then `Reduced`.

    `missing` is the weight of the members who offered this part and are not among them; `pull` is the weight of the
    last committed mean, whose digest is `direction`; all is multiplied by `scale` over 65,536 in the end. What is not
    finite does not count; if nothing is, nothing follows. After a second attempt the parts are kept on: they may be
    needed as evidence.
    """

    place: Place
    part: int
    contributors: int
    members: tuple[str, ...]
    weights: tuple[int, ...]
    attempt: int = 0
    missing: int = 0
    scale: int = WEIGHT_ONE
    pull: int = 0
    direction: bytes = VOID


@dataclass(frozen=True, slots=True)
class Store(Effect):
    """Write bytes to disk under their digest; then `Held`."""

    digest: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Commit(Effect):
    """Append a block to the chain on disk and hand it to the trainer.

    `awaited` names bytes of later blocks that are on disk already: they must stay.
    """

    block: Block
    head: Head
    awaited: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Undo(Effect):
    """Stand at this earlier anchor of my chain again: what followed is undone, on disk and in the trainer."""

    head: Head


@dataclass(frozen=True, slots=True)
class Resync(Effect):
    """My chain is not theirs any more and nobody has the blocks between: start from a snapshot."""

    why: str


@dataclass(frozen=True, slots=True)
class RequestFreeze(Effect):
    """Ask the trainer to freeze at its next inner step."""


@dataclass(frozen=True, slots=True)
class Report(Effect):
    """Tell the people."""

    event: Reported
