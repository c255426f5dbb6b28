"""A contender's processes, one per peer: started once, then asked for one round after the other.

A child says that it is ready, prepares a round when it is told to, and does it on "go". All times are those of the
monotonic clock, which the processes of a machine share.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from dht.process import die_with_parent
from tests.benchmarks.jobs import ROOT

START_S, ROUND_S, STOP_S = 600.0, 600.0, 20.0
SETTLE_S = 0.3
"""What a round still does when all have its result is counted, too."""

Words = dict[str, Any]


class Member(Protocol):
    """One peer of a contender, in its own process."""

    def prepare(self) -> None:
        """Have new values to average; not measured."""

    def round(self) -> Words:
        """Average them; returns what there is to say of it."""

    def check(self) -> Words:
        """How right the values are that it has now; not measured. Raises Failed where they must be to the bit."""

    def close(self) -> None: ...


Make = Callable[..., Member]
"""A function of a module: another process calls it, with its number and what `Crew` was given."""


class Failed(Exception):
    """A contender's process could not do what it was asked for."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round took."""

    seconds: float
    """From the first peer's begin to the last one's end."""
    cpu_s: float
    """Of all processes of the contender, its daemons included."""
    wire_bytes: int
    """Through the loopback device, in one direction, headers and acknowledgements included."""
    said: list[Words] = field(default_factory=list)
    """By peer."""


class Crew:
    """The processes of one contender. Use it as a context manager."""

    def __init__(self, make: Make, folder: Path, options: Words) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._make, self._folder, self._options = make, folder, options
        self._peers: int = options["peers"]

    def __enter__(self) -> Self:
        """Start everybody; the first is ready before the others start, and what it says is told them as `met`."""
        try:
            self._start(0, {})
            met = self._hear(0, START_S)
            for number in range(1, self._peers):
                self._start(number, met)
            for number in range(1, self._peers):
                self._hear(number, START_S)
            self._tell("complete")
            self._hear_all(START_S)
        except BaseException:
            self.__exit__()
            raise
        self._families = [family(process.pid) for process in self._processes]
        self._resident = [[resident_bytes(one) for one in members] for members in self._families]
        for members in self._families:
            for one in members:
                forget_peak(one)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send("end")
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in self._pipes:
            pipe.close()

    def round(self) -> Round:
        """Have everybody prepare, then average; raises Failed."""
        self._tell("prepare")
        self._hear_all(ROUND_S)
        cpu_before_s, wire_before = self._cpu_s(), loopback_bytes()
        self._tell("go")
        told = self._hear_all(ROUND_S)
        time.sleep(SETTLE_S)
        cpu_s, wire_bytes = self._cpu_s() - cpu_before_s, loopback_bytes() - wire_before
        self._tell("check")
        checked = self._hear_all(ROUND_S)
        said = [words | found for words, found in zip(told, checked, strict=True)]
        return Round(
            seconds=max(words["ended"] for words in told) - min(words["began"] for words in told),
            cpu_s=cpu_s, wire_bytes=wire_bytes, said=said,
        )  # fmt: skip

    def extra_bytes(self) -> int:
        """What the processes of a peer took at most beyond what they held when they were ready; the largest peer's.

        The peaks of a peer's processes are added, though they need not come at the same time.
        """
        return max(
            sum(max(0, peak_bytes(one) - before) for one, before in zip(members, held, strict=True))
            for members, held in zip(self._families, self._resident, strict=True)
        )

    def _start(self, number: int, met: Words) -> None:
        mine, theirs = Pipe()
        self._pipes.append(mine)
        with theirs:
            argv = [sys.executable, "-m", "tests.benchmarks.allreduce_crew", str(theirs.fileno())]
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=os.environ | {"PYTHONPATH": str(ROOT)}
            )
        self._processes.append(process)
        mine.send((self._make, number, met, self._folder / f"{number}.log", self._options))

    def _tell(self, word: str) -> None:
        for pipe in self._pipes:
            pipe.send(word)

    def _hear_all(self, timeout_s: float) -> list[Words]:
        return [self._hear(number, timeout_s) for number in range(self._peers)]

    def _hear(self, number: int, timeout_s: float) -> Words:
        pipe = self._pipes[number]
        if not pipe.poll(timeout_s):
            raise Failed(f"peer {number} did not answer within {timeout_s:.0f} s; see {self._folder / f'{number}.log'}")
        try:
            words: Words = pipe.recv()
        except EOFError as error:
            raise Failed(f"peer {number} ended; see {self._folder / f'{number}.log'}") from error
        if "failed" in words:
            raise Failed(f"peer {number}: {words['failed']}")
        return words

    def _cpu_s(self) -> float:
        return sum(cpu_s(one) for members in self._families for one in members)


def serve(pipe: Connection) -> None:
    """The life of one peer's process."""
    die_with_parent()
    make, number, met, log, options = pipe.recv()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        _serve(pipe, make, number, met, options)
    except EOFError:
        return  # whoever measures has ended
    except BaseException as error:
        traceback.print_exc()
        pipe.send({"failed": f"{type(error).__name__}: {error}"})
        raise


def _serve(pipe: Connection, make: Make, number: int, met: Words, options: Words) -> None:
    import torch

    torch.set_num_threads(options["threads"])
    member = make(number, met, options)
    try:
        pipe.send(getattr(member, "met", {}))
        while (word := pipe.recv()) != "end":
            if word == "complete":
                getattr(member, "complete", lambda: None)()
                pipe.send({})
            elif word == "prepare":
                member.prepare()
                pipe.send({})
            elif word == "check":
                pipe.send(member.check())
            else:
                began = time.monotonic()
                words = member.round()
                pipe.send({"began": began, "ended": time.monotonic()} | words)
    finally:
        member.close()


# ---- what the system says of processes


def family(pid: int | None) -> Sequence[psutil.Process]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Processor time of it so far, with that of children that have ended; none of one that is gone."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def resident_bytes(process: psutil.Process) -> int:
    return status_bytes(process.pid, "VmRSS")


def peak_bytes(process: psutil.Process) -> int:
    """Most that was resident since `forget_peak`."""
    return status_bytes(process.pid, "VmHWM")


def forget_peak(process: psutil.Process) -> None:
    """Have the kernel measure the peak anew."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def status_bytes(pid: int, name: str) -> int:
    """0 of a process that is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return 0


def loopback_bytes() -> int:
    """What has passed the loopback device: everything is sent there once and received once."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise Failed("this machine has no loopback device")


if __name__ == "__main__":
    # What it raises is to be what others catch, not of a second module.
    from tests.benchmarks import allreduce_crew

    allreduce_crew.serve(Connection(int(sys.argv[1])))
