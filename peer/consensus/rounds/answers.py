"""What is given to whoever asks for blocks and objects, and how much of it those get who have no part in the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from dht.streams.base import Streams
from peer.consensus.protocol.messages import FETCH_BYTES, FETCH_MOST, Message, ObjectData, encode
from peer.consensus.rounds.state import State

MINUTE_S = 60.0
ROUNDS_A_MINUTE = 2
"""A stranger gets as many bytes in a minute as so many rounds have; in a small run FETCH_BYTES."""
STRANGERS_SHARE = 0.1
"""Of the line, for all of them together."""
AHEAD_S = 10.0
"""They may have had so much of their share ahead of time; of the second half those who have had nothing lately."""


def has_a_part(state: State, peer: str) -> bool:
    """Whether the chain names a peer, or the round that is being made does: it votes or has voted, it is a member or a
    home of one, or its work was counted."""
    head = state.head
    if peer in head.electorate or peer in head.members or peer in state.voters:
        return True
    if any(tenure.peer == peer for tenure in head.tenures):
        return True
    headers = [*state.trail[-1].block.update.members] if state.trail else []
    headers += state.exchange.members if state.exchange is not None else ()
    homes = (delegate for header in headers for _, _, delegate in header.delegates)
    return any(header.peer == peer for header in headers) or peer in homes


@dataclass
class _Given:
    """Bytes that were given and are not forgotten yet."""

    size_bytes: float
    at: float

    def left(self, now: float, bytes_per_s: float) -> float:
        self.size_bytes = max(0.0, self.size_bytes - (now - self.at) * bytes_per_s)
        self.at = now
        return self.size_bytes


class AnswerBudget:
    """What strangers are given, each and all together, so that a round does not feel them.

    `upload_bps` is what the line carries, 0 while that is not known; `is_admitted` says whom the organiser has let in:
    neither they nor who has a part in the run are counted.
    """

    def __init__(
        self, clock: Callable[[], float], state: Callable[[], State],
        upload_bps: Callable[[], float] = lambda: 0.0, is_admitted: Callable[[str], bool] = lambda peer: False,
    ) -> None:  # fmt: skip
        self._clock, self._state, self.upload_bps, self._is_admitted = clock, state, upload_bps, is_admitted
        self._each: dict[str, _Given] = {}
        self._all = _Given(0.0, clock())

    def has_room_for(self, peer: str) -> bool:
        """Whether it may have something now. However large that is: what is too much has the next ones wait."""
        if self._is_free(peer):
            return True
        now, room = self._clock(), self._room_each(peer)
        self._each = {other: given for other, given in self._each.items() if given.left(now, room / MINUTE_S)}
        if peer in self._each and self._each[peer].size_bytes >= room:
            return False
        ahead = self._bytes_per_s * AHEAD_S
        return not ahead or self._all.left(now, self._bytes_per_s) < (ahead / 2 if peer in self._each else ahead)

    def give(self, peer: str, size_bytes: int) -> None:
        if not self._is_free(peer):
            self._each.setdefault(peer, _Given(0.0, self._clock())).size_bytes += size_bytes
            self._all.size_bytes += size_bytes

    def _is_free(self, peer: str) -> bool:
        return has_a_part(self._state(), peer) or self._is_admitted(peer)

    @property
    def _bytes_per_s(self) -> float:
        return STRANGERS_SHARE * self.upload_bps() / 8

    def _room_each(self, peer: str) -> float:
        """In a minute: alike for all who have had something in the last one."""
        rules = self._state().rules
        most = max(float(FETCH_BYTES), ROUNDS_A_MINUTE * sum(rules.bytes_of_means) / rules.fragments)
        askers = len(self._each.keys() | {peer})
        return min(most, self._bytes_per_s * MINUTE_S / askers or most)


WAITING_MOST = 2 * FETCH_MOST
"""Objects that wait for one peer. What comes on top is not answered: an honest one asks again for what it lacks."""


class ObjectReader(Protocol):
    """Where they lie."""

    def load(self, digest: bytes) -> bytes | None: ...


class ObjectServer:
    """Answers questions for objects, at most FETCH_BYTES each."""

    def __init__(
        self, objects: ObjectReader, streams: Streams, encode: Callable[[Message], bytes] = encode,
        budget: AnswerBudget | None = None,
    ) -> None:  # fmt: skip
        self._objects, self._streams, self._encode, self._budget = objects, streams, encode, budget
        # Only the queue of the stream holds them: what it drops can be asked for again.
        self._waiting: dict[str, WeakValueDictionary[bytes, _Asked]] = {}

    def answer(self, to: str, digests: tuple[bytes, ...]) -> None:
        """Queue these objects for a peer, but those that wait for it already."""
        self._waiting = {peer: waiting for peer, waiting in self._waiting.items() if waiting}
        waiting = self._waiting.setdefault(to, WeakValueDictionary())
        question = _Question()
        for digest in dict.fromkeys(digests):
            asked = waiting.get(digest)
            if asked is not None:
                asked.question = question
            elif len(waiting) < WAITING_MOST:
                waiting[digest] = asked = _Asked(self, to, digest, question)
                self._streams.send_bulk(to, asked.frame)

    def frame(self, to: str, digest: bytes, question: _Question) -> bytes | None:
        """An object with its bytes; None if it is not here, or question or asker has cost enough."""
        if question.is_answered or (self._budget is not None and not self._budget.has_room_for(to)):
            return None
        payload = self._objects.load(digest)
        if payload is None or not question.allows(len(payload)):
            return None
        if self._budget is not None:
            self._budget.give(to, len(payload))
        return self._encode(ObjectData(digest, payload))


class _Question:
    """What one question has cost so far."""

    def __init__(self) -> None:
        self.is_answered = False
        self._sent_bytes = 0

    def allows(self, size_bytes: int) -> bool:
        """Whether so many bytes more may be sent; the first object may be of any size."""
        self._sent_bytes += size_bytes
        self.is_answered = self._sent_bytes > max(FETCH_BYTES, size_bytes)
        return not self.is_answered


class _Asked:
    """One object that waits for one peer."""

    def __init__(self, server: ObjectServer, to: str, digest: bytes, question: _Question) -> None:
        self.question = question
        """The newest in which it was asked for."""
        self._server, self._to, self._digest = server, to, digest

    def frame(self) -> bytes | None:
        return self._server.frame(self._to, self._digest, self.question)
