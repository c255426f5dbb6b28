"""`homefires report`: one page of HTML about a run, in one file. It loads nothing and runs no script."""

from __future__ import annotations

from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import BadInput
from peer.schema.byte_text import format_bytes
from peer.schema.extras import require_extra
from tui.folders import writing
from tui.sources.replay import RecordingSource
from tui.text.units import count


def write_report(source: Path, to: Path) -> str:
    """Write the page for the run in `source` to the file `to`. Returns a sentence about it.

    `source` is an event file, the folder of a peer, or a folder of such folders. The same events give the same bytes.
    Raises BadInput if there are no events, or `to` cannot be written.
    """
    require_extra("matplotlib", "report")
    from tui.report.charts import draw_charts
    from tui.report.page import make_page

    if to.exists() and source.exists() and to.samefile(source):
        raise BadInput(f"--to {to} is the file that is read; name another")
    recording = RecordingSource(source)
    recording.open()
    swarm = recording.advance(0.0)
    page = make_page(swarm, draw_charts(swarm))
    with writing(to, "--to"):
        write_atomic(to, page.encode())
    members = {peer for told in swarm.history for peer in told.group} or swarm.peers
    rounds, peers = count(len(swarm.history), "round"), count(len(members), "peer")
    return f"{to}: {rounds} of {peers}, {format_bytes(len(page.encode()))}"


def default_target(source: Path) -> Path:
    """The default path for the page of `source`: in its folder, or next to its file."""
    return source / "report.html" if source.is_dir() else source.with_suffix(".html")
