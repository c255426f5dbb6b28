"""What a peer has produced minus what decided updates counted.

Never sending, never voting: only a decided update moves work out, so that a missed commit, a void part, a crash and a
fork all end with the right amount owed. A restart restores it from what was offered.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.codec.codec import Codec

CHUNK = 1 << 16
"""Elements that are worked on at a time: what several operations go over stays in the processor's cache."""


class Residual:
    """A flat float32 vector on the CPU in the units of Δ; what this peer offers next."""

    def __init__(self, flat: Tensor) -> None:
        assert flat.dtype == torch.float32
        assert flat.dim() == 1
        self.flat = flat

    @classmethod
    def empty(cls, size: int) -> Residual:
        return cls(torch.zeros(size, dtype=torch.float32))

    @torch.no_grad()
    def add_progress(self, part: slice, start: Tensor, now: Tensor) -> None:
        """Add the progress of one part from `start` to `now`; then `start` is `now`."""
        mine, scratch = self.flat[part], torch.empty(min(CHUNK, now.numel()), dtype=torch.float32)
        for first in range(0, now.numel(), CHUNK):
            piece = slice(first, min(first + CHUNK, now.numel()))
            mine[piece].add_(torch.sub(start[piece], now[piece], out=scratch[: piece.stop - piece.start]))
            start[piece] = now[piece]

    @torch.no_grad()
    def counted(self, part: slice, decoded: Tensor) -> None:
        """A decided update counts this peer's `decoded` contribution: what stays is the encoding residue."""
        self.flat[part].sub_(decoded)

    @torch.no_grad()
    def give_up(self, part: slice) -> float:
        """Owe nothing of this part. Returns the norm of what was owed."""
        norm = float(torch.linalg.vector_norm(self.flat[part], dtype=torch.float64))
        self.flat[part].zero_()
        return norm

    @torch.no_grad()
    def returned(self, part: slice, decoded: Tensor) -> None:
        """An update that counted `decoded` was undone by fork choice: it is owed again."""
        self.flat[part].add_(decoded)

    @torch.no_grad()
    def restored(self, part: slice, decoded: Tensor, codec: Codec) -> None:
        """After a crash: it was at least what had been offered. What a sparse codec left out stays as it is."""
        mine = self.flat[part]
        mine.copy_(torch.where(decoded != 0, decoded, mine) if codec.is_sparse else decoded)


def interpolate(residual: Floats, theta: Floats, now: Floats, own: float) -> None:
    """Owe what lies between the new anchor θ and a point `own` of the way from θ − residual to the parameters `now`.

    That point, (1 − α) (θ − residual) + α now, is streaming DiLoCo's merge (arXiv:2501.18512). The ledger is not
    exact any more: progress since the freeze counts α of itself, and so does what `now` has not followed of θ.
    """
    apart = theta - residual
    apart -= now
    apart *= np.float32(own)
    residual += apart


def start_from(theta: Tensor, owed: Tensor, start: Tensor, codec: Codec) -> None:
    """Write to `start` where the next inner steps begin: at the anchor θ less all that is owed.

    With a sparse codec most is owed for many rounds: peers who took it along would share little, so they begin at θ.
    """
    if codec.is_sparse:
        start.copy_(theta)
    else:
        torch.sub(theta, owed, out=start)
