"""The Network screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.schema.events import NetworkMeasured, TransferProgressed
from tests.tui.dashboard.canned import dashboard, peer_id, swarm_of, visit, with_network
from tests.tui.dashboard.screen import text_of
from tui.swarm.snapshot import SwarmState

ME = peer_id(1)


def measured(peers: int = 5, *, reach: str = "direct") -> NetworkMeasured:
    rows = [
        {
            "peer": peer_id(number), "address": f"/ip4/10.0.0.{number}/tcp/4001", "relayed": number == 3,
            "bytes_sent": number * 10**6, "bytes_received": 10**5, "rtt_s": None if number == 4 else 0.021,
        }
        for number in range(2, peers + 1)
    ]  # fmt: skip
    return NetworkMeasured(
        addresses=["/ip4/192.168.1.7/tcp/4001"], reach=reach, bytes_sent=123_456_789, bytes_received=98_765_432,
        peers=rows, disk_bytes=812_000_000, disk_quota_bytes=4_096_000_000, upload_bps=18_400_000,
    )  # fmt: skip


SNAPSHOT = TransferProgressed(what="snapshot", source="peer-2, peer-3", bytes_done=10**8, bytes_total=4 * 10**8)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
async def test_every_size_says_how_one_is_reached_and_by_whom(size: tuple[int, int]) -> None:
    app = dashboard(with_network(swarm_of(5), ME, measured(), SNAPSHOT), me=ME)
    async with app.run_test(size=size) as pilot:
        await visit(pilot, "5")
        text = text_of(app)
    for fact in ("direct", "/ip4/192.168.1.7/tcp/4001", "D direct", "R relayed", "peer-2", "21 ms", "N/A"):
        assert fact in text
    assert max(len(line) for line in text.splitlines()) <= size[0]


async def test_traffic_disk_and_what_arrives_from_whom() -> None:
    app = dashboard(with_network(swarm_of(5), ME, measured(), SNAPSHOT), me=ME)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5")
        text = text_of(app)
    for fact in (
        "↑ 123.5 MB  ↓ 98.8 MB since it started", "18.4 Mbit/s can be sent",
        "↑ 100.0 kB", "of 5 peers", "812.0 MB of 4.1 GB, 19.8 %",
        "25 %  snapshot, 100.0 MB of 400.0 MB from peer-2, peer-3", "/ip4/10.0.0.2/tcp/4001", "2.0 MB",
    ):  # fmt: skip
        assert fact in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reach", "words"),
    [
        ("relayed", "come through a relay"), ("", "not known yet"), ("direct", "dial this machine"),
        ("teleported", "teleported"),
    ],
)  # fmt: skip
async def test_the_verdict_in_words(reach: str, words: str) -> None:
    app = dashboard(with_network(swarm_of(2), ME, measured(2, reach=reach)), me=ME)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5")
        assert words in text_of(app)


async def test_a_recording_without_figures_says_what_is_not_known() -> None:
    app = dashboard(swarm_of(3))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5", "down", "up")
        text = text_of(app)
    assert "no figures about the network" in text
    assert "↑ 100.0 kB" in text
    assert "peer-3         ? unknown" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120])
async def test_a_node_that_is_no_member_is_said_to_be_none(width: int) -> None:
    """Every peer is connected with the bootstrap node, of which nobody hears as a peer. It comes last."""
    app = dashboard(with_network(swarm_of(3), ME, measured(4)), me=ME)
    async with app.run_test(size=(width, 40)) as pilot:
        await visit(pilot, "5")
        lines = [line for line in text_of(app).splitlines() if " D direct" in line or " R relayed" in line]
    assert ["not a member" in line for line in lines] == [False, False, True]


@pytest.mark.parametrize("width", [40, 120])
async def test_the_organisers_node_is_called_so(width: int) -> None:
    """Every volunteer is connected with it, and may wonder who that is."""
    event = measured(5)
    event = replace(
        event, peers=[{**row, "organiser": True} if row["peer"] == peer_id(5) else row for row in event.peers]
    )
    app = dashboard(with_network(swarm_of(3), ME, event), me=ME)
    async with app.run_test(size=(width, 40)) as pilot:
        await visit(pilot, "5")
        rows = [line.split()[0] for line in text_of(app).splitlines() if " D direct" in line or " R relayed" in line]
    assert rows == ["peer-2", "peer-3", "not", "organiser"]


async def test_nobody_known_yet_is_said() -> None:
    app = dashboard(SwarmState())
    async with app.run_test(size=(80, 24)) as pilot:
        await visit(pilot, "5", "down")
        assert "nobody is known yet" in text_of(app)


async def test_without_a_peer_of_ones_own_the_measured_one_is_shown_by_name() -> None:
    app = dashboard(with_network(swarm_of(4), peer_id(3), measured(4)))
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5")
        assert "Peer       peer-3" in text_of(app)


async def test_the_table_scrolls_and_opens_a_peer() -> None:
    app = dashboard(with_network(swarm_of(60), ME, measured(60)), me=ME)
    async with app.run_test(size=(120, 30)) as pilot:
        await visit(pilot, "5", "j", "k", "pagedown", "pageup", "G")
        assert "peer-60 " in text_of(app)
        await visit(pilot, "g")
        assert "peer-2 " in text_of(app)
        await visit(pilot, "enter")
        assert app.query_one("#panels").current == "peer"  # type: ignore[attr-defined]
        assert app.view().selected == peer_id(2)


async def test_rows_of_another_client_that_lack_fields_do_not_break_it() -> None:
    odd = NetworkMeasured(
        addresses=[], reach="", bytes_sent=0, bytes_received=0, peers=[{}, {"peer": peer_id(2), "rtt_s": "soon"}]
    )
    app = dashboard(with_network(swarm_of(2), ME, odd), me=ME)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5")
        assert "Peers · 1" in text_of(app)
        assert "none known" in text_of(app)


async def test_ascii_and_transfers_of_others() -> None:
    app = dashboard(with_network(swarm_of(3), peer_id(2), measured(3), SNAPSHOT), me=ME, ascii_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await visit(pilot, "5")
        text = text_of(app)
    assert text.isascii()
    assert "peer-2: snapshot" in text
