"""How many bytes, in the words of every screen and command."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Decimal units, one decimal: 61.2 kB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
