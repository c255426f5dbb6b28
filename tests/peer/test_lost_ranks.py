"""A peer that loses a rank: one life ends, and the next begins with a link of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dht.errors import DeviceLost, Unreachable
from peer import session
from peer.network.link.channel import LinkLost
from peer.network.link.handle import LeaveRequested
from peer.node.lifecycle.inputs_effects import LeaveAsked, Post, Submit, TrainerFailed, Work
from peer.node.lifecycle.state import LINKS_LOST
from peer.node.telemetry.reporter import Reporter
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.parallel.pipeline.home_group import GarbageHome, HomeGone
from peer.parallel.ranks.rank_group import RankLost
from peer.parallel.ranks.roster import DeviceRoster
from peer.schema import ipc
from peer.schema.events import AlertRaised, Event
from peer.schema.ipc import AnyToTrainer, HomeOffer, Leave
from peer.schema.settings import PeerSettings
from peer.schema.spec import dump
from peer.session import Inbox, join
from tests.peer.node.lifecycle.story import spec
from tests.peer.test_session import Driven
from tests.played_link import PlayedLink

LOST = RankLost(0, "cuda:0", "was killed by SIGKILL", is_device=False)
GONE = RankLost(0, "cuda:0", "cannot go on: CUDA error", is_device=True)
SPEC = ipc.SpecText(dump(spec()))
HOMES = (HomeOffer("liar", "liar", 0.0, 0.0, 0.0), HomeOffer("sick", "sick", 0.0, 0.0, 0.0))
STALE = (
    ipc.InStep(True), LeaveAsked, lambda now: TrainerFailed(now, LOST),
    ipc.ReportEvent("RoundStarted", {"round": 1, "steps": 1}),
)  # fmt: skip
"""What may still lie there of the life before."""


class Link(PlayedLink):
    """One that says the same each time it begins, and how it ended when it is ended."""

    def __init__(self, inbox: Inbox, says: Callable[[int], AnyToTrainer | Exception]) -> None:
        super().__init__()
        self._inbox, self._says = inbox, says
        self.has_died = False
        """By itself, and that was heard."""

    def end(self) -> None:
        if not self.has_died:
            self._inbox.put(LinkLost())

    def restart(self) -> None:
        super().restart()
        self.has_died = False
        self._inbox.put(self._says(self.restarts))


class Peer:
    """Lives that end as a test says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inbox = Inbox()
        self.link = Link(self.inbox, lambda restarts: SPEC)
        self.events: list[Event] = []
        self.reporter = Reporter(self.events.append)
        self.lives: list[list[Any]] = []
        """What lay in the inbox when each had met the others."""
        self.ends: list[Exception | None] = []
        self.admitted: list[str] = []
        """To the cluster of the newest life."""
        self._directory = directory
        monkeypatch.setattr(session, "load_libraries", lambda: None)
        monkeypatch.setattr(session, "run_doctor", lambda *about: None)
        monkeypatch.setattr(session, "_live", self._live)

    def _live(self, *about: Any) -> None:
        *_, roster, suspicion, meet = about
        self.admitted = [home.peer for home in suspicion.admitted(HOMES)]
        roster.present(lambda: ["cuda:0", "cuda:1"])
        meet(self.link, self.inbox, self.reporter)
        found = []
        while not self.inbox.empty():
            found.append(self.inbox.get())
        self.lives.append(found)
        end = self.ends.pop(0)
        for item in STALE:
            self.inbox.put(item)
        if end is not None:
            raise end

    def take_part(self) -> None:
        self.inbox.put(SPEC)
        join(self.link, self.inbox, "p1", PeerSettings(stages=1), self._directory, self.reporter)  # type: ignore[arg-type]

    @property
    def alerts(self) -> list[str]:
        return [f"{event.code}: {event.text}" for event in self.events if isinstance(event, AlertRaised)]


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    return Peer(tmp_path, monkeypatch)


@pytest.mark.parametrize("has_died", [False, True])
def test_the_next_life_hears_nothing_of_the_one_before(peer: Peer, has_died: bool) -> None:
    """Whether its link has died by itself as well, which the life before had heard, or is ended now."""
    peer.ends = [LOST, None]
    peer.link.has_died = has_died
    peer.take_part()
    assert peer.lives == [[], []]
    assert peer.link.restarts == 1
    assert peer.alerts == [
        "RANK: rank 0 on cuda:0 was killed by SIGKILL; it is tried once more, from the newest checkpoint; what was "
        "submitted stays"
    ]


def test_a_device_that_is_lost_again_is_done_without(peer: Peer) -> None:
    peer.ends = [LOST, LOST, None]
    peer.take_part()
    assert [alert.partition("SIGKILL; ")[2].partition(",")[0] for alert in peer.alerts] == [
        "it is tried once more", "going on with 1 other",
    ]  # fmt: skip


def test_without_any_device_the_others_hear_that_it_leaves(peer: Peer) -> None:
    peer.ends = [GONE, GONE]
    with pytest.raises(DeviceLost, match="there is no other device"):
        peer.take_part()
    assert peer.link.told == [Leave(finished=False)]
    assert peer.link.restarts == 1


def test_who_is_leaving_leaves(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the link that it has, also if no device is left."""
    peer.ends = [GONE]
    live = session._live

    def asked_meanwhile(*about: Any) -> None:
        peer.reporter.stopping = True
        live(*about)

    monkeypatch.setattr(session, "_live", asked_meanwhile)
    with pytest.raises(LeaveRequested):
        peer.take_part()
    assert peer.link.restarts == 0
    assert "this peer leaves all the same" in peer.alerts[0]


def test_a_signal_while_the_link_begins_is_obeyed(peer: Peer) -> None:
    """It raises nothing there, where a process is being started: it is noticed afterwards."""
    peer.ends = [LOST]

    def asked_meanwhile(restarts: int) -> AnyToTrainer:
        assert not peer.reporter.building
        peer.reporter.stopping = True
        peer.inbox.put(LeaveAsked)
        return SPEC

    peer.link._says = asked_meanwhile
    with pytest.raises(LeaveRequested):
        peer.take_part()
    assert len(peer.lives) == 1


@pytest.mark.parametrize("error", [Unreachable("no address of the invite answers"), LinkLost()])
def test_a_link_that_reaches_nobody_is_started_again(peer: Peer, error: Exception) -> None:
    """As often as in one life."""
    peer.ends = [LOST, None]
    peer.link._says = lambda restarts: SPEC if restarts == LINKS_LOST else error
    peer.take_part()
    assert peer.link.restarts == LINKS_LOST
    peer.ends, peer.link.restarts = [LOST], 0
    peer.link._says = lambda restarts: error
    with pytest.raises(type(error)):
        peer.take_part()
    assert peer.link.restarts == LINKS_LOST


def test_a_life_that_a_home_of_its_cluster_has_ended_is_followed_by_one_without_it(peer: Peer) -> None:
    """If it was garbage, and people read the figures; a home that is only gone may come back."""
    peer.ends = [HomeGone("sick", "does not answer"), GarbageHome("liar", "returned zeros for 32 of 32 tokens"), None]
    peer.take_part()
    assert peer.admitted == ["sick"]
    goes_on = "this peer goes on from its newest checkpoint as soon as its cluster is whole; what was submitted stays"
    assert peer.alerts == [
        f"CLUSTER: home sick of the cluster does not answer; {goes_on}",
        "CLUSTER: home liar of the cluster returned zeros for 32 of 32 tokens; it gets no layers again until this peer "
        f"is restarted; {goes_on}",
    ]


def test_a_rank_that_is_lost_while_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal raises anywhere after that; one that came before there was a life is obeyed at once."""
    said = Reporter([].append)

    def lose(*about: Any, **named: Any) -> None:
        assert said.building
        raise LOST

    monkeypatch.setattr(session, "prepare", lose)
    about = (
        PlayedLink(),
        Inbox(),
        spec(),
        "p1",
        PeerSettings(),
        tmp_path,
        said,
        DeviceRoster(lambda: 0.0),
        HomeSuspicion(),
        session._has_met,
    )
    with pytest.raises(RankLost):
        session._live(*about)  # type: ignore[arg-type]
    assert not said.building
    said.stopping = True
    with pytest.raises(LeaveRequested):
        session._live(*about)  # type: ignore[arg-type]


def test_what_ends_beside_a_life_that_has_ended_is_not_heard() -> None:
    """Such as the writing of what it had offered."""
    driven, kept = Driven(), list[Post]()
    do = driven.worker.do

    def keep(work: Work, post: Post, stop: Callable[[], bool]) -> None:
        if isinstance(work, Submit):
            kept.append(post)
        do(work, post, stop)

    vars(driven.worker)["do"] = keep
    driven.meet()
    driven.until(lambda: kept)
    driven.end()
    while not driven.inbox.empty():
        driven.inbox.get()
    kept[0](lambda now: TrainerFailed(now, LOST))
    assert driven.inbox.empty()


def test_a_rank_that_is_lost_within_work_ends_the_life_at_once() -> None:
    """Without a last checkpoint, which there is nobody to copy."""
    driven = Driven()
    driven.worker.fails = LOST
    driven.meet()
    driven.until(lambda: driven.has_told(ipc.OfferContribution))
    driven.commit()
    driven.until(lambda: driven.error is LOST)
    assert "last" not in driven.worker.saved
    assert not driven.has_told(Leave)
