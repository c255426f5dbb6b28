"""A peer's node in the network: hivemind's DHT for records, libp2p streams for everything else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dht.access import RejectCode, RejectionLog
from dht.addresses import CIRCUIT, check_announce, check_dial, check_listen, is_circuit, peer_id_in
from dht.board import Board
from dht.clock import ASK_MOST, TIME, Clock, pack_time, require_right_clock
from dht.daemon import Daemon, DaemonConfig, open_daemon
from dht.dht_board import DhtBoard, Places, Rank, start_dht
from dht.errors import BadAddress, ClockOff, Unreachable
from dht.protocol_version import PROTOCOL_VERSION
from dht.reach.dialer import dial_any, keep_dialling, others_of
from dht.reach.peer_store import PeerStore
from dht.reach.relay import Relay, Serves, nobody, reserve
from dht.records import Record
from dht.streams.base import Streams
from dht.streams.outbound import AllowPeer, Libp2pStreams, StreamLimits
from dht.streams.rpc import Rpc
from dht.streams.shaper import Shaper
from dht.streams.traffic import FASTEST_BPS, TrafficCounter

log = logging.getLogger(__name__)

MEET_TIMEOUT_S = 5.0
_GIVE_WAY_S = 3.0
"""Who may be dialled itself leaves the other so long to do it before a relay is troubled."""
_SLOT_TIMEOUT_S = 5.0
_GOODBYE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """How a node meets others. Addresses have passed `dht.addresses`."""

    run: bytes
    """32 bytes: the hash of the run spec. Nodes of different runs do not meet."""
    identity_path: Path
    """Written by `Identity.load_or_create`."""
    socket_folder: Path
    """For the daemon's sockets; cleaned at start, so one node at a time."""
    listen: tuple[str, ...]
    """None: others reach this node through the connections that it opens itself, or through a relay."""
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    """Dialled first; none: this node is the first."""
    wants_relays: bool = False
    """Whether to ask the nodes that are dialled first for a slot each, so that peers that cannot dial this node can
    reach it."""
    remember: Path | None = None
    """A file for the addresses of peers that it meets; those that it holds already are dialled first, too."""
    public: bool = False
    """Reach beyond this machine: hole punching, UPnP. Slower to start."""
    client_mode: bool = False
    """Use the DHT without serving it."""
    start_timeout_s: float = 15.0
    dial_timeout_s: float = 15.0
    limits: StreamLimits = field(default_factory=StreamLimits)
    upload_bps: float = 0.0
    """The most bits per second that leave this node by streams, requests and answers; 0 means no limit."""
    download_bps: float = 0.0
    """The same for what it receives."""
    clock: Clock = time.time
    """Unix time in seconds; it is compared with that of the nodes that are dialled first."""


class Node:
    """Made by `open_node`."""

    def __init__(
        self, config: NetworkConfig, daemon: Daemon, board: Board, rpc: Rpc, streams: Libp2pStreams,
        refusals: RejectionLog | None = None, remembered: PeerStore | None = None,
    ) -> None:  # fmt: skip
        self.peer_id = daemon.peer_id
        self.refusals = refusals or RejectionLog()
        self._remembered = remembered
        self.board = board
        self.streams: Streams = streams
        self.flow = streams.flow
        self._config = config
        self._daemon = daemon
        self._links = streams
        self._questions = rpc
        self.ask, self.round_trip_s, self.serve, self.answer = rpc.ask, rpc.round_trip_s, rpc.serve, rpc.answer
        self._relay = Relay(daemon, nobody, upload_bps=config.upload_bps)
        self._relay.network_of = self._questions.network_of = daemon.network_of
        self._slots: tuple[str, ...] = ()
        self._found_at: tuple[str, ...] = ()
        self._relayed: set[str] = set()
        """Peers that could only be reached through a relay at the last look."""

    @property
    def bytes_sent(self) -> int:
        """By the streams, headers included."""
        return self._links.bytes_sent

    @property
    def bytes_received(self) -> int:
        """By the streams, headers included."""
        return self._links.bytes_received

    @property
    def frames_dropped(self) -> int:
        """Frames that were dropped: no room in the queue, peer not reachable, peer not reading."""
        return self._links.frames_dropped

    @property
    def upload_bps(self) -> int:
        """Bits per second that this node can send, as far as is known: a measurement, or its limit if it has one. At
        most FASTEST_BPS; 0 if neither is known."""
        seen, cap = self._links.uplink.bps, self._links.upload.bps
        known = [bps for bps in (seen, cap) if bps]
        return round(min(*known, FASTEST_BPS)) if known else 0

    @property
    def tally(self) -> TrafficCounter:
        """Bytes to and from each peer by streams, requests and answers, without the traffic of the DHT and the
        daemon."""
        return self._links.tally

    async def addresses(self) -> tuple[str, ...]:
        """Where others can dial this node, each with /p2p/…; empty if it does not listen."""
        return await self._daemon.addresses()

    @property
    def addresses_of(self) -> tuple[str, ...]:
        """The result of the last look: a router that restarts, or opens a port, changes it."""
        return self._found_at

    async def look_where(self) -> None:
        """Find out where others can dial this node now. Raises Unreachable if the daemon is gone."""
        addresses = await self.addresses()
        if set(addresses) != set(self._found_at):  # their order means nothing, and others would take it for news
            self._found_at = addresses
            log.info("others can dial this node at %s", ", ".join(addresses))

    @property
    def relays(self) -> tuple[str, ...]:
        """The peers at which this node holds a slot: others can reach it through them, too."""
        return self._slots

    async def hold_slots(self) -> None:
        """Ask the nodes that are dialled first for a slot each; repeat it within three minutes, or the slot ends.
        Raises Unreachable if the daemon is gone."""
        if self._config.wants_relays:
            connected = await self._daemon.connections()
            named = dict.fromkeys(map(peer_id_in, others_of(self._daemon, self._config.bootstrap)))
            peers = [peer for peer in named if peer in connected]
            held = await asyncio.gather(*(reserve(self._daemon, peer, _SLOT_TIMEOUT_S) for peer in peers))
            self._slots = tuple(peer for peer, holds in zip(peers, held, strict=True) if holds)

    async def drop_relayed(self) -> None:
        """Let traffic to a peer leave the relay if there is a direct connection now, for example after hole
        punching. Raises Unreachable if the daemon is gone."""
        connections = await self._daemon.connections()
        relayed = {peer for peer, address in connections.items() if CIRCUIT in address}
        for peer in self._relayed & connections.keys() - relayed:
            self._links.redial(peer)
        self._relayed = relayed

    def rank_by(self, rank: Callable[[str], Rank], look: Callable[[Record], None] = lambda record: None) -> None:
        """From now on give places on the board, circuits, answers and streams by this rank of a peer id; until then
        all peers are strangers. `look` is shown records of strangers, which may show that the organiser has admitted
        them."""
        assert isinstance(self.board, DhtBoard)
        self.board.places.rank, self.board.places.look = rank, look
        self._relay.is_member = self._questions.is_known = lambda peer: rank(peer) is not Rank.STRANGER
        self._links.prefer(self._questions.is_known)

    def relay_for(self, serves: Serves) -> None:
        """From now on relay for these peers; until then for none."""
        self._relay.serves = serves

    async def connections(self) -> dict[str, str]:
        """By peer id, the address of the other end of each connection. Raises Unreachable if the daemon is gone."""
        return await self._daemon.connections()

    async def reach(self, address: str, timeout_s: float) -> None:
        """Connect at this dial address, and read the board there too from now on. Raises Unreachable. An existing
        connection is enough."""
        await self._daemon.connect(check_dial(address), timeout_s)
        assert isinstance(self.board, DhtBoard)
        await self.board.meet(peer_id_in(address))

    @property
    def clock(self) -> Clock:
        return self._config.clock

    async def compare_clocks(self, peers: Sequence[str], least: int) -> bool:
        """As `require_right_clock`, with this node's clock. Raises ClockOff."""
        return await require_right_clock(self, peers, self._config.clock, least)

    async def meet(self, peer_id: str, addresses: Sequence[str]) -> bool:
        """Connect to a peer at the first of its addresses that answers; addresses of other peers are not dialled.
        Routing alone does not know every address, since it leaves out ranges that it takes for unreachable.
        Addresses through a relay are tried a little later, beside the others: an address behind a router may just be
        silent."""
        circuits = [address for address in addresses if is_circuit(address) and peer_id_in(address) == peer_id]
        straight = [address for address in addresses if not is_circuit(address)]
        give_way_s = _GIVE_WAY_S if self._config.listen else 0.0
        ways = [
            asyncio.create_task(self._meet_straight(peer_id, straight)),
            asyncio.create_task(self._meet_through(circuits, give_way_s)),
        ]
        try:
            for met in asyncio.as_completed(ways):
                if await met:
                    self._links.retry(peer_id)
                    return True
            return False
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _meet_straight(self, peer_id: str, addresses: Sequence[str]) -> bool:
        for address in addresses:
            try:
                if peer_id_in(check_dial(address)) == peer_id:
                    await self._daemon.connect(address, MEET_TIMEOUT_S)
                    if self._remembered is not None:
                        self._remembered.note(peer_id, addresses)
                    return True
            except (BadAddress, Unreachable) as error:
                log.info("%s", error)
        return False

    async def _meet_through(self, circuits: Sequence[str], give_way_s: float) -> bool:
        """Through the first relay that answers; a peer that can be dialled is given time to do it first."""
        if not circuits:
            return False
        await asyncio.sleep(give_way_s)
        for address in circuits:
            try:
                await self._daemon.connect(address, MEET_TIMEOUT_S)
            except Unreachable as error:
                log.info("%s", error)
                continue
            return True
        return False

    def guard(self, lets_in: AllowPeer, open_names: Container[str]) -> None:
        """From now on accept streams, and requests for names other than these, only from peers that are let in. Open
        streams end: a peer that may come in opens another one."""
        self._links.lets_in, self._questions.open_names = lets_in, open_names
        self._links.close_all()

    def cut(self, peer_id: str) -> None:
        """End the streams of a peer that is not let in any more."""
        self._links.cut(peer_id)

    def allow(self, upload_bps: float, download_bps: float) -> None:
        """Set other bandwidth limits, 0 for none."""
        self._links.upload.allow(upload_bps)
        self._relay.allow(upload_bps)
        self._links.download.allow(download_bps)

    async def start(self) -> None:
        self.serve(TIME, lambda: pack_time(self._config.clock()))
        await self._links.start()
        await self._relay.start()
        await self._questions.start()
        self._links.watch(self.round_trip_s)


@asynccontextmanager
async def open_node(config: NetworkConfig) -> AsyncIterator[Node]:
    """Start a node; everything that it started has ended when the block is left. Raises PortInUse, BadAddress,
    ClockOff, or Unreachable if no bootstrap address answers. An error in a background task, such as one raised by
    the listener of the streams, ends the block."""
    assert len(config.run) == 32
    _check_addresses(config)
    refusals = RejectionLog()
    remembered = None if config.remember is None else PeerStore(config.remember)
    earlier = () if remembered is None else remembered.addresses
    try:
        async with open_daemon(_daemon_config(config)) as daemon, _task_scope() as spawn:
            met = await dial_any(daemon, (*config.bootstrap, *earlier), config.dial_timeout_s)
            streams = Libp2pStreams(
                daemon, _protocol(config.run, "frames"), spawn, config.limits,
                upload=Shaper(config.upload_bps), download=Shaper(config.download_bps),
            )  # fmt: skip
            rpc = Rpc(daemon, streams, _protocol(config.run, "ask"), config.limits)
            await _check_clock(rpc, config, met, refusals)
            places = Places()
            places.network_of = daemon.network_of
            dht_node = await start_dht(daemon.p2p, config.run, met, refusals, places, client_mode=config.client_mode)
            board = DhtBoard(dht_node, config.run, places)
            node = Node(config, daemon, board, rpc, streams, refusals, remembered)
            await node.start()
            await node.look_where()
            await node.hold_slots()
            spawn(_watch(daemon))
            look_after = (node.hold_slots, node.drop_relayed, node.look_where)
            spawn(keep_dialling(daemon, board.meet, config.bootstrap, earlier, config.dial_timeout_s, look_after))
            try:
                yield node
            finally:
                await streams.finish(_GOODBYE_S)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group
        raise


@asynccontextmanager
async def _task_scope() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]]:
    tasks: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = group.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        try:
            yield spawn
        finally:
            for task in tasks:
                task.cancel()


def _check_addresses(config: NetworkConfig) -> None:
    for address in config.listen:
        check_listen(address)
    for address in config.announce:
        check_announce(address)
    for address in config.bootstrap:
        check_dial(address)


def _daemon_config(config: NetworkConfig) -> DaemonConfig:
    return DaemonConfig(
        identity_path=config.identity_path,
        socket_folder=config.socket_folder,
        listen=config.listen,
        announce=config.announce,
        relays=tuple({peer_id_in(address): address for address in reversed(config.bootstrap)}.values()),
        public=config.public,
        client_mode=config.client_mode,
        start_timeout_s=config.start_timeout_s,
    )


async def _check_clock(rpc: Rpc, config: NetworkConfig, met: Sequence[str], refusals: RejectionLog) -> None:
    """Raises ClockOff."""
    try:
        answered, named = list(dict.fromkeys(map(peer_id_in, met))), set(map(peer_id_in, config.bootstrap))
        # Anybody may be among those who were met earlier: they are asked where nobody else is.
        peers = ([peer for peer in answered if peer in named] or answered)[:ASK_MOST]
        await require_right_clock(rpc, peers, config.clock)
    except ClockOff as error:
        refusals(RejectCode.CLOCK, "this machine", str(error))
        raise


async def _watch(daemon: Daemon) -> None:
    await daemon.ended()
    raise Unreachable("the network daemon (p2pd) ended by itself; the log holds its last words")


def _protocol(run: bytes, name: str) -> str:
    return f"homefires/{PROTOCOL_VERSION}/{run.hex()}/{name}"
