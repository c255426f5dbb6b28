"""What the volunteer allows, and which limit stops or slows training now. Values are edited in place.

The peer checks what is typed and refuses it in words: nothing is judged here. The application sends the command.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.widgets import Input

from peer.node.control.client import Reply
from peer.schema.byte_text import format_bytes
from peer.schema.settings import SettingInfo, grouped, in_words, to_text, to_value
from tui.dashboard.keys import bindings
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.facts import FactSheet, add_holds
from tui.dashboard.widgets.lines import StyledLine, fit
from tui.dashboard.widgets.table import RowTable
from tui.swarm import figures
from tui.swarm.snapshot import PeerView
from tui.text.event_text import PauseReason, hold_words
from tui.text.units import format_mbps, format_percent

SIGN, NAME = 2, 18
"""The cells of the columns that are always shown."""
GROUP, WITH_GROUPS = 17, 100
"""The cells of the group's column, and the width of the page from which on it is shown."""
MINI = 60
"""Below this width in cells only names and values fit."""
AT_START = "takes effect when the peer starts again"


@dataclass
class SettingGiven(Message):
    name: str
    value: Any


class LimitsPanel(Panel):
    """My peer's settings; in a recording, those of the selected peer."""

    TITLE = "Limits"
    BINDINGS = bindings("limits")

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._edited: Row | None = None
        self._asked = ""
        """The setting for which the peer's answer is awaited."""
        self._refused = ""
        """Why the peer refused the text in the editor."""

    def compose(self) -> ComposeResult:
        yield TextBlock(id="limits-line")
        with Container(id="limits-list"):
            yield RowTable(id="limits-table")
            yield Input(id="limits-input", compact=True)
        yield TextBlock(id="limits-about")

    def on_mount(self) -> None:
        self._input.display = False

    @property
    def _table(self) -> RowTable:
        return self.query_one(RowTable)

    @property
    def _input(self) -> Input:
        return self.query_one(Input)

    def take_focus(self) -> None:
        (self._input if self._edited else self._table).focus(scroll_visible=False)

    def draw_view(self, view: View) -> None:
        self._rows = rows_of(view)
        self._table.show_rows(len(self._rows), self._row, None)
        self.query_one("#limits-line", TextBlock).draw(self._head(view).text)
        about = self.query_one("#limits-about", TextBlock)
        about.styles.height = _about_lines(view)  # always as many: the table stays where it is
        about.draw(self._about(view))
        self.call_after_refresh(self._place_input)

    # The person edits

    def on_row_table_moved(self) -> None:
        """Close the editor when the person selects another line."""
        if self._edited is not None and self._edited.setting != (self._selected or self._edited).setting:
            self._close()
        self.redraw()

    def on_row_table_entered(self, message: RowTable.Entered) -> None:
        if refusal := why_fixed(self.view):
            self.notify(refusal, severity="warning", markup=False)
            return
        self._edited = self._rows[message.row]
        self._input.value = to_text(self._edited.value)
        self._input.display = True
        self._input.focus(scroll_visible=False)
        self.redraw()

    def on_input_changed(self) -> None:
        if self._refused:
            self._refused = ""
            self.redraw()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._edited is None or self._asked:
            return
        self._asked = self._edited.setting.name
        value = to_value(message.value, self._edited.value, self._asked)
        self.post_message(SettingGiven(self._asked, value))

    def settle(self, reply: Reply) -> None:
        """Process the peer's answer: close the editor, or show the refusal and keep the text for correction."""
        asked, self._asked = self._asked, ""
        if self._edited is None or self._edited.setting.name != asked:
            return  # the person has given it up meanwhile
        if reply.ok:
            self._close()
            return
        self._refused = reply.error
        self.redraw()

    def action_give_up(self) -> None:
        """Leave the value as it is. Without an editor, Esc belongs to the application."""
        if self._edited is not None:
            self._close()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc belongs to the editor while it is open."""
        return action != "give_up" or self._edited is not None

    def _close(self) -> None:
        self._edited, self._refused = None, ""
        self._input.display = False
        self._table.focus(scroll_visible=False)
        self.redraw()

    def _place_input(self) -> None:
        """Put the editor over the value of its line."""
        if self._edited is None:
            return
        left = _left_of_value(self.view.width)
        self._input.styles.offset = (left, self._table.cursor_y)
        self._input.styles.width = max(1, self._table.size.width - left)

    # What is drawn

    @property
    def _selected(self) -> Row | None:
        return self._rows[self._table.cursor_row] if self._rows else None

    def _row(self, number: int) -> list[StyledLine]:
        """▲ when  schedule  mon-fri 22:00-07:00  outside its hours; trains again at 22:00"""
        view, row = self.view, self._rows[number]
        ink, setting, hold = view.ink, row.setting, hold_of(row.setting, view)
        sign = f"{view.glyphs.alert if hold else ' '} "
        group = f"{row.group if row.first else '':<{GROUP}}" if view.width >= WITH_GROUPS else ""
        value = in_words(setting, row.value)
        left, width = _left_of_value(view.width), self._table.size.width
        room = _value_cells(view.width)
        pieces: StyledLine = [
            (sign, ink.warn), (group, ink.strong), (fit(setting.name, NAME - 1, view.glyphs.ellipsis) + " ", ink.text),
            (fit(value, room, view.glyphs.ellipsis), ink.strong if row.value else ink.muted),
        ]  # fmt: skip
        if not view.mini:
            facts = [hold_words(hold, view.now)] if hold else [_measured(setting, view), setting.meaning]
            note = f" {view.glyphs.dot} ".join(fact for fact in facts if fact)
            rest = max(0, width - left - room - 2)
            pieces.append(("  " + fit(note, rest, view.glyphs.ellipsis), ink.warn if hold else ink.muted))
        return [pieces]

    def _head(self, view: View) -> FactSheet:
        sheet, peer = FactSheet(view, _page_width(view)), shown_peer(view)
        if peer is None:
            sheet.prose("", "settings never leave the machine of a peer: there is none of yours here", view.ink.muted)
            return sheet
        title, aside = f"What {peer.label} allows", why_fixed(view) or "enter changes a value, at once"
        if view.mini:
            sheet.line((why_fixed(view) or title, view.ink.strong))
            return sheet
        sheet.line((title, view.ink.strong), (f"  {aside}", view.ink.muted))
        add_holds(sheet, view, most=1 if view.short else 4)
        sheet.blank()
        return sheet

    def _about(self, view: View) -> Text:
        """The selected setting in words, the most important first; while it is edited, the peer's refusal."""
        row, ink = self._selected, view.ink
        if row is None:
            return Text("this peer did not say what it allows" if shown_peer(view) else "", style=ink.muted)
        setting = row.setting
        empty = "empty" if isinstance(row.value, str | list | tuple) else "0"
        meaning = f"{setting.meaning}; {empty}: {setting.off}" if setting.off else setting.meaning
        meaning = meaning if view.width >= WITH_GROUPS else f"{row.group}: {meaning}"
        start = [(AT_START, ink.warn)] if setting.at_start else []
        if self._refused:
            said = [(self._refused, ink.bad), *start]
        elif self._edited is not None:
            example = f"for example {setting.example}; " if setting.example else ""
            said = [(f"{example}enter gives it to the peer, esc gives up", ink.muted), *start, (meaning, ink.text)]
        else:
            said = [*self._now(view, row), *start, (meaning, ink.text)]
        lines = [Text(line, style=style) for text, style in said for line in textwrap.wrap(text, _page_width(view))]
        gap = [] if view.short else [Text()]
        return Text("\n").join([*gap, *lines][: _about_lines(view)])

    def _now(self, view: View, row: Row) -> list[tuple[str, str]]:
        """What did not fit in the line of the table."""
        hold, value = hold_of(row.setting, view), in_words(row.setting, row.value)
        said = [(hold_words(hold, view.now), view.ink.warn)] if hold is not None and view.mini else []
        if len(value) > _value_cells(view.width):
            said.append((value, view.ink.strong))
        if fact := _measured(row.setting, view):
            said.append((fact, view.ink.text))
        return said


def _measured(setting: SettingInfo, view: View) -> str:
    peer = shown_peer(view)
    return measured_against(setting.name, peer) if peer is not None else ""


def _left_of_value(width: int) -> int:
    return SIGN + NAME + (GROUP if width >= WITH_GROUPS else 0)


def _value_cells(width: int) -> int:
    if width < MINI:
        return max(1, width - 3 - SIGN - NAME)
    return 24 if width < WITH_GROUPS else 28 if width < 140 else 42


def _about_lines(view: View) -> int:
    return 3 if view.short else 5


def _page_width(view: View) -> int:
    return max(1, view.width - (3 if view.mini else 5))


@dataclass(frozen=True, kw_only=True)
class Row:
    group: str
    first: bool
    """Whether the row is the first of its group."""
    setting: SettingInfo
    value: Any


def why_fixed(view: View) -> str:
    """Why nothing can be changed from here; empty if it can."""
    if view.refusal:
        return view.refusal
    if "set" not in view.takes:
        return "these are several peers; change one with: homefires set KEY=VALUE --dir DIR/peer-1"
    return "" if view.mine is not None else "the peer has not started yet"


def shown_peer(view: View) -> PeerView | None:
    """My peer, or the selected one; None if it did not report anything itself."""
    peer = view.mine or view.swarm.peers.get(view.selected)
    return peer if peer is not None and peer.reports else None


def _settings(view: View) -> Mapping[str, Any]:
    """The settings that my peer answered, or that the selected peer reported."""
    peer = shown_peer(view)
    if peer is None:
        return {}
    return (view.status.settings if view.mine is peer and view.status else None) or peer.settings


def rows_of(view: View) -> list[Row]:
    rows: list[Row] = []
    for group, setting, value in grouped(_settings(view)):
        first = not rows or rows[-1].group != group
        rows.append(Row(group=group, first=first, setting=setting, value=value))
    return rows


def hold_of(setting: SettingInfo, view: View) -> PauseReason | None:
    return view.status.hold(setting.hold) if setting.hold and view.status is not None else None


def measured_against(name: str, peer: PeerView) -> str:
    """The present value of what the setting limits, such as `83 °C now` for `max_temperature_c`; empty if it is not
    measured."""
    device, network = peer.device_figures, peer.network
    if name == "chain_mb" and network is not None:
        share, used = figures.chain_share(peer), format_bytes(network.disk_bytes)
        if share is None or not network.disk_bytes:
            return f"{used} now" if network.disk_bytes else ""
        return f"{used} of {format_bytes(network.disk_quota_bytes)}, {format_percent(share)}"
    if name in ("upload_mbps", "download_mbps"):
        points = peer.ups if name == "upload_mbps" else peer.downs
        return f"{format_mbps(8 * points[-1].value)} Mbit/s now" if points else ""
    if device is None:
        return ""
    if name == "max_temperature_c" and device.temperature_c is not None:
        return f"{device.temperature_c:.0f} °C now"
    if name == "max_power_w" and device.power_w is not None:
        return f"{device.power_w:.0f} W now"
    if name == "memory_gb" and device.memory_bytes is not None:
        return f"{format_bytes(device.memory_bytes)} now"
    return ""
