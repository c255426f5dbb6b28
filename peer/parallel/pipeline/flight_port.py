"""How a stage reaches the other stages of its cluster."""

from __future__ import annotations

from typing import Protocol


class FlightPort(Protocol):
    """Frames in order between any two homes; what is sent to a home that is gone is lost, and somebody says so."""

    def send(self, to: str, frame: bytes) -> None: ...

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next frame and who sent it; None if none comes in time."""
