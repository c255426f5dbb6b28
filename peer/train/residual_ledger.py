"""What becomes of a peer's own work when something is decided: what is counted goes, the rest stays owed.

The balance says how much is owed, `FragmentSchedule` of what age and how many tokens it is. What was offered lies on
disk, one file per anchor: only with it in hand can an update be settled, taken back, or left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peer.codec.codec import Codec
from peer.lifecycle.fragments import FragmentSchedule
from peer.protocol.block import Update
from peer.protocol.settlement import PartOutcome, part_outcomes
from peer.spec import RunSpec
from peer.store.contributions import Contribution
from peer.train.residual import Residual


@dataclass(frozen=True, kw_only=True)
class RewindResult:
    """In how many of the updates that were undone work of this peer was counted."""

    returned: int
    """It is owed again."""
    lost: int
    """It is not on this disk any more, so it is given up."""


class ResidualLedger:
    """Of one peer in one run; its contributions lie in `folder`."""

    def __init__(self, spec: RunSpec, me: str, folder: Path, balance: Residual, turns: FragmentSchedule) -> None:
        self._me, self._folder = me, folder
        self._codec, self._gamma = Codec(spec.codec.wire), spec.round.gamma
        self.balance, self._turns = balance, turns

    def find(self, anchor: bytes, round: int) -> Contribution | None:
        """What was offered for `anchor` of this round, every byte as it was; None if nothing. Raises BadInput."""
        mine = Contribution.find(self._folder, anchor, self._turns.parts(round), self._codec)
        if mine is not None:
            mine.check()
        return mine

    def outcomes(self, update: Update, mine: Contribution | None) -> Sequence[PartOutcome]:
        """What an update does to each part of what was offered."""
        return part_outcomes(update, self._me, mine is not None)

    def settle(self, update: Update, mine: Contribution | None) -> None:
        """An update was decided: what it counted is owed no more, and what it left out is discounted by age."""
        averaged, outcomes = update.round - 1, self.outcomes(update, mine)
        for part, (where, outcome) in enumerate(zip(self._turns.slices((averaged,)), outcomes, strict=True)):
            if outcome is PartOutcome.COUNTED:
                assert mine is not None
                self.balance.counted(where, self._decoded(mine, part, where))
            elif outcome is PartOutcome.MISSED:
                self.balance.aged(where, self._gamma)
        if self.all_counted(outcomes):
            self._turns.work(averaged).age.counted()

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
        return PartOutcome.UNTOUCHED not in outcomes and not kept

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
                self.balance.returned(slices[part], self._decoded(mine, part, slices[part]))
        return RewindResult(returned=returned, lost=lost)

    def leave_behind(self, mine: Contribution, round: int) -> float:
        """What was offered at this round may have been counted, and is owed no more. Returns its squared norm."""
        squared = 0.0
        for part, where in enumerate(self._turns.slices((round,))):
            decoded = self._decoded(mine, part, where)
            self.balance.counted(where, decoded)
            squared += float(torch.linalg.vector_norm(decoded, dtype=torch.float64)) ** 2
        self._turns.work(round).age.counted()
        return squared

    def take_back(self, mine: Contribution, round: int) -> None:
        """Owe what was offered: all of it was written but what encoding lost or a sparse codec left out."""
        for part, where in enumerate(self._turns.slices((round,))):
            self.balance.restored(where, self._decoded(mine, part, where), self._codec)
        self._turns.restored(round, mine.effort.staleness)

    def _decoded(self, mine: Contribution, part: int, where: slice) -> Tensor:
        return torch.from_numpy(self._codec.decode(mine.payload(part))[: where.stop - where.start])
