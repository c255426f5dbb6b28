"""Turns frames into messages, in the order in which a peer sent them. Large sealed ones are opened in a thread.

A sealed object is unpacked only after the required signatures were checked; until then it costs a hash and those
checks. An update has up to 8 MB and a chain of them 16 MB: a peer without valid signatures must not make others unpack
that. The machine checks again what it acts on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.encoding import digest_of, pack
from peer.consensus.protocol.head import ChainEntry, ChainHead, next_anchor
from peer.consensus.protocol.messages import (
    Blocks,
    GetMeans,
    Message,
    Propose,
    Reassign,
    Restarted,
    Sealed,
    SealedBlock,
    SealedBlocks,
    SealedPropose,
    SealedRestart,
    Start,
    decode_sealed,
    encode,
)
from peer.consensus.protocol.rules import Rules

LARGE_BYTES = 16_384
"""A sealed frame that has more is opened aside."""
BEHIND_BYTES = 32 << 20
"""Frames of one peer that wait behind one that is being opened; what comes on top is dropped, as on a bad line."""
STRANGERS_MOST = 4
"""Large frames of peers without a vote that are opened at a time. One more is dropped: a chain is asked for again."""
VOTERS_SAY = frozenset({Start.code, Reassign.code, GetMeans.code})
"""Long lists that nobody has signed and a coordinator alone sends: large ones are read if a voter does."""

T = TypeVar("T")
Open = Callable[[Any], Any]


def open_one(sealed: SealedPropose | SealedBlock | SealedRestart) -> Propose | Block | Restarted:
    """Raises ValueError."""
    return sealed.opened()


def is_voters(frame: bytes) -> bool:
    return len(frame) > LARGE_BYTES and frame[1] in VOTERS_SAY


@dataclass(frozen=True)
class Framing:
    """How messages become frames and frames messages; a simulator has its own way."""

    encode: Callable[[Message], bytes] = encode
    decode: Callable[[bytes], Message] = decode_sealed
    open: Open = open_one
    is_voters: Callable[[bytes], bool] = is_voters
    """Whether a frame is read only if a voter sends it."""


ON_THE_WIRE = Framing()


class ChainView(Protocol):
    """What a peer knows of its chain at a moment; the state of its round is one."""

    @property
    def rules(self) -> Rules: ...
    @property
    def head(self) -> ChainHead: ...
    @property
    def tip(self) -> ChainHead:
        """The newest head with its certificate that the peer knows."""

    @property
    def trail(self) -> tuple[ChainEntry, ...]: ...
    @property
    def ancestors(self) -> Mapping[bytes, int]: ...


class Aside(Protocol):
    """Does work elsewhere, and calls `done` with its result, here."""

    def __call__(self, work: Callable[[], T], done: Callable[[T], None], /) -> None: ...


def at_once(work: Callable[[], T], done: Callable[[T], None], /) -> None:
    done(work())


class FrameReader:
    """Passes messages of peers on to `hear`; `state` is that of the machine at the moment."""

    def __init__(
        self, state: Callable[[], ChainView], framing: Framing, hear: Callable[[str, Message], None], aside: Aside
    ) -> None:
        self.bad_frames = 0
        """Frames that are no messages, or were dropped."""
        self._state, self._framing, self._hear, self._aside = state, framing, hear, aside
        self._behind: dict[str, deque[bytes]] = {}
        """What each peer has sent since it sent what is being opened."""

    def read(self, sender: str, frame: bytes) -> None:
        """A frame from an authenticated peer; one that is no message is counted and dropped."""
        behind = self._behind.get(sender)
        if behind is None:
            self._read(sender, frame)
        elif sum(map(len, behind)) + len(frame) <= BEHIND_BYTES:
            behind.append(frame)
        else:
            self.bad_frames += 1

    def _read(self, sender: str, frame: bytes) -> None:
        if self._framing.is_voters(frame) and sender not in self._state().head.electorate:
            self.bad_frames += 1
            return
        try:
            message = self._framing.decode(frame)
        except ValueError:
            self.bad_frames += 1
            return
        if not isinstance(message, Sealed):
            self._hear(sender, message)
        elif len(frame) <= LARGE_BYTES:
            self._say(sender, opened(self._state(), message, self._framing.open))
        elif isinstance(message, SealedPropose) and not self._leads(sender, message):
            self._hear(sender, message)
        elif self._has_room_for(sender):
            self._behind[sender] = deque()
            asked = self._state()
            self._aside(
                partial(opened, asked, message, self._framing.open), partial(self._on_opened, sender, message, asked)
            )
        else:
            self.bad_frames += 1

    def _leads(self, sender: str, message: SealedPropose) -> bool:
        head = self._state().head
        return message.place.anchor == head.anchor and sender == head.leader(message.place.ballot)

    def _has_room_for(self, sender: str) -> bool:
        electorate = self._state().head.electorate
        return sender in electorate or sum(peer not in electorate for peer in self._behind) < STRANGERS_MOST

    def _on_opened(self, sender: str, message: Sealed, asked: ChainView, found: tuple[Message, ...]) -> None:
        behind = self._behind.pop(sender)
        # Held against a head that is not mine any more it proves nothing of its sender, who says it again.
        if message not in found or self._state().head is asked.head:
            self._say(sender, found)
        for frame in behind:
            self.read(sender, frame)

    def _say(self, sender: str, found: tuple[Message, ...]) -> None:
        for message in found:
            self._hear(sender, message)


# ---- what is sealed ----


def opened(state: ChainView, message: Sealed, open_one: Open = open_one) -> tuple[Message, ...]:
    """What a sealed message says to a peer in this state, as far as it is signed; the rest stays sealed."""
    try:
        match message:
            case SealedPropose():
                return (open_one(message) if _is_proposed(state, message) else message,)
            case SealedRestart():
                return (open_one(message) if _is_ordered(state, message.payload, message.signature) else message,)
        return _opened_blocks(state, message, open_one)
    except Exception:  # a quorum, the leader or the organiser has signed what cannot be read: refused with its sender
        return (message,)


def _is_proposed(state: ChainView, message: SealedPropose) -> bool:
    """Whether the leader of that ballot after my head signed it."""
    place, digest = message.place, digest_of(message.update)
    leader, proposed = state.head.leader(place.ballot), pack((place.packed(), digest))
    return place.anchor == state.head.anchor and state.rules.keys.verify(
        leader, "propose", proposed, message.signature
    )  # fmt: skip


def _is_ordered(state: ChainView, payload: bytes, signature: bytes) -> bool:
    rules = state.rules
    return bool(rules.organiser) and rules.keys.verify(rules.organiser, "restart", payload, signature)


def _opened_blocks(state: ChainView, message: SealedBlocks, open_one: Open) -> tuple[Message, ...]:
    """Those blocks that follow a head of mine, up to the first one without the votes of its electorate. Blocks that
    leave my chain before the oldest head that I keep cannot be judged: they are treated as if there were no way."""
    if not message.blocks:
        return (Blocks(()),)
    heads = {entry.before.anchor: entry.before for entry in state.trail}
    heads |= {head.anchor: head for head in (state.head, state.tip)}
    links = tuple(_links(message))
    if parts_too_early(state, links):
        return (Blocks(()),)
    found = list[Block]()
    head: ChainHead | None = None
    for index, ((anchor, digest), sealed) in enumerate(zip(links, message.blocks, strict=True)):
        head = heads.get(anchor) if head is None else head
        if head is None:
            continue
        block = _opened_block(state, head, digest, sealed, open_one)
        if block is None:
            rest = SealedBlocks(anchor, message.blocks[index:])
            return (Blocks(tuple(found)), rest) if found else (rest,)
        found.append(block)
        head = head.after(block.update)
    return (Blocks(tuple(found)),) if found else ()


def _links(message: SealedBlocks) -> Iterator[tuple[bytes, bytes]]:
    """The anchor before each block, as its sender says, and the digest of its update."""
    anchor = message.after
    for sealed in message.blocks:
        digest = digest_of(sealed.update)
        yield anchor, digest
        anchor = next_anchor(anchor, digest)


def _opened_block(
    state: ChainView, head: ChainHead, digest: bytes, sealed: SealedBlock, open_one: Open
) -> Block | None:
    if not all(_is_ordered(state, payload, signature) for payload, signature in sealed.restarts):
        return None
    restarts = sealed.opened_restarts()
    if validation.fault_of_certificate(state.rules, head, digest, sealed.votes, restarts):
        return None
    block: Block = open_one(sealed)
    return block if block.update.parent == head.anchor else None


def parts_too_early(state: ChainView, links: tuple[tuple[bytes, bytes], ...]) -> bool:
    """Whether blocks, each as the anchor before it and its digest, leave my chain before the oldest round that I
    keep, so that I cannot judge them."""
    oldest = state.trail[0].before.round if state.trail else state.head.round
    return any(
        state.ancestors.get(anchor, oldest) < oldest and next_anchor(anchor, digest) not in state.ancestors
        for anchor, digest in links
    )
