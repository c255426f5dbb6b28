"""Pictures of every screen, from the recording, at the moment at which a whole-layer anomaly is punished.

After a change that is meant: `pytest tests/tui/dashboard/test_pictures.py --snapshot-update`, and look at each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from peer.events import PenaltyImposed
from tests.tui.dashboard.live import RECORDING, recorded
from tests.tui.dashboard.screen import settled
from tui.dashboard.app import Dashboard, Outcome
from tui.dashboard.screens import SCREENS
from tui.feed.recording import Recording

SIZES = ((40, 12), (80, 24), (120, 40), (200, 60))
AFTER = 12
"""Events after the penalty: each peer has told it."""

Compare = Callable[..., bool]


def picture(compare: Compare, screen: str, size: tuple[int, int], **looks: bool) -> bool:
    """Whether the screen looks as it did."""
    recording = Recording(RECORDING)
    app = Dashboard(recording, clock=lambda: 0.0, **looks)

    async def go(pilot: Pilot[Outcome]) -> None:
        await settled(pilot)
        recording.seek(moment())
        app.action_show(screen)
        app.tick()
        await settled(pilot)

    return compare(app, run_before=go, terminal_size=size)


def moment() -> int:
    """The position in the recording that the pictures show."""
    anomalies = (
        number
        for number, line in enumerate(recorded(), start=1)
        if isinstance(line.event, PenaltyImposed) and line.event.code == "ANOMALY"
    )
    return next(anomalies) + AFTER


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_looks_as_it_did(snap_compare: Compare, screen: str, size: tuple[int, int]) -> None:
    assert picture(snap_compare, screen, size)


def test_mono_looks_as_it_did(snap_compare: Compare) -> None:
    assert picture(snap_compare, "rounds", (80, 24), mono=True)


def test_ascii_looks_as_it_did(snap_compare: Compare) -> None:
    assert picture(snap_compare, "rounds", (80, 24), ascii_only=True)
