"""The Limits screen: what is allowed, what that holds up, and how it is changed."""

from __future__ import annotations

import re

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from peer.node.control.client import Reply
from peer.schema.events import DeviceMeasured, NetworkMeasured, PeerStarted, PeerStateChanged, SettingsChanged
from peer.schema.settings import GROUPS, KNOWN, grouped
from tests.tui.dashboard.canned import dashboard
from tests.tui.dashboard.live import RECORDING, Attached
from tests.tui.dashboard.screen import opened, press, settled, text_of
from tests.tui.fake_control import SETTINGS, WHEN
from tui.dashboard.app import Dashboard, ExitReason
from tui.sources.replay import RecordingSource
from tui.swarm.snapshot import SwarmState

ORDER = [setting.name for _, setting, _ in grouped(SETTINGS)]
SIZES = [(40, 12), (59, 20), (120, 40)]


def shown(source: Attached, *, read_only: bool = False, ascii_only: bool = False, mono: bool = False) -> Dashboard:
    return Dashboard(
        source, clock=lambda: source.now_s, read_only=read_only, ascii_only=ascii_only, mono=mono
    )  # fmt: skip


async def choose(pilot: Pilot[ExitReason], name: str) -> None:
    """The cursor on this setting, from the first one on."""
    await press(pilot, "7", "g", *["down"] * ORDER.index(name))


async def edit(pilot: Pilot[ExitReason], name: str, text: str) -> None:
    """Choose it and type over what stands there; Enter is for the test to press."""
    await choose(pilot, name)
    await press(pilot, "enter")
    pilot.app.query_one("#limits-input", Input).value = ""
    await press(pilot, *("space" if char == " " else char for char in text))


def row_of(app: Dashboard, name: str) -> str:
    """The line of the table that a setting is on."""
    begins = re.compile(rf"\W*({'|'.join(GROUPS)})?\s*{name}\s")
    return next(line for line in text_of(app).splitlines() if begins.match(f"{line} "))


async def test_my_settings_are_read_by_group_with_what_they_mean() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app, size=(160, 50)) as pilot:
        await press(pilot, "7")
        text = text_of(app)
        for name in set(SETTINGS) - {
            "chain_mb",
            "upload_mbps",
            "download_mbps",
            "memory_gb",
        }:  # of those something is measured
            assert KNOWN[name].meaning[:40] in row_of(app, name)
        for group in ("when", "heat and power", "network", "disk and memory", "machine"):
            assert group in text
        assert "always" in row_of(app, "schedule")
        assert "4096 MB" in row_of(app, "chain_mb")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "plain"), [(size, number % 2 > 0) for number, size in enumerate(SIZES)])
async def test_a_value_is_edited_where_it_stands(size: tuple[int, int], plain: bool) -> None:
    """At once: the peer is told, and what it says then is shown; with colours and lines, and without."""
    source = Attached()
    app = shown(source, ascii_only=plain, mono=plain)
    async with opened(app, size=size) as pilot:
        await edit(pilot, "max_power_w", "180")
        assert "180" in row_of(app, "max_power_w")
        assert source.limited.asked == []
        await press(pilot, "enter")
        assert source.limited.asked == [("set", {"values": {"max_power_w": 180}})]
        assert not app.query_one("#limits-input").display
        assert "180 W" in row_of(app, "max_power_w")
        assert source.swarm.peers[source.me].settings["max_power_w"] == 180
        await press(pilot, "down", "1")
        assert app.query_one("#home").display


@pytest.mark.slow
async def test_an_invalid_value_is_refused_in_the_peers_words_and_can_be_corrected() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app) as pilot:
        await edit(pilot, "max_power_w", "9000")
        await press(pilot, "enter")
        assert "max_power_w is 9000; it must be between 0 and 2000" in text_of(app)
        field = app.query_one("#limits-input", Input)
        assert (field.display, field.value) == (True, "9000")
        await press(pilot, "backspace")
        assert "it must be between" not in text_of(app)
        await press(pilot, "enter")
        assert [fields for _, fields in source.limited.asked] == [
            {"values": {"max_power_w": 9000}}, {"values": {"max_power_w": 900}},
        ]  # fmt: skip
        assert "900 W" in row_of(app, "max_power_w")


@pytest.mark.slow
async def test_what_is_no_number_is_refused_too() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app, size=(40, 12)) as pilot:
        await edit(pilot, "nice", "much")
        await press(pilot, "enter")
        text = " ".join(text_of(app).split())
        assert "nice is 'much'" in text
        assert app.query_one("#limits-input", Input).value == "much"


@pytest.mark.slow
async def test_esc_gives_up() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app) as pilot:
        await edit(pilot, "schedule", "q7 z")
        assert app.query_one("#limits-input", Input).value == "q7 z"  # letters are text here, no keys
        await press(pilot, "escape")
        assert "always" in row_of(app, "schedule")
        assert source.limited.asked == []
        await press(pilot, "up", "enter", "escape", "escape", "1")
        assert app.query_one("#home").display


@pytest.mark.slow
async def test_a_click_on_another_line_gives_up_too() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app) as pilot:
        await edit(pilot, "schedule", "sat")
        await pilot.click("#limits-table", offset=(5, 3))
        await settled(pilot)
        assert not app.query_one("#limits-input").display
        assert "always" in row_of(app, "schedule")
        await press(pilot, "enter")
        assert app.query_one("#limits-input", Input).value == ""  # that of pause_for, the fourth line
    assert source.limited.asked == []


@pytest.mark.slow
async def test_the_editor_begins_with_the_present_value_and_a_list_is_commas() -> None:
    source = Attached()
    source.limited.settings["pause_for"] = ["steam", "obs"]
    app = shown(source)
    async with opened(app) as pilot:
        await choose(pilot, "pause_for")
        await press(pilot, "enter")
        field = app.query_one("#limits-input", Input)
        assert field.value == "steam, obs"
        assert "for example blender, obs" in text_of(app)
        await press(pilot, "end", *", vlc", "enter")
        assert source.limited.settings["pause_for"] == ["steam", "obs", "vlc"]


@pytest.mark.slow
async def test_what_needs_a_new_start_says_so_before_and_after() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app) as pilot:
        await choose(pilot, "max_power_w")
        assert WHEN not in text_of(app)
        await edit(pilot, "devices", "cpu")
        assert WHEN in text_of(app)
        await press(pilot, "enter")
        assert f"devices {WHEN}" in text_of(app)
        assert "cpu" in row_of(app, "devices")


@pytest.mark.slow
async def test_what_a_setting_holds_up_stands_in_its_line() -> None:
    source = Attached(events=[PeerStateChanged(state="PAUSED", why="its schedule has it rest now")])
    source.limited.settings["schedule"] = "mon-fri 22:00-07:00"
    source.limited.holds = [{"code": "SCHEDULE", "why": "its schedule has it rest now", "until": None}]
    app = shown(source)
    async with opened(app, size=(140, 40)) as pilot:
        await press(pilot, "7")
        assert "▲" in row_of(app, "schedule")
        assert "its schedule has it rest now" in row_of(app, "schedule")
        assert "trains again by itself" in text_of(app)
        source.limited.holds = []
        await press(pilot, "p")  # any answer tells what holds now
        assert "▲" not in row_of(app, "schedule")
        assert "its owner paused it" in text_of(app)


@pytest.mark.slow
async def test_a_peer_that_computes_less_says_how_much_and_what_is_measured() -> None:
    source = Attached(events=[DeviceMeasured(temperature_c=74.0, power_w=170.0, memory_bytes=2_000_000_000)])
    source.limited.settings |= {"max_temperature_c": 75}
    source.limited.duty = 0.62
    source.limited.slowing = [{"code": "TEMPERATURE", "why": "it rests to keep the GPU at 75 C", "until": None}]
    app = shown(source)
    async with opened(app) as pilot:
        assert "Slowed down" in text_of(app)
        assert "computes 62 % of the time" in text_of(app)
        assert "trains again" not in text_of(app)
        await press(pilot, "7")
        assert "computes 62 % of the time" in text_of(app)
        assert "it rests to keep" in row_of(app, "max_temperature_c")
        assert "74 °C now" not in text_of(app)
        await press(pilot, "g", *["down"] * ORDER.index("max_temperature_c"))
        assert "74 °C now" in text_of(app)
        assert "170 W now" in row_of(app, "max_power_w")
        assert "2.0 GB now" in row_of(app, "memory_gb")


async def test_the_disk_is_measured_against_its_quota() -> None:
    measured = NetworkMeasured(
        addresses=[], reach="direct", bytes_sent=1, bytes_received=1, peers=[], disk_bytes=1_000_000_000,
        disk_quota_bytes=4_000_000_000,
    )  # fmt: skip
    source = Attached(events=[measured])
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "1.0 GB of 4.0 GB, 25.0 %" in row_of(app, "chain_mb")


async def test_a_long_value_is_read_in_full_below() -> None:
    source = Attached()
    long = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"
    source.limited.settings["schedule"] = long
    app = shown(source)
    async with opened(app, size=(80, 24)) as pilot:
        await choose(pilot, "schedule")
        assert long not in row_of(app, "schedule")
        assert long in text_of(app)


@pytest.mark.slow
async def test_read_only_edits_nothing_and_says_why() -> None:
    source = Attached()
    app = shown(source, read_only=True)
    async with opened(app) as pilot:
        await choose(pilot, "nice")
        assert "read-only: start without --read-only" in text_of(app)
        await press(pilot, "enter")
        assert not app.query_one("#limits-input").display
        assert "enter edit" not in text_of(app)
    assert source.limited.asked == []


async def test_a_recording_shows_the_settings_that_were_told_and_edits_nothing() -> None:
    app = Dashboard(RecordingSource(RECORDING), clock=lambda: 0.0)
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "this is a recording" in text_of(app)
        assert "4096 MB" in row_of(app, "chain_mb")
        await press(pilot, "enter")
        assert not app.query_one("#limits-input").display


async def test_who_has_no_peer_reads_that_settings_are_private() -> None:
    app = dashboard(SwarmState())
    async with opened(app) as pilot:
        await press(pilot, "7", "enter", "down")
        assert "settings never leave the machine of a peer" in text_of(app)


async def test_a_demo_says_how_one_of_its_peers_is_changed() -> None:
    source = Attached()
    source.me = ""
    source.remembering.takes = frozenset({"status", "leave"})
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "7", "enter")
        assert "homefires set KEY=VALUE --dir DIR/peer-1" in text_of(app)
        assert not app.query_one("#limits-input").display


@pytest.mark.slow
async def test_a_peer_that_does_not_answer_keeps_the_text() -> None:
    source = Attached()
    app = shown(source)
    async with opened(app) as pilot:
        source.remembering.reply = Reply(ok=False, error="the peer did not answer in 5 s")
        await edit(pilot, "nice", "19")
        await press(pilot, "enter")
        assert "the peer did not answer in 5 s" in text_of(app)
        source.ended = "it stopped: asked to leave"
        await press(pilot, "enter")
        assert "the peer is gone: it stopped" in text_of(app)
        assert app.query_one("#limits-input", Input).value == "19"
    assert source.remembering.asked == ["set"]


async def test_an_older_peer_that_tells_no_limits_is_read_from_its_start() -> None:
    source = Attached(events=[PeerStarted(name="old", version="0", settings={"threads": 3, "colour": "red"})])
    source.limited.settings = {}
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "3" in row_of(app, "threads")
        assert "red" in row_of(app, "colour")


async def test_what_another_program_changes_is_shown() -> None:
    source = Attached(events=[SettingsChanged(settings=dict(SETTINGS))])
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "7")
        source.limited.answer("set", {"values": {"upload_mbps": 20}})
        source.now_s += 2.0
        app.tick()
        await settled(pilot)
        assert "20 Mbit/s" in row_of(app, "upload_mbps")
        await press(pilot, "6")
        assert "upload_mbps: no cap -> 20 Mbit/s" in text_of(app)


async def test_a_change_that_only_events_tell_is_shown() -> None:
    source = Attached(events=[SettingsChanged(settings={"nice": 19})])
    source.remembering.takes = frozenset({"leave"})
    app = shown(source)
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "19" in row_of(app, "nice")
