"""The records that a run keeps of each peer: the usual norm of its contributions, and the roots of its latest ones.

Records stand in every update, so they have the same bits at all peers. Their floats are float32: half the size, and a
value that is read back equals the value that was written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

ROOT_BYTES = 8
"""Of a Merkle root: enough to know it again."""
MAX_ROOTS = 8
"""Roots that are remembered of one peer, unless the run is averaged in many fragments."""
MOST_ROOTS = 64
"""In any run."""
MAX_PEER = 64
"""Characters of a peer's id."""
MAX_LAYERS = 65_536
MAX_COUNT = (1 << 16) - 1
MAX_REJECTED = (1 << 8) - 1
_STAT = struct.Struct("<ffHB")
_FLOAT32_MAX = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class NormStats:
    """The norms of one layer of one peer, over steps^⅝: an exponentially weighted mean and variance."""

    mean: float
    variance: float
    count: int
    """Values that were accepted; 0 if there is nothing yet."""
    rejected: int
    """Values that were refused in a row."""

    def rounded(self) -> NormStats:
        """As it is written: float32, and counters that stop at their largest value."""
        return NormStats(
            float32(self.mean), float32(self.variance), min(self.count, MAX_COUNT), min(self.rejected, MAX_REJECTED)
        )


NOTHING = NormStats(0.0, 0.0, 0, 0)


@dataclass(frozen=True, slots=True)
class PeerHistory:
    """What is known of one peer."""

    peer: str
    seen: int
    """The newest round in which it gave something."""
    stats: tuple[NormStats, ...]
    """One per layer of the model."""
    roots: bytes
    """The first bytes of the Merkle roots of its newest contributions, the newest first."""

    def packed(self) -> tuple[Any, ...]:
        stats = b"".join(_STAT.pack(item.mean, item.variance, item.count, item.rejected) for item in self.stats)
        return (self.peer, self.seen, stats, self.roots)

    @classmethod
    def unpacked(cls, value: Any) -> Self:
        """Raises ValueError for anything that `packed` does not make."""
        if not isinstance(value, tuple) or len(value) != 4:
            raise ValueError("expected a record of 4 fields")
        peer, seen, stats, roots = value
        if type(peer) is not str or len(peer) > MAX_PEER:
            raise ValueError(f"expected a peer id of at most {MAX_PEER} characters")
        if type(seen) is not int or not 0 <= seen < 1 << 63:
            raise ValueError("expected a round")
        if type(roots) is not bytes or len(roots) % ROOT_BYTES or len(roots) > MOST_ROOTS * ROOT_BYTES:
            raise ValueError(f"expected at most {MOST_ROOTS} roots of {ROOT_BYTES} bytes")
        return cls(peer, seen, _stats(stats), roots)


def float32(value: float) -> float:
    """The nearest float32, or the largest one: nothing in a record is infinite."""
    held: float = struct.unpack("<f", struct.pack("<f", min(max(value, -_FLOAT32_MAX), _FLOAT32_MAX)))[0]
    return held


def _stats(blob: Any) -> tuple[NormStats, ...]:
    if type(blob) is not bytes or len(blob) % _STAT.size or len(blob) > MAX_LAYERS * _STAT.size:
        raise ValueError(f"expected statistics of {_STAT.size} bytes per layer")
    stats = tuple(NormStats(*fields) for fields in _STAT.iter_unpack(blob))
    if not all(isfinite(item.mean + item.variance) and item.mean >= 0 <= item.variance for item in stats):
        raise ValueError("expected finite statistics")
    return stats
