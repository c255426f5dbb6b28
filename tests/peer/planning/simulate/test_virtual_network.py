"""What lies between simulated peers: delays, caps, and what passes when."""

from __future__ import annotations

from random import Random

import pytest

from peer.planning.simulate.memory_network import Scheduler
from peer.planning.simulate.virtual_network import VirtualLink, VirtualNetwork


class Net:
    """Peers a, b, c on lines of 8 kbit/s, of whom each message of n bytes is the number n."""

    def __init__(self, pair_bps: float = 0.0, upload_bps: float = 8000.0, download_bps: float = 8000.0) -> None:
        self.scheduler = Scheduler()
        self.links = VirtualNetwork(self.scheduler, Random(1), lambda source, to: 0.1, lambda source, to: pair_bps, int)
        self.heard: list[tuple[float, str, str, int]] = []
        self.ends = {name: self.connect(name, upload_bps, download_bps) for name in "abc"}

    def connect(self, name: str, upload_bps: float, download_bps: float) -> VirtualLink:
        end = self.links.connect(name, upload_bps, download_bps)
        end.listen(lambda sender, size: self.heard.append((round(self.scheduler.now, 6), sender, name, int(size))))  # type: ignore[call-overload]
        return end


def test_a_frame_is_cut_through() -> None:
    """One second on either line at the same time, and the delay."""
    net = Net()
    net.ends["a"].send_bulk("b", lambda: 1000)  # type: ignore[arg-type, return-value]
    net.scheduler.run_until(10)
    assert net.heard == [(1.1, "a", "b", 1000)]


def test_receivers_are_served_in_turn_and_small_messages_at_once() -> None:
    """b and c, not b, b and then c; what is sent meanwhile overtakes."""
    net = Net(download_bps=0.0)
    for to in "bbc":
        net.ends["a"].send_bulk(to, lambda: 1000)  # type: ignore[arg-type, return-value]
    net.ends["a"].send("b", 1)
    net.scheduler.run_until(10)
    assert [(at, to) for at, _, to, size in net.heard if size > 1] == [(1.1, "b"), (2.1, "c"), (3.1, "b")]
    assert net.heard[0] == (pytest.approx(0.101), "a", "b", 1)


def test_a_download_is_shared() -> None:
    """Two senders to one receiver take twice as long together."""
    net = Net()
    for sender in "ab":
        net.ends[sender].send_bulk("c", lambda: 1000)  # type: ignore[arg-type, return-value]
    net.scheduler.run_until(10)
    assert [at for at, *_ in net.heard] == [1.1, 2.1]


def test_the_pair_s_own_bandwidth_bounds_a_transfer() -> None:
    """However fast the lines."""
    net = Net(pair_bps=4000.0, upload_bps=0.0, download_bps=0.0)
    net.ends["a"].send_bulk("b", lambda: 1000)  # type: ignore[arg-type, return-value]
    net.scheduler.run_until(10)
    assert net.heard == [(2.1, "a", "b", 1000)]


def test_who_is_gone_hears_nothing_and_what_it_sent_is_lost() -> None:
    """A frame that nobody wants any more costs nothing."""
    net = Net()
    net.ends["a"].send_bulk("b", lambda: None)
    net.ends["a"].send_bulk("b", lambda: 1000)  # type: ignore[arg-type, return-value]
    net.links.disconnect("b")
    net.scheduler.run_until(10)
    assert net.heard == []
    assert net.ends["a"].bytes_sent == 1000
