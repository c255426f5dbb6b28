"""How many bytes went to and came from each of the other peers."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

PEERS_MOST = 256
"""Peer ids cost nothing, so only so many are remembered: those that were active last."""


@dataclass(slots=True)
class PeerTraffic:
    """Bytes between this peer and another."""

    sent: int = 0
    received: int = 0


class TrafficCounter:
    """Counts by peer and in total. What a forgotten peer's bytes came to stays in the total."""

    def __init__(self, most: int = PEERS_MOST) -> None:
        self.total = PeerTraffic()
        self._most = most
        self._peers: dict[str, PeerTraffic] = {}

    @property
    def peers(self) -> MappingProxyType[str, PeerTraffic]:
        """By peer id; who was active last stands last."""
        return MappingProxyType(self._peers)

    def add(self, peer: str, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes that went to `peer` or came from it."""
        self._peers[peer] = found = self._peers.pop(peer, None) or PeerTraffic()
        for traffic in (found, self.total):
            traffic.sent += sent
            traffic.received += received
        if len(self._peers) > self._most:
            del self._peers[next(iter(self._peers))]
