"""What lies between peers: the delay and the bandwidth of every pair (the α and β of a transfer's cost)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Row: who sends; column: who receives. The diagonal that is given is never looked at.

    Raises BadInput for a matrix of another shape, and for a pair whose delay is negative or infinite, or whose
    bandwidth is not positive.

    Attributes:
        names: one per peer.
        delay_s: shape (n, n), one way, of a message of no length; 0 on the diagonal.
        bandwidth_bps: shape (n, n), bits per second of one transfer that is alone on its way; infinite on the diagonal.
    """

    names: tuple[str, ...]
    delay_s: Matrix
    bandwidth_bps: Matrix

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay_s", self._checked("delay_s", self.delay_s, own=0.0))
        object.__setattr__(self, "bandwidth_bps", self._checked("bandwidth_bps", self.bandwidth_bps, own=np.inf))

    def __len__(self) -> int:
        return len(self.names)

    def transfer_s(self, message_bytes: float) -> Matrix:
        """Shape (n, n): seconds of one transfer between each pair, α + bytes / β."""
        return self.delay_s + message_bytes * 8 / self.bandwidth_bps

    def symmetrised(self) -> Network:
        """Each pair's two directions averaged, as DT-FM does (arXiv:2206.01288, section 3)."""
        return Network(
            names=self.names,
            delay_s=(self.delay_s + self.delay_s.T) / 2,
            bandwidth_bps=(self.bandwidth_bps + self.bandwidth_bps.T) / 2,
        )

    def both_ways(self) -> Network:
        """Bandwidths as of a pair that sends as much one way as the other, one after the other: their harmonic mean.
        Lines of homes are slow one way and fast the other, of which the mean says little."""
        with np.errstate(divide="ignore"):  # on the diagonal
            bandwidth_bps = 2 / (1 / self.bandwidth_bps + 1 / self.bandwidth_bps.T)
        return replace(self, bandwidth_bps=bandwidth_bps)

    def only(self, peers: list[int]) -> Network:
        """The network of some of its peers, in this order."""
        pick = np.ix_(peers, peers)
        return Network(
            names=tuple(self.names[peer] for peer in peers),
            delay_s=self.delay_s[pick],
            bandwidth_bps=self.bandwidth_bps[pick],
        )

    def _checked(self, what: str, matrix: Matrix, own: float) -> Matrix:
        """A copy that cannot be written to, with `own` on the diagonal."""
        count = len(self.names)
        copy = np.array(matrix, dtype=np.float64)
        if copy.shape != (count, count):
            raise BadInput(f"{what} has shape {copy.shape}; {count} peers need ({count}, {count})")
        np.fill_diagonal(copy, own)
        good = (copy >= 0) & np.isfinite(copy) if what == "delay_s" else copy > 0
        if not good.all():
            sender, receiver = np.argwhere(~good)[0]
            pair = f"from {self.names[sender]} to {self.names[receiver]}"
            raise BadInput(f"{what} {pair} is {copy[sender, receiver]}; it must be {_RANGE[what]}")
        copy.setflags(write=False)
        return copy


_RANGE = {"delay_s": "finite and not negative", "bandwidth_bps": "positive"}
