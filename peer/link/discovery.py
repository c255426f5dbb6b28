"""The other peers of the run, as the board names them: told to the round machine, and dialled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from dht.node import Node
from dht.records import PeerRecord as HeadRecord
from peer.events import DeviceReported
from peer.link.announcements import Announcer, said_by
from peer.protocol.messages import Heartbeat
from peer.rounds.driver import Driver
from peer.rounds.interface import Received

READ_BOARD_S = 3.0
MEET_AGAIN_S = 20.0
DEVICE_AGAIN_S = 600.0
"""Nobody makes this peer write more often what GPU he says to have."""
DIALS = 4
"""At a time."""


class PeerDiscovery:
    """Finds who is there and connects to whoever is not heard.

    `hear_speeds` is told how many tokens per second the others of the electorate say to make; anybody else may
    write on the board what he likes. `report` hears of them how much memory their GPUs have.
    """

    def __init__(
        self, node: Node, notices: Announcer, driver: Driver, hear_speeds: Callable[[Mapping[str, float]], None],
        report: Callable[[DeviceReported], None],
    ) -> None:  # fmt: skip
        self._report = report
        self._devices: dict[str, tuple[float, float]] = {}
        """By peer what was told of its GPU, and when."""
        self._node, self._notices, self._driver, self._hear_speeds = node, notices, driver, hear_speeds
        self._met: dict[str, tuple[float, tuple[str, ...]]] = {}
        """When each was dialled last, and where."""
        self._dials = asyncio.Semaphore(DIALS)

    async def follow(self) -> None:
        """Read the board again and again. A dial that hangs holds nobody else up."""
        async with asyncio.TaskGroup() as dialling:
            while True:
                heads = await self._notices.read_heads()
                self._hear_speeds(self._speeds(heads))
                self._tell_devices(heads)
                for peer, (head, addresses) in said_by(heads).items():
                    if head is not None and self._is_news(peer, head):
                        self._driver.deliver(Received(time.monotonic(), peer, head))
                    if self._is_due(peer, addresses):
                        self._met[peer] = time.monotonic(), addresses
                        dialling.create_task(self._meet(peer, addresses))
                self._forget(heads)
                await asyncio.sleep(READ_BOARD_S)

    def _forget(self, heads: Mapping[str, HeadRecord]) -> None:
        """Whoever is gone from the board; ids cost nothing."""
        now = time.monotonic()
        self._met = {peer: met for peer, met in self._met.items() if peer in heads or now - met[0] <= MEET_AGAIN_S}

    def _speeds(self, heads: Mapping[str, HeadRecord]) -> dict[str, float]:
        voters = (peer for peer in self._driver.state.electorate if peer in heads)
        return {peer: speed for peer in voters if (speed := heads[peer].tokens_per_s)}

    def _tell_devices(self, heads: Mapping[str, HeadRecord]) -> None:
        now = time.monotonic()
        for peer in self._driver.state.electorate:
            device_gb = heads[peer].device_gb if peer in heads else None
            before, told_at = self._devices.get(peer, (None, float("-inf")))
            if device_gb is not None and device_gb != before and now - told_at > DEVICE_AGAIN_S:
                self._devices[peer] = device_gb, now
                self._report(DeviceReported(about=peer, device_gb=device_gb))

    def _is_news(self, peer: str, head: Heartbeat) -> bool:
        """Of a peer that says nothing to me itself: it may be in another part of a network that was split."""
        heard, heard_at = self._driver.state.heard.get(peer, (None, float("-inf")))
        return heard is None or (time.monotonic() - heard_at > MEET_AGAIN_S and heard.anchor != head.anchor)

    def _is_due(self, peer: str, addresses: tuple[str, ...]) -> bool:
        """At once; again while nothing is heard of it, and where it says to be now: there it is remembered."""
        if peer not in self._met:
            return True
        _, heard_at = self._driver.state.heard.get(peer, (None, float("-inf")))
        (met_at, where), now = self._met[peer], time.monotonic()
        return now - met_at > MEET_AGAIN_S and (addresses != where or now - heard_at > MEET_AGAIN_S)

    async def _meet(self, peer: str, addresses: tuple[str, ...]) -> None:
        async with self._dials:
            await self._node.meet(peer, addresses)
