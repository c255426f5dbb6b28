"""Networks for the tests of the plan."""

from __future__ import annotations

import numpy as np

from peer.planning.placement.pairwise_network import Network


def random_network(devices: int, seed: int, *, kind: str = "any") -> Network:
    """Links drawn at random.

    `kind`: "any": every link its own; "ties": few different ones; "regions": two to four places; "lopsided": two
    directions unlike; "equal": all alike.
    """
    rng = np.random.default_rng(seed)
    shape = (devices, devices)
    if kind == "ties":
        delay_s, speed = rng.choice([0.01, 0.1], shape), rng.choice([1e8, 1e9, 1e10], shape)
    elif kind == "regions":
        place = rng.integers(0, rng.integers(2, 5), devices)
        pick = np.ix_(place, place)
        delay_s, speed = rng.uniform(0.001, 0.2, (5, 5))[pick], 10 ** rng.uniform(7.5, 10, (5, 5))[pick]
    elif kind == "equal":
        delay_s, speed = np.full(shape, 0.02), np.full(shape, 1e9)
    else:
        delay_s, speed = rng.uniform(0.0, 0.3, shape), 10 ** rng.uniform(7, 10, shape)
    if kind != "lopsided":
        delay_s, speed = np.minimum(delay_s, delay_s.T), np.minimum(speed, speed.T)
    return Network(names=tuple(f"peer{number}" for number in range(devices)), delay_s=delay_s, bandwidth_bps=speed)


KINDS = ("any", "ties", "regions", "lopsided", "equal")
