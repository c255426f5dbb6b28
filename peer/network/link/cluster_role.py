"""The tasks of a link whose peer is one of several homes of a cluster, beside its own part of the run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from dht.node import Node
from peer.consensus.delegates.delegate_driver import DelegateDriver
from peer.consensus.delegates.lead_driver import LeadEffects
from peer.consensus.delegates.worker_messages import is_order
from peer.consensus.delegates.worker_port import WorkerOrders
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.driver import Driver, HomesPort, ReductionPort
from peer.consensus.rounds.interface import DelegatesChanged
from peer.network.link.channel import LinkEnd, LinkLost
from peer.network.link.cluster_invite import ClusterInvite, FoundCluster, patience_of
from peer.network.link.cluster_lead import LOOK_S, Offers, OpenPlaces
from peer.network.link.cluster_worker import WorkSeeker
from peer.network.link.discovery import Announcer
from peer.network.link.flow_channel import FlowLinkEnd
from peer.node.store.chain import ChainStore
from peer.schema import ipc
from peer.schema.ipc import Assignment

log = logging.getLogger(__name__)

PUBLISH_S = 20.0
"""A lead that waits for its homes says so often where it can be dialled."""


class ClusterRole(Protocol):
    """What a lead's or a worker's link does for its cluster."""

    async def until_hello(self) -> ipc.Hello:
        """The trainer's first message, once it knows its layers. Raises LinkLost."""

    def rules(self, rules: Rules) -> Rules:
        """Of its round machine."""

    def homes(self, disk: ChainStore) -> HomesPort | None:
        """What other homes do of the machine's effects."""

    def begin(self, driver: Driver, disk: ChainStore, arithmetic: ReductionPort) -> None:
        """A round machine begins."""

    def on_frame(self, sender: str, frame: bytes) -> None:
        """A frame of any peer of the run."""

    @property
    def takes_part(self) -> bool:
        """Whether its trainer's contributions are its own."""

    @property
    def held(self) -> range | None:
        """The layers of its trainer, once the trainer has named them."""


class FlowGate:
    """Passes frames between a home's trainer and the other homes of its assignment."""

    def __init__(self, node: Node, end: FlowLinkEnd, invite: ClusterInvite, cut: Callable[[str, str], None]) -> None:
        self._node, self._end, self._invite = node, end, invite
        self._others: frozenset[str] = frozenset()
        node.flow.listen(self._arrived, cut)

    def open(self, assignment: Assignment) -> None:
        """Open the ways to all other homes of this assignment, and to no other peer."""
        held = (*assignment.stages, *assignment.spares)
        others = frozenset(holder.peer for holder in held) - {self._node.peer_id}
        for gone in self._others - others:
            self._node.flow.dismiss(gone)
        self._others = others
        for peer in others:
            self._node.flow.admit(peer, self._invite.tag(assignment.epoch))

    async def follow(self) -> None:
        """Pass on what the trainer sends, as fast as the line can take it."""
        while True:
            to, frame = await self._end.receive()
            if to in self._others:
                await self._node.flow.send(to, frame)

    async def _arrived(self, sender: str, frame: bytes) -> None:
        await self._end.send(sender, frame)


class LeadRole:
    """A lead's role: its round machine is that of a member with delegates."""

    takes_part = True

    def __init__(self, node: Node, pipe: LinkEnd, gate: FlowGate, assigned: Callable[[Assignment], None]) -> None:
        """`assigned` is called with the trainer's assignment."""
        self._node, self._pipe, self._gate, self._assigned = node, pipe, gate, assigned
        self._assignment: Assignment | None = None
        self.held: range | None = None
        pipe.on_stages = self._assign
        self._driver: Driver | None = None
        self._orders = WorkerOrders(
            node.streams.send, lambda event: self._deliver(event), time.monotonic
        )  # fmt: skip

    @property
    def has_begun(self) -> bool:
        """Whether a round machine acts for this home."""
        return self._driver is not None

    async def until_hello(self) -> ipc.Hello:
        while True:
            match await self._pipe.receive():
                case ipc.LayersHeld(first, last):
                    self.held = range(first, last + 1)
                case ipc.Hello() as hello if self.held is not None:
                    return hello
                case _:
                    raise LinkLost

    def _assign(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._gate.open(assignment)
        self._assigned(assignment)

    def rules(self, rules: Rules) -> Rules:
        return rules

    def homes(self, disk: ChainStore) -> HomesPort | None:
        return LeadEffects(disk, self._orders, time.monotonic)

    def begin(self, driver: Driver, disk: ChainStore, arithmetic: ReductionPort) -> None:
        self._driver = driver
        assert self._assignment is not None
        delegates = tuple((holder.first, holder.last, holder.peer) for holder in self._assignment.workers)
        driver.deliver(DelegatesChanged(time.monotonic(), delegates))

    def on_frame(self, sender: str, frame: bytes) -> None:
        assert self._driver is not None
        if not is_order(frame):
            self._driver.on_frame(sender, frame)
            return
        try:
            self._orders.on_frame(sender, frame)
        except ValueError as error:
            log.info("dropped what %s says: %s", sender, error)

    def _deliver(self, event: object) -> None:
        if self._driver is not None:
            self._driver.deliver(event)  # type: ignore[arg-type]


class WorkerRole:
    """A worker's role: its round machine follows the chain, is never ready, and fetches only its own layers."""

    takes_part = False

    def __init__(self, node: Node, pipe: LinkEnd, gate: FlowGate, lead: str) -> None:
        self._node, self._pipe, self._gate, self._lead = node, pipe, gate, lead
        self.held: range | None = None
        self._driver: Driver | None = None
        self._delegate: DelegateDriver | None = None

    async def until_hello(self) -> ipc.Hello:
        while True:
            match await self._pipe.receive():
                case ipc.LayersHeld(first, last):
                    self.held = range(first, last + 1)
                case ipc.Hello() as hello if self.held is not None:
                    return hello
                case _:
                    raise LinkLost

    def rules(self, rules: Rules) -> Rules:
        return replace(rules, holds=self.held)

    def homes(self, disk: ChainStore) -> HomesPort | None:
        return None

    def begin(self, driver: Driver, disk: ChainStore, arithmetic: ReductionPort) -> None:
        self._driver = driver
        self._delegate = DelegateDriver(
            self._lead, state=lambda: driver.state, deliver=driver.deliver, clock=time.monotonic,
            streams=self._node.streams, disk=disk, arithmetic=arithmetic,
        )  # fmt: skip

    def on_frame(self, sender: str, frame: bytes) -> None:
        assert self._driver is not None
        assert self._delegate is not None
        if not self._delegate.on_frame(sender, frame):
            self._driver.on_frame(sender, frame)


MakeRole = Callable[[Node, LinkEnd, Announcer], AbstractAsyncContextManager[ClusterRole]]
"""What a link does in its cluster, for as long as the block lasts."""


@asynccontextmanager
async def leading(
    node: Node, pipe: LinkEnd, notices: Announcer, *, invite: ClusterInvite, end: FlowLinkEnd,
    found: FoundCluster | None = None,
) -> AsyncIterator[ClusterRole]:  # fmt: skip
    """The role of a lead; `found`: of a cluster of homes that found each other. An error beside it ends the block."""
    offers = Offers(node, pipe, invite)
    gate = FlowGate(node, end, invite, offers.lost)
    role, pipe.on_expelled = LeadRole(node, pipe, gate, offers.assigned), offers.expel
    places = None if found is None else OpenPlaces(node, pipe, notices, invite, found, offers)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(gate.follow()), tasks.create_task(_every(LOOK_S, offers.look)),
            tasks.create_task(_be_found(notices, role)),
        ]  # fmt: skip
        if places is not None:
            running.append(tasks.create_task(_every(LOOK_S, places.look)))
        try:
            yield role
        finally:
            for task in running:
                task.cancel()
            end.close()


@asynccontextmanager
async def working(
    node: Node, pipe: LinkEnd, notices: Announcer, *, invite: ClusterInvite, end: FlowLinkEnd, name: str,
    found: FoundCluster | None = None,
) -> AsyncIterator[ClusterRole]:  # fmt: skip
    """The role of a worker; `found` as for `leading`."""
    gate = FlowGate(node, end, invite, lambda peer, why: pipe.send(ipc.HomeLost(peer, why)))
    patience_s, upload_mbps = (None, 0.0) if found is None else (patience_of(found), found.upload_mbps)
    seeker = WorkSeeker(node, pipe, invite, name, notices.read_heads, gate.open, patience_s, upload_mbps)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(gate.follow()), tasks.create_task(seeker.follow())]
        try:
            yield WorkerRole(node, pipe, gate, invite.lead)
        finally:
            for task in running:
                task.cancel()
            end.close()


async def _be_found(notices: Announcer, role: LeadRole) -> None:
    """A lead puts its record on the board before its machine begins, since its workers look for it there. It is no
    founder yet."""
    while not role.has_begun:
        await notices.publish(Heartbeat(b"", -1, 0, b"", False, 0, 0, False))
        await asyncio.sleep(PUBLISH_S)


async def _every(seconds: float, look: Callable[[], None]) -> None:
    while True:
        look()
        await asyncio.sleep(seconds)
