"""The peers of a rival as processes: started, listened to, struck and stopped, each by its id."""

from __future__ import annotations

import dataclasses
import json
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.testing.child_process import Child, Printed
from tests.benchmarks.rivals.lines import CHILD_ENVIRONMENT, Lines
from tests.benchmarks.rivals.trainee import GO, Orders

STOP_S = 25.0
"""hivemind's own parts take some seconds each."""
LOOK_S = 0.25
LOG_TAIL = 800

Row = dict[str, Any]
"""What a peer told: `t` (Unix time), `what`, and more."""


@dataclass(eq=False)
class Member:
    """One peer over all its lives."""

    orders: Orders
    folder: Path
    child: Child | None = None
    rows: list[Row] = field(default_factory=list)
    may_end: bool = False
    """It was killed or asked to leave."""


class RivalGroup:
    """Some peers of `module`, each on a line of its own; the one after the last is for a meeting place.

    A peer that ends with an error, though nobody asked it to, is an AssertionError in whatever waits, unless `lenient`.
    """

    def __init__(self, module: str, directory: Path, lines: Lines, *, lenient: bool = False) -> None:
        self.directory, self.lines = directory, lines
        self._module, self._lenient = module, lenient
        self.members: list[Member] = []
        self.failures: list[str] = []
        """Of those that ended by themselves."""
        self._inbox: queue.SimpleQueue[Printed] = queue.SimpleQueue()
        self._meeting: Child | None = None
        self._meeting_rows: list[Row] = []
        self._closing = False
        self._temporary = tempfile.TemporaryDirectory(prefix="hf-")

    def __enter__(self) -> RivalGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- coming and going ----

    def open_meeting_place(self, *, within_s: float) -> str:
        """A node at which the others meet; where it is."""
        place = self.lines.places[-1]
        argv = [*place.prefix, sys.executable, "-m", self._module, "--bootstrap", place.address]
        self._meeting = self._start(argv, self.directory / "meeting.log")
        return self.wait(lambda: next((row["where"] for row in self._meeting_rows if row["what"] == "meet"), ""),
                         "nobody said where to meet", within_s=within_s)  # fmt: skip

    def add(self, orders: Orders) -> Member:
        """Start one more peer, in a folder of its own."""
        folder = self.directory / f"peer-{len(self.members)}"
        orders.write(folder)
        member = Member(orders=orders, folder=folder)
        self.members.append(member)
        self.start(member)
        return member

    def start(self, member: Member, **changes: Any) -> None:
        """Start a peer, also one that has ended; with other orders than before if there are `changes`."""
        if changes:
            member.orders = dataclasses.replace(member.orders, **changes)
            member.orders.write(member.folder)
        place = self.lines.places[self.members.index(member)]
        argv = [*place.prefix, sys.executable, "-m", self._module, str(member.folder)]
        member.may_end = False
        member.child = self._start(argv, member.folder / "peer.log")

    def go(self) -> None:
        """Let all of them begin."""
        (self.directory / GO).touch()

    def kill(self, member: Member) -> None:
        """SIGKILL to it and to all that it started."""
        member.may_end = True
        _child(member).signal_group(signal.SIGKILL)
        _child(member).end(STOP_S)

    def leave(self, member: Member) -> None:
        """Ask it to leave; does not wait."""
        member.may_end = True
        _child(member).signal(signal.SIGTERM)

    def halt(self, member: Member) -> None:
        """SIGSTOP to it and to all that it started."""
        _child(member).signal_group(signal.SIGSTOP)

    def go_on(self, member: Member) -> None:
        """Let one that was halted go on."""
        _child(member).signal_group(signal.SIGCONT)

    def close(self) -> None:
        """Ask everybody to stop, wait, kill who does not, and what they left behind."""
        children = [member.child for member in self.members if member.child is not None]
        children += [self._meeting] if self._meeting is not None else []
        self._closing = True
        for member in self.members:
            member.may_end = True
        for child in children:
            child.signal_group(signal.SIGCONT)
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in children:
            child.end(max(0.0, deadline - time.monotonic()))
            child.signal_group(signal.SIGKILL)  # what outlived it: a daemon, an averager
        self._drain()
        self._temporary.cleanup()

    # ---- listening ----

    def wait(self, found: Callable[[], Any], failure: str, *, within_s: float) -> Any:
        """Listen until `found` gives something true. Raises AssertionError."""
        deadline = time.monotonic() + within_s
        while not (result := found()):
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{failure} within {within_s:.0f} s; {self._where()}"
            with suppress(queue.Empty):
                self._take(self._inbox.get(timeout=min(left_s, LOOK_S)))
        return result

    def listen(self, seconds: float) -> None:
        """Take in what is told meanwhile."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._take(self._inbox.get(timeout=left_s))

    def until_all_told(self, what: str, times: int = 1, *, within_s: float) -> None:
        """Until every peer has told of `what` so often."""

        def all_told() -> bool:
            return all(len(list(told(member, what))) >= times for member in self.members)

        self.wait(all_told, f"not all told of {times} × {what}", within_s=within_s)

    def _start(self, argv: Sequence[str], log: Path) -> Child:
        return Child(argv, log, CHILD_ENVIRONMENT | {"TMPDIR": self._temporary.name}, self._inbox.put)

    def _drain(self) -> None:
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, printed: Printed) -> None:
        rows, member = self._meeting_rows, None
        if printed.child is not self._meeting:
            member = next((each for each in self.members if each.child is printed.child), None)
            if member is None:
                return  # of an earlier life
            rows = member.rows
        if printed.text is None:
            self._on_end(member, printed.child)
        elif printed.text.startswith("{"):
            rows.append(json.loads(printed.text))

    def _on_end(self, member: Member | None, child: Child) -> None:
        code = child.process.wait(STOP_S)
        if member is None:
            assert self._closing, f"the meeting place ended with {code}: {child.err[-LOG_TAIL:]}"
            return
        if member.may_end:
            return
        if code == 0:
            return
        self.failures.append(f"peer {self.members.index(member)} ended with {code}: {child.err[-LOG_TAIL:]}")
        assert self._lenient, self.failures[-1]

    def _where(self) -> str:
        return "; ".join(
            f"peer {number} told {member.rows[-1] if member.rows else 'nothing'}, log: {_child(member).err[-LOG_TAIL:]}"
            for number, member in enumerate(self.members)
        )


def told(member: Member, what: str) -> Iterator[Row]:
    """What it told of this kind, in order."""
    return (row for row in member.rows if row["what"] == what)


def lacking(member: Member) -> int:
    """In how many averagings hivemind had not all parts from the others: it says so in its log, and nowhere else."""
    return _child(member).err.count("Averaging: received ")


def _child(member: Member) -> Child:
    assert member.child is not None
    return member.child
