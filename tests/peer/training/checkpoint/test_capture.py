"""A checkpoint holds what was there when it was taken, whatever training does meanwhile, and nothing that follows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.training.checkpoint import capture as captures
from peer.training.checkpoint.capture import Capture, LayerCapture
from peer.training.checkpoint.checkpoint import Checkpoint, Checkpoints
from peer.training.checkpoint.layer_state import load_layer
from peer.training.outer.layer_tensors import LayerTensors, Origin
from tests.fake_cuda import CARD, fake_cuda
from tests.peer.training.checkpoint.captured import CPU, layer, start_of

WAIT_S = 60.0
ELEMENTS = 1000
DECIDED = 2 * (10 + 4 + 7)
"""Chunks of moments and of two parameters each."""


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten to a layer."""
    monkeypatch.setattr(captures, "READ_ELEMENTS", 100)


class Training:
    """Two layers with the moments of an optimizer, and what a peer does to them."""

    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(0)
        self.layers = []
        for _ in range(2):
            drawn = [torch.randn(ELEMENTS, generator=numbers) for _ in range(4)]
            made = layer(ELEMENTS, start=drawn[0], local=drawn[1])
            made.residual.copy_(drawn[2])
            made.theta.copy_(drawn[3])
            self.layers.append(made)
        self.moments = [torch.randn(ELEMENTS, generator=numbers) for _ in self.layers]

    def capture(self, *, sparse: bool = False) -> Capture:
        layers = [
            LayerCapture.of(t, {"adamw.0.exp_avg": moment}, sparse=sparse)
            for t, moment in zip(self.layers, self.moments, strict=True)
        ]
        return Capture(state={"round": 1}, layers=layers, rest={}, device=CPU)

    def step(self) -> None:
        for t, moment in zip(self.layers, self.moments, strict=True):
            for _, parameter in t.local:
                parameter.add_(1)
            moment.mul_(2)

    def move(self) -> None:
        self.step()
        for t in self.layers:
            for vector in (t.kept, t.residual, t.theta):
                vector.sub_(3)

    def bits(self) -> list[dict[str, Tensor]]:
        return [
            {
                "residual": t.residual.clone(), "start": t.kept.clone(), "adamw.0.exp_avg": moment.clone(),
                "local": torch.cat([parameter for _, parameter in t.local]),
            }
            for t, moment in zip(self.layers, self.moments, strict=True)
        ]  # fmt: skip


class Paced:
    """A disk that takes so many chunks and then waits for `goes`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
        self.goes, self.waits = threading.Event(), threading.Event()
        left = iter(range(chunks))
        read = Capture._read

        def slowly(capture: Capture, piece: Any) -> Iterator[memoryview]:
            for chunk in read(capture, piece):
                if next(left, None) is None:
                    self.waits.set()
                    assert self.goes.wait(WAIT_S)
                yield chunk

        monkeypatch.setattr(Capture, "_read", slowly)


def written(capture: Capture, folder: Path) -> tuple[threading.Thread, Callable[[], Checkpoint]]:
    """By a thread."""
    paths: list[Path] = []
    thread = threading.Thread(target=lambda: paths.append(Checkpoints(folder).write(capture)), daemon=True)
    thread.start()

    def found() -> Checkpoint:
        thread.join(WAIT_S)
        return Checkpoint(path=paths[0], state={})

    return thread, found


def expect(found: Checkpoint, bits: list[dict[str, Tensor]]) -> None:
    for number, expected in enumerate(bits):
        stored = found.layer(number)
        assert stored.keys() == expected.keys()
        for name, tensor in stored.items():
            assert torch.equal(tensor, expected[name]), f"{name} of layer {number}"


@pytest.mark.parametrize("read", [0, 1, 9, 10, 15, 25, 38, 41, 42, 55, 75])
@pytest.mark.parametrize("moves", [False, True])
def test_what_training_changes_meanwhile_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: int, moves: bool
) -> None:
    """Wherever the disk is: what is not read yet is copied, a tensor that is read in part, too."""
    training = Training()
    before, capture = training.bits(), training.capture()
    disk = Paced(monkeypatch, read)
    _, found = written(capture, tmp_path / "checkpoints")
    assert disk.waits.wait(WAIT_S)
    if moves and read < DECIDED:  # θ is still to be looked at: that is waited for
        disk.goes.set()
    (capture.before_move if moves else capture.before_step)()
    (training.move if moves else training.step)()
    disk.goes.set()
    expect(found(), before)


@pytest.mark.parametrize("moves", [False, True])
def test_without_room_for_copies_it_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moves: bool) -> None:
    """And the time is counted."""
    training = Training()
    before, capture = training.bits(), training.capture()
    monkeypatch.setattr(captures, "available_bytes", lambda: 0)
    disk = Paced(monkeypatch, 3)
    _, found = written(capture, tmp_path / "checkpoints")
    assert disk.waits.wait(WAIT_S)
    changed, blocked = threading.Event(), threading.Event()
    wait = capture._lock.wait

    def wait_and_say(seconds: float) -> bool:
        blocked.set()
        return wait(seconds)

    monkeypatch.setattr(capture._lock, "wait", wait_and_say)

    def change() -> None:
        (capture.before_move if moves else capture.before_step)()
        changed.set()
        (training.move if moves else training.step)()

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    assert blocked.wait(WAIT_S)
    assert not changed.is_set()
    disk.goes.set()
    assert changed.wait(WAIT_S)
    thread.join(WAIT_S)
    assert capture.waited_s > 0.0
    expect(found(), before)


def test_what_leaves_a_device_is_copied_however_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its owner waits for the device: only memory that has no room at all makes it wait for the disk."""
    training = Training()
    before, capture = training.bits(), training.capture()
    monkeypatch.setattr(captures, "HOST_COPY_BYTES", 0)
    disk = Paced(monkeypatch, 3)
    _, found = written(capture, tmp_path / "checkpoints")
    assert disk.waits.wait(WAIT_S)
    capture.before_leaving()
    training.step()
    disk.goes.set()
    expect(found(), before)


def test_nobody_waits_for_one_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capture = Training().capture()
    monkeypatch.setattr(captures, "available_bytes", lambda: 0)

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(Capture, "decide", fail)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        Checkpoints(tmp_path / "checkpoints").write(capture)
    capture.before_move()
    capture.before_step()
    assert capture.has_ended


@pytest.mark.parametrize("sparse", [False, True])
def test_what_follows_from_the_anchor_is_not_stored(tmp_path: Path, sparse: bool) -> None:
    """Right after an update neither start nor local; after a step local alone; else both. To the last bit."""
    fresh, stepped, other = Training(), Training(), Training()
    for training in (fresh, stepped):
        for t in training.layers:
            t.kept.copy_(t.theta if sparse else t.theta - t.residual)
            for where, parameter in t.local:
                parameter.copy_(t.kept[where])
    for vector in (stepped.layers[0].local[1][1], stepped.layers[1].kept):
        vector[-1] = torch.nextafter(vector[-1], torch.tensor(torch.inf))
    for where, parameter in stepped.layers[1].local:
        parameter.copy_(stepped.layers[1].kept[where])
    shapes = {"fresh": [set[str](), set[str]()], "stepped": [{"local"}, {"start"}], "other": [{"start", "local"}] * 2}
    for (name, expected), training in zip(shapes.items(), (fresh, stepped, other), strict=True):
        path = Checkpoints(tmp_path / name).write(training.capture(sparse=sparse))
        found = Checkpoint(path=path, state={})
        assert [found.layer(n).keys() - {"residual", "adamw.0.exp_avg"} for n in range(2)] == expected
        again = [empty_like(t) for t in training.layers]
        for number, t in enumerate(again):
            load_layer(t, found.layer(number), sparse=sparse, known=True)
            if sparse and t.start is Origin.AT_ANCHOR:
                t.residual, kept = torch.zeros_like(t.residual), t.residual
                assert torch.equal(start_of(t), training.layers[number].kept)
                t.residual = kept
                continue
            for one, two in zip(vectors(t), vectors(training.layers[number]), strict=True):
                assert torch.equal(one, two)


def test_without_its_anchor_what_was_owed_is_there_and_what_a_step_learned_is_not(tmp_path: Path) -> None:
    """Unless the checkpoint holds where the steps began."""
    training = Training()
    first, second = training.layers
    first.kept.copy_(first.theta - first.residual)
    found = Checkpoint(path=Checkpoints(tmp_path / "checkpoints").write(training.capture()), state={})
    for t, number, learned in ((first, 0, False), (second, 1, True)):
        again = empty_like(t)
        again.theta.fill_(5.0)
        load_layer(again, found.layer(number), sparse=False, known=False)
        local = torch.cat([parameter for _, parameter in again.local])
        assert torch.equal(again.residual, t.residual)
        assert torch.equal(local, torch.cat([parameter for _, parameter in t.local]))
        assert torch.equal(start_of(again), t.kept if learned else local)


def empty_like(t: LayerTensors) -> LayerTensors:
    """Of another peer that stands at the same anchor."""
    made = layer(ELEMENTS)
    made.theta.copy_(t.theta)
    return made


def vectors(t: LayerTensors) -> list[Tensor]:
    return [t.residual, start_of(t), *(parameter for _, parameter in t.local)]


def test_what_torch_keeps_without_need_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver takes it for used."""
    with fake_cuda(free_bytes=0):
        capture = Capture(state={}, layers=(), rest={}, device=CARD)
        monkeypatch.setattr(captures, "available_bytes", lambda: 0)
        assert capture._place_for(1, host_only=False) is None
        kept_bytes = captures.DEVICE_SPARE_BYTES + 1
        monkeypatch.setattr(
            torch.cuda, "memory_reserved", lambda device: kept_bytes + torch.cuda.memory_allocated(device)
        )
        assert capture._place_for(1, host_only=False) == CARD
        assert capture._place_for(2, host_only=False) is None
