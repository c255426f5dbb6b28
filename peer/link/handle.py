"""The trainer's handle on its link process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from dht import errors
from peer.link.channel import SETTINGS, Fields, LinkLost, TrainerEnd
from peer.settings import PeerSettings
from peer.store.objects import load_object

POLL_S = 0.5
START_S = 60.0
STOP_S = 20.0
GOODBYE_S = 3.0


LIVE = ("chain_mb", "disk_gb", "upload_mbps", "download_mbps", "newcomers_mbps")
"""Settings that a link takes while it runs."""
STARTER = "link"
"""Name of the thread that starts links."""


class LeaveRequested(Exception):
    """This peer was asked to leave while it waited."""


class LinkProcess:
    """Starts the link, talks to it, and sees that it ends. Use it as a context manager."""

    module: ClassVar[str] = "peer.link.link"
    """What is run as the link."""

    def __init__(
        self,
        invite: str,
        directory: Path,
        settings: PeerSettings,
        on_report: Callable[[Fields], None],
        left: Callable[[], bool],
    ) -> None:
        self.directory, self._on_report, self._left = directory, on_report, left
        self._arguments = ["--dir", str(directory), "--invite", invite, "--name", settings.name]
        self._arguments += [word for address in settings.listen for word in ("--listen", address)]
        self._live = {name: getattr(settings, name) for name in LIVE}
        # A process has the niceness of the thread that starts it, and ends with it: this one stays, and at 0.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix=STARTER)
        self._start()

    def _start(self) -> None:
        mine, theirs = socket.socketpair()
        command = [sys.executable, "-m", self.module, "--fd", str(theirs.fileno()), *self._arguments]
        for name, value in self._live.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        start = partial(
            subprocess.Popen, command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(), env=os.environ | {"HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor"},
        )  # fmt: skip
        self._process = self._starter.submit(start).result(START_S)
        theirs.close()
        self._pipe = TrainerEnd(mine)
        self.has_ended = False

    def take(self, settings: PeerSettings) -> None:
        """What the owner has changed, from any thread: the link obeys at once, and so does one that takes its place."""
        live = {name: getattr(settings, name) for name in LIVE}
        if live == self._live:
            return
        self._live = live
        self.announcer(SETTINGS, live)()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a link that was told to leave. After an error it ends because its pipe does."""
        if kind is None:
            self._hear_out()
        self._pipe.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._starter.shutdown(wait=False)

    def restart(self) -> None:
        """Start a new link in place of one that has ended: the run goes on from what is on disk."""
        self._pipe.close()
        self.kill()
        self._process.wait(STOP_S)
        self._start()

    def kill(self) -> None:
        """End the link at once; its daemon ends with it. Waits for nothing, so a signal handler may call it."""
        self._process.kill()

    def send(self, kind: str, *fields: Any) -> None:
        """Raises what the link failed with, or LinkLost if it did not say."""
        try:
            self._pipe.send(kind, *fields)
        except LinkLost:
            while self.receive(0.0) is not None:
                continue
            raise

    def announcer(self, kind: str, *fields: Any) -> Callable[[], None]:
        """What tells this very link, from any thread, and no other that takes its place.

        If the link is lost the next `receive` says so.
        """
        pipe = self._pipe

        def announce() -> None:
            with suppress(LinkLost):
                pipe.send(kind, *fields)

        return announce

    def receive(self, timeout_s: float) -> Fields | None:
        """The next message or None. Raises what the link failed with, or LinkLost; then it `has_ended`."""
        try:
            message = self._pipe.receive(timeout_s)
        except LinkLost:
            self.has_ended = True
            raise
        if message is not None and message[0] == "error":
            _, name, text = message
            self.has_ended = True
            raise getattr(errors, name)(text)
        return message

    def expect(self, kind: str, timeout_s: float | None) -> Fields:
        """The values of the next message of this kind; reports on the way are passed on.

        Raises Left once this peer is asked to leave, Unreachable if the message has not come within `timeout_s`.
        """
        waited_s = 0.0
        while not self._left():
            message = self.receive(POLL_S)
            if message is None:
                waited_s += POLL_S
                if timeout_s is not None and waited_s > timeout_s:
                    raise errors.Unreachable(f"the link did not get the run's {kind} within {timeout_s:.0f} s")
                continue
            if message[0] == kind:
                return message[1:]
            self._on_report(message)
        raise LeaveRequested

    def load_object(self, digest: bytes) -> bytes:
        """Bytes that the link stored under a digest. Raises BadInput if they are not what they were."""
        return load_object(self.directory, digest)

    def _hear_out(self) -> None:
        """Read what the link still says until it ends; once we are asked to leave it has only `GOODBYE_S`."""
        deadline = time.monotonic() + STOP_S
        asked_at: float | None = None
        try:
            while time.monotonic() < deadline:
                self._pipe.receive(POLL_S)
                if asked_at is None and self._left():
                    asked_at = time.monotonic()
                    deadline = min(deadline, asked_at + GOODBYE_S)
        except LinkLost:
            return
        self.kill()
