"""Objects for peers that ask for them: each is read from disk when it is sent, so that questions cost no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from dht.streams.base import Streams
from peer.protocol.frames import encode
from peer.protocol.messages import FETCH_BYTES, FETCH_MOST, Message, ObjectData

WAITING_MOST = 2 * FETCH_MOST
"""Objects that wait for one peer. What comes on top is not answered: an honest one asks again for what it lacks."""


class ObjectReader(Protocol):
    """Where they lie."""

    def load(self, digest: bytes) -> bytes | None: ...


class ObjectServer:
    """Answers questions for objects, at most FETCH_BYTES each."""

    def __init__(self, objects: ObjectReader, streams: Streams, encode: Callable[[Message], bytes] = encode) -> None:
        self._objects, self._streams, self._encode = objects, streams, encode
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
                waiting[digest] = asked = _Asked(self._objects, digest, question, self._encode)
                self._streams.send_bulk(to, asked.frame)


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

    def __init__(
        self, objects: ObjectReader, digest: bytes, question: _Question, encode: Callable[[Message], bytes]
    ) -> None:
        self.question = question
        """The newest in which it was asked for."""
        self._objects, self._digest, self._encode = objects, digest, encode

    def frame(self) -> bytes | None:
        """The object with its bytes; None if it is not here, or its question has cost enough."""
        if self.question.is_answered:
            return None
        payload = self._objects.load(self._digest)
        if payload is None or not self.question.allows(len(payload)):
            return None
        return self._encode(ObjectData(self._digest, payload))
