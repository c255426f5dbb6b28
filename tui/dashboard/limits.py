"""What the volunteer allows: read from the peer as it started. Edited here when volunteer settings exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult

from tui.dashboard.glyphs import draw_bar
from tui.dashboard.panel import Block, Panel, View
from tui.dashboard.sheet import Sheet
from tui.progress import format_bytes
from tui.snapshot import PeerView

MEANINGS = {
    "name": "what the others call this peer",
    "device": "where it trains; auto takes a GPU if there is one",
    "threads": "CPU threads of the trainer; 0 leaves it to torch",
    "min_step_s": "an inner step takes at least this many seconds, so that the machine stays usable; 0 means no pause",
    "listen": "addresses it listens on",
    "chain_mb": "room on disk for updates that others may need",
    "upload_mbps": "megabits per second that it sends at most, to all others together; 0 means no cap",
    "download_mbps": "megabits per second that it takes in at most; 0 means no cap",
    "newcomers_mbps": "of what it sends, newcomers get at most so much for a snapshot, between rounds; 0 gives none",
}
"""What each setting is for."""

VALUE = 24
"""Cells of a value, where its meaning stands beside it."""


class LimitsPanel(Panel):
    """My peer's settings; in a recording those of the selected peer."""

    TITLE = "Limits"

    def compose(self) -> ComposeResult:
        yield Block(id="limits-page")

    def show(self, view: View) -> None:
        sheet = Sheet(view, view.width - (3 if view.mini else 5))
        peer = view.mine or view.swarm.peers.get(view.selected)
        if peer is None or not peer.reports:
            sheet.line(("settings never leave the machine of a peer: there is none of yours here", view.ink.muted))
        else:
            _add_settings(sheet, view, peer)
            _add_disk(sheet, view, peer)
        sheet.blank()
        sheet.prose("", "They are read now, and edited here once the volunteer settings exist.", view.ink.muted)
        self.query_one(Block).draw(sheet.text)


def _add_settings(sheet: Sheet, view: View, peer: PeerView) -> None:
    sheet.heading(f"What {peer.label} allows", "set with homefires join" if view.mine else "")
    if not peer.settings:
        sheet.line(("this peer did not say", view.ink.muted))
    for name, value in peer.settings.items():
        shown = _format(value)
        meaning = (MEANINGS.get(name, ""), view.ink.muted)
        if len(shown) < VALUE and sheet.room >= VALUE + len(meaning[0]):
            sheet.line((f"{name:<{sheet.gutter}}", view.ink.muted), (f"{shown:<{VALUE}}", view.ink.strong), meaning)
        else:
            sheet.row(name, (shown, view.ink.strong))
            if not view.mini:
                sheet.prose("", *meaning)


def _add_disk(sheet: Sheet, view: View, peer: PeerView) -> None:
    sheet.heading("Disk", peer.directory)
    quota, used = _quota(peer.settings, peer), peer.network.disk_bytes if peer.network is not None else None
    if used is None or not quota:
        sheet.line(("what the chain takes is not known yet", view.ink.muted))
        return
    full, rest = draw_bar(used / quota, min(40, sheet.room), view.glyphs)
    sheet.line((f"{'chain':<{sheet.gutter}}", view.ink.muted), (full, view.ink.good), (rest, view.ink.track))
    sheet.row("", f"{format_bytes(used)} of {format_bytes(quota)}", f"{100 * used / quota:.1f} %")


def _quota(settings: Mapping[str, Any], peer: PeerView) -> int:
    if peer.network is not None and peer.network.disk_quota_bytes:
        return peer.network.disk_quota_bytes
    megabytes = settings.get("chain_mb")
    return int(1e6 * megabytes) if isinstance(megabytes, int | float) else 0


def _format(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value) or "(none)"
