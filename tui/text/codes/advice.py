"""What a page about a code consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CodePage:
    """What a code means, and what a volunteer can do about it."""

    short: str
    """The meaning, on one line."""
    meaning: str = ""
    """In sentences; empty where the line says it all."""
    remedy: str = ""
    """What to do; empty where nothing need be done."""
    category: str = ""
    """Of a penalty: errors, late or judge."""
