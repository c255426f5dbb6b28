"""An export says what takes long, at its beginning and while it lasts."""

from __future__ import annotations

import threading

import pytest

import peer.tools.export.progress
from peer.tools.export.progress import ExportProgress


def test_what_lasts_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.tools.export.progress, "STILL_S", 0.01)
    said, again = list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            again.set()

    with ExportProgress(say).during("uploading 5.0 MB to me/mine"):
        assert again.wait(10)
    assert said[:2] == ["uploading 5.0 MB to me/mine", "uploading 5.0 MB to me/mine, for 0 s so far"]
    told = len(said)
    assert len(said) == told, "nothing more once it has ended"


def test_rounds_are_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("peer.tools.export.progress.time.monotonic", lambda: now)
    said: list[str] = []
    progress = ExportProgress(said.append)
    for round in range(1, 31):
        now += 0.25
        progress.round(round, 30)
    assert said == [f"round {round} of 30" for round in range(4, 31, 4)]
