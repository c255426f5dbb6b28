"""What a home of a cluster notes of the layers that it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.store.held_layers import HeldLayers, note_held, read_held


def test_a_home_that_is_dealt_other_layers_begins_anew(tmp_path: Path) -> None:
    """The bytes that led its chain where it is are those of other layers. The same layers change nothing."""
    assert read_held(tmp_path) is None
    for name in ("chain", "snapshots"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "HEAD").touch()
    note_held(tmp_path, range(3), 5)
    note_held(tmp_path, range(3), 9)
    assert read_held(tmp_path) == HeldLayers(range(3), since=5)
    assert (tmp_path / "chain" / "file").exists(), "a whole peer's folder has these, too"
    note_held(tmp_path, range(3, 6), 0)
    assert read_held(tmp_path) == HeldLayers(range(3, 6), since=0)
    assert [path.name for path in tmp_path.iterdir()] == ["layers.json"]


def test_damage_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text('{"first": 1}')
    with pytest.raises(BadInput, match=r"layers\.json is damaged"):
        read_held(tmp_path)
