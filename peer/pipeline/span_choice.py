"""Which home of a cluster gets which layers: neighbouring ones, in the order of the homes, so that none holds up the
others by more than it must."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from dht.errors import BadInput
from peer.ipc import Assignment, StageHolder
from peer.model.flat import Layer

Wire = Literal["int8", "bfloat16", "float32"]
HELD_BYTES = 20
"""Per parameter that a home trains: θ, momentum and residual, its own parameters, and two moments, less what rounds."""


def choose_spans(
    layers: Sequence[Layer], homes: Sequence[str], speeds: Sequence[float], rooms_gb: Sequence[float], epoch: int,
    wire: Wire,
) -> Assignment:  # fmt: skip
    """Whole blocks for each home: the slowest home's share of the work is as small as can be.

    `speeds` are relative; one that is 0 is not known, and taken as the mean of the others. Work counts in parameters;
    what comes before the first block goes with it and costs nothing, what comes after the last one goes with that.
    `rooms_gb` is the memory of each home in 10^9 bytes, 0 if it is not known. Raises BadInput where there is no room,
    or fewer blocks than homes.
    """
    blocks = [number for number, layer in enumerate(layers) if layer.is_block]
    if len(blocks) < len(homes):
        raise BadInput(f"a model of {len(blocks)} blocks cannot be trained by {len(homes)} homes")
    cuts = [0, *blocks[1:], len(layers)]
    """Where a stage may begin, and the end."""
    sizes = [0, *accumulate(layer.size for layer in layers)]
    free = [0, *accumulate(layer.size if layer.start >= layers[blocks[0]].start else 0 for layer in layers)]
    known = [speed for speed in speeds if speed > 0]
    typical = sum(known) / len(known) if known else 1.0
    costs = [1 / (speed if speed > 0 else typical) for speed in speeds]

    def fits(home: int, first: int, last: int) -> bool:
        room = rooms_gb[home] * 1e9
        return not room or HELD_BYTES * (sizes[cuts[last]] - sizes[cuts[first]]) <= room

    # best[i]: the least bottleneck with which the homes so far hold everything before cut i, and where the last began.
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())] + [None] * (len(cuts) - 1)
    for home in range(len(homes)):
        following: list[tuple[float, tuple[int, ...]] | None] = [None] * len(cuts)
        for last in range(home + 1, len(cuts)):
            for first in range(home, last):
                before = best[first]
                if before is None or not fits(home, first, last):
                    continue
                slowest = max(before[0], costs[home] * (free[cuts[last]] - free[cuts[first]]))
                if following[last] is None or slowest < following[last][0]:  # type: ignore[index]
                    following[last] = (slowest, (*before[1], cuts[first]))
        best = following
    found = best[-1]
    if found is None:
        raise BadInput(f"{len(homes)} homes have no room for the model's {sizes[-1] / 1e6:,.0f} M parameters")
    starts = found[1]
    ends = (*starts[1:], len(layers))
    return Assignment(
        epoch,
        tuple(StageHolder(peer, first, end - 1) for peer, first, end in zip(homes, starts, ends, strict=True)),
        (), wire,
    )  # fmt: skip
