"""How many bytes, and how many a second, in the words of every screen and command."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Decimal units, one decimal: 61.2 kB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def format_line_rate(mbps: float) -> str:
    """The rate of a line, to three digits: 18.4 Mbit/s, 1,150 Mbit/s."""
    return f"{mbps:,.0f} Mbit/s" if mbps >= 100 else f"{mbps:.3g} Mbit/s"
