"""Papers' own models of wall-clock time: what a whole run takes, and what bandwidth a share of it needs.

`Run` is appendix A of the scaling laws for DiLoCo (arXiv:2503.09799). `needed_bps` asks the question of that paper's
table 6 and of streaming DiLoCo's table 4 (arXiv:2501.18512): how fast must the line be for so much compute utilisation?
Their simulators overlap an exchange with the backward pass, layer by layer; how exactly they do not say. Ours is below.
"""

from __future__ import annotations

from dataclasses import dataclass

HALF_BITS = 16
BACKWARD = 2 / 3
"""Share of a step that its backward pass takes (arXiv:2001.08361, section 2.1)."""
BISECTIONS = 100


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run on R devices. Rates in bits per second, latencies in seconds (arXiv:2503.09799, appendix A)."""

    parameters: float
    tokens: float
    batch_tokens: float
    """Of all replicas together, per inner step."""
    devices: float
    flops: float
    """Per second that one device reaches (Q)."""
    inner_bps: float
    """Within a replica's site (W0)."""
    outer_bps: float
    """Between sites (W1)."""
    inner_latency_s: float = 0.0
    outer_latency_s: float = 0.0

    @property
    def steps(self) -> float:
        """T."""
        return self.tokens / self.batch_tokens

    @property
    def compute_s(self) -> float:
        """6 N D / (R Q)."""
        return 6 * self.parameters * self.tokens / (self.devices * self.flops)

    def all_reduce_s(self, devices: float, bps: float, latency_s: float, share: float = 1.0) -> float:
        """2 N (1 − 1/R) / W + ε: no all-reduce is faster than that."""
        return 2 * self.parameters * HALF_BITS * (1 - share / devices) / bps + latency_s

    def data_parallel_s(self) -> float:
        """Communication of data parallelism over the outer network: every step."""
        return self.all_reduce_s(self.devices, self.outer_bps, self.outer_latency_s) * self.steps

    def diloco_s(self, replicas: int, inner_steps: int) -> float:
        """Communication of DiLoCo with M replicas: every step within them, every H steps between them.

        One replica alone is data parallelism and 1/H more.
        """
        if replicas == 1:
            return self.data_parallel_s() * (1 + 1 / inner_steps)
        inner = self.all_reduce_s(self.devices, self.inner_bps, self.inner_latency_s, share=replicas)
        outer = self.all_reduce_s(self.devices, self.outer_bps, self.outer_latency_s)
        return inner * self.steps + outer * self.steps / inner_steps

    def enough_steps(self) -> float:
        """From this H on the outer network carries no more than half of all communication: W0/W1."""
        return self.inner_bps / self.outer_bps


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What is averaged, how often, and beside what. Of one replica."""

    bits: float
    """Of one exchange of the whole model, in one direction."""
    step_s: float
    layers: int
    inner_steps: int = 1
    """H; 1 is data parallelism."""
    fragments: int = 1
    """Sets of layers that are averaged one after the other, each once in H steps (arXiv:2501.18512)."""
    delay: int = 0
    """Inner steps that are made while a fragment is averaged (its tau)."""

    def exposed_s(self, bps: float) -> float:
        """Of H inner steps, in which no step can be made (ours).

        Gradients of the last layers are there first, so that an exchange runs beside the backward pass, but for its
        last layer's own part. A delay hides so many whole steps more.
        """
        exchange_s = self.bits / bps / self.fragments
        hidden_s = BACKWARD * self.step_s * (1 - 1 / self.layers) + self.delay * self.step_s
        least_s = 0.0 if self.delay else exchange_s / self.layers
        return self.fragments * max(exchange_s - hidden_s, least_s)

    def utilisation(self, bps: float) -> float:
        """Share of the time in which steps are made."""
        compute_s = self.inner_steps * self.step_s
        return compute_s / (compute_s + self.exposed_s(bps))

    def needed_bps(self, utilisation: float) -> float:
        """The slowest line with which this share is reached."""
        low, high = 1.0, 1e18
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.utilisation(middle) >= utilisation else (middle, high)
        return high


def on_grid(bps: float, points: int = 50, low_bps: float = 1e8, high_bps: float = 1e12) -> float:
    """The next point of a geometric grid: both tables list points of 50 between 0.1 and 1,000 Gbit/s.

    Neither paper says so; every figure of theirs but a few is one of these.
    """
    ratio = (high_bps / low_bps) ** (1 / (points - 1))
    point = low_bps
    while point < bps * (1 - 1e-9):
        point *= ratio
    return point
