"""Colours, markers and lines of the charts: told apart without colours, and with any kind of sight (Okabe and Ito)."""

from __future__ import annotations

INK = "#010203"
"""Stands for the colour of the page's text, which takes its place in the finished picture."""

BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
COLOURS = (BLUE, ORANGE, GREEN, RED, SKY, PINK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
