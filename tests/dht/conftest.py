"""Worlds with the same interface, so that those in memory are tested by what the real one must do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dht.addresses import LOOPBACK
from dht.board import Board
from dht.identity import Identity
from dht.streams.base import Streams
from peer.planning.simulate.memory_network import LinkModel, MemoryNetwork, Scheduler
from peer.testing.child_process import HANG_S
from peer.testing.faulty_streams import FaultyStreams
from tests.memory_board import MemoryBoard
from tests.waits import until

RUN = b"r" * 32


class Inbox:
    """A listener that keeps what arrives and can be waited for."""

    def __init__(self, run_network: Callable[[], None]) -> None:
        self.frames: list[tuple[str, bytes]] = []
        self._run_network = run_network
        self._arrived = asyncio.Event()

    def __call__(self, sender: str, frame: bytes) -> None:
        self.frames.append((sender, frame))
        self._arrived.set()

    async def wait_for(self, count: int, meanwhile: Callable[[], None] | None = None) -> list[tuple[str, bytes]]:
        """The frames, once there are `count`; calls `meanwhile` now and twice a second until then."""
        self._run_network()
        async with asyncio.timeout(HANG_S):
            while len(self.frames) < count:
                self._arrived.clear()
                if meanwhile is not None:
                    meanwhile()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), 0.5)
        return self.frames


class MemoryWorld:
    """Peers on a virtual clock; waiting means running it."""

    def __init__(self) -> None:
        self._scheduler = Scheduler()
        self._network = MemoryNetwork(self._scheduler, Random(1), LinkModel(delay_s=(0.01, 0.3)))
        self._board = MemoryBoard(RUN, time.time)

    async def add_peer(self, **limits: Any) -> tuple[Identity, Board, Streams]:
        identity = Identity.generate()
        return identity, self._board, self._network.connect(identity.peer_id)

    def inbox(self) -> Inbox:
        return Inbox(lambda: self._scheduler.run_until(self._scheduler.now + 10))

    async def stop_reading(self, peer_id: str) -> None:
        self._network.stall(peer_id, float("inf"))

    async def remove_peer(self, peer_id: str) -> None:
        self._network.disconnect(peer_id)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Run the clock until it has happened."""
        async with asyncio.timeout(HANG_S):
            while not happened():
                self._scheduler.run_until(self._scheduler.now + 0.5)
                await asyncio.sleep(0)


class FaultyWorld(MemoryWorld):
    """The same peers behind switches; one is thrown, which at this rate must not be noticed."""

    async def add_peer(self, **limits: Any) -> tuple[Identity, Board, Streams]:
        identity, board, inner = await super().add_peer(**limits)
        streams = FaultyStreams(inner, lambda: self._scheduler.now, self._scheduler.call_in, Random(1))
        streams.throttle(bytes_per_s=1e9, seconds=5)
        return identity, board, streams


class RealWorld:
    """Peers of one process, each with its own hivemind node and daemon, on loopback."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._first: tuple[str, ...] = ()
        self.nodes: dict[str, Any] = {}
        self._stacks: dict[str, AsyncExitStack] = {}
        self._stopped: list[int] = []

    async def add_peer(self, caps: Mapping[str, float] | None = None, **limits: Any) -> tuple[Identity, Board, Streams]:
        from dht.node import NetworkConfig, open_node
        from dht.streams.outbound import StreamLimits

        folder = self._folder / str(len(self.nodes))
        identity = Identity.load_or_create(folder / "identity.key")
        config = NetworkConfig(
            run=RUN,
            identity_path=folder / "identity.key",
            socket_folder=folder / "run",
            listen=LOOPBACK,
            bootstrap=self._first,
            limits=StreamLimits(**limits),
            **(caps or {}),
        )
        stack = await self._stack.enter_async_context(AsyncExitStack())
        node = await stack.enter_async_context(open_node(config))
        self.nodes[identity.peer_id], self._stacks[identity.peer_id] = node, stack
        self._first = self._first or await node.addresses()
        return identity, node.board, node.streams

    def inbox(self) -> Inbox:
        return Inbox(lambda: None)

    async def stop_reading(self, peer_id: str) -> None:
        pid = self.nodes[peer_id]._daemon.p2p._child.pid
        os.kill(pid, signal.SIGSTOP)
        self._stopped.append(pid)

    async def remove_peer(self, peer_id: str) -> None:
        await self._stacks[peer_id].aclose()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for what nothing reports."""
        await until(happened)

    def wake_all(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def _open_real_world(folder: Path) -> AsyncIterator[RealWorld]:
    async with AsyncExitStack() as stack:
        world = RealWorld(folder, stack)
        yield world
        world.wake_all()


@pytest.fixture
async def real_world(tmp_path: Path) -> AsyncIterator[RealWorld]:
    async with _open_real_world(tmp_path) as world:
        yield world


@pytest.fixture(params=["memory", "faulty", pytest.param("hivemind", marks=pytest.mark.swarm)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryWorld | RealWorld]:
    if request.param != "hivemind":
        yield MemoryWorld() if request.param == "memory" else FaultyWorld()
        return
    async with _open_real_world(tmp_path) as world:
        yield world
