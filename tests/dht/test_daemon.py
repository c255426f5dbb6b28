"""A daemon that does not come to run is awaited: whoever opens it may end its loop right after."""

from __future__ import annotations

import asyncio
import gc
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import psutil
import pytest

from dht.addresses import LOOPBACK
from dht.daemon import DaemonConfig, open_daemon
from dht.errors import Unreachable
from dht.identity import Identity
from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.outside


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Process]:
    """Every process that is started from here on."""
    found: asyncio.Queue[Process] = asyncio.Queue()
    usual = asyncio.subprocess.create_subprocess_exec

    async def start(*words: Any, **options: Any) -> Process:
        process = await usual(*words, **options)
        found.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio.subprocess, "create_subprocess_exec", start)
    return found


def config(folder: Path) -> DaemonConfig:
    """On loopback."""
    return DaemonConfig(
        identity_path=folder / "identity.key", socket_folder=folder / "run", listen=(LOOPBACK[0],), announce=(),
        relays=(), public=False, client_mode=False, start_timeout_s=HANG_S,
    )  # fmt: skip


async def open_and_close(folder: Path) -> None:
    """Nothing in between."""
    async with open_daemon(config(folder)):
        pass


async def test_a_daemon_that_cannot_start_is_awaited(tmp_path: Path, started: asyncio.Queue[Process]) -> None:
    """Its key is none."""
    (tmp_path / "identity.key").write_bytes(b"no key")
    with pytest.raises(Unreachable, match="does not start"):
        await open_and_close(tmp_path)
    assert started.get_nowait().returncode is not None


async def test_a_daemon_whose_start_is_cancelled_is_ended(tmp_path: Path, started: asyncio.Queue[Process]) -> None:
    """As soon as there is a process, long before it listens."""
    Identity.load_or_create(tmp_path / "identity.key")
    starting = asyncio.create_task(open_and_close(tmp_path))
    async with asyncio.timeout(HANG_S):
        process = await started.get()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert process.returncode is not None


async def test_a_daemon_is_ended_though_whoever_waits_for_that_is_cancelled_too(
    tmp_path: Path, started: asyncio.Queue[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end when it is asked to; a second interrupt finds it so."""
    Identity.load_or_create(tmp_path / "identity.key")
    asked = asyncio.Event()
    monkeypatch.setattr(Process, "terminate", lambda process: asked.set())
    starting = asyncio.create_task(open_and_close(tmp_path))
    async with asyncio.timeout(HANG_S):
        process = await started.get()
        starting.cancel()
        await asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert process.returncode is not None


async def test_a_question_that_is_cancelled_leaves_no_socket_open(tmp_path: Path) -> None:
    """hivemind's own questions do not close theirs then; a warning of the collector would fail this test."""
    Identity.load_or_create(tmp_path / "identity.key")
    sockets = psutil.Process()
    async with open_daemon(config(tmp_path)) as daemon:
        before = len(sockets.net_connections("unix"))
        for steps in range(30):
            for question in (daemon.addresses, daemon.connections):
                asked = asyncio.ensure_future(question())
                for _ in range(steps):
                    await asyncio.sleep(0)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
        del asked
        gc.collect()
        assert await daemon.addresses()  # the loop has turned: what was aborted is closed
        assert len(sockets.net_connections("unix")) == before
