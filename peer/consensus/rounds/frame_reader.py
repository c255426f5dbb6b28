"""Frames become messages, in the order in which a peer sent them; a large sealed one is opened beside the machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from peer.consensus.protocol.messages import (
    GetMeans,
    Message,
    Reassign,
    SealedPropose,
    Start,
    decode_sealed,
    encode,
)
from peer.consensus.rounds.opening import Open, Sealed, open_one, opened
from peer.consensus.rounds.state import State

LARGE_BYTES = 16_384
"""A sealed frame that has more is opened aside."""
BEHIND_BYTES = 32 << 20
"""Frames of one peer that wait behind one that is being opened; what comes on top is dropped, as on a bad line."""
STRANGERS_MOST = 4
"""Large frames of peers without a vote that are opened at a time. One more is dropped: a chain is asked for again."""
VOTERS_SAY = frozenset({Start.code, Reassign.code, GetMeans.code})
"""Long lists that nobody has signed and a coordinator alone sends: large ones are read if a voter does."""

T = TypeVar("T")


def is_voters(frame: bytes) -> bool:
    return len(frame) > LARGE_BYTES and frame[1] in VOTERS_SAY


@dataclass(frozen=True)
class Framing:
    """How messages become frames, and frames messages; those of the wire unless a simulator has others."""

    encode: Callable[[Message], bytes] = encode
    decode: Callable[[bytes], Message] = decode_sealed
    open: Open = open_one
    is_voters: Callable[[bytes], bool] = is_voters
    """Whether a frame is read only if a voter sends it."""


ON_THE_WIRE = Framing()


class Aside(Protocol):
    """Has work done elsewhere, and `done` called with what it gave, here."""

    def __call__(self, work: Callable[[], T], done: Callable[[T], None], /) -> None: ...


def at_once(work: Callable[[], T], done: Callable[[T], None], /) -> None:
    done(work())


class FrameReader:
    """Passes on to `hear` what peers say; `state` is that of the machine, just then."""

    def __init__(
        self, state: Callable[[], State], framing: Framing, hear: Callable[[str, Message], None], aside: Aside
    ) -> None:
        self.bad_frames = 0
        """Those that are no messages, or were dropped."""
        self._state, self._framing, self._hear, self._aside = state, framing, hear, aside
        self._behind: dict[str, deque[bytes]] = {}
        """What each has sent since it sent what is being opened."""

    def read(self, sender: str, frame: bytes) -> None:
        """A frame from an authenticated peer; what is not a message is counted and dropped."""
        behind = self._behind.get(sender)
        if behind is None:
            self._read(sender, frame)
        elif sum(map(len, behind)) + len(frame) <= BEHIND_BYTES:
            behind.append(frame)
        else:
            self.bad_frames += 1

    def _read(self, sender: str, frame: bytes) -> None:
        if self._framing.is_voters(frame) and sender not in self._state().electorate:
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
        electorate = self._state().electorate
        return sender in electorate or sum(peer not in electorate for peer in self._behind) < STRANGERS_MOST

    def _on_opened(self, sender: str, message: Sealed, asked: State, found: tuple[Message, ...]) -> None:
        behind = self._behind.pop(sender)
        # Held against a head that is not mine any more it proves nothing of its sender, who says it again.
        if message not in found or self._state().head is asked.head:
            self._say(sender, found)
        for frame in behind:
            self.read(sender, frame)

    def _say(self, sender: str, found: tuple[Message, ...]) -> None:
        for message in found:
            self._hear(sender, message)
