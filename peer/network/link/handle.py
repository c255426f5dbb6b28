"""The trainer's handle on its link process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from dht import errors
from peer.network.link.channel import LinkLost, TrainerEnd
from peer.network.link.cluster_invite import found_in, saved_line
from peer.network.link.flow_channel import FlowEnd
from peer.schema.ipc import AnyToTrainer, ChangeLimits, HomeLost, LinkFailed, LinkLimits, OpenLink, ToLink
from peer.schema.settings import PeerSettings

POLL_S = 0.5
START_S = 60.0
STOP_S = 20.0
GOODBYE_S = 3.0
FLUSH_S = 2.0
"""A link that has said its last ends in this time."""


class LeaveRequested(Exception):
    """This peer was asked to leave while it waited."""


class LinkProcess:
    """Starts the link, receives its messages in a thread of its own, and makes sure that it ends. Use it as a
    context manager.

    That thread calls `hear` with every message except LinkFailed, and `ended` exactly once for each link: with the
    error that LinkFailed names, or LinkLost. Both must return soon, and must not restart or close anything themselves.
    """

    module: ClassVar[str] = "peer.network.link.link"
    """The module that runs as the link."""

    def __init__(
        self,
        invite: str,
        directory: Path,
        settings: PeerSettings,
        hear: Callable[[AnyToTrainer], None],
        ended: Callable[[Exception], None],
    ) -> None:
        self.directory, self._hear, self._ended = directory, hear, ended
        self.on_home_lost: Callable[[HomeLost], None] = lambda lost: None
        """Called in that thread before `hear`, for whoever waits for a home of the cluster and hears nothing else."""
        self.is_of_cluster = False
        """Whether this peer leads several homes, or works for another."""
        self._flow: FlowEnd | None = None
        self._invite, self._settings = invite, settings
        self._take_place()
        self._limits = limits_of(settings)
        self._changing = threading.Lock()
        # A process has the niceness of the thread that starts it, and ends with it: this one stays, and at 0.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="link")
        self._start()

    def _start(self) -> None:
        mine, theirs = socket.socketpair()
        ends, words = [theirs], ["--fd", str(theirs.fileno()), "--dir", str(self.directory)]
        if self.is_of_cluster:
            my_flow, their_flow = socket.socketpair()
            self._flow = FlowEnd(my_flow)
            ends.append(their_flow)
            words += ["--flow-fd", str(their_flow.fileno())]
        start = partial(
            subprocess.Popen,
            [sys.executable, "-m", self.module, *words],
            pass_fds=[end.fileno() for end in ends], stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
            env=os.environ | {"HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor"},
        )  # fmt: skip
        self._process = self._starter.submit(start).result(START_S)
        for end in ends:
            end.close()
        pipe = TrainerEnd(mine)
        with self._changing:  # limits that change meanwhile are in the first message or come after it
            with suppress(LinkLost):
                pipe.send(self._open(self._limits))
            self._pipe = pipe
        self._reader = threading.Thread(target=self._read, args=(pipe,), name="link reader", daemon=True)
        self._reader.start()

    def _read(self, pipe: TrainerEnd) -> None:
        error: Exception
        try:
            while not isinstance(message := pipe.receive(POLL_S), LinkFailed):
                if isinstance(message, HomeLost):
                    self.on_home_lost(message)
                if message is not None:
                    self._hear(message)
            error = _error_of(message)
        except LinkLost as lost:
            error = lost
        with suppress(subprocess.TimeoutExpired):  # or it stays in the table of processes until the next one begins
            self._process.wait(FLUSH_S)
        self._ended(error)

    @property
    def flow(self) -> FlowEnd:
        """The channel to the other homes of the cluster, through the present link."""
        assert self._flow is not None, "a peer of no cluster has none"
        return self._flow

    def send(self, message: ToLink) -> None:
        """Send a message, from any thread. A link that has ended receives nothing: `ended` is called, or was."""
        with suppress(LinkLost):
            self._pipe.send(message)

    def take(self, settings: PeerSettings) -> None:
        """The owner has changed settings, from any thread: the link obeys at once, and so does its successor."""
        limits = limits_of(settings)
        with self._changing:
            if limits == self._limits:
                return
            self._limits = limits
            self.send(ChangeLimits(limits))

    def _take_place(self) -> None:
        """What the folder and the settings say of this peer's place in a cluster."""
        line, found, settings = saved_line(self.directory), found_in(self.directory), self._settings
        stages = settings.stages or (len(found.order) if found is not None and found.leads else 0)
        self.is_of_cluster = stages > 1 or line is not None
        self._open = partial(
            OpenLink, self._invite, settings.name, settings.listen, stages=max(1, stages),
            cluster=line.text() if line is not None and stages <= 1 else "",
        )  # fmt: skip

    def restart(self) -> None:
        """Start a new link in place of one that has ended: the run goes on from what is on disk. Messages of the old
        one are not delivered any more once this returns."""
        self.end()
        self._take_place()
        self._start()

    def end(self) -> None:
        """End the link at once; all its messages were delivered, and none follows once this returns."""
        self.kill()
        self._end()

    def kill(self) -> None:
        """End the link at once; its daemon ends with it. It waits for nothing, so a signal handler may call it."""
        self._process.kill()

    def close(self, left: Callable[[], bool]) -> None:
        """Wait for a link that was told to leave; once this peer has `left` it has only `GOODBYE_S`. Then end it."""
        deadline, is_asked = time.monotonic() + STOP_S, False
        while self._reader.is_alive() and (left_s := deadline - time.monotonic()) > 0:
            if not is_asked and left():
                is_asked, deadline = True, min(deadline, time.monotonic() + GOODBYE_S)
                continue
            self._reader.join(min(POLL_S, left_s))
        if self._reader.is_alive():
            self.kill()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A link that was not waited for ends because its pipe does."""
        self._end()
        self._starter.shutdown(wait=False)

    def _end(self) -> None:
        self._pipe.hang_up()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._reader.join(STOP_S)
        self._pipe.close()
        if self._flow is not None:
            self._flow.close()


def limits_of(settings: PeerSettings) -> LinkLimits:
    """The owner's settings that a link obeys while it runs."""
    return LinkLimits(*(getattr(settings, name) for name in LinkLimits.__struct_fields__))


def _error_of(failed: LinkFailed) -> Exception:
    kind = vars(errors).get(failed.error)
    if isinstance(kind, type) and issubclass(kind, errors.HomefiresError):
        return kind(failed.text)
    return LinkLost()
