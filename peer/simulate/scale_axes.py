"""The sides of a grid of groups, and which seats form a group along each of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.protocol.block import MAX_MEMBERS

BEST = 16
"""Members of a group at most, where the simulator chooses: votes are n² messages, and a larger group saves no bytes."""

Seats = NDArray[np.int64]


def sides_for(peers: int) -> tuple[int, ...]:
    """Sides of nearly one length, as few as there can be with groups of `BEST` at most, and seats for all peers."""
    if peers <= MAX_MEMBERS:
        return (peers,)
    dimensions = math.ceil(math.log(peers) / math.log(BEST) - 1e-9)
    sides: list[int] = []
    left = peers
    for dimension in range(dimensions, 0, -1):
        side = math.ceil(left ** (1 / dimension) - 1e-9)
        sides.append(side)
        left = math.ceil(left / side)
    return tuple(sides)


def check_sides(sides: tuple[int, ...], peers: int) -> None:
    """Raises BadInput for a grid that has too few seats, or groups that are too large."""
    text = "x".join(map(str, sides))
    if math.prod(sides) < peers:
        raise BadInput(f"--grid {text} has {math.prod(sides)} seats for {peers} peers; make a side longer")
    if max(sides) > MAX_MEMBERS:
        raise BadInput(f"--grid {text} has groups of {max(sides)}; a group has at most {MAX_MEMBERS} members")
    if math.prod(sides) >= 2 * peers:
        raise BadInput(f"--grid {text} has {math.prod(sides)} seats for {peers} peers; most would be empty")


def groups_along(sides: tuple[int, ...], side: int) -> Seats:
    """Shape (groups, members): the seats of each group along a side. Seats are numbered in row-major order."""
    seats = np.arange(math.prod(sides)).reshape(sides)
    return np.moveaxis(seats, side, -1).reshape(-1, sides[side])
