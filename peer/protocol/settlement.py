"""What a committed update means for one peer's balance (the protocol, §8)."""

from __future__ import annotations

from enum import Enum

from peer.protocol.block import Update


class PartOutcome(Enum):
    """What happens to one part of the balance when an update is applied."""

    COUNTED = "counted"
    """My bytes are in the mean, or were judged: they leave the balance; the encoding residue stays."""
    MISSED = "missed"
    """I had frozen for this anchor, but the part is void or without me: the balance ages."""
    UNTOUCHED = "untouched"
    """I had not frozen for this anchor: nothing was offered, nothing changes."""


def part_outcomes(update: Update, me: str, frozen: bool) -> tuple[PartOutcome, ...]:
    """One settlement per part for peer `me`, who had `frozen` a contribution for the update's parent or not."""
    if not frozen:
        return (PartOutcome.UNTOUCHED,) * len(update.parts)
    return tuple(
        PartOutcome.COUNTED if update.contributed(me, part) else PartOutcome.MISSED for part in range(len(update.parts))
    )
