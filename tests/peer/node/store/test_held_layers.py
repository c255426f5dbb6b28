"""What a home of a cluster notes of the layers that it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.node.store.held_layers import HeldLayers, note_held, read_held

FILES = ("HEAD", "chain/000001.block", "snapshots/00000001-ff/vectors")
KEPT = ("chain/acceptors", "chain/objects/ff")


def test_a_home_that_is_dealt_other_layers_begins_anew(tmp_path: Path) -> None:
    """The bytes that led its chain where it is are those of other layers. As a voter it forgets nothing. The same
    layers change nothing."""
    assert read_held(tmp_path) is None
    for name in (*FILES, *KEPT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    note_held(tmp_path, range(3), 5)
    note_held(tmp_path, range(3), 9)
    assert read_held(tmp_path) == HeldLayers(range(3), since=5)
    assert all((tmp_path / name).exists() for name in FILES), "a whole peer's folder has these, too"
    note_held(tmp_path, range(3, 6), 0)
    assert read_held(tmp_path) == HeldLayers(range(3, 6), since=0)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"layers.json", *KEPT}


def test_damage_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text('{"first": 1}')
    with pytest.raises(BadInput, match=r"layers\.json is damaged"):
        read_held(tmp_path)
