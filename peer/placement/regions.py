"""Networks of known places: measured between AWS regions, or as DT-FM describes its clusters (`data/networks.toml`)."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.placement.pairwise_network import Matrix, Network

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Regions:
    """Places with peers in them. Two peers of one place have the diagonal's entry between them.

    Attributes:
        names: one per place.
        counts: peers of each place, unless somebody asks for another number.
        delay_s, bandwidth_bps: shape (places, places), as in `Network`.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    delay_s: Matrix
    bandwidth_bps: Matrix
    about: str = ""

    def spread(self, peers: int | None = None) -> Indices:
        """Shape (peers,): the place of each peer, place by place.

        Another number than that of `counts` is shared out in the same proportions, as evenly as integers allow.
        Raises BadInput for less than one peer.
        """
        if peers is None:
            return np.repeat(np.arange(len(self.names)), self.counts)
        if peers < 1:
            raise BadInput(f"{peers} peers cannot be spread over {len(self.names)} places; there must be at least 1")
        ends = np.cumsum(self.counts) * peers // sum(self.counts)
        return np.repeat(np.arange(len(self.names)), np.diff(ends, prepend=0))

    def network(self, peers: int | None = None) -> Network:
        """The network of so many peers, spread as `spread` does. Two matrices of peers² float64."""
        return self.network_of(self.spread(peers))

    def network_of(self, places: Indices) -> Network:
        """The network of peers of which each one's place is given. They are named Oregon-0, Oregon-1, …"""
        seen = [0] * len(self.names)
        names = []
        for place in places.tolist():
            names.append(f"{self.names[place]}-{seen[place]}")
            seen[place] += 1
        pick = np.ix_(places, places)
        return Network(names=tuple(names), delay_s=self.delay_s[pick], bandwidth_bps=self.bandwidth_bps[pick])

    def only(self, names: Sequence[str], counts: Sequence[int] | None = None) -> Regions:
        """Some of the places, in this order. Raises BadInput for a name that is not among them."""
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
    """(places, the place of each peer) from the name of the region of each peer, empty where it is not known.

    `delays` has what is known of a pair of regions, or of one alone; else two peers of one region are `near_s` apart,
    and all others `otherwise_s`. Matrices are as large as there are regions that tell peers apart, however many peers.
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


def presets() -> tuple[str, ...]:
    """The names that `preset` knows."""
    return tuple(_tables())


@cache
def preset(name: str) -> Regions:
    """Places by the name of their table in `data/networks.toml`. Raises BadInput for another name."""
    tables = _tables()
    if name not in tables:
        raise BadInput(f"no network is called {name!r}; there are {', '.join(tables)}")
    table = tables[name]
    names = tuple(table["names"])
    count = table["count"]
    counts = tuple(count) if isinstance(count, list) else (count,) * len(names)
    assert len(counts) == len(names), f"{name}: a count for each place"
    if "within" in table:
        delay_s, bandwidth_bps = _of_others(names, preset(table["within"]))
    elif "across" in table:
        delay_s, bandwidth_bps = _uniform(len(names), table["inside"], table["across"])
    else:
        delay_s, bandwidth_bps = np.array(table["delay_ms"]) / 1e3, np.array(table["bandwidth_gbps"]) * 1e9
    return Regions(names=names, counts=counts, delay_s=delay_s, bandwidth_bps=bandwidth_bps, about=table["about"])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("peer.placement") / "data" / "networks.toml").read_text())


def _of_others(names: Sequence[str], others: Regions) -> tuple[Matrix, Matrix]:
    places = others.only(names)
    return places.delay_s, places.bandwidth_bps


def _uniform(places: int, inside: dict[str, float], across: dict[str, float]) -> tuple[Matrix, Matrix]:
    own = np.eye(places, dtype=bool)
    delay_s = np.where(own, inside["delay_ms"], across["delay_ms"]) / 1e3
    bandwidth_bps = np.where(own, inside["bandwidth_gbps"], across["bandwidth_gbps"]) * 1e9
    return delay_s, bandwidth_bps
