"""Colours: Okabe and Ito's, which people with any colour vision tell apart, on dark; and one theme without colour.

Blue is work that goes well, orange asks for attention, vermillion is broken. No colour says what a word beside it
does not say too. (M. Okabe, K. Ito: Color Universal Design, 2008.)
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.theme import Theme


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Rich styles by meaning, for text that panels draw."""

    text: str
    muted: str
    """Labels, units, what is in order and needs no look."""
    strong: str
    mine: str
    """The volunteer's own peer."""
    good: str
    busy: str
    warn: str
    bad: str
    track: str
    """The open part of a bar."""
    series: tuple[str, ...]
    """Curves, in this order; they differ by marker too."""


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
