"""A device that is as slow as one declares."""

from __future__ import annotations

import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from peer.testing import short_waits
from peer.testing.short_waits import PACED, is_paced, slow_down


class Machine:
    """A clock, and a trainer of two layers whose steps take `arithmetic_s` and wait `waits_s` for layers."""

    layer_names = ("first", "second")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, arithmetic_s: float, waits_s: float = 0.0) -> None:
        self.now, self.waited_s = 100.0, 3.0
        self.read_at: list[float] = []
        self._arithmetic_s, self._waits_s = arithmetic_s, waits_s
        self._model = nn.Sequential(OrderedDict(first=nn.Identity(), second=nn.Identity()))
        for layer in self._model:
            layer.register_forward_pre_hook(lambda *_: self.read_at.append(self.now))
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(short_waits, "time", clock)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self, position: float, stop: str) -> tuple[float, str]:
        """What it was given."""
        self.evaluate()
        self.now += self._arithmetic_s + self._waits_s
        self.waited_s += self._waits_s
        return position, stop

    def evaluate(self) -> None:
        """A forward pass."""
        self._model(torch.zeros(1))


@pytest.mark.parametrize(
    ("arithmetic_s", "waits_s", "takes_s"),
    [(0.1, 0.0, 0.9), (1.5, 0.0, 1.8), (0.1, 0.5, 1.4)],
    ids=["as declared", "longer than declared", "what it waited for layers comes on top"],
)
def test_a_step_takes(monkeypatch: pytest.MonkeyPatch, arithmetic_s: float, waits_s: float, takes_s: float) -> None:
    machine: Any = Machine(monkeypatch, arithmetic_s, waits_s)
    slow_down(machine, machine._model, 0.9)
    assert machine.step(1.5, "stop") == (1.5, "stop")
    assert machine.now - 100.0 == pytest.approx(takes_s)


def test_a_layer_is_read_when_the_one_before_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the step is the forward pass, half of that each layer; an evaluation is not slowed down."""
    machine: Any = Machine(monkeypatch, 0.1)
    slow_down(machine, machine._model, 0.9)
    machine.step(1.5, "stop")
    assert machine.read_at == pytest.approx([100.0, 100.15])
    machine.evaluate()
    assert machine.read_at[2] == machine.read_at[3] == machine.now


def test_who_is_paced_has_a_mark(tmp_path: Path) -> None:
    assert not is_paced(tmp_path)
    (tmp_path / PACED).touch()
    assert is_paced(tmp_path)
