"""The organiser's list of known peers: who is on it, and how its node gives it to others."""

from __future__ import annotations

from collections.abc import Iterable

from peer.consensus.protocol.block import MAX_MEMBERS, Roster

QUESTION = "roster"
"""Under this name the node gives its list, if that is newer than the number in the request."""
NUMBER_BYTES = 8
MAX_ROSTER_BYTES = 1 << 14


def unsigned(number: int, known: Iterable[str], out: Iterable[str]) -> Roster:
    """A list of the first of `known` and of `out`, as many as can be members of a round. A peer that is `out` is not
    known."""
    kept_out = tuple(dict.fromkeys(out))
    named = [peer for peer in dict.fromkeys(known) if peer not in kept_out]
    return Roster(number, tuple(sorted(named[:MAX_MEMBERS])), tuple(sorted(kept_out[:MAX_MEMBERS])))
