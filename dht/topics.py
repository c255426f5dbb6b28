"""Topics of the board, how long their records live, and under which key of the DHT they lie."""

from __future__ import annotations

VERSION = 1
"""Version of every record's layout; part of the key, so that clients of another layout never meet."""

HEAD = "head"
"""What a peer says of itself: its anchor, its readiness, its figures."""
GENESIS = "genesis"
"""The founders of the run and the hash of its initial state, signed by the organiser."""
TOPICS = frozenset({HEAD, GENESIS})

HEAD_TTL_S = 60.0
GENESIS_TTL_S = 600.0
MAX_TTL_S = 600.0
"""Nothing on the board lives longer; whoever means it says it again."""


def dht_key(topic: str, run: bytes) -> str:
    """The DHT key of `topic` in the run with hash `run`."""
    assert topic in TOPICS, topic
    return f"homefires/{VERSION}/{run.hex()}/{topic}"
