"""What is simulated: machines, what lies between them, how they come and go, and the run they share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from peer.placement.pairwise_network import Matrix
from peer.placement.regions import Indices, Regions
from peer.protocol.layout import Part, cut
from peer.spec import RunSpec

ATTACKS = ("times_100", "nan", "zeros", "replay")
"""What an attacker gives: a hundred times as much, no numbers, nothing (a free rider), the same again and again."""


@dataclass(frozen=True, kw_only=True)
class PeerProfile:
    """One peer: its machine and its line. 0 bits per second mean no cap."""

    step_s: float
    """Seconds of an inner step."""
    spread: float = 0.0
    """Standard deviation of the logarithm of its speed from round to round."""
    freeze_s: float = 0.05
    """From its last step until what it gives is encoded and on disk."""
    apply_s: float = 0.05
    """From a commit until the new anchor is computed."""
    reduce_s: float = 0.002
    """To average one part."""
    upload_bps: float = 0.0
    download_bps: float = 0.0
    skew_s: float = 0.0
    """How much its clock is ahead of Unix time."""
    attack: str = ""
    """One of `ATTACKS`, or empty."""
    attack_round: int = -1
    """It attacks in the round from this anchor alone; -1: in all."""


@dataclass(frozen=True, kw_only=True)
class ChurnEvent:
    """Something that happens to a peer at a time: `crash`, `return`, `leave` or `join`."""

    at_s: float
    peer: int
    """Counted from 0; whoever joins has the next free number."""
    what: str


@dataclass(frozen=True, kw_only=True)
class Churn:
    """How peers come and go, per hour; or a schedule that was recorded."""

    crashes: float = 0.0
    """Of each peer that is there."""
    leaves: float = 0.0
    """Likewise, politely."""
    joins: float = 0.0
    """For each peer of the beginning: with as many joins as crashes and leaves the size stays about the same."""
    back_s: float = 0.0
    """A crashed peer is back after so long on average; 0: never."""
    schedule: tuple[ChurnEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run on a swarm."""

    spec: RunSpec
    layer_sizes: tuple[int, ...]
    """Elements of each layer of the model."""
    machines: tuple[PeerProfile, ...]
    """Of the founders; who joins later has that of one of them, in turn."""
    rounds: int
    seed: int = 0
    regions: Regions | None = None
    """Delay and bandwidth between places, and between two peers of one place."""
    places: tuple[int, ...] = ()
    """Of each founder its place; who joins later stands at that of one of them, in turn."""
    delay_s: tuple[float, float] = (0.01, 0.05)
    """Without places: least and largest one-way delay of a pair."""
    churn: Churn = field(default_factory=Churn)
    part_elements: int = 0
    """Largest part, where it is not to be the spec's."""
    most_s: float = 0.0
    """The simulation ends after so much virtual time in any case; 0: after 40 times what the rounds should take."""

    @property
    def step_tokens(self) -> int:
        """Tokens of an inner step."""
        return self.spec.inner.accumulation * self.spec.inner.sequences * self.spec.model.context

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of the whole model."""
        return cut(self.layer_sizes, self.part_elements or self.spec.codec.part_elements)

    def between(self, founders: Indices) -> tuple[Matrix, Matrix]:
        """Shape (…, n, n) for founders of shape (…, n): delay one way in seconds, and bits per second of each pair.

        Without places no pair has a limit, and of delays, which are drawn, it is the largest.
        """
        if self.regions is None:
            shape = (*founders.shape, founders.shape[-1])
            return np.full(shape, self.delay_s[1]), np.full(shape, np.inf)
        places = np.array(self.places)[founders]
        pairs = places[..., :, None], places[..., None, :]
        return self.regions.delay_s[pairs], self.regions.bandwidth_bps[pairs]

    def with_machines(self, machines: tuple[PeerProfile, ...]) -> Scenario:
        """The same run on others."""
        return replace(self, machines=machines)
