"""What a home offers is what its machine has."""

from __future__ import annotations

import itertools

import pytest
import torch

from dht.errors import BadInput
from peer.node.host import matrix_speed
from peer.node.host.matrix_speed import TOKENS, flops_of
from peer.parallel.cluster import home_offer
from peer.parallel.cluster.home_offer import measure_offer, room_bytes
from peer.planning.plan.model_shape import memory_of, shape_of
from peer.planning.plan.run_needs import PROCESS_BYTES
from peer.schema import spec as specs
from peer.schema.settings import PeerSettings

CPU = torch.device("cpu")
SPEC = specs.load("tiny")


def test_an_offer_has_a_room_a_speed_and_the_owners_cap_or_a_measured_line() -> None:
    offer = measure_offer(SPEC, PeerSettings(name="attic", devices=("cpu",), upload_mbps=20.0), "me")
    assert (offer.peer, offer.name, offer.upload_mbps) == ("me", "attic", 20.0)
    assert measure_offer(SPEC, PeerSettings(upload_mbps=20.0), "me", 7.0).upload_mbps == 20.0
    assert measure_offer(SPEC, PeerSettings(), "me", 7.0).upload_mbps == 7.0
    assert offer.memory_gb > 0
    assert offer.tokens_per_s > 0


def test_a_wide_product_is_faster_than_one_of_a_few_numbers() -> None:
    """Whose time is that of calls."""
    assert flops_of(CPU, 1, 512, bfloat16=False) > 2 * flops_of(CPU, 1, 1, bfloat16=False)


def test_what_else_the_processor_does_makes_no_machine_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of this thread's work alone, that goes on by a second at each look: a product takes one. Two threads
    make twice as much, and torch has as many as before."""
    before, ticks = torch.get_num_threads(), itertools.count()
    monkeypatch.setattr(matrix_speed.time, "thread_time", lambda: float(next(ticks)))
    assert flops_of(CPU, 2, 16, bfloat16=False) == 2 * 2 * TOKENS * 16 * 16
    assert torch.get_num_threads() == before


def test_a_processor_keeps_a_rounds_numbers_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has just enough for all of a run has room for training it, and with less allowed for less."""
    memory = memory_of(shape_of(SPEC), SPEC)
    whole = PROCESS_BYTES + memory.training_bytes + memory.anchor_bytes
    monkeypatch.setattr(home_offer, "available_bytes", lambda: whole)
    assert room_bytes(CPU, PeerSettings()) == pytest.approx(memory.training_bytes)
    allowed = PeerSettings(memory_gb=(PROCESS_BYTES + 1e9) / 1e9)
    monkeypatch.setattr(home_offer, "available_bytes", lambda: 64e9)
    assert room_bytes(CPU, allowed) == pytest.approx(0.5e9)


def test_a_gpu_has_what_is_free_of_it_if_main_memory_has_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_offer, "available_bytes", lambda: 32e9 + PROCESS_BYTES)
    for free, room in ((24e9, 24e9), (80e9, 32e9)):
        monkeypatch.setattr(home_offer, "free_bytes", lambda device, free=free: free)
        assert room_bytes(CPU, PeerSettings()) == room


def test_a_device_that_does_not_work_is_refused() -> None:
    with pytest.raises(BadInput, match="cuda:7"):
        measure_offer(SPEC, PeerSettings(devices=("cuda:7",)), "me")
