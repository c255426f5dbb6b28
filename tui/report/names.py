"""What peers are called in a report."""

from __future__ import annotations

from collections import Counter

from tui.swarm.snapshot import SwarmState

SHORT = 24
"""Characters of a name that a chart has room for."""


def labels_of(swarm: SwarmState) -> dict[str, str]:
    """A label for each peer id, no two alike as long as ids differ in their last letters."""
    times = Counter(view.label for view in swarm.peers.values())
    return {
        peer: view.label if times[view.label] == 1 else f"{view.label} ({peer[-6:]})"
        for peer, view in swarm.peers.items()
    }


def shorten(label: str) -> str:
    """The label for a chart. A legend leaves out what begins with an underscore, so a space comes first."""
    short = label if len(label) <= SHORT else f"{label[: SHORT - 1]}…"
    return f" {short}" if short.startswith("_") else short
