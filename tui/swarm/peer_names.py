"""What a peer is called on a screen."""

from __future__ import annotations

import unicodedata

NAME_CELLS = 32
"""A longer name is cut."""


def short_name(name: str) -> str:
    """A name of at most `NAME_CELLS` columns, cut with an ellipsis; marks that pile up without width are cut, too."""
    if len(name) <= NAME_CELLS and name.isascii():
        return name
    if len(name) <= 2 * NAME_CELLS and sum(map(_cells, name)) <= NAME_CELLS:
        return name
    kept, cells = "", 0
    for char in name[: 2 * NAME_CELLS]:
        cells += _cells(char)
        if cells >= NAME_CELLS:
            break
        kept += char
    return f"{kept}…"


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
