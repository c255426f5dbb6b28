"""Nothing is left behind by the tests: no process, no file or socket in the temporary folder, no shared memory.

Each session of pytest has a temporary folder of its own, which its workers and all that they start inherit. At the end
it must hold nothing but what pytest itself put there, nobody who inherited it may be alive, and whatever is new in
shared memory must belong to somebody. Otherwise the session has failed, though every test has passed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from peer.testing.child_process import ORPHAN_S

SHARED = Path("/dev/shm")
TESTS = "t"
"""The folder of the folders of tests. A short one: a socket's path may have 107 bytes."""
CACHE = "cache"
"""What homefires keeps for all runs of a machine."""
TRACKER = "multiprocessing.resource_tracker"
"""Python's own, which ends when whoever has used a process pool does, and that may be pytest."""
TORCHS = "torchinductor_"
"""How a folder begins that torch makes for itself as it is loaded."""


class Leftovers:
    """In the process that a person starts."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hf"))
        os.environ["TMPDIR"], tempfile.tempdir = str(self._folder), None
        os.environ["HOMEFIRES_CACHE"] = str(self._folder / CACHE)
        config.option.basetemp = config.option.basetemp or str(self._folder / TESTS)
        self._shared = shared_names()
        self._failed = False
        self._left: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """When all workers have ended and everybody else has tidied up."""
        yield
        self._failed = session.testsfailed > 0
        self._left = [*self._processes(), *self._files(), *self._memory()]
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """The last words, and the end of the folder unless a failed test's is in it."""
        for what in self._left:
            print(f"left behind: {what}")
        if self._failed:
            print(f"the folders of failed tests are kept in {self._folder}")
        else:
            shutil.rmtree(self._folder)

    def _processes(self) -> list[str]:
        inherited = [process for process in psutil.process_iter() if self._has_our_folder(process)]
        _, alive = psutil.wait_procs(inherited, timeout=ORPHAN_S)
        return [
            f"process {process.pid}: {' '.join(process.cmdline())[:200]}" for process in alive if is_at_work(process)
        ]

    def _has_our_folder(self, process: psutil.Process) -> bool:
        try:
            if process.pid == os.getpid() or TRACKER in " ".join(process.cmdline()):
                return False
            return process.environ().get("TMPDIR", "").startswith(str(self._folder))
        except psutil.Error:  # it has ended, or is another user's
            return False

    def _files(self) -> list[str]:
        known = (TESTS, TORCHS, CACHE)
        return [str(path) for path in sorted(self._folder.iterdir()) if not path.name.startswith(known)]

    def _memory(self) -> list[str]:
        new = shared_names() - self._shared
        return [str(SHARED / name) for name in sorted(new) if not is_held(SHARED / name)]


def shared_names() -> set[str]:
    """Segments and semaphores."""
    return {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()


def is_held(path: Path) -> bool:
    """Whether a process has it open or mapped: then it is not ours to judge."""
    for process in psutil.process_iter():
        try:
            if any(row.path == str(path) for row in process.memory_maps()):
                return True
        except psutil.Error:
            continue
    return False


def is_at_work(process: psutil.Process) -> bool:
    """Not one that has ended and that nobody has waited for."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Not in workers; and before pytest chooses the folder of the folders of tests."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(Leftovers(config))
