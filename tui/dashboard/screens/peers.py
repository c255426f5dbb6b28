"""The table of all peers. A narrow terminal leaves out the least important columns.

All peers are sorted, but only visible rows are written and only changed ones are drawn, so that a swarm of hundreds can
be shown twice a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Input

from tui.dashboard.keys import bindings
from tui.dashboard.screens.peer import draw_peer
from tui.dashboard.styles import shown_state, state_of
from tui.dashboard.view import FilterPanel, PeerOpened, TextBlock, View
from tui.dashboard.widgets.facts import FactSheet
from tui.dashboard.widgets.lines import StyledLine, fit
from tui.dashboard.widgets.table import RowTable
from tui.swarm import figures
from tui.swarm.snapshot import PeerView
from tui.text.units import (
    count,
    format_ago,
    format_count,
    format_loss,
    format_mbps,
    format_percent,
    format_rtt,
    format_uptime,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. It is shown if the terminal has at least `least_width` cells, and grows to the width of its text
    if possible."""

    name: str
    width: int
    least_width: int
    value: Callable[[PeerView, View], Any]
    """The sort key; None, which comes last, if the value is not known."""
    told: Callable[[Any], str] = str
    """The value in words."""
    cell: Callable[[PeerView, View], Text | str] | None = None
    """The content of the cell, if it differs from the value in words."""
    right: bool = False
    words: str = ""
    """The heading in full; empty: the same as its name."""
    longest: Callable[[PeerView], str] | None = None
    """The longest text of its cell, if that may be longer than `width`; such columns get spare cells first."""

    def heading(self, arrow: str) -> str:
        """The heading, in full if it fits, after the arrow of the sorted column."""
        full, brief = f"{arrow}{self.words}", f"{arrow}{self.name}"[: self.width]
        return full if self.words and cell_len(full) <= self.width else brief


def _penalty(peer: PeerView, view: View) -> Text | str:
    lasting = figures.active_penalties(view.swarm, peer.peer)
    if not lasting:
        return ""
    worst = min(lasting, key=lambda penalty: (penalty.factor, -penalty.until_round))
    more = f" +{len({each.code for each in lasting}) - 1}" if len({each.code for each in lasting}) > 1 else ""
    return Text(f"{worst.code} {worst.until_round - view.swarm.round} r{more}", style=view.ink.warn)


def _behind(peer: PeerView, view: View) -> Text | str:
    behind = view.swarm.behind(peer.peer)
    return Text(str(behind), style=view.ink.warn if behind else view.ink.muted)


def _name(peer: PeerView, view: View) -> Text | str:
    if peer.peer == view.me:
        return Text(f"{view.glyphs.mark} {_called(peer)}", style=view.ink.mine)
    return Text(_called(peer), style=view.ink.text)


def _called(peer: PeerView) -> str:
    return f"{peer.label} +{peer.homes - 1}" if peer.homes > 1 else peer.label


def _rate(peer: PeerView, view: View) -> str:
    """The upload and download rates between the last two measurements, in megabits per second."""
    rate = figures.link_rate(view.swarm, peer, view.now)
    return f"{format_mbps(rate.sent)}/{format_mbps(rate.received)}" if rate is not None else ""


def _path(peer: PeerView, view: View) -> str:
    row = figures.connection(view.mine, peer.peer)
    if row:
        return "relay" if row.get("relayed") else "direct"
    return peer.network.reach.replace("relayed", "relay") if peer.network is not None else ""


def _seen(peer: PeerView, view: View) -> float | None:
    return None if peer.seen_t is None else max(0.0, view.now - peer.seen_t)


def _uptime(peer: PeerView, view: View) -> float | None:
    return None if peer.started_t is None else max(0.0, (peer.seen_t or view.now) - peer.started_t)


COLUMNS = (
    Column(name="state", width=11, least_width=0, value=lambda peer, view: shown_state(peer, view).name, cell=state_of),
    Column(name="name", width=12, least_width=0, value=lambda peer, view: figures.natural(peer.label), cell=_name,
           longest=lambda peer: f"  {_called(peer)}"),
    Column(name="tok/s", width=6, least_width=0, right=True, words="tokens/s", told=format_count,
           value=lambda peer, view: figures.device_speed(view.swarm, peer, view.now)),
    Column(name="behind", width=6, least_width=0, right=True, cell=_behind,
           value=lambda peer, view: view.swarm.behind(peer.peer)),
    Column(name="weight", width=6, least_width=80, right=True, told=format_percent,
           value=lambda peer, view: figures.weight(view.swarm, peer.peer)),
    Column(name="seen", width=6, least_width=80, right=True, words="last seen", value=_seen, told=format_ago),
    Column(name="penalty", width=12, least_width=80, cell=_penalty, words="penalty (rounds)",
           value=lambda peer, view: min(
               (each.factor for each in figures.active_penalties(view.swarm, peer.peer)), default=None)),
    Column(name="device", width=8, least_width=120, value=lambda peer, view: peer.device,
           longest=lambda peer: peer.device),
    Column(name="Mbit/s", width=7, least_width=120, right=True, words="Mbit/s up/down", cell=_rate,
           value=lambda peer, view: peer.ups[-1].value if peer.ups else None),
    Column(name="ping", width=7, least_width=120, right=True, words="round trip", told=format_rtt,
           value=lambda peer, view: figures.round_trip(figures.connection(view.mine, peer.peer))),
    Column(name="ok/late/no", width=10, least_width=120, right=True, words="accepted/late/rejected",
           value=lambda peer, view: peer.accepted,
           cell=lambda peer, view: f"{peer.accepted}/{peer.late}/{peer.rejected}"),
    Column(name="path", width=6, least_width=130, value=_path),
    Column(name="norm", width=7, least_width=160, right=True, value=lambda peer, view: peer.norm, told="{:.3g}".format),
    Column(name="loss", width=6, least_width=160, right=True, told=format_loss,
           value=lambda peer, view: figures.own_loss(view.swarm, peer, view.now)),
    Column(name="client", width=6, least_width=160, value=lambda peer, view: peer.version),
    Column(name="uptime", width=6, least_width=160, right=True, value=_uptime, told=format_uptime),
    Column(name="id", width=8, least_width=170, value=lambda peer, view: peer.peer, told=lambda peer: peer[-8:]),
)  # fmt: skip
"""The most important first."""

_MINI_WIDTHS = {"state": 11, "name": 9, "tok/s": 5, "behind": 6}
MINI_COLUMNS = tuple(replace(column, width=_MINI_WIDTHS[column.name]) for column in COLUMNS[: len(_MINI_WIDTHS)])
"""The columns that fit in 40 cells."""


DETAIL_ROWS = 20
"""The lines below the table from which on the page of the selected peer is also shown."""


class PeersPanel(FilterPanel):
    TITLE = "Peers"
    BINDINGS = bindings("peers")

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.columns: tuple[Column, ...] = ()
        """The columns that are shown."""
        self.listed: list[PeerView] = []
        """The peer of each row."""
        self.sort, self._reversed = "name", False
        self._page = 0
        """The index of the page of columns that is shown."""

    def compose(self) -> ComposeResult:
        yield TextBlock(id="peers-line")
        yield Input(id="peers-filter", placeholder="name, state, penalty or id; !word hides", compact=True)
        yield RowTable()
        yield TextBlock(id="peers-detail")

    def take_focus(self) -> None:
        self.query_one(RowTable).focus(scroll_visible=False)

    def draw_view(self, view: View) -> None:
        pages = pages_of_columns(view)
        self.listed = self._arrange(view)
        self.columns = widened(pages[self._page % len(pages)], self.listed, view)
        at = next((row for row, peer in enumerate(self.listed) if peer.peer == view.selected), None)
        self.query_one("#peers-line", TextBlock).draw(self._line(view, len(self.listed)))
        self._show_detail(view, at)
        self.query_one(RowTable).show_rows(len(self.listed), self._row, at)

    def _show_detail(self, view: View, at: int | None) -> None:
        """Show the page of the selected peer below the table, if most of it fits."""
        detail, table = self.query_one("#peers-detail", TextBlock), self.query_one(RowTable)
        detail.display = at is not None and self.content_size.height - len(self.listed) > DETAIL_ROWS
        table.styles.height = len(self.listed) if detail.display else "1fr"
        if at is not None and detail.display:
            sheet = FactSheet(view, view.width - 5)
            draw_peer(sheet, view, self.listed[at])
            detail.draw(sheet.text)

    def action_sort(self, step: int) -> None:
        names = [column.name for column in self.columns]
        if names:
            place = names.index(self.sort) if self.sort in names else 0
            self.sort = names[(place + step) % len(names)]
            self.redraw()

    def action_columns(self) -> None:
        """Show the columns that did not fit, and after them the first ones again."""
        self._page = (self._page + 1) % len(pages_of_columns(self.view))
        self.redraw()

    def action_reverse(self) -> None:
        self._reversed = not self._reversed
        self.redraw()

    def on_row_table_moved(self, message: RowTable.Moved) -> None:
        self.view.select(self.listed[message.row].peer)
        self._show_detail(self.view, message.row)

    def on_row_table_entered(self, message: RowTable.Entered) -> None:
        self.post_message(PeerOpened(self.listed[message.row].peer))

    def _arrange(self, view: View) -> list[PeerView]:
        """The peers that pass the filter, sorted, with mine on top. A cluster has one row, that of its lead."""
        column = next(each for each in COLUMNS if each.name == self.sort)
        rows = (peer for peer in view.swarm.peers.values() if peer.lead not in view.swarm.peers or peer.peer == view.me)
        peers = [peer for peer in rows if matches(peer, self.wanted, view)]
        peers = figures.order(peers)
        values = {peer.peer: column.value(peer, view) for peer in peers}
        peers.sort(key=lambda peer: (values[peer.peer] is None, values[peer.peer]), reverse=self._reversed)
        return sorted(peers, key=lambda peer: peer.peer != view.me)

    def _row(self, row: int) -> list[StyledLine]:
        return [[_cell(column, self.listed[row], self.view) for column in self.columns]]

    def _line(self, view: View, shown: int) -> Text:
        """The number of peers, and the names of the columns; the sorted one has an arrow."""
        heading = Text()
        for column in self.columns:
            arrow = (view.glyphs.down if self._reversed else view.glyphs.up) if column.name == self.sort else ""
            style = view.ink.strong if arrow else view.ink.muted
            name = column.heading(arrow)
            heading.append(f" {name:>{column.width}} " if column.right else f" {name:<{column.width}} ", style=style)
        if not self.wanted or view.mini:
            return heading
        total = len(view.swarm.peers)
        return Text.assemble((f" {shown} of {count(total, 'peer')} match\n", view.ink.warn), heading)


def pages_of_columns(view: View) -> list[tuple[Column, ...]]:
    """The columns that fit; then the others, page by page, each page with state and name first."""
    first = MINI_COLUMNS if view.mini else tuple(each for each in COLUMNS if each.least_width <= view.width)
    pages, rest = [first], list(COLUMNS[len(first) :])
    while rest:
        page, room = list(first[:2]), view.width - sum(column.width + 2 for column in first[:2])
        while rest and (rest[0].width + 2 <= room or len(page) == 2):
            room -= rest[0].width + 2
            page.append(rest.pop(0))
        pages.append(tuple(page))
    return pages


def widened(columns: Sequence[Column], peers: Sequence[PeerView], view: View) -> tuple[Column, ...]:
    """The columns after distributing a line's spare cells: first to names and devices, then to full headings."""
    spare = max(0, view.width - (0 if view.mini else 2) - sum(column.width + 2 for column in columns))
    widths = {column.name: column.width for column in columns}
    for column in sorted(columns, key=lambda column: column.longest is None):
        wanted = max((cell_len(column.longest(peer)) for peer in peers), default=0) if column.longest else 0
        more = max(wanted, len(column.words)) - column.width
        if more > 0 and (more <= spare or column.longest):
            widths[column.name] += min(more, spare)
            spare -= min(more, spare)
    return tuple(replace(column, width=widths[column.name]) for column in columns)


def shown(column: Column, peer: PeerView, view: View) -> Text:
    """The content of a column in a peer's row."""
    if column.cell is not None:
        cell = column.cell(peer, view)
    else:
        cell = "" if (value := column.value(peer, view)) is None else column.told(value)
    return cell if isinstance(cell, Text) else Text(cell, style=view.ink.text)


def _cell(column: Column, peer: PeerView, view: View) -> tuple[str, str]:
    """The cell's text, as wide as the column plus a space on each side, and its style."""
    cell = shown(column, peer, view)
    text = " " * (column.width - cell.cell_len if column.right else 0) + cell.plain
    return f" {fit(text, column.width, view.glyphs.ellipsis)} ", str(cell.style)


def matches(peer: PeerView, wanted: str, view: View) -> bool:
    """Whether a peer's name, state, penalties or id contain the text; with a leading !, whether they do not."""
    word = wanted.removeprefix("!").strip().lower()
    if not word:
        return True
    codes = " ".join(penalty.code for penalty in figures.active_penalties(view.swarm, peer.peer))
    held = word in f"{peer.label} {shown_state(peer, view).name} {codes} {peer.peer} {peer.device}".lower()
    return held != wanted.startswith("!")
