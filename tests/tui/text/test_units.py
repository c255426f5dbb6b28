"""A snapshot that arrives, as the plain log tells it."""

from __future__ import annotations

import io

from peer.schema.events import EventLine, PeerStateChanged, TransferProgressed
from tui.output.plain import PlainOutput


def came(megabytes: float, source: str = "aaaaaaaa, bbbbbbbb") -> TransferProgressed:
    return TransferProgressed(
        what="snapshot", source=source, bytes_done=round(megabytes * 10**6), bytes_total=400 * 10**6
    )  # fmt: skip


def test_a_bar_every_few_seconds_and_once_at_the_end() -> None:
    """With the rate since it began, the donors and the time left; a download that goes on begins where it was."""
    stream = io.StringIO()
    output = PlainOutput(stream)
    events: list[tuple[float, TransferProgressed]] = [(0.0, came(100))]
    events += [(second, came(100 + 20 * second)) for second in range(1, 15)]
    events += [(15.0, came(400)), (15.0, came(400, "")), (16.0, came(400, ""))]
    syncing = PeerStateChanged(state="SYNCING", why="taking the snapshot of round 16 (400 MB) from 2 peers")
    output.show(EventLine(seq=0, t=1000.0, run="r", peer="A", event=syncing))
    for seq, (t, event) in enumerate(events, 1):
        output.show(EventLine(seq=seq, t=1000.0 + t, run="r", peer="A", event=event))
    assert stream.getvalue() == (
        "00:00  A: SYNCING: taking the snapshot of round 16 (400 MB) from 2 peers\n"
        "00:00  A: snapshot [######------------------] 25% · 100.0 MB of 400.0 MB · from 2 donors\n"
        "00:05  A: snapshot [############------------] 50% · 200.0 MB of 400.0 MB · 20.0 MB/s · from 2 donors"
        " · 10 s left\n"
        "00:10  A: snapshot [##################------] 75% · 300.0 MB of 400.0 MB · 20.0 MB/s · from 2 donors"
        " · 5 s left\n"
        "00:15  A: snapshot [########################] 100% · 400.0 MB of 400.0 MB · 20.0 MB/s\n"
    )
