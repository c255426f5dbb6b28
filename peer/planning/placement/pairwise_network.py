"""The network between peers: the delay and the bandwidth of every pair (α and β of a transfer's cost)."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The delay and bandwidth between each two peers. A row is a sender, a column a receiver. The given diagonal is
    ignored.

    Raises BadInput for a matrix of another shape, and for a pair whose delay is negative or infinite, or whose
    bandwidth is not positive.

    Attributes:
        names: one per peer.
        delay_s: shape (n, n), the one-way delay of an empty message; 0 on the diagonal.
        bandwidth_bps: shape (n, n), bits per second of a single transfer; infinite on the diagonal.
    """

    names: tuple[str, ...]
    delay_s: Matrix
    bandwidth_bps: Matrix

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay_s", self._checked("delay_s", self.delay_s, own=0.0))
        object.__setattr__(self, "bandwidth_bps", self._checked("bandwidth_bps", self.bandwidth_bps, own=np.inf))

    def __len__(self) -> int:
        return len(self.names)

    def transfer_s(self, message_bytes: float) -> Matrix:
        """Shape (n, n): seconds of one transfer between each two peers, α + bytes / β."""
        return self.delay_s + message_bytes * 8 / self.bandwidth_bps

    def symmetrised(self) -> Network:
        """The network with each pair's two directions averaged, as in DT-FM (arXiv:2206.01288, section 3)."""
        return Network(
            names=self.names,
            delay_s=(self.delay_s + self.delay_s.T) / 2,
            bandwidth_bps=(self.bandwidth_bps + self.bandwidth_bps.T) / 2,
        )

    def both_ways(self) -> Network:
        """The network with the harmonic mean of each pair's two bandwidths: the bandwidth of a pair that sends the
        same amount both ways, one after the other. Home lines are slow one way and fast the other, so the arithmetic
        mean would say little."""
        with np.errstate(divide="ignore"):  # on the diagonal
            bandwidth_bps = 2 / (1 / self.bandwidth_bps + 1 / self.bandwidth_bps.T)
        return replace(self, bandwidth_bps=bandwidth_bps)

    def only(self, peers: list[int]) -> Network:
        """The network of only these peers, in this order."""
        pick = np.ix_(peers, peers)
        return Network(
            names=tuple(self.names[peer] for peer in peers),
            delay_s=self.delay_s[pick],
            bandwidth_bps=self.bandwidth_bps[pick],
        )

    def _checked(self, what: str, matrix: Matrix, own: float) -> Matrix:
        """A read-only copy of the matrix, with `own` on the diagonal. Raises BadInput."""
        count = len(self.names)
        copy = np.array(matrix, dtype=np.float64)
        if copy.shape != (count, count):
            raise BadInput(f"{what} has shape {copy.shape}; {count} peers need ({count}, {count})")
        np.fill_diagonal(copy, own)
        good = (copy >= 0) & np.isfinite(copy) if what == "delay_s" else copy > 0
        if not good.all():
            sender, receiver = np.argwhere(~good)[0]
            pair = f"from {self.names[sender]} to {self.names[receiver]}"
            raise BadInput(f"{what} {pair} is {copy[sender, receiver]}; it must be {_RANGE[what]}")
        copy.setflags(write=False)
        return copy


_RANGE = {"delay_s": "finite and not negative", "bandwidth_bps": "positive"}


Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Regions:
    """Places with peers in them. Two peers of one place use the entry on the diagonal.

    Attributes:
        names: one per place.
        counts: the default number of peers at each place.
        delay_s, bandwidth_bps: shape (places, places), as in `Network`.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    delay_s: Matrix
    bandwidth_bps: Matrix
    about: str = ""

    def spread(self, peers: int | None = None) -> Indices:
        """Shape (peers,): the place of each peer, place by place.

        If `peers` differs from the sum of `counts`, peers are spread in the same proportions, as evenly as integers
        allow. Raises BadInput for less than one peer.
        """
        if peers is None:
            return np.repeat(np.arange(len(self.names)), self.counts)
        if peers < 1:
            raise BadInput(f"{peers} peers cannot be spread over {len(self.names)} places; there must be at least 1")
        ends = np.cumsum(self.counts) * peers // sum(self.counts)
        return np.repeat(np.arange(len(self.names)), np.diff(ends, prepend=0))

    def network(self, peers: int | None = None) -> Network:
        """The network of `peers` peers, spread as `spread` does. It holds two matrices of peers² float64."""
        return self.network_of(self.spread(peers))

    def network_of(self, places: Indices) -> Network:
        """The network of peers at these places, one entry per peer. The peers are named Oregon-0, Oregon-1, …"""
        seen = [0] * len(self.names)
        names = []
        for place in places.tolist():
            names.append(f"{self.names[place]}-{seen[place]}")
            seen[place] += 1
        pick = np.ix_(places, places)
        return Network(names=tuple(names), delay_s=self.delay_s[pick], bandwidth_bps=self.bandwidth_bps[pick])

    def only(self, names: Sequence[str], counts: Sequence[int] | None = None) -> Regions:
        """Only these places, in this order. Raises BadInput for an unknown name."""
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise BadInput(f"no place is called {unknown[0]!r}; there are {', '.join(self.names)}")
        places = [self.names.index(name) for name in names]
        pick = np.ix_(places, places)
        return Regions(
            names=tuple(names),
            counts=tuple(self.counts[place] for place in places) if counts is None else tuple(counts),
            delay_s=self.delay_s[pick],
            bandwidth_bps=self.bandwidth_bps[pick],
        )


def regions_of(
    peers: Sequence[str], delays: Mapping[frozenset[str], float], *, near_s: float, otherwise_s: float,
    bandwidth_bps: float,
) -> tuple[Regions, Indices]:  # fmt: skip
    """Returns (places, the place of each peer). `peers` holds the name of each peer's region, empty if unknown.

    `delays` holds the known one-way delays by pair of regions, or by one region for the delay within it. Otherwise two
    peers of one region are `near_s` apart, and all others `otherwise_s`. The matrices are only as large as the number
    of regions that tell peers apart, however many peers there are.
    """
    told = set().union(*delays)
    alone = {region for region, count in Counter(peers).items() if count == 1} - told
    named = ["" if region in alone else region for region in peers]
    names = tuple(dict.fromkeys(named))
    at = {name: place for place, name in enumerate(names)}
    delay_s = np.full((len(names), len(names)), otherwise_s)
    near = [place for name, place in at.items() if name]
    delay_s[near, near] = near_s
    for pair, seconds in delays.items():
        if pair <= at.keys():
            one, other = at[min(pair)], at[max(pair)]
            delay_s[one, other] = delay_s[other, one] = seconds
    counts = Counter(named)
    regions = Regions(
        names=names, counts=tuple(counts[name] for name in names), delay_s=delay_s,
        bandwidth_bps=np.full_like(delay_s, bandwidth_bps),
    )  # fmt: skip
    return regions, np.array([at[name] for name in named], dtype=np.int64)


@cache
def preset(name: str) -> Regions:
    """The places in the table of `data/networks.toml` with this name. Raises BadInput for an unknown name."""
    tables = _tables()
    if name not in tables:
        raise BadInput(f"no network is called {name!r}; there are {', '.join(tables)}")
    table = tables[name]
    names = tuple(table["names"])
    count = table["count"]
    counts = tuple(count) if isinstance(count, list) else (count,) * len(names)
    assert len(counts) == len(names), f"{name}: a count for each place"
    if "within" in table:
        places = preset(table["within"]).only(names)
        delay_s, bandwidth_bps = places.delay_s, places.bandwidth_bps
    elif "across" in table:
        delay_s, bandwidth_bps = _uniform(len(names), table["inside"], table["across"])
    else:
        delay_s, bandwidth_bps = np.array(table["delay_ms"]) / 1e3, np.array(table["bandwidth_gbps"]) * 1e9
    return Regions(names=names, counts=counts, delay_s=delay_s, bandwidth_bps=bandwidth_bps, about=table["about"])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("peer.planning.placement") / "data" / "networks.toml").read_text())


def _uniform(places: int, inside: dict[str, float], across: dict[str, float]) -> tuple[Matrix, Matrix]:
    own = np.eye(places, dtype=bool)
    delay_s = np.where(own, inside["delay_ms"], across["delay_ms"]) / 1e3
    bandwidth_bps = np.where(own, inside["bandwidth_gbps"], across["bandwidth_gbps"]) * 1e9
    return delay_s, bandwidth_bps


MOST_RTT_S = 60.0
"""Longer round trips are not believed: no round could work over such a line."""


class Distances:
    """The distances between peers, by peer id, as they were last reported."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, float]] = {}

    def tell(self, peer: str, rtt_s: Mapping[str, float | None]) -> None:
        """Set the round trips that a peer reports, in seconds by peer id; they replace its earlier report. None
        means not measured. Impossible values are left out."""
        self._told[peer] = {
            other: each for other, each in rtt_s.items() if each is not None and 0 <= each <= MOST_RTT_S
        }  # fmt: skip

    def keep(self, peers: Collection[str]) -> None:
        """Forget the reports of all other peers."""
        self._told = {peer: told for peer, told in self._told.items() if peer in peers}

    def one_way_s(self) -> dict[frozenset[str], float]:
        """The one-way delay by pair of peers: half of the round trip, averaged over both ends' reports."""
        told: dict[frozenset[str], list[float]] = {}
        for peer, rows in self._told.items():
            for other, rtt_s in rows.items():
                told.setdefault(frozenset((peer, other)), []).append(rtt_s / 2)
        return {pair: fmean(delays_s) for pair, delays_s in told.items()}
