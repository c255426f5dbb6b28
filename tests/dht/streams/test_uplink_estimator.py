"""How fast a line takes what is sent, on a clock of its own: buffers, pauses and receivers that stand still."""

from __future__ import annotations

import pytest

from dht.streams.traffic import BUFFERED_BYTES, FASTEST_BPS, PAUSE_S, REMEMBERED_BYTES, UplinkEstimator

PIECE_BYTES = 2**16


class Sending:
    """Writes pieces to peers in turn; behind a buffer for each, a line takes `bps` in all."""

    def __init__(self, bps: float) -> None:
        self.now = 0.0
        self.bps = bps
        self.uplink = UplinkEstimator(lambda: self.now)

    def frame(self, size_bytes: int, *peers: str, buffered: bool = False) -> None:
        """To each of these peers at the same time; what only fills buffers takes no time."""
        with self.uplink.writing():
            for start in range(0, size_bytes, PIECE_BYTES):
                for peer in peers:
                    if not (buffered and start < BUFFERED_BYTES):
                        self.now += 8 * PIECE_BYTES / self.bps
                    self.uplink.wrote(peer, PIECE_BYTES)


def test_nothing_is_known_of_a_line_that_sent_little() -> None:
    sending = Sending(20e6)
    assert sending.uplink.bps is None
    sending.frame(BUFFERED_BYTES, "ada", "bob", buffered=True)
    assert sending.uplink.bps is None


@pytest.mark.parametrize("peers", ["a", "abc"])
def test_the_rate_is_that_of_all_together_without_what_only_filled_buffers(peers: str) -> None:
    sending = Sending(20e6)
    sending.frame(8 * BUFFERED_BYTES, *peers, buffered=True)
    assert sending.uplink.bps == pytest.approx(20e6, rel=0.02)


def test_short_bursts_count_together_and_their_pauses_not() -> None:
    """Each of them is too short to be told of alone."""
    sending = Sending(100e6)
    for _ in range(10):
        sending.frame(2 * BUFFERED_BYTES, "ada", buffered=True)
        sending.now += 60.0
    assert sending.uplink.bps == pytest.approx(100e6, rel=0.02)


def test_the_time_between_two_frames_of_one_burst_counts() -> None:
    """Who makes the next one is as slow as the line seems."""
    sending = Sending(1e9)
    sending.frame(BUFFERED_BYTES, "ada", buffered=True)
    for _ in range(100):
        sending.now += PAUSE_S / 2
        sending.frame(PIECE_BYTES, "ada")
    assert sending.uplink.bps == pytest.approx(8 * PIECE_BYTES / (PAUSE_S / 2), rel=0.02)


def test_a_receiver_that_stands_still_for_once_changes_nothing() -> None:
    sending = Sending(20e6)
    sending.frame(20 * BUFFERED_BYTES, "ada")
    with sending.uplink.writing():
        sending.now += 19.0
        sending.uplink.wrote("ada", PIECE_BYTES)
    assert sending.uplink.bps == pytest.approx(20e6, rel=0.05)


def test_one_slow_receiver_does_not_make_the_line_slow() -> None:
    """It takes longer for its own than all others together for theirs, in every round."""
    sending = Sending(80e6)
    for _ in range(10):
        sending.frame(10 * BUFFERED_BYTES, "ada", "bob", "cid")
        sending.bps = 1e6
        sending.frame(3 * BUFFERED_BYTES, "eve")
        sending.bps = 80e6
        sending.now += 60.0
    assert sending.uplink.bps == pytest.approx(80e6, rel=0.05)


def test_a_line_that_became_slower_is_known_after_a_while() -> None:
    sending = Sending(90e6)
    sending.frame(100 * BUFFERED_BYTES, "ada")
    sending.bps = 10e6
    sending.frame(REMEMBERED_BYTES * 3 // 4, "ada")
    assert sending.uplink.bps == pytest.approx(10e6, rel=0.05)


def test_what_is_faster_than_a_processor_calculates_is_not_told_apart() -> None:
    sending = Sending(40e9)
    sending.frame(200 * BUFFERED_BYTES, "ada", buffered=True)
    assert sending.uplink.bps == FASTEST_BPS
