"""What the links benchmark measured of each system, and the figures that are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Point:
    """Parameters that all peers had agreed on."""

    at_s: float
    """Since training began."""
    exchanges: int
    """Rounds, or steps of DDP, so far."""
    loss: float
    """Held-out, in nats per token; measured afterwards."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the time of a run went to, from its beginning to its last exchange: means over peers."""

    computing: float
    """Inner steps, each as long as its device is declared to take."""
    communicating: float
    """From where a peer has frozen what it learned to where it has what all agreed on; also beside inner steps."""
    waiting: float | None
    """For slower peers, before that; None where nobody can tell it apart."""
    exposed: float
    """No inner step could be made."""
    settled: float
    """The same without the first rounds."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One system."""

    system: str
    shaper: str
    """What made its lines as slow as they are."""
    points: list[Point]
    exchange_s: list[float]
    """From exchange to exchange."""
    tokens_per_s: float
    """Of the inner steps of all peers."""
    shares: Shares
    sent_bytes: float
    """Per peer and exchange."""
    counted_in: str
    """What was counted: IP packets, frames of ours, or a formula."""
    load: float
    """Of all cores, by everything on the machine."""
    note: str = ""

    @property
    def mean_exchange_s(self) -> float:
        return sum(self.exchange_s) / len(self.exchange_s)

    @property
    def exposed_s(self) -> float:
        """Seconds per exchange, the mean over peers."""
        return self.shares.exposed * self.mean_exchange_s

    def time_to(self, target: float) -> float | None:
        """Seconds until the loss was `target`, on a line between the points around it; None if it never was."""
        found = crossing(self.points, target)
        return None if found is None else found[0]

    def bytes_to(self, target: float) -> float | None:
        """What each peer had sent by then."""
        found = crossing(self.points, target)
        return None if found is None else found[1] * self.sent_bytes


def crossing(points: Sequence[Point], target: float) -> tuple[float, float] | None:
    """(seconds, exchanges) at which the loss first comes down to `target`, on a line between two points."""
    if points and points[0].loss <= target:
        return points[0].at_s, points[0].exchanges
    for before, after in pairwise(points):
        if after.loss <= target:
            share = (before.loss - target) / (before.loss - after.loss)
            return (
                before.at_s + share * (after.at_s - before.at_s),
                before.exchanges + share * (after.exchanges - before.exchanges),
            )
    return None
