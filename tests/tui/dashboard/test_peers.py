"""The table of peers, and the page of one."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from textual.geometry import Region
from textual.widgets import Input

from peer.schema.events import NetworkMeasured
from tests.tui.dashboard.canned import Canned, dashboard, peer_id, penalty, swarm_of
from tests.tui.dashboard.screen import opened, press, settled, text_of
from tui.dashboard.app import Dashboard
from tui.dashboard.screens.peers import COLUMNS, PeersPanel, matches, pages_of_columns
from tui.dashboard.view import View
from tui.dashboard.widgets.table import RowTable
from tui.swarm.snapshot import PeerView, SwarmState

STATES = ("JOINING", "SYNCING", "TRAINING", "READY", "AVERAGING", "LATE", "PAUSED", "PENALISED", "GONE")


def names(app: Dashboard) -> list[str]:
    """Of all rows, from top to bottom."""
    return [peer.label for peer in app.query_one(PeersPanel).listed]


def with_peer(swarm: SwarmState, number: int, **changes: object) -> SwarmState:
    view: PeerView = replace(swarm.peers[peer_id(number)], **changes)  # type: ignore[arg-type]
    return replace(swarm, peers=MappingProxyType({**swarm.peers, view.peer: view}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "seen", "hidden"),
    [
        (40, ("state", "name", "tok/s", "behind"), ("weight", "penalty")),
        (60, ("tokens/s", "behind"), ("weight", "ping", "client")),
        (80, ("weight", "last seen", "penalty"), ("ping", "client")),
        (120, ("device", "Mbit/s", "ping", "ok/late/no"), ("path", "norm", "client")),
        (160, ("path", "norm", "loss", "client", "uptime"), ("id",)),
        (200, ("Mbit/s up/down", "round trip", "accepted/late/rejected", "id"), ()),
    ],
)
async def test_a_wider_terminal_has_more_columns(width: int, seen: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    app = dashboard(swarm_of(3))
    async with opened(app, size=(width, 30)) as pilot:
        await press(pilot, "2")
        heading = next(line for line in text_of(app).splitlines() if "name" in line)
        assert [name for name in seen if name not in heading] == []
        assert [name for name in hidden if name in heading] == []


async def test_every_state_has_its_word_and_a_sign_of_its_own() -> None:
    swarm = swarm_of(len(STATES))
    for number, state in enumerate(STATES, start=1):
        swarm = with_peer(swarm, number, state=state)
    app = dashboard(swarm)
    async with opened(app) as pilot:
        await press(pilot, "2")
        rows = [line.split() for line in text_of(app).splitlines() if "peer-" in line and line.split()[1] in STATES]
        assert {row[1] for row in rows} == set(STATES)
        assert len({row[0] for row in rows}) == len(STATES)


async def test_my_peer_stands_on_top_however_it_is_sorted() -> None:
    app = dashboard(swarm_of(4), me=peer_id(3))
    async with opened(app) as pilot:
        await press(pilot, "2")
        assert names(app)[0] == "peer-3"
        await press(pilot, "full_stop", "full_stop", "r")
        assert names(app)[0] == "peer-3"


async def test_dot_and_comma_sort_by_another_column_and_r_reverses() -> None:
    swarm = swarm_of(3)
    for number, speed in ((1, 200.0), (2, 100.0), (3, 300.0)):
        swarm = with_peer(swarm, number, tokens_per_s=speed)
    app = dashboard(swarm)
    async with opened(app) as pilot:
        await press(pilot, "2", "full_stop")
        assert names(app) == ["peer-2", "peer-1", "peer-3"]
        await press(pilot, "r")
        assert names(app) == ["peer-3", "peer-1", "peer-2"]
        await press(pilot, "r", "comma")
        assert names(app) == ["peer-1", "peer-2", "peer-3"]


async def test_round_trips_are_in_the_order_of_time_and_not_of_letters() -> None:
    """9 ms come before 120 ms, and those that were not measured last."""
    rows: list[dict[str, Any]] = [
        {"peer": peer_id(number), "rtt_s": rtt_s} for number, rtt_s in ((2, 0.12), (3, 0.009), (4, 1.2))
    ]
    network = NetworkMeasured(addresses=[], reach="", bytes_sent=0, bytes_received=0, peers=rows)
    app = dashboard(with_peer(swarm_of(5), 1, network=network), me=peer_id(1))
    async with opened(app, size=(120, 40)) as pilot:
        await press(pilot, "2")
        while app.query_one(PeersPanel).sort != "ping":
            await press(pilot, "full_stop")
        assert names(app) == ["peer-1", "peer-3", "peer-2", "peer-4", "peer-5"]


async def test_names_and_devices_have_the_spare_cells_before_headings() -> None:
    """Nothing is cut while there is room for it."""
    name, device = "a-volunteer-with-a-long-name", "NVIDIA GeForce RTX 4090"
    app = dashboard(with_peer(swarm_of(3), 2, name=name, device=device))
    async with opened(app, size=(200, 30)) as pilot:
        await press(pilot, "2")
        row = next(line for line in text_of(app).splitlines() if name in line)
        assert device in row


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
async def test_w_shows_the_columns_that_had_no_room(size: tuple[int, int]) -> None:
    """Page by page, every column once, each page with state and name, and at last the first page again."""
    app = dashboard(swarm_of(3))
    async with opened(app, size=size) as pilot:
        await press(pilot, "2")
        panel = app.query_one(PeersPanel)
        pages = pages_of_columns(app.view())
        for page in (*pages, pages[0]):
            assert [column.name for column in panel.columns] == [column.name for column in page]
            assert all(column.heading("") in text_of(app) for column in panel.columns)
            await press(pilot, "w")
        told = [column.name for column in pages[0]] + [column.name for page in pages[1:] for column in page[2:]]
        assert told == [column.name for column in COLUMNS]


@pytest.mark.slow
async def test_a_filter_shows_what_matches_and_with_a_mark_what_does_not() -> None:
    app = dashboard(swarm_of(12, penalties=[penalty(until=99)]))
    async with opened(app) as pilot:
        await press(pilot, "2", "slash", *"late", "enter")
        assert names(app) == ["peer-2"]
        assert "1 of 12 peers match" in text_of(app)
        await press(pilot, "slash", "home", "exclamation_mark", "enter")
        assert "peer-2" not in names(app)
        assert len(names(app)) == 11
        await press(pilot, "escape")
        assert len(names(app)) == 12


async def test_letters_typed_into_the_filter_are_no_commands() -> None:
    app = dashboard(swarm_of(3))
    async with opened(app) as pilot:
        await press(pilot, "2", "slash", *"qa1")
        assert app.query_one("#peers-filter", Input).value == "qa1"
        assert app.return_value is None
        assert app.query_one("#peers").display


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [("", True), ("PEER-2", True), ("train", False), ("late", True), ("!peer-2", False), ("x9", False)],
)
def test_what_a_filter_matches(wanted: str, matched: bool) -> None:
    swarm = swarm_of(3, penalties=[penalty(until=99)])
    assert matches(swarm.peers[peer_id(2)], wanted, View(swarm=swarm, now=0.0)) is matched


async def test_a_penalty_that_lasts_is_in_the_table_with_the_rounds_left() -> None:
    app = dashboard(swarm_of(3, penalties=[penalty(until=8), penalty("STALE", about=3, until=4)]))
    async with opened(app) as pilot:
        await press(pilot, "2")
        assert "LATE 2 r" in text_of(app)
        assert "STALE" not in text_of(app)


async def test_only_the_row_that_changed_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Canned(swarm_of(50))
    app = Dashboard(source, clock=lambda: source.swarm.last_t or 0.0)
    drawn: list[Region] = []
    original = RowTable.refresh

    def refresh(table: RowTable, *regions: Region, **options: bool) -> RowTable:
        drawn.extend(regions)
        return original(table, *regions, **options)

    async with opened(app) as pilot:
        await press(pilot, "2")
        monkeypatch.setattr(RowTable, "refresh", refresh)
        source.swarm = with_peer(source.swarm, 12, tokens_per_s=123.0)
        app.tick()
        await settled(pilot)
        row = names(app).index("peer-12")
        assert [(region.y, region.height) for region in drawn] == [(row, 1)]


async def test_the_cursor_stays_on_its_peer_when_the_order_changes() -> None:
    app = dashboard(swarm_of(5))
    async with opened(app) as pilot:
        await press(pilot, "2", "down", "r")
        table = app.query_one(RowTable)
        assert names(app)[table.cursor_row] == "peer-2"


async def test_a_peer_that_vanishes_leaves_the_table() -> None:
    """As when a recording is wound back."""
    source = Canned(swarm_of(5))
    app = Dashboard(source, clock=lambda: 0.0)
    async with opened(app) as pilot:
        await press(pilot, "2", "down", "down", "down", "down")
        source.swarm = swarm_of(2)
        app.tick()
        await settled(pilot)
        assert names(app) == ["peer-1", "peer-2"]
        await press(pilot, "enter")
        assert app.query_one("#peer").display


async def test_enter_tells_all_about_a_peer() -> None:
    swarm = swarm_of(3, penalties=[penalty(until=4), penalty("ANOMALY", told=5, factor=0.0, until=99)])
    app = dashboard(with_peer(swarm, 2, version="9.9", device="cuda", accepted=4, late=1))
    async with opened(app) as pilot:
        await press(pilot, "2", "down", "enter")
        text = text_of(app)
        for fact in (
            peer_id(2), "4 accepted · 1 late", "homefires 9.9", "cuda", "counts 50 %", "over since round 4",
            "counts nothing", "until round 99 (93 left)", "12 of 24 parts came in time",
            "weighed 33.3 %, by tokens 33.3 %",
        ):  # fmt: skip
            assert fact in text


@pytest.mark.slow
async def test_the_page_of_a_peer_says_how_fast_it_can_send() -> None:
    """If it has pledged it; nothing stands for what is not known."""
    app = dashboard(with_peer(swarm_of(3), 2, upload_bps=18_400_000), me=peer_id(1))
    async with opened(app, size=(100, 40)) as pilot:
        await press(pilot, "2", "enter")
        assert "Mbit/s up" not in text_of(app)
        await press(pilot, "escape", "down", "enter")
        assert "18.4 Mbit/s up" in text_of(app)


@pytest.mark.parametrize(("peers", "shown"), [(5, True), (30, False)])
async def test_few_peers_leave_room_for_the_page_of_the_selected_one(peers: int, shown: bool) -> None:
    app = dashboard(swarm_of(peers))
    async with opened(app, size=(120, 40)) as pilot:
        await press(pilot, "2", "down")
        assert (f"peer-2  {peer_id(2)}" in text_of(app)) is shown
        assert len(names(app)) == peers


@pytest.mark.slow
async def test_hundreds_of_peers_fit() -> None:
    app = dashboard(swarm_of(200))
    async with opened(app) as pilot:
        await press(pilot, "2")
        assert len(names(app)) == 200
        await press(pilot, "G")
        assert app.query_one(PeersPanel).display
