"""The shipped networks are what their source says, and any number of peers can be spread over them."""

from __future__ import annotations

import numpy as np
import pytest

from dht.errors import BadInput
from peer.planning.placement.pairwise_network import _tables, preset

DTFM = ("case1_datacenter", "case2_spot", "case3_two_sites", "case4_us_regional", "case5_worldwide", "homogeneous")


def test_all_networks_can_be_read() -> None:
    assert {"aws", *DTFM} == set(_tables())
    for name in _tables():
        places = preset(name)
        assert (places.delay_s == places.delay_s.T).all()
        assert (places.bandwidth_bps == places.bandwidth_bps.T).all()
        assert places.about


@pytest.mark.parametrize("name", DTFM)
def test_the_papers_clusters_have_64_devices(name: str) -> None:
    assert len(preset(name).network()) == 64


@pytest.mark.parametrize(
    ("name", "one", "other", "delay_ms", "gbps"),
    [
        ("case1_datacenter", "node0-0", "node0-7", 0, 100),
        ("case1_datacenter", "node0-0", "node7-0", 0, 3.125),
        ("case2_spot", "quad7-0", "quad7-3", 0, 100),
        ("case2_spot", "quad7-0", "single31-0", 0, 1.25),
        ("case3_two_sites", "Ohio-0", "Ohio-31", 1, 5),
        ("case3_two_sites", "Ohio-0", "Virginia-0", 11, 1.12),
        ("case4_us_regional", "Virginia-3", "Oregon-9", 67, 1.15),
        ("case5_worldwide", "Virginia-3", "Oregon-1", 67, 0.79),
        ("case5_worldwide", "Seoul-0", "Ireland-7", 228, 0.335),
        ("case5_worldwide", "Seoul-0", "Seoul-1", 5, 2),
        ("aws", "Sydney-0", "Frankfurt-0", 265, 0.328),
        ("homogeneous", "anywhere-0", "anywhere-63", 50, 1),
    ],
)
def test_links_by_name(name: str, one: str, other: str, delay_ms: float, gbps: float) -> None:
    network = preset(name).network()
    pair = network.names.index(one), network.names.index(other)
    assert network.delay_s[pair] == pytest.approx(delay_ms / 1e3)
    assert network.bandwidth_bps[pair] == pytest.approx(gbps * 1e9)


@pytest.mark.parametrize("peers", [1, 7, 64, 100, 1001])
def test_peers_are_spread_evenly_place_by_place(peers: int) -> None:
    places = preset("aws").spread(peers)
    counts = np.bincount(places, minlength=10)
    assert counts.sum() == peers
    assert counts.max() - counts.min() <= 1
    assert (np.diff(places) >= 0).all()
    assert len(set(preset("aws").network(peers).names)) == peers


def test_places_keep_their_proportions() -> None:
    counts = np.bincount(preset("case2_spot").spread(128))
    assert counts.tolist() == [8] * 8 + [2] * 32


def test_some_places_with_as_many_peers_as_one_likes() -> None:
    network = preset("aws").only(["Tokyo", "London"], counts=[1, 2]).network()
    assert network.names == ("Tokyo-0", "London-0", "London-1")
    assert network.delay_s[0, 1] == pytest.approx(0.21)


def test_what_there_is_not() -> None:
    with pytest.raises(BadInput, match="no network is called 'mars'; there are aws, "):
        preset("mars")
    with pytest.raises(BadInput, match="no place is called 'Atlantis'; there are Oregon, "):
        preset("aws").only(["Oregon", "Atlantis"])
    with pytest.raises(BadInput, match="0 peers"):
        preset("aws").spread(0)
