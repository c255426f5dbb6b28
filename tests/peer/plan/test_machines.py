"""The peers of a plan: read from a file, or said on the command line; a mistake is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput
from peer.plan.machines import HOME_DELAY_S, Machine, alike, peers_from, read_peers, swarm_of


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
        ({"peer": [{"name": "a"}, {"name": "a"}]}, "two peers are called 'a'"),
        ({"peer": [{"name": "\x1b"}]}, "printable"),
    ],
)
def test_a_mistake_in_it_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as error:
        peers_from(table, "peers.toml")
    assert str(error.value).startswith("peers.toml")
    assert words in str(error.value)


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.toml: No such file.*a number or a TOML file"):
        read_peers(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("peer = ")
    with pytest.raises(BadInput, match="is not TOML"):
        read_peers(tmp_path / "bad.toml")


def test_what_nobody_said_is_listed() -> None:
    said = alike(3, Machine(name="x")).assumed
    assert [text.split(":")[0] for text in said] == ["every peer"] * 3
    told = alike(3, Machine(name="x", step_s=1, upload_mbps=5, download_mbps=50, memory_gb=8))
    assert told.assumed == ()
    assert told.network.delay_s[0, 1] == HOME_DELAY_S


def test_two_regions_of_which_nothing_is_said_are_as_far_as_homes() -> None:
    swarm = swarm_of([Machine(name="a", region="x"), Machine(name="b", region="y"), Machine(name="c")])
    assert swarm.network.delay_s[0, 1] == swarm.network.delay_s[0, 2] == HOME_DELAY_S


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_number_of_peers_that_cannot_be(count: int) -> None:
    with pytest.raises(BadInput, match=f"--peers is {count}"):
        alike(count, Machine(name="x"))
