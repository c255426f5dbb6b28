"""How long the others wait for a peer that is late: what the deadlines come to that a run learns from its own rounds.

The same rule as `peer/rounds/timeouts.py`, applied again and again to the same lateness until it changes no more: the
rounds of a plan are all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from peer.rounds.timeouts import DATA_FLOOR_S, MARGIN, MISSED
from peer.spec import RunSpec

MOST_ROUNDS = 32
"""After so many the deadline has settled, or goes to and fro: then it is the longest of the last ones."""


def gather_s(late_s: Sequence[float], spec: RunSpec) -> float:
    """Seconds from the first peer that is ready until the coordinator asks, if nobody else is ready earlier.

    `late_s` is by how much later than the first each peer would be ready. All are waited for where all come in time.
    """
    cap_s, waits = spec.round.gather_s, [spec.round.gather_s]
    for _ in range(MOST_ROUNDS):
        waits.append(_next(late_s, waits[-1], cap_s, spec.round.patience))
        if waits[-1] == waits[-2]:
            break
    return max(waits[-2:])


def _next(late_s: Sequence[float], waited_s: float, cap_s: float, patience: float) -> float:
    came = sorted(late if late <= waited_s else MISSED * waited_s for late in late_s)
    middle = median(came)
    spread = median(abs(each - middle) for each in came)
    return min(cap_s, max(DATA_FLOOR_S, MARGIN * max(came[len(came) // 2], middle + patience * spread)))
