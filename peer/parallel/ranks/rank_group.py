"""The lead's group of ranks: it starts them, sends all of them the same commands, and ends all when one is lost.

Ranks meet in collective operations. When one of them ends, the others would wait for it for ever, so none goes on
without the others. What they shared is in the arena, which belongs to the lead, and on disk.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar

from dht.process import parent_env
from peer.parallel.fsdp.rank_channel import HungUp, RankChannel
from peer.parallel.fsdp.rank_messages import Answer, Command, NoRoomThere, RankAnswer, RankFailed, RankSetup, StopRank

START_S = 300.0
"""A rank that has not loaded its libraries, met the others and built its shards by then never will."""
ANSWER_S = 900.0
"""The maximal time for any piece of work: the longest is a micro-batch of a model that is read from a file, layer by
layer."""
STOP_S = 10.0
"""The time in which a rank that is told to stop between two pieces of work does so, and in which the kernel ends a
killed one."""
LOOK_S = 0.02
BLAME_S = 1.0
"""After one rank reports that it cannot go on, another rank that was killed is found within this time."""


class RankLost(Exception):
    """A rank has ended, or cannot go on. All others were ended with it."""

    def __init__(self, rank: int, device: str, why: str, *, is_device: bool) -> None:
        super().__init__(f"rank {rank} on {device} {why}")
        self.rank, self.device = rank, device
        self.is_device = is_device
        """Whether it reported that its device has failed for good."""


class NoRoomInRank(Exception):
    """A device's memory was full within a step. Parameters and optimizers are intact, and can still be copied out."""

    def __init__(self, why: str, rank: int = 0) -> None:
        super().__init__(why)
        self.rank = rank


@dataclass(frozen=True, kw_only=True)
class _Member:
    device: str
    process: subprocess.Popen[bytes]
    steps: RankChannel[Command, Answer]
    round: RankChannel[Command, Answer]

    def ended(self) -> str:
        """How the process ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class RankGroup:
    """Ranks that are ready. One thread may give them steps while another gives them a round's work; each waits its
    turn."""

    program: ClassVar[tuple[str, ...]] = ("peer.parallel.fsdp.rank",)
    """The module that is run as a rank, and further arguments."""

    def __init__(self, setups: Sequence[RankSetup], arena: int, directory: Path) -> None:
        """`arena` is the arena's descriptor, `directory` that of the peer. Raises RankLost and NoRoomInRank; then no
        rank is left."""
        # A process ends with the thread that starts it: this one stays.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ranks")
        self._ending, self._blaming = threading.Lock(), threading.Lock()
        self._loss: dict[str, Any] | None = None
        """The arguments of RankLost for the first rank that was lost."""
        self._speaking = {"steps": threading.Lock(), "round": threading.Lock()}
        self._folder = tempfile.TemporaryDirectory(prefix="homefires-ranks-")
        self._members: list[_Member] = []
        self._is_parted = False
        """Whether ranks wait in a collective operation for one that has left it."""
        self._is_closed = False
        try:
            meeting = str(Path(self._folder.name) / "meet")
            for setup in setups:
                starting = self._starter.submit(_start, self.program, setup.device, arena, directory)
                self._members.append(starting.result(START_S))
                _tell(self._members[-1].steps, _at(setup, meeting))
            self._answers("steps", START_S)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self._members)

    def step(self, *commands: Command) -> list[RankAnswer]:
        """Give the ranks work of an inner step: one command for all, or one for each. Raises RankLost and
        NoRoomInRank."""
        return self._ask("steps", commands, ANSWER_S)

    def round(self, command: Command) -> list[RankAnswer]:
        """Give all ranks the same work of a round. Raises RankLost, also if a device had too little memory for it."""
        return self._ask("round", (command,), ANSWER_S)

    def _ask(self, line: str, commands: Sequence[Command], longest_s: float) -> list[RankAnswer]:
        each = commands if len(commands) > 1 else [commands[0]] * len(self._members)
        with self._speaking[line]:
            if self._is_closed:
                raise RankLost(0, self._members[0].device, "has ended with its group", is_device=False)
            for member, command in zip(self._members, each, strict=True):
                _tell(getattr(member, line), command)
            return self._answers(line, longest_s)

    def _answers(self, line: str, longest_s: float) -> list[RankAnswer]:
        """The answers of all ranks. The first rank that reports that it cannot go on decides, since the others wait
        for it."""
        until = time.monotonic() + longest_s
        waited = {getattr(member, line).connection: number for number, member in enumerate(self._members)}
        answers: dict[int, RankAnswer] = {}
        while waited:
            there = wait(list(waited), max(0.0, until - time.monotonic()))
            if not there:
                raise self._lost(min(waited.values()), f"has not answered within {longest_s:.0f} s")
            for ready in there:
                number = waited.pop(ready)
                answers[number] = self._heard(number, line)
        return [answers[number] for number in sorted(answers)]

    def _heard(self, number: int, line: str) -> RankAnswer:
        channel: RankChannel[Command, Answer] = getattr(self._members[number], line)
        try:
            answer = channel.hear()
        except HungUp:
            raise self._lost(number, "") from None
        match answer:
            case NoRoomThere(text) if line == "steps":
                self._is_parted = True
                raise NoRoomInRank(text, number)
            case NoRoomThere(text):
                raise self._lost(number, f"has no room for an update: {text}")
            case RankFailed(text=text, is_lost=is_lost):
                raise self._lost(number, f"cannot go on: {text}", is_device=is_lost)
        return answer

    def give_up(self, rank: int, why: str) -> RankLost:
        """End all ranks because they no longer agree. Returns the error to raise."""
        self.end()
        return RankLost(rank, self._members[rank].device, why, is_device=False)

    def _lost(self, number: int, why: str, *, is_device: bool = False) -> RankLost:
        """End all ranks. The first thread finds out which rank is to blame: afterwards all are gone."""
        with self._blaming:
            self._loss = self._loss or self._blame(number, why, is_device=is_device)
            self.end()
        return RankLost(**self._loss)

    def _blame(self, number: int, why: str, *, is_device: bool) -> dict[str, Any]:
        """The arguments of RankLost for the rank at fault. A rank that fails because another is gone is not to
        blame."""
        if not why:
            with suppress(subprocess.TimeoutExpired):
                self._members[number].process.wait(STOP_S)
        killed = None if is_device else self._killed(BLAME_S if why else 0.0)
        if killed is not None:
            number, why = killed, ""
        member = self._members[number]
        why = why or member.ended() or "has hung up"
        return {"rank": number, "device": member.device, "why": why, "is_device": is_device}

    def _killed(self, within_s: float) -> int | None:
        """The first rank that was killed, if any: its connections may appear to end shortly before it does."""
        until = time.monotonic() + within_s
        while True:
            killed = [each for each, one in enumerate(self._members) if (one.process.poll() or 0) < 0]
            if killed or time.monotonic() >= until:
                return killed[0] if killed else None
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """End all ranks, in order if they are in step. Later calls raise RankLost."""
        if not self._is_parted:
            with suppress(RankLost, NoRoomInRank):
                self._ask("steps", (StopRank(),), STOP_S)
        self.close()

    def close(self) -> None:
        """End all ranks at once. Threads that wait for them, and later calls, get RankLost."""
        self._is_closed = True
        self.end()
        for line, speaking in self._speaking.items():
            with speaking:
                for member in self._members:
                    getattr(member, line).connection.close()

    def end(self) -> None:
        """Kill all ranks; nothing is left of them afterwards. May be called from any thread, and again."""
        with self._ending:
            for member in self._members:
                member.process.kill()
            for member in self._members:
                with suppress(subprocess.TimeoutExpired):  # a driver may hold a process that is to end
                    member.process.wait(STOP_S)
            self._starter.shutdown(wait=False)
            self._folder.cleanup()


def _start(program: Sequence[str], device: str, arena: int, directory: Path) -> _Member:
    (mine, theirs), (beside, their_beside) = socket.socketpair(), socket.socketpair()
    files = (theirs.fileno(), their_beside.fileno(), arena)
    words = ["--steps", str(files[0]), "--round", str(files[1]), "--arena", str(arena), "--dir", str(directory)]
    with theirs, their_beside:
        process = subprocess.Popen(
            [sys.executable, "-m", *program, *words], pass_fds=files, stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(), env=os.environ | _loopback() | parent_env(),
        )  # fmt: skip
    return _Member(device=device, process=process, steps=RankChannel(mine, Answer), round=RankChannel(beside, Answer))


def _loopback() -> dict[str, str]:
    """Ranks of one machine meet on loopback, whatever its name resolves to."""
    return {"GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0"}


def _at(setup: RankSetup, meeting: str) -> RankSetup:
    from msgspec.structs import replace

    return replace(setup, rendezvous=meeting)


def _tell(channel: RankChannel[Command, Answer], command: Command) -> None:
    """Send a command. A rank that is gone is noticed when its answer is awaited."""
    with suppress(HungUp):
        channel.tell(command)
