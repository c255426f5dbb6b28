"""Several ranks on this machine's processor, each a process: a job that all of them do, and what each one answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from peer.testing.child_process import HANG_S

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
COLLECTIVE_S = 60.0
ROOT = Path(__file__).parents[1]


def run_ranks(ranks: int, job: Callable[..., Any], *words: Any) -> list[Any]:
    """What `job(*words)` returned in each rank. It is pickled. Raises what a rank raised."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        answers = [_started(stack, [f"{Path(folder) / 'meet'}", str(rank), str(ranks)]) for rank in range(ranks)]
        for each in answers:
            each.send((job, words))
        return [_answer(each) for each in answers]


def _started(stack: ExitStack, words: list[str]) -> Connection:
    """To a rank that ends with `stack`."""
    mine, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *words]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT)
    stack.callback(_end, child)
    return stack.enter_context(Connection(mine.detach()))


def _answer(answers: Connection) -> Any:
    assert answers.poll(HANG_S), "a rank does not answer"
    answer = answers.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(COLLECTIVE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(file: int, meet: Path, rank: int, ranks: int) -> None:
    """Be one rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    with Connection(file) as asked:
        job, words = asked.recv()
        distributed.init_process_group(
            "gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks, timeout=timedelta(seconds=COLLECTIVE_S)
        )
        try:
            answer = job(*words)
        except BaseException as error:
            answer = error
        asked.send(answer)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
