"""Lines of styled text of which only changed ones are drawn again, for large content that changes in few places."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

StyledLine = list[tuple[str, str]]
"""(text, Rich style) pairs, one after another on a line."""


class LineView(Widget):
    """Shows lines from its top. Lines longer than the widget's width are cut."""

    DEFAULT_CSS = "LineView { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[StyledLine] = []
        self._base: Style | None = None

    def draw(self, lines: Sequence[StyledLine]) -> None:
        """Show these lines, which must not be changed afterwards."""
        before, self._lines = self._lines, list(lines)
        width = self.size.width
        changed = [
            Region(0, y, width, 1)
            for y in range(max(len(before), len(self._lines)))
            if y >= len(before) or y >= len(self._lines) or before[y] != self._lines[y]
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        pieces = self._lines[y] if y < len(self._lines) else []
        segments = [Segment(text, Style.parse(style)) for text, style in pieces if text]
        cells = sum(cell_len(text) for text, _ in pieces)
        return Strip(segments, cells).adjust_cell_length(self.size.width).apply_style(self.line_style(y))

    def line_style(self, y: int) -> Style:
        """The background style of line `y`."""
        if self._base is None:
            self._base = self.rich_style  # costs more than the rest of a line
        return self._base

    def notify_style_update(self) -> None:
        self._base = None
        super().notify_style_update()


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` in exactly `width` cells, with an ellipsis if it was cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - cell_len(ellipsis))) + ellipsis[:width]


def cut(pieces: StyledLine, width: int, ellipsis: str) -> StyledLine:
    """The pieces in at most `width` cells, with an ellipsis if they were cut."""
    left = width
    kept: StyledLine = []
    for text, style in pieces:
        if cell_len(text) > left:
            return [*kept, (fit(text, left, ellipsis), style)]
        kept.append((text, style))
        left -= cell_len(text)
    return kept
