"""Who holds which stage when a cluster comes together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from peer.parallel.cluster import assembly
from peer.parallel.cluster.assembly import assemble, dealt_again, with_spares
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.planning.placement.block_shares import BlockLayout
from peer.schema.ipc import Assignment, AssignStages, HomeOffer, HomesOffered, StageHolder
from peer.schema.settings import PeerSettings
from tests.peer.parallel.pipeline.stages import small_spec

BEFORE = Assignment(1, (StageHolder("lead", 0, 1), StageHolder("a", 2, 3), StageHolder("b", 4, 6)), (), "int8")


LAYOUT = BlockLayout(sizes=(100,) * 7, blocks=(1, 2, 3, 4, 5), width=64)
LEAD = HomeOffer("lead", "Lead", 0.0, 0.0, 0.0)


def home(name: str, speed: float = 0.0, memory_gb: float = 0.0) -> HomeOffer:
    return HomeOffer(name, name.title(), memory_gb, speed, 0.0)


def named(*names: str) -> list[HomeOffer]:
    return [LEAD, *map(home, names)]


def held(assignment: Assignment) -> dict[str, tuple[int, int]]:
    return {holder.peer: (holder.first, holder.last) for holder in assignment.stages}


def spares(assignment: Assignment) -> dict[str, tuple[int, int]]:
    return {holder.peer: (holder.first, holder.last) for holder in assignment.spares}


def test_whoever_held_a_stage_holds_it_again() -> None:
    again = dealt_again(BEFORE, LAYOUT, named("b", "c", "a"), 2)
    assert held(again) == held(BEFORE)
    assert again.epoch == 2
    assert spares(again) == {"c": (2, 3)}


def test_spares_share_the_stages_out() -> None:
    """The fewest first; one that kept some layers keeps these."""
    larger = with_spares(BEFORE, named("c", "d", "e"), {"e": range(4, 7)})
    assert spares(larger) == {"c": (2, 3), "d": (4, 6), "e": (4, 6)}
    assert larger.stages == BEFORE.stages


def test_a_spare_with_the_layers_of_a_lost_home_takes_its_place() -> None:
    """Not one with others, although it comes first."""
    before = with_spares(BEFORE, named("c", "d"))
    again = dealt_again(before, LAYOUT, named("a", "c", "d"), 2)
    assert held(again) == {"lead": (0, 1), "a": (2, 3), "d": (4, 6)}
    assert spares(again) == {"c": (2, 3)}


def test_where_no_spare_has_them_a_newcomer_loads_them_or_another_spare() -> None:
    assert held(dealt_again(BEFORE, LAYOUT, named("a", "new"), 2)) == {"lead": (0, 1), "a": (2, 3), "new": (4, 6)}
    before = with_spares(BEFORE, named("c"))
    assert held(dealt_again(before, LAYOUT, named("a", "c"), 2)) == {"lead": (0, 1), "a": (2, 3), "c": (4, 6)}


def test_the_fastest_that_has_room_takes_the_place_of_a_lost_home() -> None:
    """In 10^9 bytes: two blocks and the head are 6,000 bytes."""
    homes = [LEAD, home("a", 5.0), home("slow", 10.0), home("small", 30.0, 1e-6), home("fast", 20.0)]
    assert held(dealt_again(BEFORE, LAYOUT, homes, 2)) == {"lead": (0, 1), "a": (2, 3), "fast": (4, 6)}


@pytest.mark.parametrize(
    ("a", "b", "c", "holds"),
    [
        (10.0, 10.0, 15.0, "c"),  # three layers against two
        (10.0, 10.0, 14.0, "b"),  # not much faster
        (2.0, 10.0, 15.0, "b"),  # the other stage is what all wait for
        (10.0, 0.0, 15.0, "b"),  # of b nothing is known
        (10.0, 10.0, 0.0, "b"),
    ],
)
def test_a_much_faster_spare_takes_the_place_of_the_slowest(a: float, b: float, c: float, holds: str) -> None:
    """With the layers that it has kept; the other one keeps them from now on."""
    before = msgspec.structs.replace(BEFORE, spares=(StageHolder("c", 4, 6),))
    again = dealt_again(before, LAYOUT, [LEAD, home("a", a), home("b", b), home("c", c)], 2)
    (spare,) = {"b", "c"} - {holds}
    assert held(again) == {"lead": (0, 1), "a": (2, 3), holds: (4, 6)}
    assert spares(again) == {spare: (4, 6)}


def test_no_spare_is_of_use_where_the_lead_is_slowest() -> None:
    before = msgspec.structs.replace(BEFORE, spares=(StageHolder("c", 4, 6),))
    homes = [HomeOffer("lead", "", 0.0, 1.0, 0.0), home("a", 10.0), home("b", 10.0), home("c", 30.0)]
    assert "b" in held(dealt_again(before, LAYOUT, homes, 2))


def test_a_spare_goes_where_it_gains_most() -> None:
    """Three layers at 30 take as long as one at 10: two at 10 take longest."""
    homes = [LEAD, home("a", 10.0), home("b", 30.0), home("c", 20.0)]
    assert spares(with_spares(BEFORE, homes)) == {"c": (2, 3)}
    homes = [LEAD, home("a", 30.0), home("b", 10.0), home("c", 20.0)]
    assert spares(with_spares(BEFORE, homes)) == {"c": (4, 6)}


class Told:
    """What people hear of a lead that waits for homes."""

    stopping = False

    def __init__(self) -> None:
        self.why = ""
        self.warned: list[str] = []

    def say(self, state: str, why: str) -> None:
        self.why = why

    def warn(self, code: str, text: str) -> None:
        self.warned.append(text)


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Assignment, Told]]:
    """A lead of so many stages that hears these offers one after the other."""
    spec = small_spec(blocks=6)
    monkeypatch.setattr(
        assembly, "measure_offer", lambda spec, settings, me, line: HomeOffer("lead", "Lead", 0.0, 100.0, line)
    )

    def assembled(stages: int, *offers: Sequence[HomeOffer]) -> tuple[Assignment, Told]:
        inbox: SimpleQueue[Any] = SimpleQueue()
        for homes in offers:
            inbox.put(HomesOffered(tuple(homes)))
        inbox.put(LookupError("nothing more comes"))
        told, settings = Told(), PeerSettings(stages=stages)
        sent: list[Any] = []
        suspicion = HomeSuspicion()
        found = assemble(
            sent.append, inbox, spec, "lead", settings, tmp_path, told, suspicion, (), 50.0,  # type: ignore[arg-type]
        )  # fmt: skip
        assert suspicion.speeds.homes[0].upload_mbps == 50.0
        assert sent == [AssignStages(found)]
        return found, told

    return assembled


def test_a_lead_deals_by_speed_and_keeps_the_slowest_as_a_spare(
    lead: Callable[..., tuple[Assignment, Told]],
) -> None:
    found, told = lead(3, [home("a", 100.0)], [home("a", 100.0), home("b", 1.0), home("c", 300.0)])
    workers = {holder.peer: len(holder.layers) for holder in found.workers}
    assert set(workers) == {"a", "c"}
    assert workers["c"] > workers["a"]
    assert [holder.peer for holder in found.spares] == ["b"]
    assert told.warned == []


def test_a_home_without_room_for_a_block_is_left_out_and_said_once(
    lead: Callable[..., tuple[Assignment, Told]],
) -> None:
    small = home("small", 100.0, 1e-6)
    found, told = lead(2, [small], [small], [small, home("a", 10.0)])
    assert {holder.peer for holder in found.workers} == {"a"}
    assert found.spares == ()
    assert len(told.warned) == 1
    assert told.warned[0].startswith("Small is left out: it has room for 1e-06 GB of training, and one block of")


def test_homes_without_room_together_wait_for_a_larger_one(lead: Callable[..., tuple[Assignment, Told]]) -> None:
    """Each has room for a block, and none for one with the head."""
    tight = [home("a", 100.0, 0.0009), home("b", 100.0, 0.0009)]
    with pytest.raises(LookupError):
        lead(3, tight)
    found, told = lead(3, tight, [*tight, home("large", 1.0, 0.002)])
    assert told.why.startswith("waiting for other homes of this cluster: 3 homes have no room for")
    assert found.workers[-1].peer == "large"
