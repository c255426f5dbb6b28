"""The Rounds screen: whether my part will be in time, what every peer did when, and which peers counted for less and
why.
"""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult

from tui.dashboard.keys import bindings
from tui.dashboard.screens.home import draw_outlook
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.penalties import Penalties
from tui.dashboard.widgets.waterfall import AROUND_LANES, Waterfall

SMALL = 14
"""Below this number of lines, only lanes or penalties are shown."""


class RoundsPanel(Panel, can_focus=False):
    """Lanes above, penalties below; Tab switches between them. On top is the forecast of whether my peer's part of
    the next round will be in time, once there is one."""

    TITLE = "Rounds"
    BINDINGS = bindings("rounds")
    DEFAULT_CSS = """
    RoundsPanel { overflow: hidden; }
    Waterfall { height: 3; }
    Penalties { height: 1fr; margin: 1 0 0 0; }
    """

    def compose(self) -> ComposeResult:
        yield TextBlock(id="outlook")
        yield Waterfall()
        yield Penalties()

    def draw_view(self, view: View) -> None:
        waterfall, penalties = self.query_one(Waterfall), self.query_one(Penalties)
        if self.content_size.height:
            self._share_rows(view, waterfall, penalties)
        waterfall.show(view)
        penalties.show(view)

    def _share_rows(self, view: View, waterfall: Waterfall, penalties: Penalties) -> None:
        gap = 0 if view.short else 1
        above = self._show_outlook(view)
        rows = share_rows(
            self.content_size.height - gap - above, len(view.swarm.peers) + AROUND_LANES, penalties.rows_wanted(view),
            penalties.has_focus,
        )  # fmt: skip
        if waterfall.styles.height is None or waterfall.styles.height.value != rows:
            waterfall.styles.height = rows
        penalties.styles.margin = (gap, 0, 0, 0)

    def _show_outlook(self, view: View) -> int:
        """Show the outlook. Returns the number of its lines, including the empty one below."""
        lines = draw_outlook(view, self.content_size.width, roomy=self.content_size.height >= SMALL)
        below = 1 if lines and not view.short else 0
        outlook = self.query_one("#outlook", TextBlock)
        outlook.draw(Text("\n").join(lines))
        outlook.display = bool(lines)
        outlook.styles.height, outlook.styles.margin = len(lines), (0, 0, below, 0)
        return len(lines) + below

    on_descendant_focus = Panel.redraw

    def take_focus(self) -> None:
        self.query_one(Waterfall).focus(scroll_visible=False)

    def action_category(self) -> None:
        self.query_one(Penalties).action_category()


def share_rows(height: int, lanes_want: int, penalties_want: int, focused: bool) -> int:
    """How many of `height` lines the lanes get: what they want, except that penalties get up to two fifths if they
    want them, or three fifths with the focus on them. If there is too little space for both, the focused one gets
    it."""
    if height < SMALL:
        return 1 if focused else max(1, min(lanes_want, height - 3))
    theirs = min(penalties_want, max(2, int(height * (0.6 if focused else 0.4))))
    return max(1, min(lanes_want, height - theirs))
