"""What a folder takes, and how often that is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.node.host.disk import Spared, folder_bytes
from tests.peer.node.host.files import put


def test_a_folder_takes_what_its_files_take(tmp_path: Path) -> None:
    """Blocks on disk, of all folders below; a link counts as itself."""
    put(tmp_path / "a/b/c", "x" * 100_000)
    put(tmp_path / "d", "x")
    (tmp_path / "link").symlink_to("/usr")
    taken = sum(path.lstat().st_blocks * 512 for path in tmp_path.rglob("*") if not path.is_dir() or path.is_symlink())
    assert folder_bytes(tmp_path) == taken
    assert taken > 100_000
    assert folder_bytes(tmp_path / "nowhere") == 0


def test_a_folder_of_very_many_files_is_looked_at_less_often() -> None:
    """A look that takes 50 ms follows 2.5 s after the one before; one that takes none, every time."""
    now, looks = [0.0], list[float]()

    def look() -> int:
        looks.append(now[0])
        now[0] += 0.05
        return len(looks)

    spared = Spared(look, lambda: now[0])
    assert spared() == 1
    for _ in range(20):
        now[0] += 0.5
        spared()
    assert looks == pytest.approx([0.0, 2.55, 5.1, 7.65, 10.2])
    assert spared() == len(looks)
    values = iter([1, 2])
    free = Spared(lambda: next(values), lambda: now[0])
    assert (free(), free()) == (1, 2)
