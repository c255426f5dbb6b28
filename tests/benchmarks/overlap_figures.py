"""What the overlap benchmark measured, and the shares that are judged."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A peer that only trains, in a run of its own."""

    slower: float
    step_s: float
    """What a step takes, declared."""
    tokens_per_s: float
    load: float
    """Of all cores, by everything on the machine."""


@dataclass(frozen=True, kw_only=True)
class OfPeer:
    """One peer in the rounds that were looked at."""

    step_s: float
    """What a step takes, declared."""
    step_tokens: int
    tokens: int
    """Of the inner steps that it made in `made_in_s`."""
    made_in_s: float
    round_s: list[float]
    """From commit to commit, as it told them."""
    exposed_s: list[float]
    """Of these, in which it could make no inner step."""
    bytes_sent: list[int]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.made_in_s

    @property
    def of_declared(self) -> float:
        """Its speed over that of its device."""
        return self.tokens_per_s * self.step_s / self.step_tokens

    @property
    def exposed(self) -> list[float]:
        """The share of each round."""
        return [exposed / seconds for exposed, seconds in zip(self.exposed_s, self.round_s, strict=True)]


@dataclass(frozen=True, kw_only=True)
class OfRound:
    """What one update counted."""

    round: int
    seconds: float
    """From the commit before, at one peer."""
    tokens: int
    weights: list[int | None]
    """Over 65,536, by peer; None for one that is no member."""
    void: int
    penalties: list[str]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run in one mode."""

    mode: str
    slower: list[float]
    repeat: int
    peers: list[OfPeer]
    rounds: list[OfRound]
    load: float
    """Of all cores, by everything on the machine."""
    swarm_load: float
    """Of these, by the processes of the run."""

    @property
    def exposed(self) -> float:
        """The mean share over peers and rounds."""
        return statistics.fmean(share for peer in self.peers for share in peer.exposed)

    @property
    def round_s(self) -> float:
        return statistics.fmean(of.seconds for of in self.rounds)

    @property
    def made_per_s(self) -> float:
        """Tokens per second of the inner steps that all peers made."""
        return sum(peer.tokens_per_s for peer in self.peers)

    @property
    def counted_per_s(self) -> float:
        """Tokens per second that updates counted. What a peer of weight 0 had made does not."""
        refused = sum(
            peer.tokens_per_s * of.seconds
            for of in self.rounds
            for peer, weight in zip(self.peers, of.weights, strict=True)
            if weight == 0
        )
        pledged = sum(of.tokens for of in self.rounds)
        return (pledged - min(refused, pledged)) / sum(of.seconds for of in self.rounds)
