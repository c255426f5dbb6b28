"""Frames that are lost, doubled or late change no bit of a step, and nobody waits for ever."""

from __future__ import annotations

import random
import threading
from collections import deque
from pathlib import Path

import pytest
import torch

from peer.parallel.pipeline import worker_stage
from peer.parallel.pipeline.flight_messages import EndStep, Forward, Stand, decode_flight
from peer.parallel.pipeline.home_group import HomeGone
from peer.schema.spec import RunSpec
from peer.training.train.inner_loop import InnerStep
from tests.night import at_night
from tests.peer.parallel.pipeline.stages import HOMES, Cluster, MemoryFlow, small_spec

AGAIN_S = 0.02
SCHEDULES = 12
"""Of each number of homes: steps, each with other faults."""


class FaultyFlow(MemoryFlow):
    """Loses, doubles and delays frames; those between two homes keep their order."""

    def __init__(self, homes: tuple[str, ...], seed: int) -> None:
        super().__init__(homes)
        self.chance, self.lost = random.Random(seed), 0
        self._heard = threading.Condition()
        self._lines: dict[tuple[str, str], deque[tuple[int, bytes]]] = {
            (sender, to): deque() for sender in homes for to in homes
        }
        self._looks = 0
        """Time: every look into a box is a tick."""

    def put(self, sender: str, to: str, frame: bytes) -> None:
        with self._heard:
            fate = self.chance.random()
            copies = 0 if fate < 0.08 else 2 if fate < 0.16 else 1
            self.lost += copies == 0
            late = self.chance.randint(1, 12) if self.chance.random() < 0.1 else 0
            for _ in range(copies):
                self._lines[sender, to].append((self._looks + late, frame))
            self._heard.notify_all()

    def get(self, me: str, timeout_s: float) -> tuple[str, bytes] | None:
        with self._heard:
            found = self._look(me)
            if found is None:
                self._heard.wait(timeout_s)
                found = self._look(me)
            return found

    def _look(self, me: str) -> tuple[str, bytes] | None:
        self._looks += 1
        ready = [pair for pair, line in self._lines.items() if pair[1] == me and line and line[0][0] <= self._looks]
        if not ready:
            return None
        pair = self.chance.choice(ready)
        return pair[0], self._lines[pair].popleft()[1]


def tiny_spec(homes: int = 3) -> RunSpec:
    return small_spec(blocks=homes, sequences=4, accumulation=1, warmup_steps=1)


def trained(cluster: Cluster, steps: int) -> tuple[list[InnerStep], float, torch.Tensor]:
    """Steps, a measurement among them, and the parameters behind them."""
    with cluster.at_work():
        made = [cluster.lead.step(0, position) for position in range(steps // 2)]
        loss = cluster.lead.loss(cluster.batches.next(3), lambda: False)
        made += [cluster.lead.step(0, position) for position in range(steps // 2, steps)]
    return made, loss, cluster.parameters()


@pytest.mark.parametrize("homes", [*at_night(2), 4])
def test_faults_change_no_bit(homes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen of frames and more get lost; without repeats the first of them would end it."""
    monkeypatch.setattr(worker_stage, "POLL_S", AGAIN_S / 4)
    spec = tiny_spec(homes)
    steps, loss, parameters = trained(Cluster(spec, homes, "int8", tmp_path), SCHEDULES)
    flow = FaultyFlow(HOMES[:homes], seed=homes)
    cluster = Cluster(spec, homes, "int8", tmp_path, silence_s=60.0, again_s=AGAIN_S, flow=flow)
    made, measured, arrived = trained(cluster, SCHEDULES)
    assert made == steps
    assert measured == loss
    assert torch.equal(arrived, parameters)
    assert flow.lost > 1
    assert all(len(served) == SCHEDULES for served in cluster.served.values())


@pytest.mark.parametrize("kind", [Forward, EndStep, Stand])
def test_a_home_that_never_gets_a_message_is_named(kind: type, tmp_path: Path) -> None:
    cluster = Cluster(tiny_spec(), 3, "int8", tmp_path, silence_s=1.0, again_s=AGAIN_S)

    def lose(sender: str, to: str, frame: bytes) -> bytes | None:
        return None if to == "third" and isinstance(decode_flight(frame), kind) else frame

    with cluster.at_work():
        cluster.lead.step(0, 0)
        cluster.flow.change = lose
        with pytest.raises(HomeGone) as gone:
            cluster.lead.loss(cluster.batches.next(2), lambda: False) if kind is Stand else cluster.lead.step(0, 1)
    assert gone.value.peer == "third"
