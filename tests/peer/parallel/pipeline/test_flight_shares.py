"""In clusters of three homes and more: which of them returned a gradient that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from peer.parallel.pipeline import lead_stage
from peer.parallel.pipeline.flight_messages import FlightBack, Forward
from peer.parallel.pipeline.flight_shares import fault_in
from peer.parallel.pipeline.home_group import GarbageHome
from peer.parallel.pipeline.span_choice import Wire
from tests.peer.parallel.pipeline.stages import Cluster, small_spec
from tests.peer.parallel.pipeline.test_attacks_by_homes import flipped, found, lies, noise

Row = tuple[str, float, float]


def tripled(values: Tensor) -> Tensor:
    """Less than what the size of single arrivals shows."""
    return 3 * values


LIES = [
    *((3, liar, change, "int8") for liar in ("second", "third") for change in (flipped, noise, tripled)),
    *((4, liar, flipped, "float32") for liar in ("second", "third", "fourth")),
    (4, "third", noise, "int8"),
    (4, "fourth", tripled, "int8"),
]
BEFORE = {"second": "", "third": "second", "fourth": "third"}


@pytest.mark.parametrize(("homes", "liar", "change", "wire"), LIES)
def test_the_home_that_sends_another_gradient_than_it_computes_is_named(
    homes: int, liar: str, change: Callable[[Tensor], Tensor], wire: Wire, tmp_path: Path
) -> None:
    """In the first step of a round: it contradicts the home before it. No other one is named."""
    gone = found(Cluster(small_spec(blocks=4), homes, wire, tmp_path), lies(liar, FlightBack, change, wire), at=0)
    assert isinstance(gone, GarbageHome)
    assert (gone.peer, gone.said_by) == (liar, BEFORE[liar])
    assert "says that its gradient promises a change of" in gone.why


@pytest.mark.parametrize(("homes", "liar", "change", "wire"), LIES)
def test_the_home_that_computes_a_wrong_gradient_is_named(
    homes: int, liar: str, change: Callable[[Tensor], Tensor], wire: Wire, tmp_path: Path
) -> None:
    """And says what follows from it. Nobody else is: neither who passes it on nor who sent the values."""
    cluster = Cluster(small_spec(blocks=4), homes, wire, tmp_path)
    (worker,) = (worker for worker in cluster.workers if worker._place.me == liar)
    answer = worker._answer

    def answer_wrongly(flight: Forward, loss: float, leaf: Tensor) -> None:
        assert leaf.grad is not None
        leaf.grad = change(leaf.grad)
        answer(flight, loss, leaf)

    vars(worker)["_answer"] = answer_wrongly
    gone = found(cluster, lambda sender, to, frame: frame, at=0)
    assert isinstance(gone, GarbageHome)
    assert (gone.peer, gone.said_by) == (liar, "")
    assert "returned a gradient of whose promise" in gone.why


@pytest.mark.parametrize(
    ("homes", "wire"), [pytest.param(3, "int8", marks=pytest.mark.nightly), (4, "int8"), (4, "float32")]
)
def test_no_honest_home_is_named(homes: int, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it learns fast, too: of every change a stage passes on nearly all that its gradient promises. And the
    step behind a trial is the same as without."""
    kept: list[float] = []

    def noted(lead: str, sent: float, shares: list[Row]) -> GarbageHome | None:
        kept.extend(passed / promised for _, promised, passed in shares)
        return fault_in(lead, sent, shares)

    def trained(folder: str, one_in: int) -> Tensor:
        monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", one_in)
        cluster = Cluster(small_spec(blocks=4), homes, wire, tmp_path / folder)
        with cluster.at_work():
            for position in range(1, 6):
                cluster.lead.step(0, position)
        return cluster.parameters()

    monkeypatch.setattr(lead_stage, "fault_in", noted)
    assert torch.equal(trained("tried", 1), trained("untried", 1 << 60))
    assert len(kept) == 5 * (homes - 1)
    assert 0.9 < min(kept) < max(kept) < 1.1


HONEST: list[Row] = [("second", -1.0, -0.98), ("third", -0.98, -1.01), ("fourth", -1.01, -1.0)]


def test_honest_figures_show_no_fault() -> None:
    assert fault_in("lead", -1.0, HONEST) is None


def test_a_move_that_rounding_has_lost_is_nobodys_fault() -> None:
    assert fault_in("lead", 0.0, [("second", 0.0, 0.0), ("third", 0.0, 0.0)]) is None


@pytest.mark.parametrize("passed", [0.98, -0.1, 0.0, -2.5, float("nan")])
def test_the_first_stage_that_does_not_keep_its_promise_is_at_fault(passed: float) -> None:
    """What comes behind it may be anything: moves there are of no size."""
    gone = fault_in("lead", -1.0, [HONEST[0], ("third", -0.98, passed), ("fourth", passed, 40.0)])
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "third"


def test_who_contradicts_its_lead_is_named() -> None:
    """The lead has the bytes itself."""
    gone = fault_in("lead", -1.0, [("second", 1.0, 1.0), *HONEST[1:]])
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "second"


@pytest.mark.parametrize("said", [0.98, 0.0, float("inf"), float("nan")])
def test_who_contradicts_a_worker_is_named_as_accused_by_it(said: float) -> None:
    gone = fault_in("lead", -1.0, [HONEST[0], ("third", said, said), HONEST[2]])
    assert isinstance(gone, GarbageHome)
    assert (gone.peer, gone.said_by) == ("third", "second")


def test_who_would_frame_the_next_home_is_named_itself_unless_its_figures_are_near() -> None:
    gone = fault_in("lead", -1.0, [("second", -1.0, 1.0), ("third", -0.98, -1.01)])
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "second"
