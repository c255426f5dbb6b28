"""Child processes of a test: it reads their output line by line, and checks that none of them is left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HANG_S = 600.0
"""Who waits for what must happen at some time gives up after this long: a hang, no slow machine. It promises nothing;
what is promised to happen in time is asserted on its own."""
BUSY = 4.0
"""What is promised for an idle desktop may take so many times as long where tests run: slower, busy with much else."""
ORPHAN_S = BUSY * 5.0
"""Nothing of ours outlives its parent for longer. 2 s on an idle desktop, most of it loading: a child that loses its
parent before it has loaded its own code sees that afterwards. 8.6 s, measured with seven others at work per core."""
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # a folder called `peer` or `dht` where the tests happen to stand must not be imported
    "OMP_NUM_THREADS": "1",  # several peers share the cores of one machine
    # hivemind's default leaves segments in shared memory when a peer is killed.
    "HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor",
}
"""Of peers and nodes: laid over that of the process that starts them."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A whole line on a child's stdout, without its end; None once there will be no more."""

    child: Child
    text: str | None


class Child:
    """A process that leads a session of its own. A thread gives its lines to `put`; its stderr goes to the file `log`.

    `environment` is laid over this process's.
    """

    def __init__(
        self, argv: Sequence[str], log: Path, environment: Mapping[str, str], put: Callable[[Printed], None]
    ) -> None:
        self.log = log
        self._put = put
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
                env=os.environ | environment, start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def err(self) -> str:
        """What it wrote on stderr so far."""
        return self.log.read_text()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process itself; none if it has ended."""
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and to all that it started."""
        # A group's id is not given to another process while a member lives.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, grace_s: float = HANG_S) -> None:
        """Wait for its end; after `grace_s` kill it with its whole group. What it leaves behind else stays."""
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.signal_group(signal.SIGKILL)
            self.process.wait(ORPHAN_S)
        self._reader.join(ORPHAN_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for text in stdout:
                if text.endswith("\n"):  # else it was killed while it wrote
                    self._put(Printed(child=self, text=text[:-1]))
        self._put(Printed(child=self, text=None))


def processes_of(directory: Path) -> list[psutil.Process]:
    """Processes that name a path below `directory` on their command line, other than this one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(str(directory) in word for word in words):
            found.append(process)
    return found


def wait_for_ends(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that have not ended by then. One has ended, too, whom its new parent has not asked how: init takes 2 s."""
    until = time.monotonic() + timeout_s
    while (alive := [process for process in processes if _lives(process)]) and time.monotonic() < until:
        time.sleep(0.02)
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_no_orphans(directory: Path) -> None:
    """Everything of `directory` ends by itself within `ORPHAN_S`. Raises AssertionError that names what does not."""
    alive = wait_for_ends(processes_of(directory), ORPHAN_S)
    assert not alive, f"still running: {[process.cmdline() for process in alive]}"
