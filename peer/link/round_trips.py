"""How far peers are from each other: each measures its own round trips, and tells them to whoever asks.

So that one peer's folder holds the latencies between all pairs, which a placement needs. Nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgpack

DISTANCES = "distances"
PEERS_MOST = 64
ANSWER_BYTES = 8192
WEIGHT = 0.3
"""Of the newest round trip in the exponential mean."""
LONGEST_S = 60.0


class RoundTrips:
    """Round trips from here, in seconds."""

    def __init__(self) -> None:
        self._round_trips_s: dict[str, float] = {}

    def measured(self, peer: str, round_trip_s: float) -> None:
        """Once more."""
        before = self._round_trips_s.get(peer, round_trip_s)
        self._round_trips_s[peer] = before + WEIGHT * (round_trip_s - before)

    def missed(self, peer: str) -> None:
        """It did not answer: what was known of it may be true no more."""
        self._round_trips_s.pop(peer, None)

    def keep(self, peers: Collection[str]) -> None:
        """Forget all others."""
        self._round_trips_s = {peer: trip_s for peer, trip_s in self._round_trips_s.items() if peer in peers}

    def of(self, peer: str) -> float | None:
        """None if it has not answered."""
        trip_s = self._round_trips_s.get(peer)
        return None if trip_s is None else round(trip_s, 4)

    def told(self, of: Callable[[str], bool]) -> bytes:
        """What others are told: microseconds by peer id, of PEERS_MOST of these at most."""
        rows = [(peer, trip_s) for peer, trip_s in self._round_trips_s.items() if of(peer)]
        return pack(dict(rows[:PEERS_MOST]))


def pack(round_trips_s: Mapping[str, float]) -> bytes:
    """What a peer answers."""
    packed: bytes = msgpack.packb({peer: round(1e6 * trip_s) for peer, trip_s in round_trips_s.items()})
    return packed


def unpack(answer: bytes) -> dict[str, float]:
    """Round trips in seconds by peer id. Raises ValueError for anything else."""
    try:
        told = msgpack.unpackb(answer, max_map_len=PEERS_MOST, max_str_len=64)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"no distances: {error}") from error
    if not isinstance(told, dict) or not all(_is_sound(peer, trip) for peer, trip in told.items()):
        raise ValueError("no distances: peers and microseconds were expected")
    return {peer: trip / 1e6 for peer, trip in told.items()}


def _is_sound(peer: object, trip: object) -> bool:
    is_time = isinstance(trip, int) and not isinstance(trip, bool) and 0 <= trip <= 1e6 * LONGEST_S
    return isinstance(peer, str) and bool(peer) and is_time
