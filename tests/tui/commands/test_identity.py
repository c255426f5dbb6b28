"""`homefires identity`, as a person types it; what is done with a key is in tests/dht/test_key_files.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import tui.commands.artifacts
from tui.cli import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that reach the child."""
    words: list[str] = []

    def run(argv: list[str], limit_s: float, late: str) -> int:
        words[:] = argv[3:]
        return 0

    monkeypatch.setattr(tui.commands.artifacts, "converse", run)
    return words


@pytest.mark.parametrize("action", ["export", "import"])
def test_the_folder_may_stand_before_or_behind_the_action(asked: list[str], tmp_path: Path, action: str) -> None:
    """It is never another one than the person named: a key would be copied that nobody meant."""
    where = ["--dir", str(tmp_path)]
    for words in ([*where, action, "file"], [action, "file", *where]):
        assert main(["identity", *words]) == 0
        assert asked == [action, "file", "--dir", str(tmp_path)]


def test_a_key_goes_only_where_somebody_says(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identity", "import", "file"]) == 2
    assert "--dir is missing" in capsys.readouterr().err
    assert asked == []
