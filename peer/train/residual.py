"""What a peer has produced minus what decided updates counted.

Never sending, never voting: only a decided update moves work out, so that a missed commit, a void part, a crash and a
fork all end with the right amount owed. A restart restores it from what was offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peer.codec.blockwise import Floats
from peer.codec.codec import Codec
from peer.lifecycle.fragments import FragmentSchedule
from peer.protocol.block import PartOutcome, Update, part_outcomes
from peer.spec import RunSpec
from peer.store.contributions import Contribution

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


@dataclass(frozen=True, kw_only=True)
class RewindResult:
    """In how many of the updates that were undone work of this peer was counted."""

    returned: int
    """It is owed again."""
    lost: int
    """It is not on this disk any more, so it is given up."""


class ResidualLedger:
    """Of one peer in one run; its contributions lie in `folder`."""

    def __init__(self, spec: RunSpec, me: str, folder: Path, residual: Residual, turns: FragmentSchedule) -> None:
        self._me, self._folder = me, folder
        self._codec, self._gamma = Codec(spec.codec.wire), spec.round.gamma
        self.residual, self._turns = residual, turns

    def find(self, anchor: bytes, round: int) -> Contribution | None:
        """What was offered for `anchor` of this round, every byte as it was; None if nothing. Raises BadInput."""
        mine = Contribution.find(self._folder, anchor, self._turns.parts(round), self._codec)
        if mine is not None:
            mine.check()
        return mine

    def outcomes(self, update: Update, mine: Contribution | None) -> Sequence[PartOutcome]:
        return part_outcomes(update, self._me, mine is not None)

    def staleness_after(self, update: Update, mine: Contribution | None) -> int:
        """Age of the oldest work that is owed once this update is settled, in turns of what it averages."""
        averaged = update.round - 1
        age = self._turns.work(averaged).copy().age
        if self.all_counted(self.outcomes(update, mine)):
            age.counted()
        return age.staleness(self._turns.turn(averaged, update.round))

    def all_counted(self, outcomes: Sequence[PartOutcome]) -> bool:
        """Whether nothing of what was offered is still owed."""
        kept = PartOutcome.MISSED in outcomes and self._gamma > 0
        return PartOutcome.NOT_SUBMITTED not in outcomes and not kept

    def unsettle(self, undone: Iterable[tuple[Update, Contribution | None]]) -> RewindResult:
        """Owe again what these updates counted of this peer's contributions to them."""
        returned = lost = 0
        for update, mine in undone:
            outcomes = part_outcomes(update, self._me, frozen=True)
            counted = [part for part, outcome in enumerate(outcomes) if outcome is PartOutcome.COUNTED]
            if not counted:
                continue
            if mine is None:
                lost += 1
                continue
            returned += 1
            self._turns.returned(update.round - 1, mine.effort.staleness)
            slices = self._turns.slices((update.round - 1,))
            for part in counted:
                self.residual.returned(slices[part], self._decoded(mine, part, slices[part]))
        return RewindResult(returned=returned, lost=lost)

    def leave_behind(self, mine: Contribution, round: int) -> float:
        """What was offered at this round may have been counted, and is owed no more. Returns its squared norm."""
        squared = 0.0
        for part, where in enumerate(self._turns.slices((round,))):
            decoded = self._decoded(mine, part, where)
            self.residual.counted(where, decoded)
            squared += float(torch.linalg.vector_norm(decoded, dtype=torch.float64)) ** 2
        self._turns.work(round).age.counted()
        return squared

    def take_back(self, mine: Contribution, round: int) -> None:
        """Owe what was offered: all of it was written but what encoding lost or a sparse codec left out."""
        for part, where in enumerate(self._turns.slices((round,))):
            self.residual.restored(where, self._decoded(mine, part, where), self._codec)
        self._turns.restored(round, mine.effort.staleness)

    def _decoded(self, mine: Contribution, part: int, where: slice) -> Tensor:
        return torch.from_numpy(self._codec.decode(mine.payload(part))[: where.stop - where.start])
