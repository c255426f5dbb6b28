"""Several ranks on this machine's processor, each a process: a job that all of them do, and what each one answers."""

from __future__ import annotations

import multiprocessing
import os
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


def run_ranks(ranks: int, job: Callable[..., Any], *words: Any) -> list[Any]:
    """What `job(*words)` returned in each rank. It is pickled. Raises what a rank raised."""
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        answers: list[Connection] = []
        for rank in range(ranks):
            ours, theirs = processes.Pipe(duplex=False)
            stack.enter_context(ours)
            child = processes.Process(target=_rank, args=(theirs, Path(folder) / "meet", rank, ranks, job, words))
            child.start()
            theirs.close()
            stack.callback(_end, child)
            answers.append(ours)
        return [_answer(each) for each in answers]


def _answer(answers: Connection) -> Any:
    assert answers.poll(HANG_S), "a rank does not answer"
    answer = answers.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _end(child: Any) -> None:
    child.join(COLLECTIVE_S)
    if child.is_alive():
        child.kill()
        child.join()
    child.close()


def _rank(answers: Connection, meet: Path, rank: int, ranks: int, job: Callable[..., Any], words: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks, timeout=timedelta(seconds=COLLECTIVE_S)
    )
    try:
        answer = job(*words)
    except BaseException as error:
        answer = error
    with answers:
        answers.send(answer)
    distributed.destroy_process_group()
