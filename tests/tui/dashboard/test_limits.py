from __future__ import annotations

from dataclasses import fields

from peer.events import NetworkMeasured
from peer.spec import PeerSettings
from tests.tui.dashboard.canned import dashboard
from tests.tui.dashboard.live import Attached
from tests.tui.dashboard.screen import opened, press, text_of
from tui.dashboard.app import Dashboard
from tui.dashboard.limits import MEANINGS
from tui.snapshot import Swarm


def test_every_setting_is_explained() -> None:
    assert {field.name for field in fields(PeerSettings)} - set(MEANINGS) == set()


async def test_my_settings_are_read_with_what_they_mean() -> None:
    source = Attached()
    app = Dashboard(source, clock=lambda: source.now_s)
    async with opened(app) as pilot:
        await press(pilot, "7")
        text = text_of(app)
        for name, value in source.swarm.peers[source.me].settings.items():
            assert name in text
            assert str(value) in text or isinstance(value, list | float)
        assert MEANINGS["chain_mb"] in text
        assert "edited here once the volunteer settings exist" in text


async def test_the_disk_is_measured_against_its_quota() -> None:
    measured = NetworkMeasured(
        addresses=[], reach="direct", bytes_sent=1, bytes_received=1, peers=[], disk_bytes=1_000_000_000,
        disk_quota_bytes=4_000_000_000,
    )  # fmt: skip
    source = Attached(events=[measured])
    app = Dashboard(source, clock=lambda: source.now_s)
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "1.0 GB of 4.0 GB · 25.0 %" in text_of(app)


async def test_who_has_no_peer_reads_that_settings_are_private() -> None:
    app = dashboard(Swarm())
    async with opened(app) as pilot:
        await press(pilot, "7")
        assert "settings never leave the machine of a peer" in text_of(app)
