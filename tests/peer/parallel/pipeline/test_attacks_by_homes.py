"""What a home of a cluster can send in place of what it should compute, and who is named for it with which figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from peer.parallel.pipeline import lead_stage
from peer.parallel.pipeline.activation_codec import decode_activations, encode_activations, encoded_bytes
from peer.parallel.pipeline.flight_check import fault_of_descent
from peer.parallel.pipeline.flight_messages import FlightBack, Forward, GiveUpStep, decode_flight, encode_flight
from peer.parallel.pipeline.home_group import GarbageHome, HomeGone, SilentHome
from peer.parallel.pipeline.span_choice import Wire
from tests.peer.parallel.pipeline.stages import Cluster, small_spec

HONEST_STEPS = 3
"""Of a round: then each neighbour knows what is usual."""
STEPS = 3
"""After those at most until a home is found that attacks."""
WIDTH, CONTEXT = 64, 32

Change = Callable[[Tensor], Tensor]
Changed = Callable[[str, str, bytes], bytes | None]
generator = torch.Generator()


def zeros(values: Tensor) -> Tensor:
    return torch.zeros_like(values)


def noise(values: Tensor) -> Tensor:
    """With the RMS of what it stands for, token by token."""
    random = torch.randn(values.shape, generator=generator.manual_seed(1))
    return random * values.norm(dim=-1, keepdim=True) / random.norm(dim=-1, keepdim=True)


def louder(values: Tensor) -> Tensor:
    """Noise. Sizes change a hundredfold in the first steps of so small a model, which must not be taken for garbage."""
    return 1e4 * noise(values)


def quieter(values: Tensor) -> Tensor:
    return noise(values) / 1e4


def flipped(values: Tensor) -> Tensor:
    return -values


def nan(values: Tensor) -> Tensor:
    return torch.full_like(values, torch.nan)


def huge(values: Tensor) -> Tensor:
    """Whose squares are no numbers any more."""
    return torch.full_like(values, 1e30)


def shorter(values: Tensor) -> Tensor:
    return values[:, 1:]


def lies(liar: str, kind: type[Forward | FlightBack], change: Change, wire: Wire = "float32") -> Changed:
    """What becomes of frames, if this home sends such values in place of its own."""

    def changed(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        if sender != liar or not isinstance(message, kind):
            return frame
        packed = message.hidden if isinstance(message, Forward) else message.gradient
        rows = len(packed) // encoded_bytes(CONTEXT * WIDTH, wire)
        values = change(decode_activations(packed, (rows, CONTEXT, WIDTH), wire, torch.device("cpu")))
        field = "hidden" if isinstance(message, Forward) else "gradient"
        return encode_flight(replace(message, **{field: encode_activations(values, wire)}))

    return changed


def found(cluster: Cluster, attack: Changed, *, at: int = HONEST_STEPS, first: int = 0) -> HomeGone:
    """What is raised by a cluster of which a home attacks after so many steps; `first` is the place of the first."""
    with cluster.at_work():
        for position in range(first, first + at):
            cluster.lead.step(0, position)
        cluster.flow.change = attack
        try:
            for position in range(first + at, first + at + STEPS):
                cluster.lead.step(0, position)
        except HomeGone as gone:
            return gone
    raise AssertionError(f"nobody was found in {STEPS} steps")


FIGURES = {
    zeros: r"zeros for \d+ of \d+ tokens",
    louder: r"values with an RMS of \S+ per token where \S+ is usual",
    quieter: r"values with an RMS of \S+ per token where \S+ is usual",
    nan: "values that are not finite",
    huge: r"values with an RMS of inf per token",
    shorter: r"\d+ bytes",
}  # fmt: skip


TO_LEAD, TO_WORKER, ON = (2, "second", FlightBack), (3, "third", FlightBack), (3, "second", Forward)
"""Gradients that go back, to the lead or to a worker, and hidden values that go on."""


@pytest.mark.parametrize(
    ("change", "homes", "liar", "kind"),
    [
        *((change, *TO_LEAD) for change in FIGURES),
        (louder, *TO_WORKER),
        (zeros, *ON),
        (shorter, *ON),
    ],
)
def test_garbage_is_found_and_the_home_named(
    change: Change, homes: int, liar: str, kind: type[Forward | FlightBack], tmp_path: Path
) -> None:
    """All of it by the lead; by a worker, which looks at it as the lead does, some."""
    gone = found(Cluster(small_spec(), homes, "float32", tmp_path), lies(liar, kind, change))
    assert isinstance(gone, GarbageHome)
    assert gone.peer == liar
    assert gone.said_by == ("" if liar == "second" and kind is FlightBack else "second" if liar == "third" else "third")
    assert re.search(FIGURES[change], gone.why), gone.why


@pytest.mark.parametrize(
    ("change", "wire"), [(noise, "float32"), (flipped, "float32"), (flipped, "int8"), (louder, "int8")]
)
def test_a_trial_shows_gradients_of_the_right_size(change: Change, wire: Wire, tmp_path: Path) -> None:
    """In the first step of a round; a home that has sent nothing else since the beginning has no history to show it."""
    gone = found(Cluster(small_spec(), 2, wire, tmp_path), lies("second", FlightBack, change, wire), at=0)
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "second"
    share = r"-[01].\d\d" if change is flipped else r"-?0.0\d"
    assert re.match(rf"returned a gradient down which the loss falls by {share} of what it promises", gone.why)


def test_a_trial_may_come_in_any_step_and_the_next_step_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(folder: str) -> tuple[Cluster, Tensor]:
        cluster = Cluster(small_spec(), 2, "float32", tmp_path / folder)
        with cluster.at_work():
            for position in range(1, 4):
                cluster.lead.step(0, position)
        return cluster, cluster.parameters()

    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1 << 60)
    _, without = trained("never")
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1)
    cluster, tried = trained("always")
    assert torch.equal(tried, without)
    gone = found(cluster, lies("second", FlightBack, flipped), at=0, first=5)
    assert "of what it promises" in gone.why


def test_rounds_of_one_step_are_not_all_tried_and_a_late_liar_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of all is tried, and the first of a round three steps later."""
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1 << 60)
    monkeypatch.setattr(lead_stage, "TRIAL_APART", 3)
    cluster, tried, made = Cluster(small_spec(), 2, "float32", tmp_path), list[int](), list[float]()

    def watched(sender: str, to: str, frame: bytes) -> bytes | None:
        if isinstance(decode_flight(frame), GiveUpStep):
            tried.append(len(made))
        return frame

    cluster.flow.change = watched
    with cluster.at_work():
        for _ in range(4):
            made.append(cluster.lead.step(0, 0).loss)
        assert tried == [0, 3]
        cluster.flow.change = lies("second", FlightBack, flipped)
        for _ in range(2):
            cluster.lead.step(0, 0)
        with pytest.raises(GarbageHome, match="of what it promises"):
            cluster.lead.step(0, 0)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (torch.nan, "a loss of nan"),
        (-1.0, "a loss of -1.0"),
        (5.0, "a gradient down which the loss falls by 0.00 of what it promises"),
    ],
)
def test_a_loss_that_cannot_be_is_found(loss: float, why: str, tmp_path: Path) -> None:
    """One that can be, of an odd text, is found in the trial that follows, if it is a lie."""

    def changed(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        return encode_flight(replace(message, loss=loss)) if isinstance(message, FlightBack) else frame

    gone = found(Cluster(small_spec(), 2, "float32", tmp_path), changed)
    assert isinstance(gone, GarbageHome)
    assert (gone.peer, gone.why.startswith(f"returned {why}")) == ("second", True), gone.why


def test_an_odd_text_gets_no_honest_home_expelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a text that is like no other the loss is several times the usual one. The next step begins with a trial."""
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1 << 60)
    cluster, tried, made, odd_at = Cluster(small_spec(), 3, "float32", tmp_path), list[int](), list[float](), 4

    def watched(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        if isinstance(message, GiveUpStep):
            tried.append(len(made))
        if isinstance(message, FlightBack) and len(made) == odd_at:
            return encode_flight(replace(message, loss=4 * message.loss))
        return frame

    cluster.flow.change = watched
    with cluster.at_work():
        for position in range(1, odd_at + 4):
            made.append(cluster.lead.step(0, position).loss)
    assert set(tried) == {odd_at + 1}


@pytest.mark.parametrize("loss", [torch.nan, torch.inf, -1.0])
def test_a_loss_that_cannot_be_is_found_in_a_trial(
    loss: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial looks at gradients, and would name them for it."""
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1)

    def changed(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        return encode_flight(replace(message, loss=loss)) if isinstance(message, FlightBack) else frame

    gone = found(Cluster(small_spec(), 2, "float32", tmp_path), changed)
    assert isinstance(gone, GarbageHome)
    assert (gone.peer, gone.why) == ("second", f"returned a loss of {loss}")


@pytest.mark.parametrize("liar", ["second", "third"])
def test_silence_is_found(liar: str, tmp_path: Path) -> None:
    cluster = Cluster(small_spec(), 3, "float32", tmp_path, silence_s=1.0, again_s=0.05)
    gone = found(cluster, lambda sender, to, frame: None if sender == liar else frame)
    assert isinstance(gone, SilentHome)
    assert gone.peer == liar
    assert gone.why == "has sent nothing for 1 s"


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_trial_finds_no_fault_with_an_honest_worker(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it learns fast, too: at every step the loss falls by nearly all that was promised."""
    kept: list[float] = []

    def noted(before: float, behind: float, promised: float) -> str | None:
        kept.append((before - behind) / promised)
        return fault_of_descent(before, behind, promised)

    monkeypatch.setattr(lead_stage, "fault_of_descent", noted)
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1)
    cluster = Cluster(small_spec(), 2, wire, tmp_path)
    with cluster.at_work():
        for position in range(12):
            cluster.lead.step(0, position)
    assert len(kept) == 12
    assert min(kept) > 0.8
    assert max(kept) < 1.2
