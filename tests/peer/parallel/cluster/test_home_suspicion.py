"""A home that sent garbage gets no layers again, and a silent one only where nobody else is left."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from peer.parallel.cluster import assembly
from peer.parallel.cluster.assembly import assemble, dealt_again, remember
from peer.parallel.cluster.home import ClusterHome
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.parallel.pipeline.home_group import GarbageHome, HomeGone, LeadHomes, SilentHome
from peer.parallel.pipeline.stage_model import model_layers
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, HomesOffered, StageHolder
from peer.schema.settings import PeerSettings
from tests.peer.parallel.pipeline.stages import MemoryFlow, small_spec

LAST = len(model_layers(small_spec())) - 1
BEFORE = Assignment(
    1, (StageHolder("lead", 0, 2), StageHolder("liar", 3, LAST)), (StageHolder("spare", 3, LAST),), "int8"
)


def offers(*names: str) -> tuple[HomeOffer, ...]:
    return tuple(HomeOffer(name, name, 0.0, 0.0, 0.0) for name in names)


def dealt(folder: Path, suspicion: HomeSuspicion, *present: str, speed: float = 0.0) -> Assignment:
    """By a lead that had dealt `BEFORE`; all others offer this speed."""
    remember(folder, BEFORE)
    inbox: SimpleQueue[Any] = SimpleQueue()
    inbox.put(HomesOffered(tuple(replace(offer, tokens_per_s=speed) for offer in offers(*present))))
    session: Any = SimpleNamespace(say=lambda *words: None, emit=lambda event: None, stopping=False)
    settings = PeerSettings(stages=2)
    return assemble(lambda message: None, inbox, small_spec(), "lead", settings, folder, session, suspicion)


def noted(*gone: HomeGone) -> HomeSuspicion:
    suspicion = HomeSuspicion()
    for each in gone:
        suspicion.note(each)
    return suspicion


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "GRACE_S", 0.0)


@pytest.mark.parametrize("gone", [GarbageHome("liar", "returned zeros"), SilentHome("liar", "has sent nothing")])
def test_a_spare_takes_the_place_of_a_home_that_lied_or_was_silent(gone: HomeGone, tmp_path: Path) -> None:
    assert dealt(tmp_path, noted(), "liar", "spare").workers[0].peer == "liar"
    assert dealt(tmp_path, noted(gone), "liar", "spare").workers[0].peer == "spare"


def test_a_home_whose_line_was_cut_gets_its_layers_again(tmp_path: Path) -> None:
    """It has them on disk, and nothing else is known of it."""
    assert dealt(tmp_path, noted(HomeGone("liar", "does not answer")), "liar", "spare").stages == BEFORE.stages


def test_a_silent_home_is_taken_where_nobody_else_is_there(tmp_path: Path) -> None:
    assert dealt(tmp_path, noted(SilentHome("liar", "has sent nothing")), "liar").workers[0].peer == "liar"


@pytest.mark.parametrize(("accused", "accuser"), [("liar", "spare"), ("spare", "liar")])
def test_nobody_is_rid_of_another_home_by_accusing_it(accused: str, accuser: str, tmp_path: Path) -> None:
    """One of the two lies: a third takes the place where there is one. The second time neither gets layers again."""
    accusation = GarbageHome(accused, "returned another gradient", accuser)
    suspicion = noted(accusation)
    assert dealt(tmp_path, suspicion, "liar", "spare", "third").workers[0].peer == "third"
    assert dealt(tmp_path, suspicion, "liar", "spare").workers[0].peer == "liar"
    assert "both get no layers again" in suspicion.note(accusation)
    assert [home.peer for home in suspicion.admitted(offers("liar", "spare", "third"))] == ["third"]


def test_a_measured_speed_counts_and_not_what_a_home_offers(tmp_path: Path) -> None:
    """The lead reaches what it is measured to reach, the worker a fourth of that."""
    suspicion = noted()
    assert dealt(tmp_path, suspicion, "liar", "spare", speed=100.0).workers[0].peer == "liar"
    (own,) = (home for home in suspicion.speeds.homes if home.peer == "lead")
    suspicion.speeds.measured = {"lead": own.tokens_per_s, "liar": 25.0}
    slow = dealt(tmp_path, suspicion, "liar", "spare", speed=100.0)
    assert slow.workers[0].peer == "spare"
    assert [holder.peer for holder in slow.spares] == ["liar"]


def test_people_read_what_follows() -> None:
    assert "no layers again" in HomeSuspicion().note(GarbageHome("liar", "returned zeros"))
    assert "others come before both" in HomeSuspicion().note(GarbageHome("liar", "sent zeros", "spare"))
    assert "others come before it" in HomeSuspicion().note(SilentHome("liar", "has sent nothing"))
    assert HomeSuspicion().note(HomeGone("liar", "does not answer")) == ""


def test_a_liar_is_no_spare_and_a_lost_spare_ends_no_life(tmp_path: Path) -> None:
    suspicion = noted(GarbageHome("liar", "returned zeros"))
    assignment = dealt_again(BEFORE, layout_of(shape_of(small_spec()), small_spec()), offers("lead", "spare"), 2)
    flow = MemoryFlow(("lead", "spare", "liar"))
    home = ClusterHome(assignment, "lead", flow.port("lead"), tmp_path, lambda: None, suspicion=suspicion)
    try:
        assert home.enlisted(offers("liar", "spare")) is None
        larger = home.enlisted(offers("liar", "spare", "third"))
        assert larger is not None
        assert [spare.peer for spare in larger.spares] == ["third"]
        home.hear(HomeLost("third", "has not been heard"))
        assert isinstance(home.homes, LeadHomes)
        home.homes.require_all()
        with pytest.raises(HomeGone):
            home.hear(HomeLost("spare", "has not been heard"))
    finally:
        home.close()
