"""Bytes, times and counts in words; the progress of a transfer in words and as a bar."""

from __future__ import annotations

from peer.schema.byte_text import format_bytes, format_line_rate
from peer.schema.events import TransferProgressed

MISSING = "N/A"
"""Shown for an unknown value."""

EVERY_S = 5.0
"""The interval between two drawings of a bar."""
WIDTH = 24


class Bar:
    """A transfer that began at `t` (Unix time) with `event`. It is drawn at once, every few seconds, and at its end."""

    def __init__(self, t: float, event: TransferProgressed) -> None:
        self._began_t, self._first = t, event
        self._drawn_t = float("-inf")
        self._ended = False

    def covers(self, event: TransferProgressed) -> bool:
        """Whether this event belongs to the same transfer, at a later time."""
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
    """A line's stated bandwidth: 18.4 Mbit/s."""
    from peer.planning.plan.peer_set import FASTEST_BPS  # loads numpy, which commands can do without

    return f"{format_line_rate(bps / 1e6)}{' or more' if bps >= FASTEST_BPS else ''}"


def format_mbps(bps: float) -> str:
    """Megabits per second without the unit: 0.4, 18."""
    megabits = bps / 1e6
    return f"{megabits:.0f}" if megabits >= 9.95 else f"{megabits:.1f}"


def count(number: int, noun: str) -> str:
    """1 peer, 2 peers."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_elapsed(seconds: float) -> str:
    """A duration as mm:ss, from one hour on as h:mm:ss."""
    minutes, rest_s = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes:02}:{rest_s:02}"


def format_seconds(seconds: float) -> str:
    """A duration: 0.05 s, 3.2 s, 42 s, 12:05."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s" if seconds % 1 else f"{seconds:.0f} s"
    return f"{seconds:.0f} s" if seconds < 120 else format_elapsed(seconds)


def format_count(number: float) -> str:
    """A number with three digits and a unit: 950, 12.3k, 4.56M, 1.20B."""
    for unit, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)):
        size = number / scale
        if abs(size) < 999.5 or unit == "T":
            digits = 0 if not unit or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{size:.{digits}f}{unit}"
    raise AssertionError("unreachable")


def format_percent(share: float | None) -> str:
    """33.4 % for 0.334."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def format_ago(seconds: float | None) -> str:
    """A time ago, rounded so that it changes rarely: now, 20 s, 4 min, 3 h."""
    if seconds is None:
        return "never"
    if seconds < 10:
        return "now"
    if seconds < 60:
        return f"{10 * int(seconds / 10)} s"
    if seconds < 3600:
        return f"{int(seconds / 60)} min"
    return f"{int(seconds / 3600)} h"


def format_round(seconds: float | None) -> str:
    """The duration of a round, such as `12.3 s`; N/A if its beginning was not reported."""
    return f"{seconds:.1f} s" if seconds else MISSING


def format_rtt(seconds: float) -> str:
    """A round trip: 12 ms, 1.20 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_uptime(seconds: float) -> str:
    """An uptime: 5 min, 3.2 h, 4.1 d."""
    if seconds < 5400:
        return f"{int(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def format_loss(nats: float | None) -> str:
    """A loss in nats per token: 2.345."""
    return MISSING if nats is None else f"{nats:.3f}"
