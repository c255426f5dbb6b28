"""The node's pages as a browser lays them out, on a phone and on a desk, whatever peers call themselves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from bootstrap.public_ledger import GivenWork, PublicLedger
from bootstrap.status_page import html_of
from dht.identity import Identity
from dht.records import MAX_LABEL_CHARS
from peer.schema.events import AlertRaised
from peer.testing.child_process import HANG_S
from tests.bootstrap.test_public_page import facts, page_of
from tests.bootstrap.test_status_page import head, health
from tests.devices import find_browser

pytestmark = [pytest.mark.browser, pytest.mark.outside]
WIDTHS = (390, 1280)
LONGEST = "W" * MAX_LABEL_CHARS
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 9)]
MOST_ROW_PX = 400
"""Of a peer: sixteen lines, eight of its id and eight of a name of the widest letters."""
MEASURE = """
<script>addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument
    return {
      wide: page.documentElement.scrollWidth,
      rows: [...page.querySelectorAll("tr")].filter(row => row.cells.length > 2).map(row => row.offsetHeight),
    }
  })
  document.body.replaceChildren(JSON.stringify(seen))
})</script>
"""


def public_page(tmp_path: Path) -> str:
    given = {peer: GivenWork(name=LONGEST, rounds=100_000, last=100_000, weight=0.1) for peer in PEERS}
    ledger = PublicLedger(looked=100_000, given=given, losses=((1, 3.0), (2, 2.0)))
    return page_of(facts(ledger=ledger, invite="hf1:" + "x" * 8192))


def status_page(tmp_path: Path) -> str:
    found = health(tmp_path)
    found.see({peer: head(5, LONGEST) for peer in PEERS})
    found.note(AlertRaised(level="info", code="FOUNDERS", text=f"{PEERS[0]} is here"))
    return html_of(found.known(0.0))


def laid_out(page: str, tmp_path: Path) -> list[dict[str, Any]]:
    """By width. The page stands in frames of a page that may have a script, as it itself may not."""
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{escape(page)}"></iframe>' for width in WIDTHS)
    (tmp_path / "frames.html").write_text(f"<!doctype html><style>iframe{{border:0}}</style><body>{frames}{MEASURE}")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom")
    folder = f"--user-data-dir={tmp_path / 'browser'}"
    done = subprocess.run(
        [find_browser(), *options, folder, (tmp_path / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    (told,) = re.findall(r"<body>(\[.*\])</body>", done.stdout)
    seen: list[dict[str, Any]] = json.loads(unescape(told))
    return seen


@pytest.mark.parametrize("made", [public_page, status_page])
def test_a_peer_has_few_lines_and_nothing_is_wider_than_the_screen(made: Callable[[Path], str], tmp_path: Path) -> None:
    for width, seen in zip(WIDTHS, laid_out(made(tmp_path), tmp_path), strict=True):
        assert seen["wide"] <= width
        assert len(seen["rows"]) > len(PEERS)
        assert max(seen["rows"]) <= MOST_ROW_PX
