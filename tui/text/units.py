"""Bytes, times and counts in words; how far a transfer is, in words and as a bar."""

from __future__ import annotations

from peer.events import TransferProgressed

EVERY_S = 5.0
"""A bar is drawn this often."""
WIDTH = 24


class Bar:
    """A transfer that began at `t` (Unix time) with `event`; drawn at once, every few seconds, and at its end."""

    def __init__(self, t: float, event: TransferProgressed) -> None:
        self._began_t, self._first = t, event
        self._drawn_t = float("-inf")
        self._ended = False

    def covers(self, event: TransferProgressed) -> bool:
        """Whether this is the same transfer, further on."""
        return event.bytes_total == self._first.bytes_total and event.bytes_done >= self._first.bytes_done

    def is_due(self, t: float, event: TransferProgressed) -> bool:
        ends = event.bytes_done >= event.bytes_total
        return not self._ended and (ends or t - self._drawn_t >= EVERY_S)

    def draw(self, t: float, event: TransferProgressed) -> str:
        """[######------------------] 25% · 100.0 MB of 400.0 MB · 12.5 MB/s · from 3 donors · 24 s left"""
        self._drawn_t, self._ended = t, event.bytes_done >= event.bytes_total
        share = min(1.0, event.bytes_done / event.bytes_total) if event.bytes_total else 1.0
        filled = int(WIDTH * share)
        came_bytes, left_bytes = event.bytes_done - self._first.bytes_done, event.bytes_total - event.bytes_done
        bytes_per_s = came_bytes / (t - self._began_t) if t > self._began_t else 0.0
        donors = len(event.source.split(", ")) if event.source else 0
        parts = [
            f"[{'#' * filled}{'-' * (WIDTH - filled)}] {share:.0%}",
            format_transfer(event),
            f"{format_bytes(round(bytes_per_s))}/s" if bytes_per_s else "",
            f"from {count(donors, 'donor')}" if donors and left_bytes else "",
            f"{left_bytes / bytes_per_s:.0f} s left" if bytes_per_s and left_bytes else "",
        ]
        return " · ".join(part for part in parts if part)


def format_transfer(transfer: TransferProgressed) -> str:
    """7.1 MB of 23.5 MB."""
    return f"{format_bytes(transfer.bytes_done)} of {format_bytes(transfer.bytes_total)}"


def format_line(bps: int) -> str:
    """How fast a line is said to be: 18.4 Mbit/s."""
    from peer.plan.peer_set import FASTEST_BPS  # loads numpy, which commands can do without

    return f"{bps / 1e6:.3g} Mbit/s{' or more' if bps >= FASTEST_BPS else ''}"


def format_bytes(count: int) -> str:
    """Decimal units, one decimal: 61.2 kB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def count(number: int, noun: str) -> str:
    """1 peer, 2 peers."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_elapsed(seconds: float) -> str:
    """mm:ss, and h:mm:ss from one hour on."""
    minutes, rest_s = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes:02}:{rest_s:02}"


def format_seconds(seconds: float) -> str:
    """0.05 s, 3.2 s, 42 s, 12:05."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s" if seconds % 1 else f"{seconds:.0f} s"
    return f"{seconds:.0f} s" if seconds < 120 else format_elapsed(seconds)
