"""A log stays below its bound while several processes write into it."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dht.process import bound, bounding


def test_a_small_log_stays(tmp_path: Path) -> None:
    path = tmp_path / "peer.log"
    assert not bound(path, 10), "there is none"
    path.write_bytes(b"ten bytes!")
    assert not bound(path, 10)
    assert path.read_bytes() == b"ten bytes!"


def test_a_large_one_is_copied_and_emptied(tmp_path: Path) -> None:
    path = tmp_path / "peer.log"
    path.write_bytes(b"eleven here")
    path.chmod(0o600)
    assert bound(path, 10)
    copy = tmp_path / "peer.log.1"
    assert (path.read_bytes(), copy.read_bytes()) == (b"", b"eleven here")
    assert copy.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"another eleven")
    bound(path, 10)
    assert copy.read_bytes() == b"another eleven", "one copy is kept"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["peer.log", "peer.log.1"]


@pytest.mark.outside
def test_who_has_it_open_goes_on_at_its_beginning(tmp_path: Path) -> None:
    """As a link and a daemon do, which inherited it as their stderr."""
    path = tmp_path / "peer.log"
    with path.open("ab") as log:
        code = "import sys; [print('x' * 9, file=sys.stderr, flush=True) for _ in sys.stdin]"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=log)
    assert child.stdin is not None
    child.stdin.write(b"go\n" * 2)
    child.stdin.flush()
    while path.stat().st_size < 20:
        threading.Event().wait(0.01)
    assert bound(path, 10)
    child.communicate(b"go\n")
    assert path.read_bytes() == b"x" * 9 + b"\n"


def test_on_a_full_disk_the_log_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    path = tmp_path / "peer.log"
    path.write_bytes(b"x" * 99)
    assert bound(path, 10)
    assert (path.stat().st_size, list(tmp_path.iterdir())) == (0, [path])


def test_it_is_watched_until_the_block_ends(tmp_path: Path) -> None:
    path, copy, before = tmp_path / "peer.log", tmp_path / "peer.log.1", set(threading.enumerate())
    with bounding(path, 10, every_s=0.01):
        path.write_bytes(b"x" * 99)
        while not copy.exists() or path.stat().st_size:
            threading.Event().wait(0.01)
    path.write_bytes(b"y" * 99)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "log"]
    assert path.stat().st_size == 99
