"""A child process ends when its parent does, even if the parent was killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
ORPHANED = 128 + signal.SIGKILL
"""Exit code of a child whose parent had ended before it could ask for that; nobody is there to read it."""


PARENT = "HOMEFIRES_PARENT"
"""In a child's environment: the process that started it."""


def parent_env() -> dict[str, str]:
    """What a process adds to the environment of a child that calls `die_with_parent`."""
    return {PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing).

    Call it first thing in the child. The kernel watches the *thread* that started the child, so
    start children from a thread that stays. A parent that died before this call is seen if it said
    which it is (`parent_env`): then this process ends here. `parent_gone` works on every system.
    """
    parent = os.environ.pop(PARENT, "")  # children of this one have another
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent and os.getppid() != int(parent):
        os._exit(ORPHANED)


async def parent_gone(parent_pid: int | None = None, poll_s: float = 1.0) -> None:
    """Return once the parent process has ended. `parent_pid` is the parent's id as the parent knew it."""
    parent = os.getppid() if parent_pid is None else parent_pid
    while os.getppid() == parent:  # noqa: ASYNC110 (the kernel tells nobody else)
        await asyncio.sleep(poll_s)
