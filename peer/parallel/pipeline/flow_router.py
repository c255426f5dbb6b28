"""Receives what the other homes' trainers send: flights wait for the trainer, everything else is handled at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from peer.network.link.channel import LinkLost
from peer.parallel.pipeline import home_messages

log = logging.getLogger(__name__)

POLL_S = 0.5
FLIGHT_KIND = 0
"""The first byte of a frame that carries a flight."""


class FlowLine(Protocol):
    """The trainer's end of the connection to the other homes; the real one is in `peer.network.link.flow_channel`."""

    def send(self, to: str, frame: bytes) -> None:
        """Send a frame, from any thread. Raises LinkLost."""

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next frame and its sender; None if none arrives in time. Raises LinkLost."""


class FlowRouter:
    """Implements `peer.parallel.pipeline.flight_port.FlightPort`; reads in its own thread."""

    def __init__(self, end: FlowLine, hear: Callable[[str, bytes], None]) -> None:
        """`hear` is called with the sender and each of its frames that is not a flight."""
        self._end, self._hear = end, hear
        self._flights: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._has_ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name="flow reader", daemon=True)
        self._reader.start()

    def send(self, to: str, frame: bytes) -> None:
        """Send a frame to a home of the cluster. After the link has ended frames are lost: a new link starts from
        scratch."""
        with suppress(LinkLost):
            self._end.send(to, frame)

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next flight and its sender; None if none arrives in time."""
        try:
            return self._flights.get(timeout=timeout_s) if timeout_s > 0 else self._flights.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Stop reading; once this returns, nothing is received any more."""
        self._has_ended.set()
        self._reader.join()

    def _read(self) -> None:
        with suppress(LinkLost):
            while not self._has_ended.is_set():
                found = self._end.receive(POLL_S)
                if found is None:
                    continue
                sender, frame = found
                kind = frame[0] if frame else -1
                if kind == FLIGHT_KIND:
                    self._flights.put(found)
                elif kind == home_messages.KIND:
                    self._hear(sender, frame)
                else:
                    log.warning("dropped a frame of %s: of no kind that is known", sender)
