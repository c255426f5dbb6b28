"""How much of a change each stage passes on: which stage of a longer cluster returned a gradient that is none.

A lead sends a flight, and the same flight once more with its hidden values moved down the gradient that came back. By
the chain rule every stage passes the same change of the loss on, to first order: with x and y as what enters a stage
and leaves it, ⟨∂L/∂x, Δx⟩ = ⟨∂L/∂y, Δy⟩, and for the last stage = ΔL. Both sides follow from what this stage received
and sent. What one stage says of y the next one says of x, with the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from peer.parallel.pipeline.home_group import GarbageHome

SEEN = 2
"""The first flights of a step, of which every stage remembers what it received and sent."""
LEAST, MOST = 0.5, 2.0
"""Bounds of what a stage passes on of a change that its gradient promises."""
SAME = 1e-2
"""Two homes that sum the same bytes differ by less than this share."""
Decode = Callable[[bytes], Tensor]


@dataclass
class SeenFlight:
    """What a stage received and sent for one flight, encoded."""

    entered: bytes
    left: bytes = b""
    gradient: bytes = b""
    """Of what left, as it came back."""
    answer: bytes = b""
    """The gradient of what entered, as it was sent."""
    loss: float = 0.0


def change(gradient: bytes, before: bytes, behind: bytes, decode: Decode) -> float:
    """⟨gradient, Δ⟩ of the values before and after a move."""
    return float((decode(gradient).double() * (decode(behind).double() - decode(before).double())).sum())


def shares_of(first: SeenFlight, second: SeenFlight, decode: Decode) -> tuple[float, float]:
    """The change of the loss that this stage's gradient promises for the second flight, and the one that it passes
    on; for the last stage the change itself."""
    promised = change(first.answer, first.entered, second.entered, decode)
    if not first.left:
        return promised, second.loss - first.loss
    return promised, change(first.gradient, first.left, second.left, decode)


def fault_in(lead: str, sent: float, shares: Sequence[tuple[str, float, float]]) -> GarbageHome | None:
    """The error for the first home whose figures cannot be; None if there is none.

    `sent` is the change that the lead passes on; `shares` has a row for each worker in the order of stages: peer,
    promised, passed on. If a home contradicts the worker before it about the same bytes, that one may be the liar, so
    it counts as an accuser. Stages behind the first fault are not looked at: the move is of no size there.
    """
    if not sent:
        return None  # the move was lost in rounding, and says nothing of anybody
    before = ""
    for peer, promised, passed in shares:
        if not math.isclose(promised, sent, rel_tol=SAME):
            other = before[-8:] or "its lead"
            why = f"says that its gradient promises a change of {promised:.2g}, where {other} has got {sent:.2g}"
            return GarbageHome(peer, why, before)
        if not LEAST <= passed / promised <= MOST:
            kept = f"{passed / promised:.2f}"
            return GarbageHome(
                peer, f"returned a gradient of whose promise {kept} is kept, where honest ones keep nearly 1"
            )
        before, sent = peer, passed
    return None
