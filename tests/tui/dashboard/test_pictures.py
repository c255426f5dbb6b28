"""Pictures of every screen, from the recording, at the moment at which a whole-layer anomaly is punished.

After a change that is meant: `pytest tests/tui/dashboard/test_pictures.py --snapshot-update`, and look at each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from peer.schema.events import DeviceMeasured, PeerStateChanged, PenaltyImposed
from tests.tui.dashboard.live import LATE_ADVICE, RECORDING, Attached, foretelling, recorded, stalling
from tests.tui.dashboard.screen import press, settled
from tui.dashboard.app import SCREENS, Dashboard, ExitReason
from tui.sources.replay import RecordingSource

pytestmark = pytest.mark.slow

USUAL = (120, 40)
OF_ALL_SIZES = [
    ("home", (40, 12)), ("peers", (60, 20)), ("home", (80, 24)), *((screen, USUAL) for screen in SCREENS),
    ("rounds", (200, 60)),
]  # fmt: skip
"""Every screen once, and every size: what a screen says at the other sizes is asserted in its own tests."""
AFTER = 12
"""Events after the penalty: each peer has told it."""

Compare = Callable[..., bool]


def picture(compare: Compare, screen: str, size: tuple[int, int], **looks: bool) -> bool:
    """Whether the screen looks as it did."""
    recording = RecordingSource(RECORDING)
    app = Dashboard(recording, clock=lambda: 0.0, **looks)

    async def go(pilot: Pilot[ExitReason]) -> None:
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


@pytest.mark.parametrize(
    ("screen", "size"),
    [pytest.param(screen, size, id=f"{screen}-{size[0]}x{size[1]}") for screen, size in OF_ALL_SIZES],
)
def test_a_screen_looks_as_it_did(snap_compare: Compare, screen: str, size: tuple[int, int]) -> None:
    assert picture(snap_compare, screen, size)


REFUSED = ("7", *["down"] * 5, "enter", *"9999", "enter")
"""The editor with a power that the peer does not take."""


def held_peer() -> Attached:
    """A peer outside its hours, with limits of every kind."""
    source = Attached(events=[DeviceMeasured(cpu_percent=310.0, temperature_c=71.0, power_w=164.0)])
    limited = source.limited
    limited.settings |= {
        "schedule": "mon-fri 22:00-07:00, sat-sun 00:00-24:00", "max_temperature_c": 75.0, "max_power_w": 180.0,
        "pause_for": ["blender", "obs"], "monthly_gb": 300.0, "upload_mbps": 20.0,
    }  # fmt: skip
    until = source.now_s + 3 * 3600
    limited.holds = [{"code": "SCHEDULE", "why": "its schedule has it rest now", "until": until}]
    limited.tell(PeerStateChanged(state="PAUSED", why="its schedule has it rest now", until=until))
    return source


@pytest.mark.usefixtures("greenwich")
@pytest.mark.parametrize(
    ("keys", "size"),
    [
        pytest.param(("7", "down"), (80, 24), id="limits-80x24"),
        pytest.param(REFUSED, USUAL, id="edited-120x40"),
        pytest.param(("1",), USUAL, id="held-120x40"),
    ],
)
def test_what_holds_my_peer_up_looks_as_it_did(
    snap_compare: Compare, keys: tuple[str, ...], size: tuple[int, int]
) -> None:
    source = held_peer()
    app = Dashboard(source, clock=lambda: source.now_s, ascii_only=size == (80, 24), mono=size == (80, 24))

    async def go(pilot: Pilot[ExitReason]) -> None:
        await settled(pilot)
        app.query_one("#limits-input", Input).cursor_blink = False
        await press(pilot, *keys)

    assert snap_compare(app, run_before=go, terminal_size=size)


@pytest.mark.parametrize("key", [pytest.param("3", id="rounds"), pytest.param("1", id="home")])
def test_that_i_will_be_late_looks_as_it_did(snap_compare: Compare, key: str) -> None:
    source = foretelling(3.0, LATE_ADVICE)

    async def go(pilot: Pilot[ExitReason]) -> None:
        await settled(pilot)
        await press(pilot, key)

    assert snap_compare(Dashboard(source, clock=lambda: source.now_s), run_before=go, terminal_size=(80, 24))


def test_a_round_that_stands_still_looks_as_it_did(snap_compare: Compare) -> None:
    source = stalling()

    async def go(pilot: Pilot[ExitReason]) -> None:
        await settled(pilot)
        await press(pilot, "3")

    assert snap_compare(Dashboard(source, clock=lambda: source.now_s), run_before=go, terminal_size=USUAL)


def test_ascii_looks_as_it_did(snap_compare: Compare) -> None:
    assert picture(snap_compare, "rounds", (80, 24), ascii_only=True)
