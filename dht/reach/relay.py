"""Circuit relay v2 of libp2p: two peers that nobody can dial meet through a node that both can dial.

Such a peer reserves a slot at the relay. The relay passes bytes on between the two, who authenticate each other and
encrypt inside (TLS 1.3 or Noise), as on any connection: a relay can cut a circuit, but cannot read or forge anything.
p2pd has a relay of its own, but it cuts circuits after 128 KiB or two minutes whatever `-relayDataLimit` says, since
`EnableRelayV2` in its main.go overwrites the option with libp2p's defaults. It also ignores the volunteer's own limits.
So this module answers the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from dht.addresses import NetworkOf, displaced_by, nowhere
from dht.daemon import Daemon
from dht.errors import Unreachable
from dht.identity import id_bytes_of, peer_id_in_bytes
from dht.records import Malformed
from dht.streams.shaper import CHUNK_BYTES, Lane, Shaper

SHARE = 0.25
"""Of a node's cap."""

Take = Callable[[int], Awaitable[None]]
Serves = Callable[[str], bool]
"""Whether this peer may hold a slot, and call for those who do."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """Limits of a relay."""

    slot_s: float = 180.0
    """A slot ends after this time unless it is asked for again."""
    slots: int = 1024
    circuits: int = 256
    circuits_per_peer: int = 64
    """As many as a group has peers."""
    circuits_per_stranger: int = 2
    """Enough to learn of a run and to download from one peer. Strangers hold at most half of the slots and circuits,
    also of those at one member."""
    circuit_s: float = 3600.0
    """Then the two connect again, perhaps without the relay by then, through a hole in their routers."""
    handshake_s: float = 10.0
    askers: int = 256
    """How many peers may be sending a request at a time: each as many as it may have circuits; at most half of them
    strangers."""


def nobody(peer: str) -> bool:
    """The `Serves` of a node that does not relay."""
    return False


class Relay:
    """Answers peers that ask a node to be their relay."""

    def __init__(
        self, daemon: Daemon, serves: Serves, limits: RelayLimits | None = None, upload_bps: float = 0.0
    ) -> None:  # fmt: skip
        """`upload_bps` is the node's limit, of which circuits have SHARE; 0 for no limit."""
        self.bytes_passed = 0
        """In both directions, of all circuits."""
        self.serves = serves
        self.is_member: Serves = nobody
        """Peers that come before others: those that the chain or the organiser knows."""
        self.network_of: NetworkOf = nowhere
        self._shaper = Shaper(SHARE * upload_bps)
        self._daemon = daemon
        self.limits = limits or RelayLimits()
        self._slots: dict[str, float] = {}
        """The peers that hold a slot, and until when (`time.monotonic`)."""
        self._asking: Counter[str] = Counter()
        """How many streams each peer has open on which it has not sent its request."""
        self._strangers = 0
        """How many of them are of strangers."""
        self._ends: Counter[str] = Counter()
        """How many circuits each peer has open, at either end."""

    def allow(self, upload_bps: float) -> None:
        """Set another limit of the node."""
        self._shaper.allow(SHARE * upload_bps)

    @property
    def circuits(self) -> int:
        return self._ends.total() // 2

    async def start(self) -> None:
        """Answer from now on, in place of the daemon itself."""
        await self._daemon.handle(HOP, self._answer)

    async def _answer(self, asker: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_busy(asker):
            # Without a word: closing a stream that holds unread bytes takes the answer along.
            log.info("hung up on %s: %d are asking already", asker, self._asking.total())
            return
        with suppress(EOFError, TimeoutError, OSError):
            try:
                wish = await self._hear(asker, reader)
            except Malformed:
                await _refuse(writer, MALFORMED_MESSAGE)
                return
            if not self.serves(asker):
                await _refuse(writer, PERMISSION_DENIED)
            elif wish.type == RESERVE:
                await self._give_slot(asker, writer)
            elif wish.type == CONNECT:
                await self._connect(asker, peer_id_in_bytes(wish.peer.id), reader, writer)
            else:
                await _refuse(writer, MALFORMED_MESSAGE)

    def _is_busy(self, asker: str) -> bool:
        """Whether there is no room to hear a request: a silent peer holds its room for `handshake_s`."""
        limits = self.limits
        if self._asking.total() >= limits.askers:
            return True
        if self.is_member(asker):
            return self._asking[asker] >= limits.circuits_per_peer
        return self._asking[asker] >= limits.circuits_per_stranger or 2 * self._strangers >= limits.askers

    async def _hear(self, asker: str, reader: asyncio.StreamReader) -> Any:
        """Read a request. Raises Malformed, EOFError, TimeoutError, OSError."""
        is_stranger = not self.is_member(asker)
        self._asking[asker] += 1
        self._strangers += is_stranger
        try:
            async with asyncio.timeout(self.limits.handshake_s):
                return await read_message(reader, Hop)
        finally:
            self._asking -= Counter((asker,))
            self._strangers -= is_stranger

    async def _give_slot(self, asker: str, writer: asyncio.StreamWriter) -> None:
        now = time.monotonic()
        self._slots = {peer: until for peer, until in self._slots.items() if until > now}
        if asker not in self._slots and not self._has_slot_for(asker):
            await _refuse(writer, RESOURCE_LIMIT_EXCEEDED)
            return
        self._slots[asker] = now + self.limits.slot_s
        answer = Hop(type=HOP_STATUS, status=OK)
        answer.reservation.expire = int(time.time() + self.limits.slot_s)
        await write_message(writer, answer)

    def _has_slot_for(self, asker: str) -> bool:
        """A stranger that holds one makes room for a member, or for a stranger from a network that holds fewer."""
        strangers = [peer for peer in self._slots if not self.is_member(peer)]
        if not self.is_member(asker):
            if len(self._slots) < self.limits.slots and 2 * len(strangers) < self.limits.slots:
                return True
            displaced = displaced_by(asker, strangers, self.network_of)
            if displaced is not None:
                del self._slots[displaced]
            return displaced is not None
        if len(self._slots) >= self.limits.slots and strangers:
            del self._slots[strangers[0]]
        return len(self._slots) < self.limits.slots

    async def _connect(
        self, asker: str, wanted: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if wanted is None or wanted == asker or self._slots.get(wanted, 0.0) < time.monotonic():
            await _refuse(writer, NO_RESERVATION)
            return
        if self._is_full(asker, wanted):
            await _refuse(writer, RESOURCE_LIMIT_EXCEEDED)
            return
        with self._counted(asker, wanted):
            try:
                far_reader, far_writer = await self._call(asker, wanted)
            except (Unreachable, Malformed, EOFError, TimeoutError, OSError) as error:
                log.info("no circuit from %s to %s: %s", asker, wanted, error or type(error).__name__)
                await _refuse(writer, CONNECTION_FAILED)
                return
            try:
                answer = Hop(type=HOP_STATUS, status=OK)
                answer.limit.duration = int(self.limits.circuit_s)
                await write_message(writer, answer)
                lane = Lane.CONTROL if self.is_member(asker) and self.is_member(wanted) else Lane.TRANSFER
                await self._pass_both_ways(
                    reader, writer, far_reader, far_writer, partial(self._shaper.take, lane, asker)
                )
            finally:
                far_writer.close()

    def _is_full(self, asker: str, wanted: str) -> bool:
        """Whether there is no room for a circuit between these two."""
        limits, members = self.limits, [peer for peer in (asker, wanted) if self.is_member(peer)]
        part = 1 if len(members) == 2 else 2  # where one is a stranger, half of it is all
        if part * (self.circuits + 1) > limits.circuits:
            return True
        if any(part * (self._ends[peer] + 1) > limits.circuits_per_peer for peer in (asker, wanted)):
            return True
        return any(self._ends[peer] >= limits.circuits_per_stranger for peer in {asker, wanted}.difference(members))

    @contextmanager
    def _counted(self, *ends: str) -> Iterator[None]:
        self._ends.update(ends)
        try:
            yield
        finally:
            self._ends -= Counter(ends)

    async def _call(self, asker: str, wanted: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to the peer that holds a slot and accepts the call. Raises Unreachable, Malformed, EOFError,
        OSError."""
        call = Stop(type=STOP_CONNECT)
        call.peer.id = id_bytes_of(asker)
        call.limit.duration = int(self.limits.circuit_s)
        async with asyncio.timeout(self.limits.handshake_s):
            reader, writer = await self._daemon.open_stream(wanted, STOP, self.limits.handshake_s)
            try:
                await write_message(writer, call)
                answer = await read_message(reader, Stop)
                if answer.type != STOP_STATUS or answer.status != OK:
                    raise Unreachable(f"it refuses ({answer.status})")
            except BaseException:
                writer.close()
                raise
            return reader, writer

    async def _pass_both_ways(
        self,
        near: asyncio.StreamReader, near_out: asyncio.StreamWriter,
        far: asyncio.StreamReader, far_out: asyncio.StreamWriter, take: Take,
    ) -> None:  # fmt: skip
        """Until either side ends: the circuit is one connection, and half of it is useless."""
        ways = {
            asyncio.create_task(self._pass(near, far_out, take)),
            asyncio.create_task(self._pass(far, near_out, take)),
        }
        try:
            await asyncio.wait(ways, timeout=self.limits.circuit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Take) -> None:
        with suppress(OSError):
            while piece := await reader.read(CHUNK_BYTES):
                await take(len(piece))
                if writer.is_closing():
                    return
                writer.write(piece)
                await writer.drain()
                self.bytes_passed += len(piece)


async def _refuse(writer: asyncio.StreamWriter, status: int) -> None:
    await write_message(writer, Hop(type=HOP_STATUS, status=status))


async def reserve(daemon: Daemon, relay: str, timeout_s: float) -> bool:
    """Ask this peer for a slot, or to keep it; False if it gives none."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await daemon.open_stream(relay, HOP, timeout_s)
            try:
                await write_message(writer, Hop(type=RESERVE))
                return bool((await read_message(reader, Hop)).status == OK)
            finally:
                writer.close()
    except (Unreachable, Malformed, EOFError, TimeoutError, OSError) as error:
        log.info("no slot at %s: %s", relay, error or type(error).__name__)
        return False


HOP = "/libp2p/circuit/relay/0.2.0/hop"
"""Spoken to a relay: a slot, please; or, the peer that holds this one, please."""
STOP = "/libp2p/circuit/relay/0.2.0/stop"
"""Spoken by a relay to the peer that holds a slot: here is somebody for you."""
RESERVE, CONNECT, HOP_STATUS = 0, 1, 2
STOP_CONNECT, STOP_STATUS = 0, 1
OK, RESOURCE_LIMIT_EXCEEDED, PERMISSION_DENIED = 100, 201, 202
CONNECTION_FAILED, NO_RESERVATION, MALFORMED_MESSAGE = 203, 204, 400
MAX_MESSAGE_BYTES = 4096
"""As in go-libp2p."""

_SCHEMA = """
name: "homefires/circuit.proto" package: "homefires.circuit" syntax: "proto2"
message_type { name: "Peer"
    field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "Reservation"
    field { name: "expire" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT64 } }
message_type { name: "Limit"
    field { name: "duration" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT32 }
    field { name: "data" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT64 } }
message_type { name: "Hop"
    field { name: "type" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "peer" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Peer" }
    field { name: "reservation" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Reservation" }
    field { name: "limit" number: 4 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Limit" }
    field { name: "status" number: 5 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type { name: "Stop"
    field { name: "type" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "peer" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Peer" }
    field { name: "limit" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Limit" }
    field { name: "status" number: 4 label: LABEL_OPTIONAL type: TYPE_INT32 } }
"""


def _message(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"homefires.circuit.{name}"))


_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
Hop: Any = _message(_pool, "Hop")
Stop: Any = _message(_pool, "Stop")


async def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Write a message. Raises OSError."""
    content = message.SerializeToString()
    writer.write(_varint(len(content)) + content)
    await writer.drain()


async def read_message(reader: asyncio.StreamReader, kind: Any) -> Any:
    """The next message, which must be of this class. Raises Malformed, EOFError, OSError."""
    size = await _read_varint(reader)
    if size > MAX_MESSAGE_BYTES:
        raise Malformed(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return kind.FromString(await reader.readexactly(size))
    except DecodeError as error:
        raise Malformed("not a message of a relay") from error


def _varint(number: int) -> bytes:
    low = bytearray()
    while number >= 0x80:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])


async def _read_varint(reader: asyncio.StreamReader) -> int:
    """At most two bytes: more would be longer than any message."""
    first = (await reader.readexactly(1))[0]
    if first < 0x80:
        return first
    second = (await reader.readexactly(1))[0]
    if second >= 0x80:
        raise Malformed(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    return first & 0x7F | second << 7
