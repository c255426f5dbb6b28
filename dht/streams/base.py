"""The interface between a peer and the network: frames to and from peers whose ids are authenticated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

MAX_FRAME_BYTES = 20 * 2**20
"""No frame is larger; a receiver cuts off whoever announces more."""
LEAST_MBPS, MOST_MBPS = 0.5, 1e6
"""The limits that an owner may set. A line below the first holds every round up; one beyond the last is a mistake in
the unit."""

MakeFrame = Callable[[], bytes | None]
OnFrame = Callable[[str, bytes], None]
"""Called with (sender's peer id, frame). The sender is authenticated by the transport."""


Answer = Callable[[str, bytes], Awaitable[bytes | None]]
"""Called with (asker's peer id, request); gives at most MAX_FRAME_BYTES, or None for nothing."""


class Asking(Protocol):
    """Sends requests to other peers; `dht.node.Node` implements it."""

    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = ..., request: bytes = ...
    ) -> bytes | None: ...


class Questions(Protocol):
    """Sends and answers requests; `dht.node.Node` implements it."""

    async def connections(self) -> dict[str, str]: ...
    def answer(self, name: str, answer: Answer) -> None: ...
    async def ask(
        self, peer_id: str, name: str, timeout_s: float, max_bytes: int = ..., request: bytes = ...
    ) -> bytes | None: ...


class Streams(Protocol):
    """Sends frames, and delivers arriving ones to one listener: in order per sender, separately for `send` and
    `send_bulk`. Delivery is best effort: a frame to a peer that cannot be reached, or that stopped reading, is
    dropped after a time-out. The protocol above repeats what matters."""

    def send(self, to: str, frame: bytes) -> None:
        """Queue a frame. Never blocks, never raises for an unreachable peer."""

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a large frame that is made only when the stream can take it; None means that it is no longer wanted.
        These wait behind everything that was given to `send`, so that large frames never delay an agreement."""

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Frames that arrive before are dropped."""

    @property
    def unreachable(self) -> frozenset[str]:
        """Peers to which something was sent lately, whose connections have been closed for seconds, and to which a
        new one was tried and failed. A peer that is connected or heard again is not among them."""
