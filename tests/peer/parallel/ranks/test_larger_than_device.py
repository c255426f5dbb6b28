"""A model that is larger than a device, and a device that is full within a step: on a processor that counts bytes as if
it were one (`peer.testing.small_memory_rank`)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dht.errors import MemoryFull
from peer.parallel.fsdp.rank_messages import PublishLayer
from peer.parallel.ranks.sharded_backend import ShardedBackend
from peer.schema.spec import RunSpec
from peer.testing.child_process import HANG_S
from peer.training.model.footprint import size_of
from peer.training.train.trainer import LocalTrainer
from tests.peer.parallel.ranks.conftest import HaveRoom, MakeOn
from tests.saved import everything, same, saved
from tests.stepping import step

pytestmark = pytest.mark.outside

STEPS = 4


@pytest.fixture
def large(spec: RunSpec) -> RunSpec:
    """Many blocks, of which few are on the device at a time."""
    return dataclasses.replace(
        spec, model=dataclasses.replace(spec.model, config=spec.model.config | {"num_hidden_layers": 16})
    )


def losses(trainer: LocalTrainer) -> list[float]:
    trainer.begin_round(("p0", "p1"))
    return [step(trainer).loss for _ in range(STEPS)]


def test_a_model_of_four_devices_trains_on_one_from_main_memory(
    large: RunSpec, make_on: MakeOn, have_room: HaveRoom
) -> None:
    """And says in one line that it has no room where its owner does not want that."""
    expected = losses(make_on("one device", large))
    room_bytes = size_of(large).training_bytes // 4
    have_room(room_bytes)
    with pytest.raises(MemoryFull, match=r"^the memory of a device has no room for its share of the model: CUDA .*$"):
        make_on("one rank", large)
    streamed = make_on("offload", large)
    assert losses(streamed) == pytest.approx(expected, rel=1e-6)
    (peak_bytes,) = backend_of(streamed).peak_bytes
    assert 0 < peak_bytes <= room_bytes


# ---- full within a step ----


def backend_of(trainer: LocalTrainer) -> ShardedBackend:
    backend = trainer._backend
    assert isinstance(backend, ShardedBackend)
    return backend


def peaks(trainer: LocalTrainer, sequences: int) -> tuple[int, ...]:
    """What a step with micro-batches of so many takes on each device."""
    backend = backend_of(trainer)
    backend.micro.sequences = sequences
    step(trainer)
    return backend.peak_bytes


def at_halving(trainer: LocalTrainer, look: Callable[[], None]) -> None:
    """Have `look` called when the ranks are gone and their successors not there."""
    vars(backend_of(trainer).micro)["_told"] = lambda sequences: look()


def test_a_rank_that_is_full_within_a_step_loses_nothing(make_on: MakeOn, have_room: HaveRoom, tmp_path: Path) -> None:
    """Only one of two is: the step is made of the same sequences, as one with half the micro-batch from the start; and
    so is a loss measured."""
    have_room(0, 0)
    roomy = make_on("full 2")
    roomy.begin_round(("p0", "p1"))
    large, small = peaks(roomy, 4), peaks(roomy, 2)
    taken, before = saved(roomy, b"", tmp_path / "saved"), of_layers(roomy)
    have_room(0, (large[1] + small[1]) // 2)
    tight = make_on("full 2")
    tight.restore(taken)
    pids, meanwhile = backend_of(tight).group.pids, list[list[str]]()
    at_halving(tight, lambda: meanwhile.append(same(before, of_layers(tight))))
    torch.manual_seed(7)
    made = step(tight)
    assert meanwhile == [[]], "parameters and optimizers were copied as they were"
    assert backend_of(tight).micro.sequences == 2
    assert not set(pids) & set(backend_of(tight).group.pids)
    roomy.restore(taken)
    torch.manual_seed(7)
    assert step(roomy) == made
    assert same(everything(roomy, b""), everything(tight, b"")) == []
    tokens_BT = torch.from_numpy(roomy._source.held_out()).repeat(4, 1)
    backend_of(tight).micro.sequences, before = len(tokens_BT), of_layers(tight)
    found = backend_of(tight).loss(tokens_BT, lambda: False)
    assert 2 <= backend_of(tight).micro.sequences < len(tokens_BT), "a measurement has made it smaller"
    backend_of(roomy).micro.sequences = backend_of(tight).micro.sequences
    assert found == backend_of(roomy).loss(tokens_BT, lambda: False)
    assert same(before, of_layers(tight)) == []


def test_a_device_without_room_for_one_keeps_the_sequences_for_later(
    make_on: MakeOn, have_room: HaveRoom, tmp_path: Path
) -> None:
    """The peer waits for room, with all as it was, and trains on once there is some."""
    have_room(0)
    roomy = make_on("one rank")
    roomy.begin_round(("p0", "p1"))
    (one_bytes,) = peaks(roomy, 1)
    taken = saved(roomy, b"", tmp_path / "saved")
    have_room(one_bytes - 1)
    tight = make_on("one rank")
    tight.restore(taken)
    backend_of(tight).micro.sequences, before = 2, of_layers(tight)
    with pytest.raises(MemoryFull, match=r"^the memory of a device has no room for even one sequence$"):
        step(tight)
    assert same(before, of_layers(tight)) == []
    assert len(backend_of(tight).rest()["unread"]) == 2
    assert backend_of(tight).micro.sequences == 1
    have_room(0)
    backend_of(tight)._leave()
    assert backend_of(tight).reload()
    roomy.restore(taken)
    made = []
    for trainer in (roomy, tight):
        torch.manual_seed(7)
        made.append(step(trainer))
    assert made[0] == made[1]
    assert same(of_layers(roomy), of_layers(tight)) == []


def test_ranks_are_not_ended_within_an_update(make_on: MakeOn) -> None:
    """One that is made beside inner steps: what they are asked for of it is made by all of them, or they are lost."""
    trainer, did = make_on("one rank"), list[str]()
    backend = backend_of(trainer)
    version, keep_inner = backend.begin_version(), backend.keep_inner

    def keep() -> bool:
        did.append("copied")
        return keep_inner()

    vars(backend)["keep_inner"] = keep
    leaving = threading.Thread(target=backend._leave, daemon=True)
    leaving.start()
    for layer in range(len(backend.layers)):
        backend.ask_round(PublishLayer(layer=layer, version=version))
        did.append("published")
    backend.end_version()
    leaving.join(HANG_S)
    assert did == ["published"] * len(backend.layers) + ["copied"]


def of_layers(trainer: LocalTrainer) -> dict[str, torch.Tensor]:
    """But for the generator, which has given the step its seed, and what is read next."""
    return {name: tensor for name, tensor in everything(trainer, b"").items() if not name.startswith("rest.")}
