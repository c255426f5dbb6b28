"""What peers say of themselves on the board, as news."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from dht.records import PeerRecord
from peer.events import ReportReceived

PEERS_MOST = 256
"""Peer ids cost nothing: more than so many are not listened to, and who was heard before comes first."""
ANCHORS_MOST = 8
"""Of a peer. A snapshot is offered when whoever wrote it is further already."""
AGAIN_S = 30.0
"""Who says the same for this long is told of again: it is still there."""


class AnnouncementLog:
    """The board's HEADs, which are signed by those of whom they speak, as they were read last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.heads: Mapping[str, PeerRecord] = {}
        self._clock = clock
        self._stood: dict[str, dict[bytes, bytes]] = {}
        """By peer: at which anchors it stood, the newest last, and the hash of its bits there."""
        self._told: dict[str, tuple[ReportReceived, float]] = {}
        """By peer: what was told of it, and when."""

    def news(self, heads: Mapping[str, PeerRecord]) -> list[ReportReceived]:
        """Take in what the board says now; returns what is not as it was, and now and then what still is."""
        now = self._clock()
        heard_first = sorted(heads, key=lambda peer: (peer not in self.heads, peer))
        self.heads = {peer: heads[peer] for peer in sorted(heard_first[:PEERS_MOST])}
        self._stood = {peer: _noted(self._stood.get(peer, {}), head) for peer, head in self.heads.items()}
        reports = {peer: _report(peer, head) for peer, head in self.heads.items()}
        fresh = {peer: report for peer, report in reports.items() if self._is_due(peer, report, now)}
        kept = {peer: told for peer, told in self._told.items() if peer in reports}
        self._told = kept | {peer: (report, now) for peer, report in fresh.items()}
        return list(fresh.values())

    def _is_due(self, peer: str, report: ReportReceived, now: float) -> bool:
        before, told_at = self._told.get(peer, (None, now))
        return report != before or now - told_at >= AGAIN_S

    def state_of(self, anchor: bytes, of: Iterable[str]) -> bytes:
        """The hash of the bits that most of these peers said when they stood at this anchor; empty if none did."""
        said = Counter(self._stood[peer][anchor] for peer in of if anchor in self._stood.get(peer, {}))
        return said.most_common(1)[0][0] if said else b""


def _noted(stood: Mapping[bytes, bytes], head: PeerRecord) -> dict[bytes, bytes]:
    if not head.anchor or not head.state:
        return dict(stood)
    others = {anchor: state for anchor, state in stood.items() if anchor != head.anchor}
    return dict(list({**others, head.anchor: head.state}.items())[-ANCHORS_MOST:])


def _report(peer: str, head: PeerRecord) -> ReportReceived:
    began = bool(head.anchor)  # before the first round a peer waits for the organiser, ready for nothing
    return ReportReceived(
        about=peer, round=max(0, head.round), ready=head.ready and began, tokens=head.tokens, steps=head.steps,
        name=head.name, leaving=head.leaving, loss=head.loss, evaluated=head.evaluated,
        evaluated_round=head.evaluated_round or 0, tokens_per_s=head.tokens_per_s or 0.0,
        device_gb=head.device_gb or 0.0,
    )  # fmt: skip
