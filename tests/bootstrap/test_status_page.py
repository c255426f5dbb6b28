"""What the organiser's page, its JSON and its metrics say, whatever peers say of themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from bootstrap.status_page import Health, html_of
from dht.identity import Identity
from dht.records import PeerRecord
from peer.schema.events import AlertRaised, BoardSeen, Event, InviteIssued
from peer.schema.spec_fields import RunTable


def head(round: int, name: str = "alice", *, ready: bool = False) -> PeerRecord:
    return PeerRecord(
        run=bytes(32), anchor=b"", round=round, weight=0, state=b"", ready=ready, tokens=0, steps=0,
        leaving=False, name=name, version="0.1",
    )  # fmt: skip


def health(directory: Path, report: Callable[[Event], None] = lambda event: None) -> Health:
    return Health(RunTable(name="tiny", founders=3, rounds=100), directory, 1000.0, report)


def test_before_the_run_begins_it_says_who_is_missing(tmp_path: Path) -> None:
    found = health(tmp_path)
    found.see({"p1": head(-1), "p2": head(-1)})
    found.found(2)
    known = found.known(1060.0)
    assert (known["founders_here"], known["founders_needed"], known["has_begun"], known["round"]) == (2, 3, False, -1)
    assert known["uptime_s"] == 60
    assert "waits for 1 more of 3 first peers; it then begins by itself" in html_of(known)


def test_events_are_counted_and_the_newest_alerts_shown(tmp_path: Path) -> None:
    found = health(tmp_path)
    found.note(InviteIssued(invite="hf1:very-secret"))
    for number in range(20):
        found.note(AlertRaised(level="info", code="FOUNDERS", text=f"{number} of 3"))
    found.note(AlertRaised(level="info", code="GENESIS", text="the run begins"))
    (tmp_path / "genesis").write_bytes(b"x" * 1000)
    known = found.known(1000.0)
    assert (known["invites_issued"], known["has_begun"], known["disk_bytes"]) == (1, True, 1000)
    assert len(known["alerts"]) == 10
    assert "hf1:" not in json.dumps(known) + html_of(known), "who reads the page is not invited by that"


def test_a_peer_is_shown_with_its_whole_id(tmp_path: Path) -> None:
    """`homefires quarantine` asks for all of it."""
    found, peer = health(tmp_path), Identity.from_seed(b"p" * 32).peer_id
    found.see({peer: head(3)})
    assert f"<td>alice\n{peer}</td>" in html_of(found.known(0.0))


def test_one_that_claims_too_much_moves_no_figure(tmp_path: Path) -> None:
    found = health(tmp_path)
    found.see({"p1": head(7), "p2": head(7), "p3": head(1 << 60)})
    assert found.known(0.0)["round"] == 7


def test_the_console_is_told_when_the_board_changes(tmp_path: Path) -> None:
    """Of whoever is there what the JSON counts, and nothing twice."""
    told: list[Event] = []
    found = health(tmp_path, told.append)
    for here, heads in (
        (0, {}),
        (1, {"p1": head(-1)}),
        (1, {"p1": head(7), "p2": head(7)}),
        (1, {"p1": head(7), "p2": head(7)}),
    ):
        found.found(here)
        found.see(heads)
    found.begin(7)
    found.see({"p1": head(7)})
    assert told == [
        BoardSeen(present=0, missing=3), BoardSeen(present=1, missing=2), BoardSeen(present=2, round=7, missing=2),
        BoardSeen(present=1, round=7),
    ]  # fmt: skip


def test_who_looks_when_all_have_gone_hears_where_the_run_is(tmp_path: Path) -> None:
    """Also a node that was started again."""
    told: list[Event] = []
    found = health(tmp_path, told.append)
    found.begin(40)
    found.see({})
    assert "<td>40 of 100</td>" in html_of(found.known(0.0))
    found.see({"p1": head(42)})
    found.see({})
    assert told[-1] == BoardSeen(present=0, round=42)
    assert found.known(0.0)["round"] == 42
    assert "homefires_round 42.0" in found.pages()["/metrics"]().body.decode()


def test_the_page_fits_a_phone_and_says_of_how_many_rounds_and_on_which_day(tmp_path: Path) -> None:
    found = health(tmp_path)
    found.note(AlertRaised(level="info", code="GENESIS", text="the run begins"))
    found.see({"p1": head(42)})
    page = html_of(found.known(0.0))
    assert "<td>42 of 100</td>" in page
    assert '<meta name="viewport" content="width=device-width' in page
    assert time.strftime("<td>%Y-%m-%d ", time.gmtime()) in page


def test_no_name_becomes_a_tag(tmp_path: Path) -> None:
    """And there is neither a script nor anything from elsewhere."""
    found = health(tmp_path)
    found.see({"p1": head(3, '<script src="//x">')})
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    page = found.pages()["/"]()
    parser.feed(page.body.decode())
    assert {"html", "h1", "table", "tr", "td"} <= set(tags)
    assert not {"script", "img", "link", "iframe"} & set(tags)
    assert "//x" not in page.body.decode().replace("&quot;//x&quot;", "")


def test_json_and_metrics_say_the_same(tmp_path: Path) -> None:
    found = health(tmp_path)
    found.see({f"p{number}": head(5, ready=True) for number in range(3)})
    found.found(3)
    pages = found.pages()
    known = json.loads(pages["/health.json"]().body)
    text = pages["/metrics"]().body.decode()
    assert (len(known["peers"]), known["round"]) == (3, 5)
    for line in ("homefires_peers_seen 3.0", "homefires_round 5.0", "homefires_founders_here 3.0"):
        assert line in text
    assert "homefires_disk_bytes" in text
