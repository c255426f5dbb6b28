"""A checkpoint that is written beside training holds what the trainer was when it was taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.consensus.protocol.encoding import digest
from peer.training.checkpoint import capture as captures
from peer.training.checkpoint.capture import Capture
from peer.training.checkpoint.checkpoint import STATE, Checkpoint, Checkpoints
from peer.training.checkpoint.saver import CheckpointSaver
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.peer.training.train.conftest import Make
from tests.saved import everything, same
from tests.stepping import step, submit

FIRST = digest("anchor", 0)
WAIT_S = 60.0


def offer_and_apply(trainer: LocalTrainer) -> None:
    submit(trainer, FIRST)
    DecidedRound([trainer], FIRST).apply_to(trainer)


WORKS: dict[str, Callable[[LocalTrainer], object]] = {
    "step": step,
    "evaluate": LocalTrainer.evaluate,
    "submit": lambda trainer: submit(trainer, FIRST),
    "apply": offer_and_apply,
}


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("name", WORKS)
def test_whatever_is_done_meanwhile(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, has_room: bool
) -> None:
    """The disk waits until that has begun; where memory has no room for copies, it is waited for."""
    trainer = make("p0")
    trainer.begin_round(("p0",))
    for _ in range(2):
        step(trainer)
    before, capture = everything(trainer, FIRST), trainer.checkpoint(FIRST)
    monkeypatch.setattr(captures, "available_bytes", lambda: 1 << 40 if has_room else 0)
    goes, secure, read = threading.Event(), Capture._secure, Capture._read

    def go_and_secure(capture: Capture, *args: Any, **named: Any) -> None:
        if not has_room or named.get("anchor"):
            goes.set()
        secure(capture, *args, **named)

    def read_later(capture: Capture, piece: Any) -> Iterator[memoryview]:
        assert goes.wait(WAIT_S)
        yield from read(capture, piece)

    monkeypatch.setattr(Capture, "_secure", go_and_secure)
    monkeypatch.setattr(Capture, "_read", read_later)
    (tmp_path / "run").mkdir()
    saving = CheckpointSaver(Checkpoints(tmp_path / "run" / "checkpoints")).save(capture, beside=True)
    trainer.read_beside(capture)
    WORKS[name](trainer)
    goes.set()
    path = saving.result(WAIT_S)
    again = make("p0")
    again.restore(Checkpoint(path=path, state=json.loads((path / STATE).read_text())))
    assert same(everything(again, FIRST), before) == []
    assert trainer.waited_s - trainer._batches.waited_s == pytest.approx(capture.waited_s)
    assert capture.waited_s > 0.0
