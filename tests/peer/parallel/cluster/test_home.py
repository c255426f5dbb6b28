"""A home's place in its cluster: when a lead moves layers, and what a home does that waits for another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.node.store.snapshots import FOLDER, MANIFEST
from peer.parallel.cluster.home import ClusterHome
from peer.parallel.pipeline.home_group import CutMoved, HomeGone, LeadHomes
from peer.parallel.pipeline.home_messages import AskBytes, BytesHere, decode_home, encode_home
from peer.parallel.pipeline.stage_model import model_layers
from peer.parallel.pipeline.step_times import StepTimes
from peer.schema.ipc import Assignment, HomeLost, HomeOffer, StageHolder
from peer.testing.child_process import HANG_S
from tests.peer.parallel.pipeline.stages import MemoryFlow, small_spec

SPEC = small_spec(blocks=9)
LAST = len(model_layers(SPEC)) - 1
NOW = Assignment(1, (StageHolder("lead", 0, 3), StageHolder("a", 4, 6), StageHolder("b", 7, LAST)), (), "int8")
ANCHOR, CONTENT = b"\x07" * 32, b"a manifest"


class Lead:
    """The lead of three homes, of which the last needs four times as long; its steps take what they are said to."""

    def __init__(self, folder: Path) -> None:
        self.flow = MemoryFlow(("lead", "a", "b"))
        self.home = ClusterHome(NOW, "lead", self.flow.port("lead"), folder / "contributions", lambda: None)
        home: Any = self.home
        home._first = SimpleNamespace(take_times=lambda: [StepTimes(3.6, 4, 256, self.flight_s)] * 2)
        self.flight_s = {"lead": 0.1, "a": 0.1, "b": 0.4}
        speeds = home._suspicion.speeds
        speeds.note_own(HomeOffer("lead", "Lead", 0.0, 10.0, 0.0))
        speeds.note_present([HomeOffer(name, name.title(), 0.0, 10.0, 0.0) for name in ("a", "b")])
        assert isinstance(self.home.homes, LeadHomes)
        self.home.homes.snapshot = ANCHOR
        path = folder / FOLDER / f"00000002-{ANCHOR.hex()}"
        path.mkdir(parents=True)
        (path / MANIFEST).write_bytes(CONTENT)

    def commits(self) -> Assignment | None:
        """The end of a round."""
        return self.home.moved(SPEC)

    def answer(self, *names: str) -> None:
        """These homes have what they are asked for."""
        for name in names:
            found = self.flow.port(name).receive(1.0)
            assert found is not None, f"{name} was asked for nothing"
            asked = decode_home(found[1])
            assert isinstance(asked, AskBytes)
            self.home._take(name, encode_home(BytesHere(asked.digests[0], CONTENT)))


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Lead]:
    lead = Lead(tmp_path)
    with closing(lead.home):
        yield lead


def test_a_cut_moves_at_the_second_round_that_says_so(lead: Lead) -> None:
    """The homes are asked for a snapshot when it is first wished for, so that the second round need not wait."""
    assert lead.commits() is None
    lead.answer("a", "b")
    dealt = lead.commits()
    assert dealt is not None
    assert len(dealt.stages[2].layers) < len(NOW.stages[2].layers)
    assert lead.commits() is None


def test_a_cut_waits_for_a_home_that_has_not_the_snapshot(lead: Lead) -> None:
    assert lead.commits() is None
    lead.answer("a")
    assert lead.commits() is None
    lead.answer("b")
    assert lead.commits() is not None


def test_a_lead_goes_once_all_homes_have_heard_of_their_other_layers(lead: Lead) -> None:
    """Whoever has not heard by then would train on alone, and be missed by the others."""
    lead.commits()
    lead.answer("a", "b")
    assert lead.commits() is not None
    lead.home.hear(HomeLost("b", "its stream has ended"))
    lead.home.hear(HomeLost("b", "has not been heard for 8 s"))
    with pytest.raises(CutMoved):
        lead.home.hear(HomeLost("a", "its stream has ended"))


def test_who_waits_for_layers_of_a_lost_home_waits_no_longer(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is cut for good, also if it comes back: the cluster is to be dealt anew."""

    def needs_bytes(*words: Any) -> None:
        words[-1]([b"\x01" * 32], lambda digest, payload: None)

    monkeypatch.setattr("peer.parallel.cluster.home.take_over", needs_bytes)
    lead.home.note_lost(HomeLost("a", "its stream has ended"))
    with pytest.raises(HomeGone, match="its stream has ended"):
        lead.home.take_over(SPEC, lambda: False)


def test_a_lead_waits_for_no_answer_of_a_lost_home(lead: Lead) -> None:
    """Its life takes no note of lost homes once it leaves, and its trainer would wait for two minutes."""
    homes = lead.home.homes
    assert isinstance(homes, LeadHomes)
    with ThreadPoolExecutor(1) as trainer:
        waits = trainer.submit(homes.state_digest, ANCHOR, 2, [b"\x01" * 32], {})
        lead.home.note_lost(HomeLost("a", "its stream has ended"))
        with pytest.raises(HomeGone, match="its stream has ended"):
            waits.result(HANG_S)


def test_a_lost_spare_and_a_home_that_has_gone_to_its_other_layers_end_nothing(lead: Lead) -> None:
    homes = lead.home.homes
    assert isinstance(homes, LeadHomes)
    lead.home.note_lost(HomeLost("spare", "its stream has ended"))
    homes.require_all()
    lead.commits()
    lead.answer("a", "b")
    assert lead.commits() is not None
    lead.home.note_lost(HomeLost("b", "its stream has ended"))
    homes.require_all()
