"""What a home of a cluster can send in place of what it should compute, and who is named for it with which figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from peer.pipeline import lead_stage
from peer.pipeline.activation_codec import decode_activations, encode_activations
from peer.pipeline.flight_check import fault_of_gradient
from peer.pipeline.flight_messages import FlightBack, Forward, decode_flight, encode_flight
from peer.pipeline.home_group import GarbageHome, HomeGone, SilentHome
from peer.protocol.encoding import digest
from tests.decided import DecidedRound
from tests.peer.pipeline.cluster_trainers import ClusterTrainers
from tests.peer.pipeline.stages import Cluster, small_spec

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


def lies(liar: str, kind: type[Forward | FlightBack], change: Change) -> Changed:
    """What becomes of frames, if this home sends such values in place of its own."""

    def changed(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        if sender != liar or not isinstance(message, kind):
            return frame
        packed = message.hidden if isinstance(message, Forward) else message.gradient
        rows = len(packed) // (4 * CONTEXT * WIDTH)
        values = change(decode_activations(packed, (rows, CONTEXT, WIDTH), "float32", torch.device("cpu")))
        field = "hidden" if isinstance(message, Forward) else "gradient"
        return encode_flight(replace(message, **{field: encode_activations(values, "float32")}))

    return changed


def found(cluster: Cluster, attack: Changed, *, at: int = HONEST_STEPS) -> HomeGone:
    """What is raised by a cluster of which a home attacks from this step of the round on."""
    with cluster.at_work():
        for position in range(at):
            cluster.lead.step(0, position)
        cluster.flow.change = attack
        try:
            for position in range(at, at + STEPS):
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


@pytest.mark.parametrize("change", FIGURES)
@pytest.mark.parametrize(
    ("homes", "liar", "kind"), [(2, "second", FlightBack), (3, "third", FlightBack), (3, "second", Forward)]
)
def test_garbage_is_found_and_the_home_named(
    change: Change, homes: int, liar: str, kind: type[Forward | FlightBack], tmp_path: Path
) -> None:
    """Gradients that go back, to the lead or to a worker, and hidden values that go on."""
    gone = found(Cluster(small_spec(), homes, "float32", tmp_path), lies(liar, kind, change))
    assert isinstance(gone, GarbageHome)
    assert gone.peer == liar
    assert gone.said_by == ("" if liar == "second" and kind is FlightBack else "second" if liar == "third" else "third")
    assert re.search(FIGURES[change], gone.why), gone.why


@pytest.mark.parametrize("change", [noise, flipped, louder])
def test_a_spare_that_computes_the_same_flight_shows_gradients_of_the_right_size(
    change: Change, tmp_path: Path
) -> None:
    """In the first step of a round; a home that has sent nothing else since the beginning has no history to show it."""
    cluster = Cluster(small_spec(), 2, "float32", tmp_path, spares=2)
    gone = found(cluster, lies("second", FlightBack, change), at=0)
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "second"
    cosine = r"-1.00" if change is flipped else r"-?0.0\d"
    assert re.match(
        rf"returned a gradient with a cosine of {cosine}, .* to the same one, as home .*spare computes it", gone.why
    )
    assert gone.said_by in ("spare", "other spare")


@pytest.mark.parametrize("loss", [5.0, torch.nan, -1.0])
def test_a_loss_that_cannot_be_is_found(loss: float, tmp_path: Path) -> None:
    def changed(sender: str, to: str, frame: bytes) -> bytes | None:
        message = decode_flight(frame)
        return encode_flight(replace(message, loss=loss)) if isinstance(message, FlightBack) else frame

    gone = found(Cluster(small_spec(), 2, "float32", tmp_path), changed)
    assert isinstance(gone, GarbageHome)
    assert gone.peer == "second"
    assert re.match(r"returned a loss of -?(\d|nan)", gone.why)


@pytest.mark.parametrize("liar", ["second", "third"])
def test_silence_is_found(liar: str, tmp_path: Path) -> None:
    cluster = Cluster(small_spec(), 3, "float32", tmp_path, silence_s=1.0, again_s=0.05)
    gone = found(cluster, lambda sender, to, frame: None if sender == liar else frame)
    assert isinstance(gone, SilentHome)
    assert gone.peer == liar
    assert gone.why == "has sent nothing for 1 s"


def test_a_spare_finds_no_fault_with_an_honest_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three rounds, of which the spare applies every update: with int8 on the line, and in the round's bytes,
    whose error stays with each worker alone."""
    compared: list[float] = []

    def noted(theirs: Tensor, ours: Tensor) -> str | None:
        compared.append(torch.cosine_similarity(theirs.flatten(), ours.flatten(), dim=0).item())
        return fault_of_gradient(theirs, ours)

    monkeypatch.setattr(lead_stage, "fault_of_gradient", noted)
    with ClusterTrainers(small_spec(accumulation=1), 2, tmp_path, wire="int8", spares=1) as cluster:
        anchor, before = digest("anchor", 0), None
        cluster.stand_at(anchor)
        for _ in range(3):
            cluster.begin_round(("lead",))
            for position in range(4):
                cluster.step(position)
            cluster.submit(anchor)
            before = DecidedRound([cluster], anchor, before=before)  # type: ignore[list-item]
            before.apply_to(cluster)  # type: ignore[arg-type]
            anchor = before.next_anchor
    assert len(compared) == 3
    assert min(compared) > 0.97
