"""What all our processes need: end with the parent, lock the peer's folder, load libraries fast."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from dht.atomic_files import raising_disk_full
from dht.errors import BadInput, DirectoryBusy, DiskFull
from dht.protocol_version import require_this_version

_PR_SET_PDEATHSIG = 1
ORPHANED = 128 + signal.SIGKILL
"""Exit code of a child whose parent had ended before it could ask for that; nobody is there to read it."""


PARENT = "HOMEFIRES_PARENT"
"""In a child's environment: the process that started it."""


def parent_env() -> dict[str, str]:
    """What a process adds to the environment of a child that calls `die_with_parent`."""
    return {PARENT: str(os.getpid())}


@contextmanager
def loading() -> Iterator[None]:
    """Import large libraries inside of this block: that is a sixth faster, since nothing that they create is ever
    examined by the garbage collector."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing happens). Call it first in
    the child.

    The kernel watches the *thread* that started the child, so start children from a thread that lives on. A parent that
    died before this call is recognised if it named itself (`parent_env`): then this process ends here. `parent_gone`
    works on every system.
    """
    parent = os.environ.pop(PARENT, "")  # children of this one have another
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent and os.getppid() != int(parent):
        os._exit(ORPHANED)


async def parent_gone(parent_pid: int | None = None, poll_s: float = 1.0) -> None:
    """Return once the parent process has ended. `parent_pid` is the parent's id as the parent knew it."""
    parent = os.getppid() if parent_pid is None else parent_pid
    while os.getppid() == parent:  # noqa: ASYNC110 (the kernel tells nobody else)
        await asyncio.sleep(poll_s)


TRIES = 5
BETWEEN_TRIES_S = 0.05


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold `directory`/run/lock; the kernel releases it however this process ends. Raises DirectoryBusy. It makes
    the directory and its folder `run` (0700) if necessary. Raises BadInput for a directory of another version, and
    for one whose path is not valid text, since our processes pass paths to each other."""
    path_text = str(directory.absolute())
    if any("\ud800" <= letter <= "\udfff" for letter in path_text):
        raise BadInput(f"{path_text!r} is not UTF-8 text; name another folder with --dir, or work in another one")
    require_this_version(directory)
    folder = directory / "run"
    for path in (directory, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(handle, "r+") as file:
        if not _take(file):
            holder = file.read(20).strip() or "unknown"
            raise DirectoryBusy(f"{directory} is in use by process {holder}; stop it or name another folder")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: TextIO) -> bool:
    """Whether the lock is ours now. A process that only asks whether it is held takes it for an instant: that one is
    waited for."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(BETWEEN_TRIES_S)
        else:
            return True
    return False


MOST_BYTES = 8 << 20
"""Of the file, and once more of the copy."""
EVERY_S = 30.0
END_S = 5.0


def bound(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Empty a file that has grown beyond this many bytes, and keep its content as `NAME.1`; returns whether it had.
    Lines written between copying and emptying are lost. On a full disk so is the copy, which frees space."""
    if not path.is_file() or path.stat().st_size <= most_bytes:
        return False
    copy = path.with_name(f"{path.name}.1")
    scratch = path.with_name(f"{path.name}.1.new")
    try:
        with raising_disk_full(path.parent):
            shutil.copyfile(path, scratch)
            scratch.chmod(path.stat().st_mode & 0o777)
            scratch.replace(copy)
    except DiskFull:
        scratch.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


@contextmanager
def bounding(path: Path, most_bytes: int = MOST_BYTES, every_s: float = EVERY_S) -> Iterator[None]:
    """Check the file now and at intervals, from another thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        bound(path, most_bytes)
        while not ended.wait(every_s):
            bound(path, most_bytes)

    thread = threading.Thread(target=watch, name="log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)
