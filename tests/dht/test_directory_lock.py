"""One process per directory."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dht.errors import BadInput, DirectoryBusy
from dht.process import lock_directory
from peer.testing.child_process import HANG_S


def test_a_second_holder_is_told_who_is_first(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "run"):
        with pytest.raises(DirectoryBusy, match=f"in use by process {os.getpid()}"), lock_directory(tmp_path / "run"):
            pass
        assert stat.S_IMODE((tmp_path / "run" / "run").stat().st_mode) == 0o700
    with lock_directory(tmp_path / "run"):
        pass


def test_a_folder_whose_path_is_no_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is called so as where we are, whose name nobody has said to us."""
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    monkeypatch.chdir(odd)
    for directory in (odd, Path("peer")):
        with pytest.raises(BadInput, match="is not UTF-8 text") as caught, lock_directory(directory):
            pass
        assert str(caught.value).isprintable()
    assert list(odd.iterdir()) == []


@pytest.mark.outside
def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, dht.process\n"
        "with dht.process.lock_directory(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryBusy, match=f"process {child.pid}"), lock_directory(tmp_path):
            pass
        child.kill()
        child.wait(timeout=HANG_S)
        with lock_directory(tmp_path):
            pass


def test_whoever_only_asks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`homefires status` and the dashboard look at the lock by taking it shared for an instant."""
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda seconds: fcntl.flock(asking, fcntl.LOCK_UN))
        with lock_directory(tmp_path):
            assert (tmp_path / "run" / "lock").read_text() == str(os.getpid())
