"""The notice board: small signed records that expire, published by peers about themselves."""

from __future__ import annotations

from typing import Protocol

from dht.records import Record


class Board(Protocol):
    """Publish and read records; the same contract on hivemind's DHT and in memory."""

    async def publish(self, topic: str, record: Record, ttl_s: float) -> bool:
        """Store `record` under (`topic`, its author); a newer one replaces it.

        False when no node stored it. `ttl_s` is at most `keys.MAX_TTL_S`.
        """

    async def read(self, topic: str) -> dict[str, Record]:
        """Every record under `topic` that is valid and has not expired, by its author's peer id."""
