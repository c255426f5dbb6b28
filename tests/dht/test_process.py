"""Children do not outlive their parent."""

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from dht.process import parent_gone
from peer.testing.child_process import HANG_S, wait_for_ends

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
TIED = "import dht.process, time; dht.process.die_with_parent(); print('up', flush=True); time.sleep(3600)"
WATCHING = """
import asyncio, os, dht.process
parent = os.getppid()
print('up', flush=True)
asyncio.run(dht.process.parent_gone(parent, poll_s=0.05))
"""

CHILDREN = {"watching": WATCHING} | ({"tied": TIED} if sys.platform.startswith("linux") else {})


@pytest.mark.outside
@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_ends_when_its_parent_is_killed(child: str) -> None:
    command = [sys.executable, "-c", PARENT, CHILDREN[child]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, up = parent.stdout.readline().split()
        assert up == b"up"
        process = psutil.Process(int(pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=HANG_S)
        assert wait_for_ends([process], HANG_S) == []


async def test_parent_gone_waits_for_a_living_parent() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await parent_gone(poll_s=0.01)
    async with asyncio.timeout(HANG_S):
        await parent_gone(parent_pid=os.getpid(), poll_s=0.01)
