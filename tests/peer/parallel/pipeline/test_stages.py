"""Stages of a model compute what the whole model does."""

from __future__ import annotations

import threading
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from dht.errors import MemoryFull
from peer.parallel.pipeline import lead_stage
from peer.parallel.pipeline.flight_messages import AnyFlight, Forward, decode_flight
from peer.parallel.pipeline.home_group import HomeGone
from peer.parallel.pipeline.stage import StagePlace
from peer.parallel.pipeline.worker_stage import WorkerStage
from peer.schema.ipc import Assignment, StageHolder
from peer.schema.spec import RunSpec
from peer.training.data.open_source import open_source
from peer.training.data.sampler import IdleSampler, ShardSampler
from peer.training.train.backend import SingleDevice, Stopped
from tests.night import at_night
from tests.peer.parallel.pipeline.stages import CPU, HOMES, Cluster, MemoryFlow, alone, small_spec
from tests.talks import on_talks


@pytest.mark.parametrize("homes", [2, *at_night(3), 4])
def test_steps_equal_those_of_one_device(homes: int, tmp_path: Path) -> None:
    """Loss and parameters, clipped, over some steps; and the loss of the anchor."""
    spec, steps = small_spec(blocks=4), 5
    one, cluster = alone(spec), Cluster(spec, homes, "float32", tmp_path)
    theta = torch.cat([layer for stage in cluster.stages for layer in stage.anchor.theta])
    assert torch.equal(torch.cat(one.anchor.theta), theta)
    with cluster.at_work():
        for position in range(steps):
            mine, theirs = one.step(0, position), cluster.lead.step(0, position)
            assert theirs.loss == pytest.approx(mine.loss, rel=1e-5)
            assert (theirs.tokens, theirs.learning_rate) == (mine.tokens, mine.learning_rate)
        held_out = cluster.batches.next(5)
        assert cluster.lead.loss(held_out, lambda: False) == pytest.approx(one.loss(held_out, lambda: False), rel=1e-5)
        assert cluster.lead.continued([[1]], 4, 0, lambda: False) == (), "no home has all of the model"
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)
    assert all(len(served) == steps for served in cluster.served.values())


def test_a_loss_is_measured_in_float32_whatever_the_homes_train_in(tmp_path: Path) -> None:
    """As on one device; what the homes send each other is rounded all the same, and that is said."""
    spec = small_spec(precision="bfloat16")
    one, cluster = alone(spec), Cluster(spec, 3, "float32", tmp_path)
    with cluster.at_work():
        cluster.lead.step(0, 0)
        held_out = cluster.batches.next(5)
        assert cluster.lead.loss(held_out, lambda: False) == pytest.approx(one.loss(held_out, lambda: False), rel=1e-6)
    assert cluster.lead.measures_in == one.measures_in == "float32"
    assert Cluster(spec, 2, "int8", tmp_path / "int8").lead.measures_in == "float32, int8 between homes"


@pytest.mark.parametrize("micro", [1, 5, 16])
def test_the_size_of_a_micro_batch_changes_nothing(micro: int, tmp_path: Path) -> None:
    spec = small_spec()
    expect_equal_steps(spec, micro, tmp_path)


@pytest.mark.parametrize("micro", [1, 5])
def test_stages_of_conversations_equal_one_device(micro: int, tmp_path: Path) -> None:
    """Loss and parameters, though every flight predicts another share of what it holds; and nobody is accused for
    gradients that are 0 behind the last answer."""
    expect_equal_steps(on_talks(small_spec(), tmp_path / "talks"), micro, tmp_path)


def expect_equal_steps(spec: RunSpec, micro: int, tmp_path: Path) -> None:
    one, cluster = alone(spec), Cluster(spec, 3, "float32", tmp_path)
    cluster.lead.micro.sequences = micro
    held_out = ShardSampler(open_source(spec, spec.data.path), spec, "lead", ("lead",), {}).next(5)
    with cluster.at_work():
        assert cluster.lead.loss(held_out, lambda: False) == pytest.approx(one.loss(held_out, lambda: False), rel=1e-5)
        for position in range(2):
            assert cluster.lead.step(0, position).loss == pytest.approx(one.step(0, position).loss, rel=1e-5)
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)


def test_as_many_flights_are_under_way_as_a_long_line_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any is back: three a stage, and for each of the two behind 1.25 MB more of them, of 128 KiB here."""
    cluster = Cluster(small_spec(sequences=16, accumulation=40), 3, "float32", tmp_path, silence_s=0.1)
    sent: list[AnyFlight] = []

    def swallow(sender: str, to: str, frame: bytes) -> None:
        sent.append(decode_flight(frame))

    cluster.flow.change = swallow
    monkeypatch.setattr(lead_stage, "TRIAL_ONE_IN", 1 << 60)
    with pytest.raises(HomeGone):
        cluster.lead.step(0, 1)
    assert [flight.number for flight in sent if isinstance(flight, Forward)] == list(range(9 + 19))


def test_muon_is_the_same_too(tmp_path: Path) -> None:
    """It takes hidden matrices alone, which a stage must tell from the others as the whole model does."""
    spec = small_spec(optimizer="muon")
    one, cluster = alone(spec), Cluster(spec, 3, "float32", tmp_path)
    with cluster.at_work():
        for position in range(4):
            assert cluster.lead.step(0, position).loss == pytest.approx(one.step(0, position).loss, rel=1e-4)


def test_a_step_that_is_stopped_counts_what_was_made(tmp_path: Path) -> None:
    """As on one device: its gradients are the mean over the micro-batches that were made."""
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 2, "float32", tmp_path)
    one.micro.sequences = cluster.lead.micro.sequences = 4
    looks = iter([False, True])
    with cluster.at_work():
        made = cluster.lead.step(0, 0, lambda: next(looks, True))
    departed = made.tokens // spec.model.context
    again = iter([False] * (departed // 4 - 1) + [True])
    assert 0 < departed < 16
    assert made.loss == pytest.approx(one.step(0, 0, lambda: next(again)).loss, rel=1e-5)
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("full", "method"), [(0, "_compute"), (1, "_compute"), (0, "_backward"), (1, "_square_norm")])
def test_where_a_worker_is_full_the_step_is_made_again(
    full: int, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In smaller pieces, with the same sequences."""
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 3, "float32", tmp_path)
    worker, before = cluster.workers[full], cluster.lead.micro.sequences
    real, calls = getattr(worker, method), iter(range(1, 1000))

    def fails_once(*arguments: Any) -> Any:
        if next(calls) == (1 if method == "_square_norm" else 3):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments)

    monkeypatch.setattr(worker, method, fails_once)
    with cluster.at_work():
        for position in range(2):
            assert cluster.lead.step(0, position).loss == pytest.approx(one.step(0, position).loss, rel=1e-5)
    assert cluster.smaller == [(before + 1) // 2]
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)


def test_where_a_worker_is_full_for_one_sequence_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 2, "float32", tmp_path)
    before, real = cluster.parameters(), cluster.workers[0]._compute
    is_full = threading.Event()
    is_full.set()

    def fails(*arguments: Any) -> None:
        if is_full.is_set():
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(*arguments)

    monkeypatch.setattr(cluster.workers[0], "_compute", fails)
    with cluster.at_work():
        with pytest.raises(MemoryFull):
            cluster.lead.step(0, 0)
        assert torch.equal(cluster.parameters(), before)
        is_full.clear()
        assert cluster.lead.step(0, 0).loss == pytest.approx(one.step(0, 0).loss, rel=1e-5)


def test_a_measurement_has_room_in_smaller_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 2, "float32", tmp_path)
    assert one.anchor.round == 0  # made at the first parameters
    real = cluster.workers[0]._measure

    def has_room_for_one(flight: Forward) -> None:
        if flight.rows > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(flight)

    monkeypatch.setattr(cluster.workers[0], "_measure", has_room_for_one)
    with cluster.at_work():
        cluster.lead.step(0, 0)
        one.step(0, 0)
        held_out = torch.randint(256, (5, 33), generator=torch.Generator().manual_seed(1))
        assert cluster.lead.loss(held_out, lambda: False) == pytest.approx(one.loss(held_out, lambda: False), rel=1e-5)
        with pytest.raises(Stopped):
            cluster.lead.loss(held_out, lambda: True)
        assert cluster.lead.step(0, 1).loss == pytest.approx(one.step(0, 1).loss, rel=1e-5)


def test_a_worker_is_free_once_a_step_or_a_measurement_is_over(tmp_path: Path) -> None:
    """Its life waits for that to apply an update: then it returns as soon as it is told to stop."""
    cluster = Cluster(small_spec(), 2, "float32", tmp_path)
    with cluster.at_work():
        cluster.lead.step(0, 0)
        cluster.lead.loss(cluster.batches.next(3), lambda: False)
    assert cluster.workers[0].step(0, 1, lambda: True).tokens == 0


def test_a_worker_at_another_anchor_is_waited_for(tmp_path: Path) -> None:
    """It goes there meanwhile; what was read is read next."""
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 3, "float32", tmp_path)
    for stage in cluster.stages[:2]:
        stage.anchor.round = 1
    with cluster.at_work():
        assert cluster.lead.step(1, 0, lambda: True).tokens == 0
        cluster.workers[1].anchor.round = 1
        assert cluster.lead.step(0, 0).loss == pytest.approx(one.step(0, 0).loss, rel=1e-5)


def test_int8_on_the_line_learns_as_float32_does(tmp_path: Path) -> None:
    """As one device does, that is, whose steps those of float32 equal."""
    spec = small_spec()
    one, cluster = alone(spec), Cluster(spec, 3, "int8", tmp_path)
    one.micro.sequences = 8
    with cluster.at_work():
        last_losses = [
            mean([stage.step(0, position).loss for position in range(12)][-5:]) for stage in (one, cluster.lead)
        ]
    assert last_losses[1] == pytest.approx(last_losses[0], rel=0.01)


def test_a_home_holds_its_layers_and_no_more(tmp_path: Path) -> None:
    """One of four stages of eight blocks: parameters, gradients, the optimizer's memory, θ, momentum and residual."""
    spec = small_spec(blocks=8)
    one, cluster = alone(spec), Cluster(spec, 4, "int8", tmp_path)
    for backend in (one, *cluster.stages):
        backend.vectors.tensors()
    with cluster.at_work():
        cluster.lead.step(0, 0)
        one.step(0, 0)
    whole, held = held_bytes(one), [held_bytes(stage) for stage in cluster.stages]
    assert sum(held) == pytest.approx(whole, rel=0.01)
    assert max(held) <= 0.3 * whole


def held_bytes(backend: SingleDevice) -> int:
    """Of all tensors that it keeps."""
    own = [*backend._parameters, *backend.vectors.tensors(), *backend._model.buffers()]
    own += [value for number in range(len(backend.layers)) for value in backend.optimizer_of(number).values()]
    return sum({value.data_ptr(): value.nbytes for value in own if value.numel()}.values())


def test_dropout_draws_the_same_masks_when_a_flight_is_computed_again(tmp_path: Path) -> None:
    """Whatever the state of torch's generator is, which others use: homes are processes of their own."""
    spec = small_spec(config={"resid_pdrop": 0.2}, architecture="phi3")
    cluster = Cluster(spec, 2, "float32", tmp_path)
    stage = cluster.workers[0]
    entering, tokens_BT = torch.randn(2, 8, 64), torch.zeros(2, 9, dtype=torch.int64)
    first = stage._computed(entering, tokens_BT, 0)
    torch.manual_seed(7)
    again, other = (stage._computed(entering, tokens_BT, number) for number in (0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gates_open_a_layer_before_a_stage_reads_it(tmp_path: Path) -> None:
    """An update beside steps may still be on its way to layers behind."""
    cluster = Cluster(small_spec(), 3, "float32", tmp_path)
    entered: list[list[int]] = []
    gates = []
    for stage in cluster.stages:
        seen: list[int] = []
        entered.append(seen)
        gates.append(stage.gates(seen.extend))
    with cluster.at_work():
        cluster.lead.step(0, 0)
    for stage, seen, gate in zip(cluster.stages, entered, gates, strict=True):
        count = len(stage.layers)
        assert list(dict.fromkeys(seen)) == list(range(count))  # in their order
        assert not gate.early


def test_a_stage_goes_on_with_another_neighbour(tmp_path: Path) -> None:
    """A worker is lost in a step; a spare with the same layers takes its place, and the step is made again."""
    spec = small_spec()
    one = alone(spec)
    flow = MemoryFlow(HOMES)
    cluster = Cluster(spec, 3, "float32", tmp_path, silence_s=0.5, again_s=0.05, flow=flow)
    flow.change = lambda sender, to, frame: None if "third" in (sender, to) else frame
    with cluster.at_work(), pytest.raises(HomeGone) as gone:
        cluster.lead.step(0, 0)
    assert gone.value.peer == "third"
    old = cluster.assignment
    lost = old.stages[2]
    cluster.assignment = Assignment(2, (*old.stages[:2], StageHolder("fourth", lost.first, lost.last)), (), "float32")
    place = StagePlace(assignment=cluster.assignment, me="fourth", port=flow.port("fourth"))
    cluster.replace_worker(1, WorkerStage(spec, place, IdleSampler(), CPU, tmp_path))
    for stage in cluster.stages[:2]:
        stage.reassign(cluster.assignment)
    with cluster.at_work():
        for position in range(3):
            assert cluster.lead.step(0, position).loss == pytest.approx(one.step(0, position).loss, rel=1e-5)
    torch.testing.assert_close(cluster.parameters(), one.vectors.flat.new(), rtol=1e-4, atol=1e-5)


def test_a_lead_knows_what_a_flight_takes_each_stage(tmp_path: Path) -> None:
    cluster = Cluster(small_spec(), 3, "int8", tmp_path)
    with cluster.at_work():
        cluster.lead.step(0, 0)
    assert set(cluster.lead.flight_seconds) == {"lead", "second", "third"}
    assert all(0 < seconds < 60 for seconds in cluster.lead.flight_seconds.values())
