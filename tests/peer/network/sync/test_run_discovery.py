"""What a newcomer is told while the run that it comes to has not begun."""

from __future__ import annotations

import pytest

from dht.records import PeerRecord
from peer.network.sync.run_discovery import waiting_words

STATE = b"s" * 32


def head(state: bytes = STATE, *, round: int = -1, leaving: bool = False) -> PeerRecord:
    return PeerRecord(
        run=bytes(32), anchor=b"", round=round, weight=0, state=state, ready=True, tokens=0, steps=0,
        leaving=leaving, name="", version="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "waiting for 2 more of 3 first peers; the run then begins by itself"),
        ([head()], "waiting for 1 more of 3 first peers; the run then begins by itself"),
        ([head(b"o" * 32), head(b""), head(leaving=True), head(round=4)], "waiting for 2 more of 3 first peers; "),
        ([head(), head()], "the first peers are all here; the run is about to begin"),
    ],
)
def test_a_peer_is_told_how_many_more_must_come(others: list[PeerRecord], words: str) -> None:
    """Those that start from other parameters, leave, or only watch found no run with it."""
    heads = {f"p{number}": each for number, each in enumerate(others)}
    for here in (heads, heads | {"me": head()}):
        assert waiting_words(here, 3, STATE, "me").startswith(words)
