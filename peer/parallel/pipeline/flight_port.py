"""How a stage reaches the other stages of its cluster."""

from __future__ import annotations

from typing import Protocol


class FlightPort(Protocol):
    """Carries frames in order between any two homes. A frame to a home that is gone is lost, and the loss is
    reported."""

    def send(self, to: str, frame: bytes) -> None: ...

    def receive(self, timeout_s: float) -> tuple[str, bytes] | None:
        """The next frame and its sender; None if none arrives in time."""
