"""The peers of a plan: read from a file, or said on the command line; a mistake is one line."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput
from peer.planning.plan.peer_set import HOME_DELAY_S, NEAR_DELAY_S, Machine, PeerSpecs, by_name, swarm_of, uniform_peers
from peer.planning.plan.peers_file import declared_by, read_peers


def test_a_file_of_peers(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(
        """
        delay_ms = 40
        [delays_ms]
        "berlin tokyo" = 120
        [[peer]]
        name = "anna"
        step_s = 2.5
        memory_gb = 24
        upload_mbps = 20
        download_mbps = 100
        region = "berlin"
        [[peer]]
        name = "home"
        count = 2
        flops = 1e13
        region = "tokyo"
        """
    )
    swarm = read_peers(path)
    assert [machine.name for machine in swarm.machines] == ["anna", "home-1", "home-2"]
    assert swarm.machines[0].upload_bps == 20e6
    np.testing.assert_allclose(swarm.network.delay_s, [[0, 0.12, 0.12], [0.12, 0, 0.005], [0.12, 0.005, 0]])
    assert swarm.network.bandwidth_bps[0, 1] == 20e6
    assert any("1 Gbit/s" in text and "home-1" in text for text in swarm.assumed)


BERLIN = {"name": "a", "region": "berlin"}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"peer": []}, "has 0 peers"),
        ({}, "peer is missing"),
        ({"peer": [{"name": "a", "stepp_s": 1}]}, "unknown key 'peer.0.stepp_s'"),
        ({"peer": [{"name": "a", "step_s": "soon"}]}, "peer.0.step_s is 'soon'"),
        ({"peer": [{"name": "a", "upload_mbps": 0.1}]}, "upload_mbps is 0.1; it must be 0 (no cap) or 0.5"),
        ({"peer": [{"name": "a", "memory_gb": -1}]}, "memory_gb is -1"),
        ({"peer": [{"name": "a", "devices": 0}]}, "devices is 0"),
        ({"peer": [{"name": "a", "devices": 4, "fast_group": 3}]}, "fast_group is 3; it must divide its 4 devices"),
        ({"peer": [{"name": "a", "inside_gbps": 0}]}, "inside_gbps is 0; it must be between 0.01 and 100000"),
        ({"peer": [{"name": "a", "between_gbps": float("nan")}]}, "between_gbps is nan"),
        ({"peer": [{"name": "a"}, {"name": "a"}]}, "two peers are called 'a'"),
        ({"peer": [{"name": "\x1b"}]}, "printable"),
        ({"peer": [{"name": "a", "step_s": True}]}, "peer.0.step_s is True; it must be a number"),
        ({"peer": [{"name": "a", "memory_gb": "8"}]}, "peer.0.memory_gb is '8'"),
        ({"peer": [{"name": "a", "count": 10**400}]}, "peer.0.count has 401 digits"),
        ({"peer": [{"name": "a", "count": -1}, {"name": "b", "count": 2}]}, "count is -1"),
        ({"peer": [{"name": "a", "flops": 1e-300}]}, "flops is 1e-300"),
        ({"peer": [{"name": "a", "step_s": 1e300}]}, "step_s is 1e+300"),
        ({"peer": [{"name": "a"}], "cores": -1}, "cores is -1"),
        ({"peer": [{"name": "a"}], "delay_ms": -1}, "delay_ms is -1"),
        ({"peer": [{"name": "a"}], "delay_ms": "3"}, "delay_ms is '3'"),
        ({"peer": [BERLIN], "delays_ms": {"berlin": float("nan")}}, "delays_ms.'berlin' is nan"),
        ({"peer": [BERLIN], "delays_ms": {"berlin berlin": -1}}, "delays_ms.'berlin berlin' is -1"),
        ({"peer": [BERLIN], "delays_ms": {"berlin": True}}, "delays_ms.'berlin' is True"),
        ({"peer": [BERLIN], "delays_ms": {"berlin tokio": 9}}, "no peer is in region 'tokio'"),
        ({"peer": [BERLIN], "delays_ms": {"a b c": 9}}, "delays_ms.'a b c' names 3 regions"),
        ({"peer": [BERLIN], "delays_ms": {"": 9}}, "delays_ms.'' names 0 regions"),
        ({"peer": [{"name": "a", "count": 10**10}]}, "has 10000000000 peers; there must be 1 to 10000"),
    ],
)
def test_a_mistake_in_it_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as error:
        declared_by(table, "peers.toml").swarm()
    assert str(error.value).startswith("peers.toml")
    assert words in str(error.value)


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.toml: No such file.*a number or a TOML file"):
        read_peers(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("peer = ")
    with pytest.raises(BadInput, match="is not TOML"):
        read_peers(tmp_path / "bad.toml")


def test_what_nobody_said_is_listed() -> None:
    said = uniform_peers(3, Machine(name="x")).assumed
    assert [text.split(":")[0] for text in said] == ["every peer"] * 4
    machine = Machine(name="x", step_s=1, upload_mbps=5, download_mbps=50, memory_gb=8)
    (delay,) = uniform_peers(3, machine).assumed
    assert "30 ms one way" in delay
    assert uniform_peers(3, machine, otherwise_s=HOME_DELAY_S).assumed == ()
    table = {"peer": [vars(machine) | {"count": 3}]}
    assert declared_by({"delay_ms": 30, **table}, "peers.toml").swarm().assumed == ()
    assert declared_by(table, "peers.toml").swarm().assumed == (delay,)


def test_peers_by_name_keep_their_lines() -> None:
    machines = [Machine(name=name, region=name) for name in "cab"]
    swarm = by_name(swarm_of(machines, delays={frozenset("ca"): 0.5, frozenset("ab"): 0.25}))
    assert [machine.name for machine in swarm.machines] == list(swarm.network.names) == ["a", "b", "c"]
    assert (swarm.network.delay_s[0, 2], swarm.network.delay_s[1, 0]) == (0.5, 0.25)


def test_two_regions_of_which_nothing_is_said_are_as_far_as_homes() -> None:
    swarm = swarm_of([Machine(name="a", region="x"), Machine(name="b", region="y"), Machine(name="c")])
    assert swarm.network.delay_s[0, 1] == swarm.network.delay_s[0, 2] == HOME_DELAY_S


def test_delays_between_regions_are_those_of_the_pairs() -> None:
    """As looked up pair by pair: known pairs, within a region, regions of one peer, and peers of no region."""
    regions = ["a", "b", "", "a", "c", "d", "d", "", "b"]
    delays = {frozenset(("a", "b")): 0.12, frozenset("b"): 0.001, frozenset(("a", "c")): 0.2, frozenset("xy"): 9.0}
    machines = [Machine(name=f"p{at}", region=region) for at, region in enumerate(regions)]
    found = swarm_of(machines, delays=delays, otherwise_s=0.04).network.delay_s
    for one, mine in enumerate(regions):
        for other, theirs in enumerate(regions):
            usual_s = NEAR_DELAY_S if mine and mine == theirs else 0.04
            assert found[one, other] == (0.0 if one == other else delays.get(frozenset((mine, theirs)), usual_s))


@pytest.mark.slow
def test_ten_thousand_peers_have_no_matrix_of_their_own() -> None:
    """Two regions of 5,000, and as many regions of which nothing is said as there are peers."""
    rows = [{"name": name, "count": 5000, "region": name} for name in ("berlin", "tokyo")]
    tracemalloc.start()
    try:
        two, places = declared_by({"peer": rows, "delays_ms": {"berlin tokyo": 120}}, "peers.toml").regions()
        alone, _ = PeerSpecs(machines=tuple(Machine(name=f"p{at}", region=f"r{at}") for at in range(10_000))).regions()
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(two.delay_s, [[0.005, 0.12], [0.12, 0.005]])
    assert places.tolist() == [0] * 5000 + [1] * 5000
    assert alone.delay_s.tolist() == [[HOME_DELAY_S]]


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_number_of_peers_that_cannot_be(count: int) -> None:
    with pytest.raises(BadInput, match=f"--peers is {count}"):
        uniform_peers(count, Machine(name="x"))
