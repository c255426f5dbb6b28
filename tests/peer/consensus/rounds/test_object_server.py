"""Questions for objects cost no memory: what is asked for is read when the stream is free."""

from __future__ import annotations

from collections import deque

from dht.streams.base import MakeFrame, OnFrame
from peer.consensus.protocol.messages import FETCH_BYTES, FETCH_MOST, ObjectData, decode
from peer.consensus.rounds.driver import WAITING_MOST, ObjectServer

PART_BYTES = FETCH_BYTES // 2


class Busy:
    """A disk where everything is, and streams that send when they are told to."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.waiting: deque[tuple[str, MakeFrame]] = deque()

    def load(self, digest: bytes) -> bytes | None:
        self.loaded.append(digest)
        return digest[:1] * PART_BYTES

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        self.waiting.append((to, make_frame))

    def send(self, to: str, frame: bytes) -> None:
        raise AssertionError("an object is large")

    def listen(self, on_frame: OnFrame) -> None:
        raise AssertionError("whoever owns the streams listens")

    def send_all(self) -> list[tuple[str, bytes]]:
        """(to, first byte of the object) of the frames that are wanted when their turn comes."""
        sent = []
        while self.waiting:
            to, make_frame = self.waiting.popleft()
            frame = make_frame()
            del make_frame  # as a stream does, before it writes
            if frame is not None:
                message = decode(frame)
                assert isinstance(message, ObjectData)
                sent.append((to, message.payload[:1]))
        return sent


def test_nothing_is_read_before_it_is_sent() -> None:
    """However often one asks who reads nothing."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    for _ in range(300):
        answerer.answer("mallory", (b"a", b"b"))
    assert busy.loaded == []
    assert len(busy.waiting) == 2
    assert busy.send_all() == [("mallory", b"a"), ("mallory", b"b")]


def test_what_was_sent_may_be_asked_for_again() -> None:
    """It may have been lost on its way; and what waits for one peer is sent to others all the same."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    for _ in range(2):
        answerer.answer("p1", (b"a",))
        answerer.answer("p2", (b"a",))
        assert busy.send_all() == [("p1", b"a"), ("p2", b"a")]


def test_what_a_stream_gave_up_may_be_asked_for_again() -> None:
    """Whoever could not be reached is not forgotten for ever."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    answerer.answer("p1", (b"a",))
    busy.waiting.clear()
    answerer.answer("p1", (b"a",))
    assert busy.send_all() == [("p1", b"a")]


def test_every_question_has_its_share() -> None:
    """An object counts for the newest question in which it was asked for, and nothing is read in vain."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    answerer.answer("p1", (b"a", b"b", b"c", b"d"))
    assert [first for _, first in busy.send_all()] == [b"a", b"b"]
    assert busy.loaded == [b"a", b"b", b"c"]
    answerer.answer("p1", (b"a", b"b", b"c"))
    answerer.answer("p1", (b"c", b"d"))
    assert [first for _, first in busy.send_all()] == [b"a", b"b", b"c", b"d"]


def test_what_waits_for_one_peer_is_bounded() -> None:
    """An honest one never has so many questions open; others get theirs."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    for number in range(5):
        answerer.answer("mallory", tuple((number * FETCH_MOST + n).to_bytes(32, "big") for n in range(FETCH_MOST)))
    answerer.answer("p1", (b"a",))
    assert [to for to, _ in busy.waiting] == ["mallory"] * WAITING_MOST + ["p1"]


def test_peers_for_which_nothing_waits_are_not_remembered() -> None:
    """Strangers come without number."""
    busy = Busy()
    answerer = ObjectServer(busy, busy)
    for number in range(100):
        answerer.answer(f"stranger-{number}", (b"a",))
        busy.waiting.clear()
    assert len(answerer._waiting) == 1
