"""One logical peer: the product's own driver and round machine over memory, with a trainer of integers.

It trains (makes random movements), freezes, takes part, applies; it can crash, stall and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from dht.errors import BadInput
from dht.memory import MemoryNetwork, Scheduler
from dht.streams import MakeFrame, OnFrame, Streams
from peer.averaging.driver import Driver
from peer.events import Event as Reported
from peer.events import PhaseEntered
from peer.rounds import merkle
from peer.rounds.effects import Applied, Frozen, Progressed, Received, Tick
from peer.rounds.machine import TICK_S, begin
from peer.rounds.messages import HeadSent
from peer.rounds.names import digest_of
from peer.rounds.state import Head, Rules, State
from peer.rounds.update import Block, Pledge
from peer.testing.faulty_streams import FaultyStreams
from peer.testing.integers import PARTS, IntegerDisk, IntegerSums, Ledger

TRAIN_S = (2.0, 6.0)
"""Shortest and longest time of the inner steps of a round."""
APPLY_S = 0.05
MEET_AGAIN_S = 20.0
"""A peer that was silent for so long is looked for there again."""
READ_BOARD_S = 3.0
"""How often a peer looks on the board for others that it has not heard of."""


class Crashed(Exception):
    """The peer ends here: nothing after this effect happens."""


class Surroundings(Protocol):
    """What all peers of a world share."""

    rng: Random
    scheduler: Scheduler
    network: MemoryNetwork
    genesis: Head
    board: dict[str, HeadSent]
    fragments: int

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""

    def rules(self, name: str) -> Rules:
        """The rules of a peer."""

    def committing(self, peer: LogicalPeer, block: Block, head: Head) -> None:
        """The peer is about to append a block to its chain."""

    def undoing(self, peer: LogicalPeer, blocks: tuple[Block, ...], head: Head) -> None:
        """The peer is about to take these blocks off its chain and to stand at `head` again."""

    def donor(self, peer: LogicalPeer) -> IntegerDisk | None:
        """The heaviest chain of those whom the peer reaches, if it is heavier than its own."""

    def resyncing(self, peer: LogicalPeer, donor: IntegerDisk) -> None:
        """The peer is about to give its chain up for that of another."""

    def resynced(self, peer: LogicalPeer) -> None:
        """The peer has another chain on its disk than it had."""

    def offered(self, peer: LogicalPeer, anchor: bytes, payloads: list[bytes]) -> None:
        """The peer has written what it gives for an anchor."""

    def applied(self, peer: LogicalPeer, block: Block) -> None:
        """The peer has taken the outer step of a block, perhaps again after a crash."""

    def entered(self, peer: LogicalPeer, phase: str, round: int) -> None:
        """The peer enters a phase of the round from anchor `round`; may raise `Crashed`."""


class LogicalPeer:
    """One peer of a world of logical peers. Public fields are there for tests to look at and break."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world, self.name = world, name
        self.disk = IntegerDisk(
            self, world.genesis, world.rules(name).keep_rounds,
            on_commit=lambda block, head: world.committing(self, block, head),
            on_undo=lambda blocks, head: world.undoing(self, blocks, head),
            ledger=Ledger(world.genesis.anchor, fragments=world.fragments),
        )  # fmt: skip
        self.produced = [0] * PARTS
        self.lost = [0] * PARTS
        """Movement that was only in memory when the peer crashed."""
        self.reports: list[Reported] = []
        """What it told the people, in all its lives."""
        self.life = 0
        self.alive = False
        self.fuse: int | None = None
        """After this many more effects the peer crashes."""
        self.stalled_until = 0.0
        self.streams = FaultyStreams(
            world.network.connect(name), lambda: world.now, self.later, Random(f"{name} {world.rng.random()}")
        )
        self._unsaved = [0] * PARTS
        self.boot()

    # ---- life and death ----

    def boot(self) -> None:
        """Start from what is on disk."""
        disk, world = self.disk, self.world
        self.alive, self.fuse, self.life = True, None, self.life + 1
        self.ledger = disk.ledger.copy()
        self._follow_the_chain()
        self.streams.reconnect(world.network.connect(self.name))
        self.driver = Driver(
            self._state_on_disk(), clock=lambda: world.now, streams=FusedStreams(self, self.streams), disk=disk,
            arithmetic=IntegerSums(disk, world.rng, noise=1 if world.rules(self.name).audit else 16),
            trainer=self, report=self._report, publish=self._publish,
        )  # fmt: skip
        self.streams.listen(self._guarded(self.driver.on_frame))
        self.later(TICK_S * world.rng.random(), self._tick)
        self.later(READ_BOARD_S * world.rng.random(), self._follow_board)
        self.later(0.0, self._resume)

    def _follow_the_chain(self) -> None:
        """Bring the ledger to the newest anchor on disk; a crash may have left it behind, or on a branch left since."""
        disk = self.disk
        on_chain = {disk.genesis.anchor, *(head.anchor for head in disk.heads)}
        while self.ledger.anchor not in on_chain:
            self._undo(disk.undone[self.ledger.anchor])
        for block in disk.blocks[self.ledger.round :]:
            self._apply(block)

    def _state_on_disk(self) -> State:
        disk, world = self.disk, self.world
        acceptors, heads = disk.load_acceptors(), (disk.genesis, *disk.heads)
        return begin(
            world.rules(self.name), disk.head, world.now,
            ancestors={head.anchor: head.round for head in heads}, acceptors=acceptors,
            voters=frozenset(peer for head in heads for peer in head.electorate),
            trail=disk.trail(), accepted=disk.accepted_update(acceptors.get(disk.head.instance)),
            pledge=disk.pledge(disk.head.anchor),
            held={name: len(payload) for name, payload in disk.objects.items()},
        )  # fmt: skip

    def crash(self) -> None:
        """Everything in memory is gone."""
        self.alive = False
        self.world.network.disconnect(self.name)
        for part in range(PARTS):
            self.lost[part] += self._unsaved[part]
        self._unsaved = [0] * PARTS

    def stall(self, seconds: float) -> None:
        """Nothing in, nothing out, timers late."""
        self.stalled_until = self.world.now + seconds
        self.world.network.stall(self.name, self.stalled_until)

    def distort(self, factor: float, layer: str) -> None:
        """What it owes is `factor` times as much from now on, in the part called `layer` or, if that is empty, in all.

        Raises BadInput for a part that does not exist.
        """
        names = [str(part) for part in range(PARTS)]
        if layer and layer not in names:
            raise BadInput(f"there is no layer {layer!r}; a logical peer has {', '.join(names)}")
        for part in range(PARTS):
            if layer in ("", str(part)):
                more = round((factor - 1) * self.ledger.balance[part])
                self.produced[part] += more
                self._unsaved[part] += more
                self.ledger.balance[part] += more

    def burn(self) -> None:
        """One more effect; the fuse may have burnt out."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                raise Crashed

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s`, or when a stall is over, if this life lasts."""
        self.world.scheduler.call_in(delay_s, self._guarded(call), *args)

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call` for this life only; a crash inside it ends the life."""
        life = self.life

        def guard(*args: object) -> None:
            if not self.alive or life != self.life:
                return
            if self.stalled_until > self.world.now:
                self.world.scheduler.call_at(self.stalled_until, guard, *args)
                return
            try:
                call(*args)
            except Crashed:
                self.crash()

        return guard

    # ---- what goes on all the time ----

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        self.driver.deliver(Tick(self.world.now))

    def _publish(self, head: HeadSent) -> None:
        self.world.board[self.name] = head

    def _follow_board(self) -> None:
        """Whoever says nothing to this peer is found here, as by `peer.averaging.neighbours`."""
        self.later(READ_BOARD_S, self._follow_board)
        for author, head in sorted(self.world.board.items()):
            if author != self.name and self._is_news(author, head) and not self.is_cut_off(author):
                self.driver.deliver(Received(self.world.now, author, head))

    def _is_news(self, author: str, head: HeadSent) -> bool:
        heard, heard_at = self.driver.state.heard.get(author, (None, 0.0))
        return heard is None or (self.world.now - heard_at > MEET_AGAIN_S and heard.anchor != head.anchor)

    def is_cut_off(self, other: str) -> bool:
        """Whether the network lets nothing pass from another peer; then the board is split likewise."""
        return self.world.network.is_parted(other, self.name) or self.streams.is_cut(other)

    def _report(self, event: Reported) -> None:
        self.reports.append(event)
        if isinstance(event, PhaseEntered):
            self.world.entered(self, event.phase, event.round)

    # ---- the trainer ----

    def _resume(self) -> None:
        """Say which bits are here, and train unless this anchor's contribution was frozen before a crash."""
        self.driver.deliver(Applied(self.world.now, self.disk.head.anchor, self.state_digest()))
        if self.driver.state.pledge is None:
            self._train_when_in_step()

    def _train_when_in_step(self) -> None:
        """A peer trains once its machine is in step, as in `peer.averaging.link`."""
        if self.driver.state.in_step:
            self._train()
        else:
            self.later(TICK_S, self._train_when_in_step)

    def _train(self) -> None:
        head = self.driver.state.head
        self.world.entered(self, "train", head.round)
        seconds = self.world.rng.uniform(*TRAIN_S)
        self.later(seconds / 2, self._half, head.anchor)
        self.later(seconds, self._freeze, head.anchor)

    def _half(self, anchor: bytes) -> None:
        if self.driver.state.head.anchor == anchor and self.driver.state.pledge is None:
            self._move()
            self.driver.deliver(Progressed(self.world.now, 0.6))

    def _move(self) -> None:
        for part in range(PARTS):
            movement = self.world.rng.randrange(-1000, 1000)
            self.produced[part] += movement
            self._unsaved[part] += movement
            self.ledger.balance[part] += movement

    def freeze(self) -> None:
        """Asked by the driver."""
        self.later(0.0, self._freeze, self.driver.state.head.anchor)

    def _freeze(self, anchor: bytes) -> None:
        state = self.driver.state
        if state.head.anchor != anchor or state.pledge is not None:
            return
        self.world.entered(self, "freeze", state.head.round)
        self._move()
        pledge = self.disk.pledge(anchor) or self._offer(anchor)
        self.driver.deliver(Frozen(self.world.now, pledge))

    def _offer(self, anchor: bytes) -> Pledge:
        """Written once per anchor: a peer that stands here again after a fork offers the same bytes."""
        payloads = self.ledger.encoded_balance()
        root = merkle.root([digest_of(payload) for payload in payloads])
        pledge = Pledge(self.name, anchor, root, tokens=100, steps=10, bandwidth_bps=0, leaving=False)
        pledge = pledge.signed(self.driver.state.rules.keys)
        self.disk.save_contribution(pledge, payloads)
        self.world.offered(self, anchor, payloads)
        self._save()
        return pledge

    def committed(self, block: Block, head: Head) -> None:
        """Told by the driver; the block is on disk."""
        self.world.entered(self, "apply", block.update.round - 1)
        self._apply(block)
        self.burn()
        self._save()
        self.later(APPLY_S, self._applied, head.anchor)

    def undone(self, blocks: Sequence[Block], head: Head) -> None:
        """Told by the driver: these blocks are off the chain, newest first; the peer stands at `head` again."""
        for block in blocks:
            self._undo(block)
        assert self.ledger.anchor == head.anchor
        self.burn()
        self._save()
        self.later(APPLY_S, self._applied, head.anchor)

    def resync(self, why: str) -> None:
        """Told by the driver: begin anew from what another has, if one is in reach, and keep the balance.

        What the chain that is left had counted and this peer cannot give again is lost.
        """
        donor = self.world.donor(self)
        if donor is None:
            return
        self.world.resyncing(self, donor)
        for part in range(PARTS):
            self.lost[part] += self.ledger.counted[part]
        self.ledger = Ledger(
            self.disk.genesis.anchor, balance=self.ledger.balance, discounted=self.ledger.discounted,
            fragments=self.world.fragments,
        )  # fmt: skip
        self.disk.start_anew(donor)
        self.world.resynced(self)
        self._save()
        self.world.scheduler.call_in(0.0, self.boot)
        raise Crashed

    def _applied(self, anchor: bytes) -> None:
        self.driver.deliver(Applied(self.world.now, anchor, self.state_digest()))
        if self.driver.state.head.anchor == anchor:
            self._train_when_in_step()

    def state_digest(self) -> bytes:
        """H(θ) of the newest anchor that was applied."""
        return digest_of(repr(self.ledger.theta).encode())

    def _save(self) -> None:
        self.disk.ledger = self.ledger.copy()
        self._unsaved = [0] * PARTS

    def _apply(self, block: Block) -> None:
        self.ledger.apply(self.name, block.update, self.disk.offered(block.update.parent), self.disk.objects)
        self.world.applied(self, block)

    def _undo(self, block: Block) -> None:
        self.ledger.undo(self.name, block.update, self.disk.offered(block.update.parent), self.disk.objects)


class FusedStreams:
    """Streams whose sends burn the fuse of their peer, and wait while it is stalled."""

    def __init__(self, peer: LogicalPeer, streams: Streams) -> None:
        self._peer, self._streams = peer, streams

    def send(self, to: str, frame: bytes) -> None:
        """Queue a frame."""
        self._peer.burn()
        self._unless_stalled(self._streams.send, to, frame)

    def send_when_free(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a frame that is made later."""
        self._peer.burn()
        self._unless_stalled(self._streams.send_when_free, to, make_frame)

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener."""
        self._streams.listen(on_frame)

    def _unless_stalled(self, send: Callable[..., None], *args: object) -> None:
        if self._peer.stalled_until > self._peer.world.now:
            self._peer.later(0.0, send, *args)
        else:
            send(*args)
