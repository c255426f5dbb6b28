"""How far peers are from each other, from the round trips that both ends of a pair tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean

MOST_RTT_S = 60.0
"""Whoever says more is not believed: such a line would carry no round."""


class Distances:
    """Who is how far from whom, by peer id, as last told."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, float]] = {}

    def tell(self, peer: str, rtt_s: Mapping[str, float | None]) -> None:
        """What a peer says of its round trips in seconds, by peer id, instead of what it said before; None: not
        measured. Figures that cannot be are left out."""
        self._told[peer] = {
            other: each for other, each in rtt_s.items() if each is not None and 0 <= each <= MOST_RTT_S
        }  # fmt: skip

    def keep(self, peers: Collection[str]) -> None:
        """Forget what all others have told."""
        self._told = {peer: told for peer, told in self._told.items() if peer in peers}

    def one_way_s(self) -> dict[frozenset[str], float]:
        """By pair: half of the round trips that both ends tell, the mean of the two."""
        told: dict[frozenset[str], list[float]] = {}
        for peer, rows in self._told.items():
            for other, rtt_s in rows.items():
                told.setdefault(frozenset((peer, other)), []).append(rtt_s / 2)
        return {pair: fmean(delays_s) for pair, delays_s in told.items()}
