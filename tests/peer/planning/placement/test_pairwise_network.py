"""What a network refuses, and what it says of its links."""

from __future__ import annotations

import numpy as np
import pytest

from dht.errors import BadInput
from peer.planning.placement.pairwise_network import Network
from tests.peer.planning.placement.networks import random_network


def network(**matrices: object) -> Network:
    given: dict[str, object] = {"delay_s": [[9, 0.1], [0.3, 9]], "bandwidth_bps": [[0, 8e6], [24e6, 0]]}
    return Network(names=("ada", "bob"), **given | matrices)  # type: ignore[arg-type]


def test_a_transfer_takes_the_delay_and_the_bytes_over_the_bandwidth() -> None:
    assert network().transfer_s(1e6) == pytest.approx(np.array([[0, 1.1], [0.3 + 1 / 3, 0]]))


def test_directions_are_averaged() -> None:
    both = network().symmetrised()
    assert both.delay_s[0, 1] == both.delay_s[1, 0] == pytest.approx(0.2)
    assert both.bandwidth_bps[0, 1] == both.bandwidth_bps[1, 0] == pytest.approx(16e6)


def test_both_ways_are_as_fast_as_one_after_the_other() -> None:
    """The mean of 8 and 24 Mbit/s would be 16."""
    both = network().both_ways()
    assert both.bandwidth_bps[0, 1] == both.bandwidth_bps[1, 0] == pytest.approx(12e6)
    there_s, back_s = network().transfer_s(1e6)[[0, 1], [1, 0]]
    assert 2 * both.symmetrised().transfer_s(1e6)[0, 1] == pytest.approx(there_s + back_s)


def test_some_of_the_peers() -> None:
    whole = random_network(6, seed=1)
    some = whole.only([4, 0])
    assert some.names == ("peer4", "peer0")
    assert some.delay_s[0, 1] == whole.delay_s[4, 0]


@pytest.mark.parametrize(
    ("matrices", "said"),
    [
        ({"delay_s": [[0.0]]}, "delay_s has shape"),
        ({"delay_s": [[0, -1], [0, 0]]}, "from ada to bob is -1.0; it must be finite and not negative"),
        ({"delay_s": [[0, 0], [np.nan, 0]]}, "from bob to ada is nan"),
        ({"delay_s": [[0, np.inf], [0, 0]]}, "from ada to bob is inf"),
        ({"bandwidth_bps": [[0, 0], [1, 0]]}, "from ada to bob is 0.0; it must be positive"),
    ],
)
def test_what_it_refuses_it_names(matrices: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        network(**matrices)
    assert "\n" not in str(refused.value)


def test_nobody_writes_into_a_network() -> None:
    delays = np.zeros((2, 2))
    one = network(delay_s=delays)
    delays[0, 1] = 5
    assert one.delay_s[0, 1] == 0
    with pytest.raises(ValueError, match="read-only"):
        one.delay_s[0, 1] = 1
