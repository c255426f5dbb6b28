"""The network between simulated peers: a delay and a bandwidth for each pair, and the line of each peer.

Messages travel as objects and are never encoded; their size on the wire is declared. Small ones overtake large ones, as
on the product's lines. Large ones leave a sender frame by frame, for its receivers in turn, and each sender begins with
another receiver: together that comes to fair shares of every line, for one event per frame instead of one per 64 KiB.

A frame is cut through, not stored and forwarded: its last bit arrives when the slowest of the three on its way (upload,
pair, download) has let it pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from dht.streams.base import MakeFrame, OnFrame
from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.messages import (
    Blocks,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    ObjectData,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    RowDispute,
    Start,
    VoteCast,
)
from peer.planning.simulate.memory_network import Departures, Scheduler

Delay = Callable[[str, str], float]
"""The one-way delay in seconds from one peer to another."""
Pair = Callable[[str, str], float]
"""The bandwidth in bits per second from one peer to another; 0 for no limit."""
SizeOf = Callable[[Any], int]
"""The size of a message on the wire in bytes."""


class VirtualNetwork:
    """Connects simulated peers, with delays and bandwidths."""

    def __init__(self, scheduler: Scheduler, dice: Random, delay: Delay, pair_bps: Pair, size_of: SizeOf) -> None:
        self.scheduler, self.size_of = scheduler, size_of
        self.messages = 0
        """The number of messages delivered so far."""
        self.departures = Departures(scheduler)
        self._dice, self._delay, self._pair_bps = dice, delay, pair_bps
        self._ends: dict[str, VirtualLink] = {}
        self._ways: dict[tuple[str, str], Path] = {}
        self._stalled_until: dict[str, float] = {}
        self._order: dict[str, int] = {}

    def connect(self, peer_id: str, upload_bps: float, download_bps: float) -> VirtualLink:
        """Returns the peer's end; connecting again replaces the previous end."""
        self.departures.returned(peer_id)
        number = self._order.setdefault(peer_id, len(self._order))
        self._ends[peer_id] = line = VirtualLink(self, peer_id, number, upload_bps, download_bps)
        return line

    def disconnect(self, peer_id: str) -> None:
        """Frames to and from the peer are lost until it connects again."""
        self._ends.pop(peer_id, None)
        self.departures.left(peer_id)

    def stall(self, peer_id: str, until_s: float) -> None:
        """Messages that arrive before `until_s` are delivered then."""
        self._stalled_until[peer_id] = until_s

    def is_parted(self, source: str, to: str) -> bool:
        """Returns False: simulated networks have no partitions."""
        return False

    def number(self, peer_id: str) -> int:
        """The number of a peer, in the order in which peers first connected."""
        return self._order.get(peer_id, 0)

    def way(self, source: str, to: str) -> Path:
        found = self._ways.get((source, to))
        if found is None:
            found = self._ways[source, to] = Path(self._delay(source, to), self._pair_bps(source, to))
        return found

    def arrive(self, line: VirtualLink, to: str, message: Any, size_bytes: int, began_s: float, bulk: bool) -> None:
        """The last bit of a message has arrived at the receiver's line."""
        end = self._ends.get(to)
        if end is None or self._ends.get(line.peer_id) is not line:
            return
        now = self.scheduler.now
        if bulk and end.download_bps:
            ready = max(now, max(end.free_at, began_s) + 8 * size_bytes / end.download_bps)
            end.free_at = ready
            if ready > now:
                self.scheduler.call_at(ready, self._deliver, end, line.peer_id, message, size_bytes)
                return
        self._deliver(end, line.peer_id, message, size_bytes)

    def _deliver(self, end: VirtualLink, source: str, message: Any, size_bytes: int) -> None:
        if self._ends.get(end.peer_id) is not end or end.on_frame is None:
            return
        awake = self._stalled_until.get(end.peer_id, 0.0) if self._stalled_until else 0.0
        if awake > self.scheduler.now:
            self.scheduler.call_at(awake, self._deliver, end, source, message, size_bytes)
            return
        self.messages += 1
        end.bytes_received += size_bytes
        end.on_frame(source, message)


class Path:
    """The path from one peer to another."""

    __slots__ = ("bps", "delay_s", "free_at")

    def __init__(self, delay_s: float, bps: float) -> None:
        self.delay_s, self.bps, self.free_at = delay_s, bps, 0.0


class VirtualLink:
    """One peer's end: the contract of `dht.streams.base.Streams`, for messages."""

    __slots__ = (
        "_busy", "_last", "_links", "_number", "_upload_bps", "_waiting",
        "bytes_received", "bytes_sent", "download_bps", "free_at", "on_frame", "peer_id",
    )  # fmt: skip

    def __init__(
        self, links: VirtualNetwork, peer_id: str, number: int, upload_bps: float, download_bps: float
    ) -> None:
        self._links, self.peer_id, self._number = links, peer_id, number
        self._upload_bps, self.download_bps = upload_bps, download_bps
        self.bytes_sent = self.bytes_received = 0
        self.free_at = 0.0
        """The time at which its download will be idle."""
        self.on_frame: OnFrame | None = None
        self._waiting: dict[str, deque[MakeFrame]] = {}
        self._last, self._busy = number, False

    def listen(self, on_frame: OnFrame) -> None:
        """Set the listener. Messages that arrive earlier are dropped."""
        self.on_frame = on_frame

    @property
    def unreachable(self) -> frozenset[str]:
        """The peers that have disconnected."""
        return self._links.departures.noticed

    def send(self, to: str, frame: Any) -> None:
        """Send a small message: it needs its own time on the slowest line of its path, and delays no other message."""
        links = self._links
        size = links.size_of(frame)
        self.bytes_sent += size
        way = links.way(self.peer_id, to)
        slowest = min(filter(None, (self._upload_bps, way.bps)), default=0.0)
        took_s = 8 * size / slowest if slowest else 0.0
        now = links.scheduler.now
        links.scheduler.call_at(now + way.delay_s + took_s, links.arrive, self, to, frame, size, now, False)

    def send_bulk(self, to: str, make_frame: MakeFrame) -> None:
        """Queue a large message, which is made when its turn comes."""
        self._waiting.setdefault(to, deque()).append(make_frame)
        if not self._busy:
            self._serve()

    def _serve(self) -> None:
        links, scheduler = self._links, self._links.scheduler
        while self._waiting:
            to = self._next()
            queue = self._waiting[to]
            message: Any = queue.popleft()()
            if not queue:
                del self._waiting[to]
            if message is None:
                continue
            size = links.size_of(message)
            self.bytes_sent += size
            now = scheduler.now
            took_s = 8 * size / self._upload_bps if self._upload_bps else 0.0
            way = links.way(self.peer_id, to)
            way.free_at = last = max(now + took_s, max(way.free_at, now) + (8 * size / way.bps if way.bps else 0.0))
            scheduler.call_at(last + way.delay_s, links.arrive, self, to, message, size, now + way.delay_s, True)
            if took_s:
                self._busy = True
                scheduler.call_in(took_s, self._served)
                return

    def _served(self) -> None:
        self._busy = False
        self._serve()

    def _next(self) -> str:
        """The next receiver, in turn by number: the first one after the last served."""
        number, last = self._links.number, self._last
        to = next(iter(self._waiting))
        if len(self._waiting) > 1:
            to = min(self._waiting, key=lambda peer: (number(peer) <= last, number(peer)))
        self._last = number(to)
        return to


PLACE, DIGEST, SIGNATURE = 73, 34, 66
PEER = 54
"""A libp2p peer id with its length."""
PLEDGE = PEER + 2 * DIGEST + SIGNATURE + 24
RANGE = 12
"""One range of data in a header."""
HEAD, VOTE = 130, PEER + 2 * DIGEST + 2 * SIGNATURE + 10
LEAST = 90


class Sizes:
    """The sizes of the messages in one run. `token_bytes` is the size of what represents a part in the simulation,
    `part_bytes` the real sizes.

    Parts of different sizes are told apart by their number in the fragment that a round averages. Where a message does
    not name its parts, each counts with the mean size.
    """

    def __init__(self, part_bytes: Sequence[int], mean_bytes: Sequence[int], token_bytes: int, row_bytes: int) -> None:
        self._part_bytes, self._mean_bytes, self._token_bytes = tuple(part_bytes), tuple(mean_bytes), token_bytes
        self._row_bytes = row_bytes
        self._usual_bytes = sum(mean_bytes) // len(mean_bytes)
        self._last: Message | None = None
        self._last_bytes = 0
        self._newest: tuple[bytes, int] = (b"", 0)

    def of(self, message: Message) -> int:
        """The bytes of a frame. A message to many receivers is measured once."""
        if message is not self._last:
            self._last, self._last_bytes = message, self._of(message)
        return self._last_bytes

    def _of(self, message: Message) -> int:
        match message:
            case Heartbeat():
                return HEAD
            case VoteCast():
                return PLACE + VOTE
            case PartData(part=part, path=path, payload=payload):
                return PLACE + 6 + DIGEST * len(path) + self._part_bytes[part]
            case MeanData(part=part, payload=payload, contributors=bits):
                whole = self._mean_bytes[part] + self._row_bytes * bits.bit_count()
                return PLACE + PEER + 2 * DIGEST + SIGNATURE + 16 + (whole if payload else 0)
            case ObjectData(payload=payload):
                return 5 + (self._usual_bytes if len(payload) == self._token_bytes else len(payload))
            case Prepare():
                return PLACE + 4
            case Promise(header=header, certificate=votes):
                return PLACE + 6 + _pledge(header) + VOTE * len(votes)
            case Start(headers=headers):
                return PLACE + 6 + sum(map(_pledge, headers))
            case Propose(update=update, certificate=votes):
                return PLACE + SIGNATURE + self._update(update) + VOTE * len(votes)
            case RowDispute(part=part, path=path):
                return PLACE + 6 + DIGEST * (len(path) + 1) + self._part_bytes[part]
            case Blocks(blocks=blocks):
                return 4 + sum(self._update(block.update) + VOTE * len(block.votes) for block in blocks)
            case GetObjects(digests=named) | GetBlocks(anchors=named):
                return 5 + DIGEST * len(named)
            case GetMeans(parts=parts):
                return PLACE + 4 + 3 * len(parts)
            case Reassign(parts=orders):
                return PLACE + 4 + (PEER + 4) * len(orders)
        return LEAST

    def _update(self, update: Update) -> int:
        """The size of an update. That of the newest one is remembered, since nearly all messages are about it."""
        if update.digest != self._newest[0]:
            self._newest = update.digest, update_bytes(update)
        return self._newest[1]


def update_bytes(update: Update) -> int:
    """The bytes of an update as it appears in a proposal or in the chain."""
    layers, members = len(update.weights), len(update.members)
    return (
        2 * DIGEST + PEER + 60
        + sum(map(_pledge, update.members)) + PEER * len(update.elect)
        + len(update.parts) * (DIGEST + 3) + 4 * layers * members + 90 * len(update.penalties)
        + 16 * members + 6 * layers
        + sum(PEER + 20 + 11 * len(record.stats) + len(record.roots) for record in update.records)
        + (PEER + 4) * len(update.tenures)
    )  # fmt: skip


def _pledge(header: ContributionHeader) -> int:
    return PLEDGE + RANGE * len(header.ranges) + 120 * len(header.reports) + PEER * len(header.away) + len(header.norms)
