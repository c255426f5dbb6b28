"""The result of a simulated run in numbers; its events say the same, and more, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from peer.consensus.protocol.block import VOID, Update
from peer.schema.events import RoundAborted


@dataclass
class OfRound:
    """One decided round."""

    members: tuple[str, ...]
    tokens: int
    void: int
    """The number of parts without a mean."""
    parts: int
    ballot: int
    penalties: tuple[tuple[str, str], ...]
    """(peer, code)."""
    committed_at: list[float] = field(default_factory=list)
    """The virtual times in seconds at which peers had the new anchor."""


@dataclass
class GroupTally:
    """The totals of one group of peers, or of all."""

    rounds: dict[int, OfRound] = field(default_factory=dict)
    aborts: set[tuple[int, int]] = field(default_factory=set)
    """(round, ballot)."""
    round_s: float = 0.0
    exposed_s: float = 0.0
    """Both are sums over peers."""
    commits: int = 0
    """A sum over peers."""
    bytes_sent: int = 0

    def committed(self, update: Update, now: float, round_s: float, exposed_s: float, sent: int) -> None:
        found = self.rounds.get(update.round)
        if found is None:
            found = self.rounds[update.round] = _of(update)
        found.committed_at.append(now)
        self.commits += 1
        self.round_s += round_s
        self.exposed_s += exposed_s
        self.bytes_sent += sent

    def aborted(self, event: RoundAborted) -> None:
        self.aborts.add((event.round, event.ballot))

    def times(self) -> list[float]:
        """For each anchor from the first round on, the median time at which peers had it."""
        return [median(self.rounds[number].committed_at) for number in sorted(self.rounds)]

    def penalties(self) -> Counter[str]:
        return Counter(code for found in self.rounds.values() for _, code in found.penalties)


def _of(update: Update) -> OfRound:
    return OfRound(
        members=tuple(header.peer for header in update.members), tokens=sum(header.tokens for header in update.members),
        void=update.parts.count(VOID), parts=len(update.parts), ballot=update.ballot,
        penalties=tuple((penalty[0], penalty[1]) for penalty in update.penalties),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in a dozen values."""

    peers: int
    rounds: int
    seconds: float
    """Virtual seconds."""
    rounds_per_hour: float
    tokens_per_s: float
    """Tokens of decided rounds, summed over all peers."""
    exposed_share: float
    """The mean share of a round in which a peer could make no inner step."""
    median_round_s: float
    low_round_s: float
    """Nine in ten rounds last between `low_round_s` and `high_round_s`."""
    high_round_s: float
    members: float
    """The mean number of members per round."""
    aborts: int
    later_ballots: int
    void_share: float
    """The share of all parts that had no mean."""
    penalties: dict[str, int]
    bytes_sent: int
    """The mean bytes that one peer sends in a round."""
    messages: int
    """The total of all peers in all rounds."""
    clusters: tuple[tuple[str, ...], ...] = ()
    """The homes of each peer that is a cluster, in the order of the stages."""
    idle: tuple[str, ...] = ()
    """The homes that hold no model and are in no cluster."""

    def plain(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in vars(self).items()}


def figures_of(tally: GroupTally, peers: int, fragments: int, messages: int) -> Summary:
    rounds, times = list(tally.rounds.values()), tally.times()
    seconds = times[-1] if times else 0.0
    gaps = [later - earlier for earlier, later in pairwise(times)] or [seconds]
    tokens = sum(found.tokens for found in rounds) / fragments
    low_s, high_s = nine_in_ten(gaps)
    return Summary(
        peers=peers, rounds=len(rounds), seconds=seconds,
        rounds_per_hour=3600 * len(rounds) / seconds if seconds else 0.0,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        exposed_share=tally.exposed_s / tally.round_s if tally.round_s else 0.0,
        median_round_s=median(gaps), low_round_s=low_s, high_round_s=high_s,
        members=sum(len(found.members) for found in rounds) / max(1, len(rounds)),
        aborts=len(tally.aborts), later_ballots=sum(found.ballot > 0 for found in rounds),
        void_share=sum(found.void for found in rounds) / max(1, sum(found.parts for found in rounds)),
        penalties=dict(sorted(tally.penalties().items())),
        bytes_sent=tally.bytes_sent // max(1, tally.commits), messages=messages,
    )  # fmt: skip


def nine_in_ten(seconds: Sequence[float]) -> tuple[float, float]:
    """The 5 % and 95 % quantiles of the rounds' durations."""
    low, high = np.quantile(seconds, (0.05, 0.95))
    return float(low), float(high)
