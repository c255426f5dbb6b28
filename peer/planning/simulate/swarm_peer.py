"""One peer of a swarm in memory: the product's own lifecycle, driver and round machine, on a virtual clock.

It lives, crashes, stalls, comes back, and reads the board. Subclasses decide what it learns and contributes: integers
whose books must balance in the tests (`peer.testing`), declared times and sizes in the simulator (`simulated_peer.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from dht.streams.base import Streams
from peer.consensus.protocol.block import ContributionHeader
from peer.consensus.protocol.frame_reader import Framing, open_one
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import Heartbeat, decode_sealed
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Received, Tick
from peer.consensus.rounds.machine import TICK_S, begin, standing
from peer.consensus.rounds.state import State
from peer.planning.simulate.life_host import LifeHost
from peer.planning.simulate.memory_network import Scheduler
from peer.planning.simulate.memory_store import MemoryDisk
from peer.schema.events import Event as Reported
from peer.schema.spec import RunSpec

MEET_AGAIN_S = 20.0
"""A peer that has been silent for this long is looked up on the board again."""
READ_BOARD_S = 3.0
"""Seconds between two looks at the board for peers that were not heard."""
IN_ONE_PROCESS = Framing(decode=lru_cache(256)(decode_sealed), open=lru_cache(256)(open_one))
"""A frame with several receivers is decoded once for all: nobody can change a message."""


class Crashed(Exception):
    """Ends the peer here: nothing after this effect happens."""


class PeerLinks(Protocol):
    """Carries frames between the peers."""

    def disconnect(self, peer_id: str) -> None:
        """Frames to and from the peer are lost until it connects again."""

    def stall(self, peer_id: str, until_s: float) -> None:
        """Frames that arrive before `until_s` are delivered then."""

    def is_parted(self, source: str, to: str) -> bool:
        """Whether frames from `source` to `to` are blocked."""


class PeerWorld(Protocol):
    """What all peers of a swarm share."""

    @property
    def scheduler(self) -> Scheduler:
        """The virtual clock, which runs calls."""

    @property
    def network(self) -> PeerLinks:
        """The network that carries frames."""

    @property
    def genesis(self) -> ChainHead:
        """The head at which the chain begins."""

    @property
    def board(self) -> dict[str, Heartbeat]:
        """The heartbeats that newcomers read, by author."""

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""

    @property
    def run_spec(self) -> RunSpec:
        """The spec that each peer's lifecycle follows."""

    def rules(self, name: str) -> Rules:
        """The rules of a peer."""


class SwarmPeer(LifeHost):
    """One peer of a simulated swarm."""

    def __init__(self, world: PeerWorld, name: str, disk: MemoryDisk) -> None:
        self.world, self.name, self.disk = world, name, disk
        self.lives = 0
        self.alive = False
        self.stalled_until = 0.0

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def head(self) -> ChainHead:
        return self.disk.head

    def header(self, anchor: bytes) -> ContributionHeader:
        return self.disk.header(anchor) or ContributionHeader(self.name, anchor, b"", 0, 0, 0, False)

    # ---- life and death ----

    def boot(self) -> None:
        self.alive, self.lives = True, self.lives + 1
        self.recover()
        self.open_link()
        self.begin_life(self.world.run_spec)
        self.later(0.0, self.start)

    def open_link(self) -> None:
        """Take part with the state on disk."""
        streams = self.connect()
        self.driver = self.make_driver(streams)
        streams.listen(self._guarded(self.on_frame))
        self.later(TICK_S * self.chance(), self._tick)
        self.later(READ_BOARD_S * self.chance(), self._follow_board)

    @abstractmethod
    def recover(self) -> None:
        """Restore the state in memory from disk."""

    @abstractmethod
    def connect(self) -> Streams:
        """Returns new streams for a new life."""

    @abstractmethod
    def make_driver(self, streams: Streams) -> Driver:
        """Returns the driver of a new life; it begins with `state_on_disk`."""

    @abstractmethod
    def chance(self) -> float:
        """A uniform random number, 0 ≤ x < 1: the phase at which a timer begins."""

    def state_on_disk(self) -> State:
        """The state of a round machine that starts from the disk."""
        disk, world = self.disk, self.world
        acceptors, heads = disk.load_acceptors(), (disk.genesis, *disk.heads)
        return begin(
            world.rules(self.name), disk.head, world.now,
            ancestors={head.anchor: head.round for head in heads}, acceptors=acceptors,
            voters=frozenset(peer for head in heads for peer in head.electorate),
            trail=disk.trail(), accepted=disk.accepted_update(standing(disk.head, acceptors)[1]),
            header=disk.header(disk.head.anchor),
            held={name: len(payload) for name, payload in disk.objects.items()},
        )  # fmt: skip

    def crash(self) -> None:
        """The peer loses everything in memory."""
        self.alive = False
        self.world.network.disconnect(self.name)

    def stall(self, seconds: float) -> None:
        """For this time the peer receives and sends nothing, and its timers are late."""
        self.stalled_until = self.world.now + seconds
        self.world.network.stall(self.name, self.stalled_until)

    @abstractmethod
    def burn(self) -> None:
        """Called before every effect that others could notice; may raise `Crashed`."""

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Run `call` after `delay_s`, or when a stall is over, if this life still lasts then."""
        self.world.scheduler.call_in(delay_s, self._guarded(call), *args)

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call` for this life only; a crash inside it ends the life."""
        life = self.lives

        def guard(*args: object) -> None:
            if not self.alive or life != self.lives:
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

    def on_frame(self, sender: str, frame: bytes) -> None:
        self.driver.on_frame(sender, frame)
        self._look()

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        self.deliver(Tick(self.world.now))

    def publish(self, head: Heartbeat) -> None:
        """Put the heartbeat on the board for newcomers."""
        self.world.board[self.name] = head

    def _follow_board(self) -> None:
        """Find peers from which nothing was heard, as `peer.network.link.discovery` does."""
        self.later(self.board_s(), self._follow_board)
        for author, head in sorted(self.world.board.items()):
            if author != self.name and self._is_news(author, head) and not self.is_cut_off(author):
                self.deliver(Received(self.world.now, author, head))

    def board_s(self) -> float:
        """Seconds until the next look at the board."""
        return READ_BOARD_S

    def _is_news(self, author: str, head: Heartbeat) -> bool:
        heard, heard_at = self.driver.state.heard.get(author, (None, 0.0))
        return heard is None or (self.world.now - heard_at > MEET_AGAIN_S and heard.anchor != head.anchor)

    def is_cut_off(self, other: str) -> bool:
        """Whether the network blocks everything from another peer; then the board is split in the same way."""
        return self.world.network.is_parted(other, self.name)

    @abstractmethod
    def report(self, event: Reported) -> None:
        """Called by the driver."""
