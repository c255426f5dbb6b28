"""One peer with everything around it."""

from __future__ import annotations

import pytest

from peer import chain_follower
from peer import session as sessions
from peer.lifecycle import exposed_time as state
from peer.session import Peer
from peer.telemetry import reporter
from peer.telemetry.reporter import Reporter
from peer.train import saver
from tests.decided import AtOnce
from tests.peer.rounds.build import HEAD, NAMES
from tests.peer.story import Clock, Link, NoSnapshots, Shelf, Story, Trainer, spec


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    """A peer that has joined and is in step."""
    clock, link, events = Clock(), Link(), []
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(reporter, "time", clock)
    monkeypatch.setattr(chain_follower, "time", clock)
    monkeypatch.setattr(saver, "ThreadPoolExecutor", lambda **named: AtOnce())
    monkeypatch.setattr(state, "time", clock)
    link.load_object = lambda digest: b""  # type: ignore[attr-defined]
    trainer = Trainer(clock=clock)
    session = Reporter(events.append)
    shelf = Shelf(clock)
    peer = Peer(
        link, trainer, shelf, NoSnapshots(), spec(), session, b"state", HEAD.anchor, NAMES,  # type: ignore[arg-type]
        in_step=True,
    )  # fmt: skip
    peer.round_began_at = clock.now
    peer.progress.restart()
    return Story(clock, link, trainer, shelf, events, session, peer)
