"""Colours: Okabe and Ito's, which people with any colour vision can tell apart, on dark; and one theme without colour.

Blue is work that goes well, orange asks for attention, vermillion is broken. Every colour is accompanied by a word that
says the same. (M. Okabe, K. Ito: Color Universal Design, 2008.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from tui.swarm.phase_styles import Phase, ShownState


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Rich styles by meaning, for text that panels draw."""

    text: str
    muted: str
    """For labels, units, and everything that is in order."""
    strong: str
    mine: str
    """The volunteer's own peer."""
    good: str
    busy: str
    warn: str
    bad: str
    track: str
    """The remaining part of a bar."""
    series: tuple[str, ...]
    """For curves, in this order; they also differ by marker."""


COLOUR = Palette(
    text="#d7dce2", muted="#8b95a1", strong="bold #f2f5f8", mine="bold #56b4e9", good="#56b4e9", busy="#7fc7a9",
    warn="#e69f00", bad="bold #e8743b", track="#39424d",
    series=("#56b4e9", "#e69f00", "#2bb58a", "#cc79a7", "#f0e442"),
)  # fmt: skip

MONO = Palette(
    text="#dddddd", muted="#8f8f8f", strong="bold #ffffff", mine="bold underline #ffffff", good="#dddddd",
    busy="#dddddd", warn="bold #ffffff", bad="bold reverse #ffffff", track="#4a4a4a",
    series=("#ffffff", "#b0b0b0", "#8a8a8a", "#d0d0d0", "#707070"),
)  # fmt: skip

THEME = Theme(
    name="homefires", primary="#56b4e9", secondary="#0072b2", accent="#e69f00", success="#2bb58a", warning="#e69f00",
    error="#e8743b", foreground="#d7dce2", background="#0e1217", surface="#131920", panel="#1b232c", dark=True,
)  # fmt: skip

MONO_THEME = Theme(
    name="homefires-mono", primary="#d0d0d0", secondary="#9a9a9a", accent="#ffffff", success="#d0d0d0",
    warning="#ffffff", error="#ffffff", foreground="#dddddd", background="#101010", surface="#161616",
    panel="#202020", dark=True,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Glyphs:
    """One set of characters; each is one cell wide, except for `ellipsis`."""

    sparks: str
    """The heights of a sparkline, from empty to full."""
    full: str
    """The finished part of a bar."""
    rest: str
    """The remaining part of a bar."""
    dot: str
    """Between two facts on one line."""
    up: str
    down: str
    arrow: str
    mark: str
    """The mark before the volunteer's own peer."""
    alert: str
    done: str
    ellipsis: str
    ascii: bool = False

    def sign(self, of: Phase | ShownState) -> str:
        return of.ascii if self.ascii else of.glyph

    @property
    def dots(self) -> tuple[int, int]:
        """The dots in a cell, across and down: those of a Braille character, or a single full stop."""
        return (1, 1) if self.ascii else (2, 4)

    def dotted(self, bits: int) -> str:
        """The character with these dots."""
        return " " if not bits else "." if self.ascii else chr(0x2800 + bits)


UNICODE = Glyphs(
    sparks=" ▁▂▃▄▅▆▇█",
    full="━", rest="─", dot="·", up="↑", down="↓", arrow="→", mark="▸", alert="▲", done="✓", ellipsis="…",
)  # fmt: skip

ASCII = Glyphs(
    sparks=" .:-=+*%#",
    full="=", rest="-", dot="-", up="^", down="v", arrow=">", mark=">", alert="!", done="*", ellipsis="...",
    ascii=True,
)  # fmt: skip


def draw_spark(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """All values as one line of heights in at most `width` cells; the smallest value is the lowest visible height."""
    shown = _resample(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    levels = len(glyphs.sparks) - 2
    scale = levels / (high - low) if high > low else 0.0
    return "".join(glyphs.sparks[1 + round((value - low) * scale)] for value in shown)


_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a Braille character, by row and column."""


def trace(dots: Sequence[tuple[int, int]], glyphs: Glyphs) -> dict[tuple[int, int], int]:
    """Straight lines from dot to dot, counted from the top left: the bits of the dots by column and row of a cell."""
    across, down = glyphs.dots
    cells: dict[tuple[int, int], int] = {}
    for (x, y), (next_x, next_y) in itertools.pairwise([*dots[:1], *dots]):
        steps = max(abs(next_x - x), abs(next_y - y), 1)
        for step in range(1, steps + 1):
            at_x, at_y = x + round((next_x - x) * step / steps), y + round((next_y - y) * step / steps)
            cell = at_x // across, at_y // down
            cells[cell] = cells.get(cell, 0) | _BRAILLE[at_y % down][at_x % across]
    return cells


def place(value: float, first: float, last: float, places: int) -> int:
    """The place of a value among `places` places, counted from 0, between the places of the first and the last
    value."""
    share = (value - first) / (last - first) if last != first else 0.0
    return min(max(round(share * (places - 1)), 0), places - 1)


def _resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the mean of neighbouring ones."""
    if width <= 0 or len(values) <= width:
        return list(values) if width > 0 else []
    edges = [len(values) * index // width for index in range(width + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def draw_bar(share: float, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """A bar of `width` cells as its finished and its remaining part."""
    done = max(0, min(width, int(width * share)))
    return glyphs.full * done, glyphs.rest * (width - done)


class AsciiFilter(LineFilter):
    """Reduces all output to ASCII, whether drawn by us or by a widget, including names and evidence."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells with the nearest ASCII character in each."""
        return [
            segment if segment.control or segment.text.isascii() else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


_NEAREST = {
    **{ord(char): "-" for char in "─━╌╍═–—−⎯▁▔"},
    **{ord(char): "|" for char in "│┃║▏▎▍▌▐▕‖"},
    **{ord(char): "+" for char in "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛Σ"},
    **{ord(char): "#" for char in "█▇▆▅▄▃▂▀▓▒"},
    **{ord(char): ":" for char in "░"},
    **{ord(char): "." for char in "·…"},
    **{ord(char): "*" for char in "•●◌✓"},
    ord("→"): ">", ord("▸"): ">", ord("←"): "<", ord("↑"): "^", ord("↓"): "v", ord("▼"): "V", ord("▲"): "^",
    ord("×"): "x", ord("✗"): "x", ord("σ"): "s", ord("θ"): "t", ord("’"): "'", ord("‘"): "'", ord("°"): "o",
    ord("“"): '"', ord("”"): '"', ord("≈"): "~", ord("\N{NO-BREAK SPACE}"): " ",
}  # fmt: skip


def to_ascii(text: str) -> str:
    """`text` in the same number of cells, in ASCII only."""
    near = text.translate(_NEAREST)
    return near if near.isascii() else "".join(char if char.isascii() else "?" * cell_len(char) for char in near)
