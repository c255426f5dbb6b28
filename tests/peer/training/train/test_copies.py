"""Copies to a GPU that end when they like: played with streams that run in any order their events leave open."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from peer.training.train.layerwise import _Copies

SCHEDULES = 200
LAYERS = range(3)
ELEMENTS = range(2)


class Event:
    """Something has come to its turn, or not yet."""

    def __init__(self) -> None:
        self.over = False

    def set(self) -> None:
        self.over = True


class Stream:
    """What is said to it is done later, in order."""

    def __init__(self) -> None:
        self.queue: list[Event | Callable[[], None]] = []

    def record_event(self) -> Event:
        event = Event()
        self.queue.append(event.set)
        return event

    def wait_event(self, event: Event) -> None:
        self.queue.append(event)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        assert not self.queue

    @property
    def is_stuck(self) -> bool:
        head = self.queue[0]
        return isinstance(head, Event) and not head.over

    def turn(self) -> None:
        head = self.queue.pop(0)
        if not isinstance(head, Event):
            head()


class Gpu:
    """Two streams and what they share: the parameters of three layers, at version 0."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._random = random.Random(seed)
        self.model, self.side = Stream(), Stream()
        self.present = self.model
        self.parameters = {(layer, element): 0 for layer in LAYERS for element in ELEMENTS}
        self.read: list[int] = []
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.side)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.present)
        monkeypatch.setattr(torch.cuda, "stream", self._stream)
        self.copies = _Copies(torch.device("cuda:0"))

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.present = self.present, stream
        yield
        self.present = before

    def do(self, what: Callable[[], None]) -> None:
        self.present.queue.append(what)

    def write(self, layer: int, version: int) -> None:
        for element in ELEMENTS:
            self.do(lambda element=element: self.parameters.__setitem__((layer, element), version))  # type: ignore[misc]

    def look(self, layer: int) -> None:
        for element in ELEMENTS:
            self.do(lambda element=element: self.read.append(self.parameters[layer, element]))  # type: ignore[misc]

    def run(self) -> None:
        while busy := [stream for stream in (self.model, self.side) if stream.queue and not stream.is_stuck]:
            self._random.choice(busy).turn()
        assert not self.model.queue
        assert not self.side.queue

    def apply_beside_a_step(self, *, meets: bool = True) -> None:
        """The last inner step writes 1; the update is copied after it, as 2; the next step reads 2."""
        for layer in LAYERS:
            self.write(layer, 1)
        self.copies.begin()
        with self.copies.aside():
            for layer in LAYERS:
                self.write(layer, 2)
                self.copies.note(layer)
        for layer in LAYERS:
            if meets:
                self.copies.meet(layer)
            self.look(layer)
        self.run()


def test_the_model_reads_what_was_copied_in_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no copy comes before what the last step still writes."""
    for seed in range(SCHEDULES):
        gpu = Gpu(seed, monkeypatch)
        gpu.apply_beside_a_step()
        assert gpu.read == [2] * len(gpu.parameters)
        assert set(gpu.parameters.values()) == {2}
        gpu.copies.end()


def test_without_the_event_it_reads_a_mix_in_most(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = 0
    for seed in range(SCHEDULES):
        gpu = Gpu(seed, monkeypatch)
        gpu.apply_beside_a_step(meets=False)
        mixed += gpu.read != [2] * len(gpu.parameters)
    assert mixed > SCHEDULES / 2


def test_once_all_copies_have_ended_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(0, monkeypatch)
    gpu.apply_beside_a_step()
    gpu.copies.end()
    gpu.copies.meet(0)
    assert not gpu.model.queue
