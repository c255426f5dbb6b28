"""The Network screen: how others reach this machine, its connections, its transfers, and all of its traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from peer.schema.byte_text import format_bytes
from peer.schema.events import NetworkMeasured, TransferProgressed
from tui.dashboard.appearance import draw_bar, draw_spark
from tui.dashboard.view import Panel, PeerOpened, View
from tui.dashboard.widgets.lines import StyledLine, cut, fit
from tui.dashboard.widgets.table import RowTable
from tui.swarm import figures
from tui.swarm.snapshot import PeerView, Round
from tui.text.units import MISSING, count, format_line, format_mbps, format_percent, format_rtt, format_transfer

REACH = {
    "direct": "direct: others dial this machine themselves",
    "relayed": "relayed: others come through a relay, which is slower; forward a port to be reached directly",
    "": "not known yet: nobody outside has tried to dial this machine",
}
"""What each verdict means, in words."""

NO_MEMBER = "not a member"
"""A connected node that was never heard as a peer: a relay, or a watcher."""
ORGANISER = "organiser"
"""The node of the run's organiser, which is no peer."""

LABEL_CELLS = 11
BAR_CELLS = 24
WITH_ADDRESS = 90
"""The width in cells from which on the table has addresses."""


class NetworkPanel(Panel):
    TITLE = "Network"
    DEFAULT_CSS = """
    NetworkPanel { overflow: hidden; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Mapping[str, Any]] = []
        self._selected = ""

    def compose(self) -> ComposeResult:
        yield RowTable()

    def take_focus(self) -> None:
        self.query_one(RowTable).focus(scroll_visible=False)

    def draw_view(self, view: View) -> None:
        width, height = self.content_size.width, self.content_size.height
        owner = owner_of(view)
        above = [*_verdict(owner, view), *_traffic(owner, view, width), *_transfers(view)]
        if height < 12:
            above = above[: max(2, height // 2)]
        elif width >= 60:
            above.append([])
        self._rows = _rows_of(owner, view)
        if self._rows:
            above.append(_heading(len(self._rows), width, view))
        elif owner is not None:
            above.append([("connected with nobody", view.ink.muted)])
        above = [cut(pieces, width, view.glyphs.ellipsis) for pieces in above]
        at = next((number for number, row in enumerate(self._rows) if row["peer"] == self._selected), None)
        self.query_one(RowTable).show_rows(len(self._rows), self._lines_of, at, above=above)

    def _lines_of(self, row: int) -> list[StyledLine]:
        return [_row(self._rows[row], self.view, self.content_size.width)]

    def on_row_table_moved(self, message: RowTable.Moved) -> None:
        self._selected = self._rows[message.row]["peer"]

    def on_row_table_entered(self, message: RowTable.Entered) -> None:
        self.post_message(PeerOpened(self._rows[message.row]["peer"]))


def owner_of(view: View) -> PeerView | None:
    """The peer whose network is shown: the volunteer's, or the selected one, or any whose network was measured."""
    candidates = [view.mine, view.swarm.peers.get(view.selected), *view.swarm.reporting]
    known = [peer for peer in candidates if peer is not None]
    return next((peer for peer in known if peer.network is not None), known[0] if known else None)


def _verdict(owner: PeerView | None, view: View) -> list[StyledLine]:
    ink = view.ink
    network = owner.network if owner else None
    if owner is None:
        return [[("nobody is known yet", ink.muted)]]
    lines: list[StyledLine] = [] if view.me == owner.peer else [_fact("Peer", owner.label, view)]
    if network is None:
        return [*lines, _fact("Reached", "not known: no figures about the network were written down here", view)]
    word, _, rest = REACH.get(network.reach, f"{network.reach}:").partition(":")
    style = ink.good if network.reach == "direct" else ink.warn if network.reach == "relayed" else ink.muted
    lines.append([*_label("Reached", view), (word, style), (f":{rest}" if rest else "", ink.muted)])
    addresses = network.addresses or ["none known"]
    return [*lines, *(_fact("" if number else "Addresses", text, view) for number, text in enumerate(addresses[:4]))]


def _traffic(owner: PeerView | None, view: View, width: int) -> list[StyledLine]:
    glyphs, network = view.glyphs, owner.network if owner else None
    lines: list[StyledLine] = []
    if network is not None:
        sent, received = format_bytes(network.bytes_sent), format_bytes(network.bytes_received)
        lines.append(_fact("Traffic", f"{glyphs.up} {sent}  {glyphs.down} {received} since it started", view))
    if owner is not None and (upload := figures.upload(owner)) is not None:
        how = "measured" if upload.is_measured else "pledged"
        told = f"{format_line(upload.bps)} can be sent ({how}), and its share of the averaging follows that"
        lines.append(_fact("Upload", told, view))
    if owner is not None and (rate := figures.link_rate(view.swarm, owner, view.now)) is not None:
        up, down = ([point.value for point in points] for points in (owner.ups, owner.downs))
        words = [f"{format_mbps(bps)} Mbit/s" for bps in (rate.sent, rate.received)]
        lines += _pair("Now", up, down, words, view, width)
    lines += _per_round(view.swarm.history, view, width)
    if network is not None and owner is not None and (share := figures.chain_share(owner)) is not None:
        lines.append(_disk(network, share, view))
    return lines


def _per_round(history: Sequence[Round], view: View, width: int) -> list[StyledLine]:
    """The bytes of all reporting peers, for each committed round that some peer reported."""
    history = [told for told in history if told.reporters]
    if not history:
        return []
    up, down = [float(told.bytes_sent) for told in history], [float(told.bytes_received) for told in history]
    newest, traffic = history[-1], figures.round_traffic(history[-1])
    words = [format_bytes(traffic.sent), format_bytes(traffic.received)]
    lines = _pair("Per round", up, down, words, view, width)
    if newest.reporters > 1:
        lines[0].append((f" of {count(newest.reporters, 'peer')}", view.ink.muted))
    return lines


def _pair(
    label: str, up: Sequence[float], down: Sequence[float], words: Sequence[str], view: View, width: int
) -> list[StyledLine]:
    room = min(60, max(0, width - LABEL_CELLS - 28))
    return [
        [
            *_label("" if number else label, view), (f"{sign} {told:<12}", view.ink.text),
            (draw_spark(values, room, view.glyphs), view.ink.series[number]),
        ]
        for number, (sign, values, told) in enumerate(
            zip((view.glyphs.up, view.glyphs.down), (up, down), words, strict=True)
        )
    ]  # fmt: skip


def _disk(network: NetworkMeasured, share: float, view: View) -> StyledLine:
    style = view.ink.bad if share >= 1 else view.ink.warn if share >= 0.9 else view.ink.good
    told = f"{format_bytes(network.disk_bytes)} of {format_bytes(network.disk_quota_bytes)}"
    return [*_label("Disk", view), *_bar(share, style, view), (f" {told}, {format_percent(share)}", view.ink.text)]


def _transfers(view: View) -> list[StyledLine]:
    peers = sorted(view.swarm.peers.values(), key=lambda peer: peer.peer != view.me)
    running = [
        (peer, transfer)
        for peer in peers
        for transfer in peer.transfers.values()
        if transfer.bytes_done < transfer.bytes_total and not peer.stopped
    ]
    lines = [_transfer(peer, transfer, view, first=number == 0) for number, (peer, transfer) in enumerate(running[:6])]
    return [*lines, _fact("", f"and {len(running) - 6} more", view)] if len(running) > 6 else lines


def _transfer(peer: PeerView, transfer: TransferProgressed, view: View, *, first: bool) -> StyledLine:
    share = transfer.bytes_done / transfer.bytes_total
    whose = "" if peer.peer == view.me else f"{peer.label}: "
    source = f" from {transfer.source}" if transfer.source else ""
    told = f" {100 * share:.0f} %  {whose}{transfer.what}, {format_transfer(transfer)}{source}"
    return [*_label("Arriving" if first else "", view), *_bar(share, view.ink.busy, view), (told, view.ink.text)]


def _rows_of(owner: PeerView | None, view: View) -> list[Mapping[str, Any]]:
    """The rows of the table, by name, with nodes that are not members last. Rows without a peer id, from other
    clients, are left out.

    If connections were not measured, the rows are the reporting peers with the bytes of their rounds.
    """
    rows: Sequence[Mapping[str, Any]]
    if owner is not None and owner.network is not None:
        rows = owner.network.peers
    else:
        rows = [
            {"peer": peer.peer, "bytes_sent": peer.bytes_sent, "bytes_received": peer.bytes_received}
            for peer in view.swarm.reporting
        ]
    known = [row for row in rows if isinstance(row.get("peer"), str)]
    peers = view.swarm.peers
    return sorted(
        known, key=lambda row: (row["peer"] not in peers, figures.natural(view.swarm.label(row["peer"])), row["peer"])
    )


def _columns(width: int) -> tuple[int, int]:
    """The cells of the names and of the addresses."""
    name = 14 if width < 60 else 16
    return name, width - name - 47 if width >= WITH_ADDRESS else 0


def _heading(rows: int, width: int, view: View) -> StyledLine:
    name, address = _columns(width)
    title = fit(f"  Peers {view.glyphs.dot} {rows}", name + 9, view.glyphs.ellipsis)
    figures = (
        f"{'rtt':>8}" if width < 60 else f"{view.glyphs.up + ' sent':>11}{view.glyphs.down + ' received':>12}{'rtt':>9}"
    )
    return [
        (title, view.ink.strong),
        ("  " + fit("address", address) if address else "", view.ink.muted),
        (figures, view.ink.muted),
    ]


_PATHS: Mapping[object, tuple[str, str]] = {
    True: ("R relayed", "warn"), False: ("D direct", "good"), None: ("? unknown", "muted"),
}  # fmt: skip


def _row(row: Mapping[str, Any], view: View, width: int) -> StyledLine:
    ink, glyphs = view.ink, view.glyphs
    name_cells, address_cells = _columns(width)
    is_peer = row["peer"] in view.swarm.peers
    label = view.swarm.label(row["peer"]) if is_peer else ORGANISER if row.get("organiser") is True else NO_MEMBER
    path, path_style = _PATHS.get(row.get("relayed"), _PATHS[None])
    rtt_s = figures.round_trip(row)
    rtt = format_rtt(rtt_s) if rtt_s is not None else MISSING
    pieces: StyledLine = [
        (fit(f"  {label}", name_cells, glyphs.ellipsis), ink.text if is_peer else ink.muted),
        (f" {path:<9}", str(getattr(ink, path_style))),
    ]  # fmt: skip
    if address_cells:
        pieces.append((" " + fit(str(row.get("address", "")), address_cells, glyphs.ellipsis), ink.muted))
    if width < 60:
        return [*pieces, (f"{rtt:>7}", ink.text)]
    sent, received = (format_bytes(int(row.get(key) or 0)) for key in ("bytes_sent", "bytes_received"))
    return [*pieces, (f"{sent:>11}{received:>12}{rtt:>9}", ink.text)]


def _label(text: str, view: View) -> StyledLine:
    cells = 10 if view.mini else LABEL_CELLS
    return [(text.ljust(cells)[:cells], view.ink.muted)]


def _fact(label: str, text: str, view: View) -> StyledLine:
    return [*_label(label, view), (text, view.ink.text)]


def _bar(share: float, style: str, view: View) -> StyledLine:
    done, rest = draw_bar(share, 10 if view.mini else BAR_CELLS, view.glyphs)
    return [(done, style), (rest, view.ink.track)]
