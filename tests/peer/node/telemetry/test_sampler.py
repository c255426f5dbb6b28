"""Samples of this machine are told beside the work, one at a time, until its end."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

import pytest

from peer.node.telemetry import metrics
from peer.node.telemetry.metrics import measuring, one_at_a_time
from peer.schema.events import DeviceMeasured, Event, EventLine, format_line, parse_line
from peer.testing.child_process import HANG_S


def test_measuring_goes_on_beside_the_work_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its own thread; what is said is an event line, and nothing is said after the end."""
    monkeypatch.setattr(metrics, "EVERY_S", 0.01)
    said: list[Event] = []
    three = threading.Event()

    def emit(event: Event) -> None:
        said.append(event)
        if len(said) == 3:
            three.set()

    with measuring(emit):
        assert three.wait(HANG_S)
    count = len(said)
    assert not any(thread.name == "measuring" for thread in threading.enumerate())
    last = said[-1]
    assert isinstance(last, DeviceMeasured)
    assert last.memory_bytes is not None
    assert last.gpu_percent is None
    line = EventLine(seq=1, t=1.0, run="r", peer="p", event=last)
    assert parse_line(format_line(line)) == line
    assert asdict(last)["cpu_percent"] >= 0
    assert len(said) == count


def test_events_of_several_threads_do_not_mix() -> None:
    """Each is written whole before the next begins."""
    inside, mixed = threading.Lock(), []

    def emit(event: Event) -> None:
        mixed.append(not inside.acquire(blocking=False))
        time.sleep(0.0001)
        inside.release()

    alone = one_at_a_time(emit)
    threads = [threading.Thread(target=lambda: [alone(DeviceMeasured()) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mixed) == 200
    assert not any(mixed)
