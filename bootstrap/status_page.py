"""The status of the organiser's node on loopback: an HTML page, JSON, and Prometheus metrics."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bootstrap.html_page import fact_table, peer_cell, table, whole_page
from dht.records import PeerRecord
from peer.node.telemetry.http import Page, Pages
from peer.node.telemetry.metrics import Metrics
from peer.schema.events import AlertRaised, BoardSeen, Event, InviteIssued
from peer.schema.spec_fields import RunTable

MAX_ALERTS = 10
MAX_PEERS = 256
"""Peer ids cost nothing: of more than so many only the first are listed."""
SHOWN = ("name", "round", "ready", "leaving", "version")
"""Of a peer, as it says itself; its round is -1 before the run began."""
HTML, JSON = "text/html; charset=utf-8", "application/json"


class Health:
    """What is known about a bootstrap node. Its loop calls `note` and `see`; other threads make the pages."""

    def __init__(self, run: RunTable, directory: Path, t: float, report: Callable[[Event], None]) -> None:
        self._run, self._directory, self._started_t, self._report = run, directory, t, report
        self._metrics = Metrics("", t)
        self._lock = threading.Lock()
        self._peers: list[dict[str, Any]] = []
        self._alerts: deque[dict[str, Any]] = deque(maxlen=MAX_ALERTS)
        self._here = self._invites = 0
        self._told: BoardSeen | None = None
        self._has_begun = False
        self._round = -1
        """Where the run is, also while nobody is here; -1 before it has begun."""

    def note(self, event: Event) -> None:
        self._metrics.note(type(event).__name__, vars(event))
        with self._lock:
            self._invites += isinstance(event, InviteIssued)
            if isinstance(event, AlertRaised):
                self._has_begun |= event.code == "GENESIS"
                self._alerts.append({"t": round(time.time(), 1), **vars(event)})

    def found(self, here: int) -> None:
        self._here = here
        self._metrics.set(founders_here=here)

    def begin(self, round: int) -> None:
        """The run has begun, now or before this process, and stood at anchor `round` when this node looked last."""
        self._has_begun, self._round = True, max(self._round, round)

    def see(self, heads: Mapping[str, PeerRecord]) -> None:
        shown = sorted(heads.items())[:MAX_PEERS]
        seen = [{"peer": peer} | {name: getattr(head, name) for name in SHOWN} for peer, head in shown]
        with self._lock:
            self._peers = seen
        if (round := _round_of(seen)) >= 0:
            self._round = round
        self._metrics.set(peers_seen=len(heads), round=self._round)
        told = BoardSeen(
            present=len(heads), round=self._round if self._round >= 0 else None, missing=self._missing
        )  # fmt: skip
        if told != self._told:
            self._told = told
            self._report(told)

    @property
    def _missing(self) -> int:
        """For how many peers the run waits before it begins."""
        return 0 if self._has_begun else max(0, self._run.founders - self._here)

    def pages(self) -> Pages:
        return {"/": self._page, "/health.json": self._json, "/metrics": self._measure}

    def known(self, now_s: float) -> dict[str, Any]:
        with self._lock:
            peers, alerts = self._peers, list(self._alerts)
        return {
            "run": self._run.name, "uptime_s": round(now_s - self._started_t), "has_begun": self._has_begun,
            "founders_here": self._here, "founders_needed": self._run.founders, "round": self._round,
            "rounds": self._run.rounds, "invites_issued": self._invites, "disk_bytes": _size_bytes(self._directory),
            "peers": peers, "alerts": alerts,
        }  # fmt: skip

    def _json(self) -> Page:
        return Page(content_type=JSON, body=json.dumps(self.known(time.time()), indent=1).encode())

    def _measure(self) -> Page:
        self._metrics.set(disk_bytes=_size_bytes(self._directory))
        return self._metrics.page()

    def _page(self) -> Page:
        return Page(content_type=HTML, body=html_of(self.known(time.time())).encode())


def html_of(known: Mapping[str, Any]) -> str:
    """The page for people."""
    missing = max(0, known["founders_needed"] - known["founders_here"])
    waiting = f"waits for {missing} more of {known['founders_needed']} first peers; it then begins by itself"
    began = "yes" if known["has_begun"] else waiting
    facts = {
        "begun": began, "round of most peers": _round_in_words(known), "peers on the board": len(known["peers"]),
        "up for": _duration(known["uptime_s"]), "invites printed": known["invites_issued"],
        "on disk": f"{known['disk_bytes'] / 1e6:.1f} MB",
    }  # fmt: skip
    peers = [
        (peer_cell(seen["name"], seen["peer"]), f"{seen['round']:,}", _doing(seen), seen["version"])
        for seen in known["peers"]
    ]  # fmt: skip
    alerts = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each["t"])), each["code"], each["text"])
        for each in known["alerts"]
    ]
    return whole_page(
        f"homefires: {known['run']}",
        f"{fact_table(facts)}<h2>Peers</h2>{table(peers, ('peer', 'round', 'state', 'version'))}"
        f"<h2>Alerts</h2>{table(alerts[::-1], ('when (UTC)', 'code', 'text'))}"
        '<p><a href="/health.json">as JSON</a>, <a href="/metrics">metrics</a></p>',
    )


def _round_in_words(known: Mapping[str, Any]) -> str:
    if known["round"] < 0:
        return "none yet"
    return f"{known['round']} of {known['rounds']}" if known["rounds"] else str(known["round"])


def _doing(seen: Mapping[str, Any]) -> str:
    if seen["leaving"]:
        return "leaving"
    return "ready" if seen["ready"] else "training"


def _round_of(seen: Sequence[Mapping[str, Any]]) -> int:
    """The median round: a peer that claims too much does not move it. -1 without a peer that trains."""
    rounds = [each["round"] for each in seen if each["round"] >= 0]
    return statistics.median_high(rounds) if rounds else -1


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours // 24} d {hours % 24:02} h {rest // 60:02} min"


def _size_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # files come and go
            total += path.stat().st_size if path.is_file() else 0
    return total
