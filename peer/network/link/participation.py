"""A peer's part in its run: what the link does from the first round that it sees to the last."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, assert_never

from dht.dht_board import Rank
from dht.errors import BadInput
from dht.node import Node
from peer.consensus.protocol.block import Block, ContributionHeader, Roster
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import timeouts
from peer.consensus.rounds.driver import Driver, trainer_input
from peer.consensus.rounds.interface import Leaving, Quarantined, RosterHeard, Tick
from peer.consensus.rounds.machine import TICK_S, begin
from peer.network.link.channel import LinkEnd, LinkLost
from peer.network.link.cluster_role import ClusterRole
from peer.network.link.discovery import Announcer, PeerDiscovery, TrainingFigures
from peer.network.link.network_stats import NetworkStats
from peer.network.link.organiser_line import OrganiserLine
from peer.network.link.reduction import ReductionWorker
from peer.network.link.roster_line import RosterLine
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.chunked_file import damaged_chunks
from peer.schema import ipc

log = logging.getLogger(__name__)

PUBLISH_S = 20.0
FINISH_S = 15.0
"""A peer that has finished the run stays this long for others who may need its vote or its bytes."""
ALONE_S = 120.0
"""Once in so long a peer that hears no quorum asks whether the run is over."""
LAST_ROUND_S = 1.0
"""A peer that leaves while parts are exchanged stays this long for the commit."""
GOODBYE_S = 0.2
"""What a peer says at last gets this long to be published and queued; the streams then send what waits."""

FindLoss = Callable[[bool], Awaitable[str]]
"""Says why the chain is lost, by certificates, or "". With whether the machine finds that nobody shows what follows."""


class Participation:
    """A peer in its run: one driver between the streams, the disk and the trainer."""

    def __init__(
        self, node: Node, pipe: LinkEnd, notices: Announcer, disk: ChainStore, rules: Rules, executor: Executor,
        directory: Path, role: ClusterRole | None = None,
    ) -> None:  # fmt: skip
        """`role`: of a home of a cluster."""
        self._node, self._pipe, self._notices, self._disk = node, pipe, notices, disk
        self._guard = notices.guard
        self._publish_now = asyncio.Event()
        self._said: Heartbeat | None = None
        self._learning = TrainingFigures()
        self._in_step = False
        self._all_here, self._committed, self._lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._counted_sent = self._counted_received = 0
        acceptors = disk.load_acceptors()
        accepted = disk.accepted_update(acceptors.get(disk.head.instance))
        self._is_member = role is None or role.takes_part
        mine = disk.contribution(disk.head.anchor) if self._is_member else None
        state = begin(
            rules, disk.head, time.monotonic(), ancestors=disk.ancestors, acceptors=acceptors,
            trail=disk.trail, voters=disk.voters, accepted=accepted, held=disk.held(),
            header=mine.header(rules.me, node.upload_bps).signed(rules.keys) if mine else None,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        arithmetic = ReductionWorker(disk.codec, disk.objects, executor, loop.call_soon_threadsafe)
        self._line = OrganiserLine(node, rules.organiser, lambda: self._driver.state.head.roster, pipe.report)
        self._driver = Driver(
            state, clock=time.monotonic, streams=node.streams, disk=disk, arithmetic=arithmetic,
            trainer=self, report=self._pipe.report, publish=self._say,
            homes=None if role is None else role.homes(disk), organiser=self._line if self._is_member else None,
            aside=_in_a_thread, upload_bps=lambda: node.upload_bps, is_admitted=self._is_admitted,
        )  # fmt: skip
        self._list = RosterLine(
            node, rules.organiser, directory, self._newest_roster,
            lambda found: self._driver.deliver(RosterHeard(time.monotonic(), found)),
        )  # fmt: skip
        self._on_frame = self._driver.on_frame if role is None else role.on_frame
        if role is not None:
            role.begin(self._driver, disk, arithmetic)

    async def take_part(self, find_loss: FindLoss) -> str:
        """Until the trainer leaves, has finished the run, or has ended; or until the chain is lost: why it is."""
        self._node.streams.listen(self._on_frame)
        self._obey()
        self._list.load()
        if self._guard is not None:
            self._node.rank_by(self._rank, self._guard.look)
        driver, report = self._driver, self._pipe.report
        discovery = PeerDiscovery(self._node, self._notices, driver, self._hear_speeds, report)
        stats = NetworkStats(
            self._node, self._disk, report, self.is_exchanging, lambda peer: peer in driver.state.heard,
            driver.state.rules.organiser,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._tick(), name="tick"),
                tasks.create_task(discovery.follow(), name="neighbours"),
                tasks.create_task(self._publish_heads(), name="publish"),
                tasks.create_task(self._hear_orders(), name="orders"),
                tasks.create_task(self._line.follow(), name="organiser"),
                tasks.create_task(self._list.follow(), name="list"),
                tasks.create_task(stats.follow(), name="network"),
            ]
            hearing = asyncio.create_task(self._hear_trainer())
            try:
                why = await self._hears_out(hearing, find_loss)
                if why:
                    self._stop()
                    return why
                await self._say_goodbye(hearing.result())
            except LinkLost:
                log.info("the trainer has ended")
            finally:
                hearing.cancel()
                for task in running:
                    task.cancel()
        return ""

    def _is_admitted(self, peer: str) -> bool:
        """By the organiser; who is not does not come in where the run asks for that."""
        return self._guard is not None and self._guard.roster.asks_admission

    def _rank(self, peer: str) -> Rank:
        """Who has a place on the board before whom."""
        state, guard = self._driver.state, self._guard
        if peer == state.rules.organiser or peer in state.head.electorate:
            return Rank.VOTER
        if peer in state.head.roster.known or (guard is not None and guard.roster.has_admitted(peer)):
            return Rank.ADMITTED
        return Rank.EARNED if peer in state.named else Rank.STRANGER

    def knows(self, peer: str) -> bool:
        """Whether it is no stranger."""
        return self._is_admitted(peer) or self._rank(peer) is not Rank.STRANGER

    def may_have(self, peer: str, size_bytes: int) -> bool:
        """Whether an answer of this size is given to a peer; counted if so."""
        if not self._driver.budget.has_room_for(peer):
            return False
        self._driver.budget.give(peer, size_bytes)
        return True

    def _newest_roster(self) -> Roster:
        state = self._driver.state
        return max(state.head.roster, state.roster, key=lambda item: item.number)

    def is_exchanging(self) -> bool:
        return self._driver.state.exchange is not None

    async def _hears_out(self, hearing: asyncio.Task[bool], find_loss: FindLoss) -> str:
        """Why the chain is lost; nothing when the trainer has said its last."""
        losing = asyncio.create_task(self._find_loss(find_loss))
        try:
            await asyncio.wait({hearing, losing}, return_when=asyncio.FIRST_COMPLETED)
            return "" if hearing.done() else losing.result()
        finally:
            losing.cancel()

    async def _find_loss(self, find_loss: FindLoss) -> str:
        """What the machine was told two liars may have said: the round goes on while that is looked into."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ALONE_S):
                    await self._lost.wait()
            is_told = self._lost.is_set()
            if not is_told and not timeouts.lacks_quorum(self._driver.state, time.monotonic()):
                continue  # where too few are there to decide the others may have finished the run
            self._lost.clear()
            if why := await find_loss(is_told):
                return why

    def _stop(self) -> None:
        """Another machine begins on another chain: this one must not write any more."""
        self._driver.close()
        self._node.streams.listen(lambda sender, frame: None)
        if self._in_step:
            self._pipe.send(ipc.InStep(False))

    # ---- what goes on all the time ----

    async def _hear_orders(self) -> None:
        if self._guard is not None:
            await self._guard.follow()

    def _obey(self) -> None:
        """Have the machine work with nobody who is kept out; who is needed for what has begun finishes it."""
        if self._guard is None:
            return
        self._guard.roster.needed = self._needed
        kept_out = self._guard.roster.kept_out()
        if kept_out - {self._node.peer_id} != self._driver.state.quarantined:
            self._driver.deliver(Quarantined(time.monotonic(), kept_out))
        self._guard.show_out()

    def _needed(self) -> frozenset[str]:
        """Who votes on what follows my head, or is a member of the round that is being made."""
        state = self._driver.state
        members = () if state.exchange is None else (header.peer for header in state.exchange.members)
        return frozenset((*state.head.electorate, *state.electorate, *members))

    async def _tick(self) -> None:
        while True:
            self._obey()
            self._driver.deliver(Tick(time.monotonic(), time.time() - time.monotonic()))
            self._tell_if_in_step()
            self._list.keep()
            if self._others_are_here():
                self._all_here.set()
            await asyncio.sleep(TICK_S)

    async def _publish_heads(self) -> None:
        while True:
            self._publish_now.clear()
            if self._said is not None:
                await self._notices.publish(self._said, self._learning)
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await self._publish_now.wait()
            except TimeoutError:
                continue

    def _tell_if_in_step(self) -> None:
        """A peer trains while it stands where the electorate stands."""
        if self._driver.state.in_step != self._in_step:
            self._in_step = not self._in_step
            self._pipe.send(ipc.InStep(self._in_step))

    # ---- the trainer ----

    async def _hear_trainer(self) -> bool:
        """Pass on what the trainer says; returns whether it has finished the run (or else leaves it)."""
        while True:
            message = await self._pipe.receive()
            match message:
                case ipc.ReportProgress(loss=loss, tokens_per_s=tokens_per_s, device_gb=device_gb):
                    self._learning = dataclasses.replace(
                        self._learning, loss=loss, tokens_per_s=tokens_per_s, device_gb=device_gb
                    )
                case ipc.LossMeasured(round=round, loss=loss):
                    self._learning = dataclasses.replace(self._learning, evaluated=loss, evaluated_round=round)
                    self._publish_now.set()
                case ipc.Leave(finished=finished):
                    return finished
                case ipc.OpenLink() | ipc.ChangeLimits() | ipc.Hello() | ipc.StartLooked():
                    raise LinkLost  # said once, and before
                case ipc.OfferContribution() | ipc.PausedAt() | ipc.StepsGoOn():
                    if not self._is_member:
                        continue  # its lead offers, and says when no step follows
                case ipc.StandsAt():
                    pass
                case ipc.AssignStages() | ipc.HomesExpelled() | ipc.LayersHeld() | ipc.SeekWork() | ipc.LookForHomes():
                    raise LinkLost  # heard elsewhere, or said before
                case _:
                    assert_never(message)
            event = trainer_input(message, time.monotonic(), self._offered)
            if event is not None:
                self._driver.deliver(event)

    def _offered(self, anchor: bytes) -> ContributionHeader:
        """What the trainer wrote for this anchor; a header that gives nothing if it wrote nothing."""
        mine, me, bandwidth_bps = self._disk.contribution(anchor), self._node.peer_id, self._node.upload_bps
        return (
            mine.header(me, bandwidth_bps) if mine else ContributionHeader(me, anchor, b"", 0, 0, bandwidth_bps, False)
        )

    async def _say_goodbye(self, finished: bool) -> None:
        """A peer that has finished stays until the others have too; one that leaves goes as soon as it may."""
        if finished:
            self._all_here.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await self._all_here.wait()
        self._driver.deliver(Leaving(time.monotonic()))
        if self._driver.state.exchange is not None:
            self._committed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ROUND_S):
                    await self._committed.wait()
        await asyncio.sleep(GOODBYE_S)

    def _others_are_here(self) -> bool:
        """Whether the whole electorate has reached my round."""
        state = self._driver.state
        others = [state.heard.get(peer) for peer in state.head.electorate if peer != state.rules.me]
        return all(heard is not None and heard[0].round >= state.head.round for heard in others)

    # ---- what the driver asks for ----

    def committed(self, block: Block, head: ChainHead) -> None:
        """Hand a block to the trainer, with the bytes that this round cost."""
        self._committed.set()
        sent = self._node.bytes_sent - self._counted_sent
        received = self._node.bytes_received - self._counted_received
        self._counted_sent += sent
        self._counted_received += received
        self._pipe.send(ipc.BlockCommitted(block.to_bytes(), head.anchor, sent, received, time.monotonic()))

    def _hear_speeds(self, speeds: Mapping[str, float]) -> None:
        self._pipe.send(ipc.OthersSpeeds(dict(speeds)))

    def request_submit(self) -> None:
        self._pipe.send(ipc.AskSubmit())

    def resync(self, why: str) -> None:
        log.info("%s", why)
        self._lost.set()

    def _say(self, head: Heartbeat) -> None:
        """The machine's newest HEAD; the board hears of it when it says something new."""
        if self._said is None or dataclasses.replace(head, stuck_s=self._said.stuck_s) != self._said:
            self._publish_now.set()
        self._said = head


T = TypeVar("T")


def _in_a_thread(work: Callable[[], T], done: Callable[[T], None], /) -> None:
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    doing.add_done_callback(lambda finished: done(finished.result()))


def resume_from(pipe: LinkEnd, disk: ChainStore, directory: Path, genesis: ChainHead, at: bytes) -> bool:
    """Have the trainer, which stands at anchor `at` (empty: at its first parameters), come to the head of the chain.

    It replays what was decided since. Where it does not stand on the chain it goes on from a snapshot. Returns False
    if there is none on this disk.
    """
    at = at or genesis.anchor
    if at in disk.ancestors:
        stands = disk.head_at(at)
        pipe.send(ipc.BeginAt(at, stands.members))
    elif (newest := _newest_snapshot(disk, directory)) is not None:
        stands = newest
        pipe.send(ipc.BeginAt(at, stands.members))
        pipe.send(ipc.AdoptSnapshot(stands.round, stands.anchor, stands.members))
    elif disk.base.before:
        pipe.send(ipc.BeginAt(at, disk.head.members))
        return False
    else:
        stands = genesis
        pipe.send(ipc.BeginAt(genesis.anchor, genesis.members))
    for block in disk.blocks[stands.round - disk.base.head.round :]:
        pipe.send(ipc.ReplayBlock(block.to_bytes(), disk.head.round))
    return True


def _newest_snapshot(disk: ChainStore, directory: Path) -> ChainHead | None:
    for round, anchor in reversed(snapshots.names(directory)):
        if disk.ancestors.get(anchor) == round:
            path = snapshots.path_of(directory, round, anchor)
            try:
                manifest = snapshots.read_manifest(path)
                here = snapshots.chunks_in_folder(path, manifest)
            except BadInput:
                continue
            if not damaged_chunks(path / snapshots.VECTORS, manifest, here):
                return disk.head_at(anchor)
    return None


async def unless_left(pipe: LinkEnd, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises LinkLost at once when the trainer leaves or ends; it has nothing else to say yet."""
    doing = asyncio.create_task(work)
    hearing = asyncio.create_task(_until_it_leaves(pipe))
    try:
        await asyncio.wait({doing, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            await hearing
        return await doing
    finally:
        doing.cancel()
        hearing.cancel()
        await asyncio.gather(doing, hearing, return_exceptions=True)


async def _until_it_leaves(pipe: LinkEnd) -> None:
    """What it said while it still trained is about an anchor that does not count any more."""
    while not isinstance(await pipe.receive(), ipc.Leave):
        continue
    raise LinkLost
