"""Event lines of the bootstrap node are those of peers."""

import io

from bootstrap.report import VERSION, Reporter
from peer import events


def test_lines_are_the_peers_events() -> None:
    out = io.StringIO()
    report = Reporter(out)
    report.run, report.peer = "run", "12D3KooW"
    report("PeerStarted", name="bootstrap", version="0.1.0", directory="/x")
    report("InviteIssued", invite="hf1:abc")
    report("AlertRaised", level="info", code="FOUNDERS", text="0 of 2 founders are here")
    report("PeerStopped", why="asked to stop", exit_code=0)
    expected = [
        events.PeerStarted(name="bootstrap", version="0.1.0", directory="/x"),
        events.InviteIssued(invite="hf1:abc"),
        events.AlertRaised(level="info", code="FOUNDERS", text="0 of 2 founders are here"),
        events.PeerStopped(why="asked to stop", exit_code=0),
    ]
    for number, (text, event) in enumerate(zip(out.getvalue().splitlines(), expected, strict=True)):
        line = events.parse_line(text)
        assert line is not None
        assert line == events.EventLine(seq=number, t=line.t, run="run", peer="12D3KooW", event=event)
    assert events.VERSION == VERSION
