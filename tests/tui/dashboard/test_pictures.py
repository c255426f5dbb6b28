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

SIZES = ((40, 12), (80, 24), (120, 40), (200, 60))
BETWEEN = (60, 20)
"""Half a terminal: neither the smallest page nor what a window begins with."""
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


@pytest.mark.parametrize("size", [*SIZES, BETWEEN], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
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
        pytest.param(keys, (width, height), id=f"{name}-{width}x{height}")
        for name, keys in (("limits", ("7", "down")), ("edited", REFUSED), ("held", ("1",)))
        for width, height in SIZES[name == "held" :]  # the smallest page scrolls, and its bar is drawn a moment later
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


@pytest.mark.parametrize(
    ("late_s", "key", "size"),
    [
        pytest.param(late_s, key, (width, height), id=f"{name}-{width}x{height}")
        for late_s, name, key, sizes in (
            (3.0, "rounds-late", "3", SIZES), (-12.0, "rounds-in-time", "3", SIZES[1:]),
            (3.0, "home-late", "1", SIZES[1:3]),
        )
        for width, height in sizes
    ],
)  # fmt: skip
def test_whether_i_will_be_in_time_looks_as_it_did(
    snap_compare: Compare, late_s: float, key: str, size: tuple[int, int]
) -> None:
    source = foretelling(late_s, LATE_ADVICE if late_s > 0 else "")

    async def go(pilot: Pilot[ExitReason]) -> None:
        await settled(pilot)
        await press(pilot, key)

    assert snap_compare(Dashboard(source, clock=lambda: source.now_s), run_before=go, terminal_size=size)


@pytest.mark.parametrize(
    ("key", "size"),
    [
        pytest.param(key, (width, height), id=f"{name}-{width}x{height}")
        for name, key, sizes in (("rounds", "3", SIZES[:3]), ("home", "1", SIZES[1:3]))
        for width, height in sizes
    ],
)
def test_a_round_that_stands_still_looks_as_it_did(snap_compare: Compare, key: str, size: tuple[int, int]) -> None:
    source = stalling()

    async def go(pilot: Pilot[ExitReason]) -> None:
        await settled(pilot)
        await press(pilot, key)

    assert snap_compare(Dashboard(source, clock=lambda: source.now_s), run_before=go, terminal_size=size)


def test_mono_looks_as_it_did(snap_compare: Compare) -> None:
    assert picture(snap_compare, "rounds", (80, 24), mono=True)


def test_ascii_looks_as_it_did(snap_compare: Compare) -> None:
    assert picture(snap_compare, "rounds", (80, 24), ascii_only=True)
