from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tui.commands.demo
import tui.commands.join
import tui.commands.organiser

FAKE_CHILD = Path(__file__).with_name("fake_child.py")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has runs of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of this machine shows UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fake_children(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """fake_children(behaviour): every child the launcher starts is fake_child.py with that behaviour."""

    def install(behaviour: str) -> None:
        def command(module: str, *arguments: str) -> list[str]:
            return [sys.executable, str(FAKE_CHILD), behaviour, module, *arguments]

        monkeypatch.setattr(tui.commands.demo, "python_module", command)
        monkeypatch.setattr(tui.commands.join, "python_module", command)
        monkeypatch.setattr(tui.commands.organiser, "python_module", command)

    return install
