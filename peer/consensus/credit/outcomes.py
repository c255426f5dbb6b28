"""What a committed round counted for each of its members, from its weights and penalties."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

ACCEPTED, LATE, IDLE, REJECTED, MISSED = "accepted", "late", "idle", "rejected", "missed"
OUTCOMES = (ACCEPTED, LATE, IDLE, REJECTED, MISSED)
"""What a committed round can count for a peer."""
_REFUSALS = frozenset({"ANOMALY", "NONFINITE", "MISDECLARED"})
_TARDY = frozenset({"LATE", "STALE"})


class Penalty(Protocol):
    """What an outcome depends on, of a PenaltyImposed and of what is remembered of one."""

    @property
    def about(self) -> str: ...
    @property
    def code(self) -> str: ...
    @property
    def layer(self) -> str: ...
    @property
    def factor(self) -> float: ...


def outcomes(
    group: Iterable[str], weights: Mapping[str, int], penalties: Iterable[Penalty], gave: Collection[str] | None = None
) -> dict[str, str]:
    """What a committed round counted for each peer that it speaks of, as one of `OUTCOMES`.

    `group` are its members, `weights` what each of them weighed, `penalties` those that it imposed. `gave` are the
    members that had something ready: who had nothing, paused or not, is idle. None: that is not known, and nobody is.
    """
    by_peer: dict[str, list[Penalty]] = {}
    for penalty in penalties:
        by_peer.setdefault(penalty.about, []).append(penalty)
    told = {peer: _outcome(peer, weights, by_peer.get(peer, []), gave) for peer in group}
    for peer, reasons in by_peer.items():
        if peer not in told:
            codes = {penalty.code for penalty in reasons}
            told[peer] = LATE if codes & _TARDY else REJECTED if codes & _REFUSALS else MISSED
    return told


def _outcome(peer: str, weights: Mapping[str, int], reasons: Collection[Penalty], gave: Collection[str] | None) -> str:
    """Of a member. A refusal in one layer leaves the rest of what it gave."""
    if any(each.code in _REFUSALS and each.factor == 0 and not each.layer for each in reasons):
        return REJECTED
    if any(each.code in _TARDY for each in reasons):
        return LATE if gave is None or peer in gave else IDLE
    return REJECTED if weights and weights.get(peer, 0) == 0 else ACCEPTED
