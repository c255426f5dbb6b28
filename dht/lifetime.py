"""A child process ends when its parent does, even if the parent was killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing).

    Call it first thing in the child. The kernel watches the *thread* that started the child, so
    start children from a thread that stays. A parent that died before this call is noticed by
    `parent_gone`, which works on every system.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


async def parent_gone(parent_pid: int | None = None, poll_s: float = 1.0) -> None:
    """Return once the parent process has ended. `parent_pid` is the parent's id as the parent knew it."""
    parent = os.getppid() if parent_pid is None else parent_pid
    while os.getppid() == parent:  # noqa: ASYNC110 (the kernel tells nobody else)
        await asyncio.sleep(poll_s)
