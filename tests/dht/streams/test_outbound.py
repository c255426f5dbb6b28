"""The outgoing streams of a peer over plain sockets: no wait without an end, and nobody waits for another."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dht.errors import Unreachable
from dht.identity import Identity
from dht.node import NetworkConfig, Node
from dht.streams.base import MAX_FRAME_BYTES
from dht.streams.frames import HEADER_BYTES, PROGRESS_BYTES, OversizeError, read_frame, require_open
from dht.streams.outbound import Libp2pStreams, StreamLimits
from dht.streams.rpc import MAX_ANSWERS, MAX_ANSWERS_EACH, Rpc
from dht.streams.shaper import CHUNK_BYTES, Lane, Shaper
from peer.testing.child_process import HANG_S
from tests.dht.skipping import without_waiting

LIMITS = StreamLimits(progress_timeout_s=2.0, retry_s=(0.01, 0.01))
FRAME = bytes(2**20)


class Sockets:
    """In the daemon's place: a pair of sockets for each stream that is opened."""

    peer_id = "me"

    def __init__(self) -> None:
        self.far_ends: asyncio.Queue[tuple[str, socket.socket]] = asyncio.Queue()

    async def open_stream(
        self, to: str, protocol: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        near, far = socket.socketpair()
        self.far_ends.put_nowait((to, far))
        return await asyncio.open_connection(sock=near)


class DropTold(Libp2pStreams):
    """Tells when the first frame is dropped."""

    def __init__(self, *rest: Any) -> None:
        self.dropped = asyncio.Event()
        super().__init__(*rest)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "frames_dropped" and value:
            self.dropped.set()


def at_intervals(seconds: float, times: int, give: Callable[[bytes], None], piece: bytes) -> None:
    """Have the loop give a piece so many times, the first one after so many seconds."""
    loop = asyncio.get_running_loop()
    for number in range(1, times + 1):
        loop.call_later(number * seconds, give, piece)


async def far_end(daemon: Sockets, of: str) -> socket.socket:
    """Of the next stream, which is to this peer."""
    to, end = await daemon.far_ends.get()
    assert to == of
    return end


@without_waiting
async def test_a_blocked_write_ends_by_its_deadline_and_delays_nobody() -> None:
    """Carol reads nothing. Dave gets his frames meanwhile; Carol's stream is given up, and a new one serves her."""
    daemon: Any = Sockets()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = DropTold(daemon, "/test", spawn, LIMITS)
        for _ in range(5):
            streams.send_bulk("carol", lambda: FRAME)
        with await far_end(daemon, "carol") as deaf:
            streams.send_bulk("dave", lambda: FRAME)
            streams.send_bulk("dave", lambda: b"then this")
            reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "dave"))
            assert await read_frame(reader, 2**20, 5.0) == FRAME
            assert await read_frame(reader, 2**20, 5.0) == b"then this"
            assert streams.frames_dropped == 0, "Carol's deadline came before Dave's frames"
            await asyncio.wait_for(streams.dropped.wait(), HANG_S)
            assert deaf.fileno() >= 0
        streams.send("carol", b"hello again")
        heard, second = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(heard, 2**20, 5.0) == b"hello again"
        for end in (writer, second):
            end.close()
        for task in running:
            task.cancel()


async def test_the_stream_to_a_peer_that_ends_it_is_closed_at_once_and_a_new_one_serves_the_next_frame() -> None:
    """Visitors come and go: none may leave an open socket behind. What they say on it is thrown away."""
    daemon: Any = Sockets()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = Libp2pStreams(daemon, "/test", spawn, LIMITS)
        streams.send("carol", b"hello")
        reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(reader, 2**20, 5.0) == b"hello"
        writer.write(FRAME)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"", "our end is closed, too"
        streams.send("carol", b"hello again")
        again, other = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(again, 2**20, 5.0) == b"hello again"
        assert streams.frames_dropped == 0
        for end in (writer, other):
            end.close()
        await asyncio.wait(running)
        assert streams._outgoing == {}, "peer ids cost nothing: those that are gone are forgotten"


async def test_a_peer_that_cannot_be_reached_is_forgotten_once_nothing_waits_for_it() -> None:
    class Nowhere(Sockets):
        async def open_stream(self, *about: Any) -> Any:
            raise Unreachable("nobody is there")

    daemon: Any = Nowhere()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = Libp2pStreams(daemon, "/test", tasks.create_task, LIMITS)
        streams.send("carol", b"hello")
        streams.send_bulk("carol", lambda: FRAME)
    assert (streams.frames_dropped, streams._outgoing) == (2, {})


def test_a_stream_that_was_closed_meanwhile_is_an_error_of_the_network() -> None:
    """On uvloop a write to it would be a RuntimeError, which ended the whole link."""

    async def story() -> None:
        near, far = socket.socketpair()
        with far:
            _, writer = await asyncio.open_connection(sock=near)
            require_open(writer)
            writer.transport.abort()
            with pytest.raises(ConnectionResetError):
                require_open(writer)
            await asyncio.sleep(0)  # the transport closes in the next turn of the loop
            with pytest.raises(RuntimeError, match="closed"):
                writer.write(b"too late")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


@pytest.mark.parametrize("announced", [MAX_FRAME_BYTES + 1, 2 ** (8 * HEADER_BYTES) - 1])
async def test_a_header_beyond_the_cap_is_refused_before_anything_is_allocated(announced: int) -> None:
    """One byte too many, or all that a header can say: not a byte of it is waited for."""
    reader = asyncio.StreamReader()
    reader.feed_data(announced.to_bytes(HEADER_BYTES, "big") + b"its first bytes")
    tracemalloc.start()
    try:
        with pytest.raises(OversizeError, match=str(announced)):
            await read_frame(reader, MAX_FRAME_BYTES, LIMITS.progress_timeout_s)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


async def test_who_announces_too_much_is_cut_off_and_nobody_else() -> None:
    """Mallory's stream ends with the header, and the frame before it arrived; Dave's goes on."""
    daemon: Any = Sockets()
    arrived: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = Libp2pStreams(daemon, "/test", tasks.create_task, LIMITS)
        streams.listen(lambda sender, frame: arrived.put_nowait((sender, frame)))
        ends = []
        for sender in ("mallory", "dave"):
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            accepted = tasks.create_task(streams._accept(Lane.CONTROL, sender, reader, writer))
            ends.append((*await asyncio.open_connection(sock=far), writer, accepted))
        (_, mallory, _, cut_off), (_, dave, _, _) = ends
        mallory.write(frame_of(b"harmless") + (MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big") + frame_of(b"more"))
        assert await arrived.get() == ("mallory", b"harmless")
        await cut_off
        dave.write(frame_of(b"still here"))
        assert await arrived.get() == ("dave", b"still here")
        for _, far_writer, near_writer, _ in ends:
            far_writer.close()
            near_writer.close()
    assert arrived.empty()


def frame_of(content: bytes) -> bytes:
    """As it is on the wire."""
    return len(content).to_bytes(HEADER_BYTES, "big") + content


class CountingLine(Shaper):
    """A line that remembers what was written at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    async def take(self, lane: Lane, peer: str, size_bytes: int) -> None:
        self.taken.append(size_bytes)


async def test_small_frames_that_wait_for_one_peer_are_written_together() -> None:
    """A hundred at once, and the one that does not fit with the rest in pieces; all come whole and in order."""
    daemon: Any = Sockets()
    frames = [*(bytes([number]) * 50 for number in range(100)), FRAME, b"last"]
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        line = CountingLine()
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = Libp2pStreams(daemon, "/test", spawn, LIMITS, upload=line)
        for frame in frames:
            streams.send("carol", frame)
        reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert [await read_frame(reader, 2**20, 5.0) for _ in frames] == frames
        writer.close()
        for task in running:
            task.cancel()
    assert line.taken[0] == 100 * (HEADER_BYTES + 50)
    assert max(line.taken) <= CHUNK_BYTES
    assert sum(line.taken) == sum(HEADER_BYTES + len(frame) for frame in frames) == streams.bytes_sent
    assert len(line.taken) == 1 + (HEADER_BYTES + len(FRAME)) // CHUNK_BYTES + 2


@without_waiting
async def test_what_waits_for_its_own_cap_is_not_late() -> None:
    """Time is counted while the other side could write and does not, not while we do not read."""
    reader = asyncio.StreamReader()
    reader.feed_data(frame_of(FRAME))

    async def take(size_bytes: int) -> None:
        await asyncio.sleep(LIMITS.progress_timeout_s / 10)

    async with asyncio.timeout(HANG_S):
        assert await read_frame(reader, 2**20, LIMITS.progress_timeout_s, take, slowest_bytes_per_s=1e9) == FRAME


@without_waiting
async def test_who_drips_is_given_up_though_it_goes_on() -> None:
    """Most of a frame at once, then just enough to be progress: it must be here as soon as the slowest rate says."""
    reader, size = asyncio.StreamReader(), 200_000
    reader.feed_data(size.to_bytes(HEADER_BYTES, "big") + bytes(150_000))
    at_intervals(0.2, 12, reader.feed_data, bytes(PROGRESS_BYTES))
    at_intervals(2.5, 1, reader.feed_data, bytes(size))
    with pytest.raises(TimeoutError):
        await read_frame(reader, size, 1.0, slowest_bytes_per_s=1e6)


@pytest.mark.slow
async def test_small_pieces_cost_no_more_than_what_is_in_them() -> None:
    """Two bytes at a time, of a frame that never comes whole."""
    reader, size = asyncio.StreamReader(), 2**14
    reading = asyncio.create_task(read_frame(reader, size, HANG_S))
    reader.feed_data(size.to_bytes(HEADER_BYTES, "big"))
    await asyncio.sleep(0)
    tracemalloc.start()
    try:
        for _ in range(size // 2 - 1):
            reader.feed_data(b"ab")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[0] < 3 * size
    finally:
        tracemalloc.stop()
    reading.cancel()
    await asyncio.wait([reading])


class Accepted:
    """A stream that somebody opened to us: where it writes, and when we have let it go."""

    def __init__(self, writer: asyncio.StreamWriter, near: asyncio.StreamWriter, ended: asyncio.Task[None]) -> None:
        self.writer, self._near, self.ended = writer, near, ended

    async def write(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()
        self._near.close()


async def accepted(streams: Libp2pStreams, sender: str, tasks: asyncio.TaskGroup) -> Accepted:
    """A stream of this sender."""
    near, far = socket.socketpair()
    reader, near_writer = await asyncio.open_connection(sock=near)
    ended = tasks.create_task(streams._accept(Lane.BULK, sender, reader, near_writer))
    _, writer = await asyncio.open_connection(sock=far)
    return Accepted(writer, near_writer, ended)


async def test_unfinished_frames_of_all_senders_are_bounded_and_the_one_that_began_first_gives_way() -> None:
    """However many strangers begin a large frame and do not end it, memory is bounded and others get through."""
    limits = StreamLimits(unfinished_bytes=MAX_FRAME_BYTES)
    daemon: Any = Sockets()
    arrived: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = Libp2pStreams(daemon, "/test", tasks.create_task, limits)
        streams.listen(lambda sender, frame: arrived.put_nowait((sender, frame)))
        strangers = [await accepted(streams, f"stranger-{number}", tasks) for number in range(4)]
        dave = await accepted(streams, "dave", tasks)
        for stranger in strangers:
            await stranger.write(MAX_FRAME_BYTES.to_bytes(HEADER_BYTES, "big") + bytes(MAX_FRAME_BYTES * 3 // 10))
        await strangers[0].ended
        await dave.write(frame_of(FRAME))
        assert await arrived.get() == ("dave", FRAME)
        assert [stranger.ended.done() for stranger in strangers] == [True, False, False, False]
        assert 2 * MAX_FRAME_BYTES // 3 < streams._unfinished.total_bytes <= limits.unfinished_bytes
        for end in [*strangers, dave]:
            end.close()
    assert streams._unfinished.total_bytes == 0


async def test_who_is_still_being_asked_takes_no_more_room_than_streams_do() -> None:
    """Strangers that never say who they are park so many streams, and the next is refused at once."""
    answered = asyncio.Event()

    async def lets_in(sender: str) -> bool:
        await answered.wait()
        return True

    streams = Libp2pStreams(Sockets(), "p", asyncio.create_task, StreamLimits(incoming_streams=2))  # type: ignore[arg-type]
    streams.lets_in = lets_in
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(streams._is_let_in(f"stranger-{number}")) for number in range(2)]
        await asyncio.sleep(0)
        assert not await streams._is_let_in("one more")
        answered.set()
    assert [task.result() for task in asked] == [True, True]
    assert await streams._is_let_in("one more")


async def test_who_opens_streams_and_says_nothing_keeps_nobody_out() -> None:
    """Two fit. Dave comes through beside strangers, and stays for as long as there are silent ones."""
    daemon: Any = Sockets()
    arrived: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = Libp2pStreams(daemon, "/test", tasks.create_task, StreamLimits(incoming_streams=2))
        streams.listen(lambda sender, frame: arrived.put_nowait((sender, frame)))
        ends = [await accepted(streams, f"stranger-{number}", tasks) for number in range(2)]
        dave = await accepted(streams, "dave", tasks)
        await ends[0].ended
        await dave.write(frame_of(FRAME))
        assert await arrived.get() == ("dave", FRAME)
        whole = frame_of(bytes(4 * PROGRESS_BYTES))
        await dave.write(whole[: 2 * PROGRESS_BYTES])
        ends += [await accepted(streams, f"late-{number}", tasks) for number in range(3)]
        for end in ends[1:4]:
            await end.ended
        await dave.write(whole[2 * PROGRESS_BYTES :])
        assert await arrived.get() == ("dave", bytes(4 * PROGRESS_BYTES))
        await dave.write(frame_of(FRAME))
        assert await arrived.get() == ("dave", FRAME)
        assert not ends[-1].ended.done()
        for end in [*ends, dave]:
            end.close()


async def test_a_frame_is_not_kept_after_it_has_passed() -> None:
    """Neither by whoever has sent it nor by whoever has got it, while both wait for the next one."""
    daemon: Any = Sockets()
    arrived: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        alice, bob = (Libp2pStreams(daemon, "/test", spawn, LIMITS) for _ in range(2))
        bob.listen(lambda sender, frame: arrived.put_nowait(len(frame)))
        tracemalloc.start()
        try:
            alice.send_bulk("bob", lambda: bytes(8 * 2**20))
            reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "bob"))
            spawn(bob._accept(Lane.BULK, "alice", reader, writer))
            assert await arrived.get() == 8 * 2**20
            while not alice.bytes_sent:  # noqa: ASYNC110  # nothing reports it
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert tracemalloc.get_traced_memory()[0] < 2 * 2**20
        finally:
            tracemalloc.stop()
        writer.close()
        for task in running:
            task.cancel()


@asynccontextmanager
async def asking(timeout_s: float, slowest_bytes_per_s: float) -> AsyncIterator[tuple[Any, Any]]:
    """A question that a node asks, and the stream on which the one that is asked answers."""
    daemon: Any = Sockets()
    limits = StreamLimits(slowest_bytes_per_s=slowest_bytes_per_s)
    streams = Libp2pStreams(daemon, "/test", asyncio.create_task, limits)
    asked = asyncio.create_task(Rpc(daemon, streams, "/ask", limits).ask("donor", "name", timeout_s))
    _, writer = await asyncio.open_connection(sock=await far_end(daemon, "donor"))
    try:
        yield asked, writer
    finally:
        writer.close()
        await asyncio.wait([asked])


@pytest.mark.parametrize(("askers", "open_most"), [(1, MAX_ANSWERS_EACH), (MAX_ANSWERS + 1, MAX_ANSWERS)])
async def test_one_asker_leaves_room_for_the_others_and_strangers_for_who_is_known(askers: int, open_most: int) -> None:
    """Mallory, under one name or under many, opens as many streams as it can, and says nothing on them."""
    daemon: Any = Sockets()
    streams = Libp2pStreams(daemon, "/test", asyncio.create_task, LIMITS)
    questions = Rpc(daemon, streams, "/ask", LIMITS)
    questions.serve("name", lambda: b"value")
    questions.is_known = lambda peer: peer == "alice"
    near_ends = []

    async def open_stream(peer: str) -> tuple[asyncio.Task[None], asyncio.StreamReader, asyncio.StreamWriter]:
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=near)
        near_ends.append(writer)
        answering = asyncio.create_task(questions.answer_stream(peer, reader, writer))
        return answering, *await asyncio.open_connection(sock=far)

    async with asyncio.timeout(HANG_S):
        opened = [await open_stream(f"mallory{number % askers}") for number in range(MAX_ANSWERS + 1)]
        silent = [task for task, _, _ in opened]
        await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
        assert sum(not task.done() for task in silent) == open_most
        answering, reader, writer = await open_stream("alice")
        writer.write(b"\x04name\x00\x00")
        assert await reader.readexactly(1 + HEADER_BYTES + 5) == b"\x01\x00\x00\x00\x05value"
        for end in (writer, *(far for _, _, far in opened), *near_ends):
            end.close()
        await asyncio.wait([answering, *silent])
    assert not questions.answering, "who asks nothing any more is forgotten"


async def test_strangers_from_one_address_make_room_for_one_from_another() -> None:
    """It has all answers to strangers, and says nothing: the first of its questions ends for the newcomer's."""
    daemon: Any = Sockets()
    questions = Rpc(daemon, Libp2pStreams(daemon, "/test", asyncio.create_task, LIMITS), "/ask", LIMITS)
    questions.serve("name", lambda: b"value")
    questions.network_of = lambda peer: peer[:7]
    near_ends, far_ends, answering = [], [], []
    async with asyncio.timeout(HANG_S):
        for peer in (*(f"mallory{number}" for number in range(MAX_ANSWERS)), "newcomer", "mallory"):
            near, far = socket.socketpair()
            near_ends.append(await asyncio.open_connection(sock=near))
            far_ends.append(await asyncio.open_connection(sock=far))
            answering.append(asyncio.create_task(questions.answer_stream(peer, *near_ends[-1])))
            await asyncio.sleep(0)
        await answering[-1]
        await asyncio.wait(answering[:1])
        assert answering[0].cancelled()
        assert sum(not task.done() for task in answering) == MAX_ANSWERS
        reader, writer = far_ends[MAX_ANSWERS]
        writer.write(b"\x04name\x00\x00")
        assert await reader.readexactly(1 + HEADER_BYTES + 5) == b"\x01\x00\x00\x00\x05value"
        for _, end in (*near_ends, *far_ends):
            end.close()
        await asyncio.wait(answering)
    assert not questions.answering


@without_waiting
async def test_an_answer_may_take_longer_than_its_beginning_as_long_as_it_comes_fast_enough() -> None:
    """What has begun is not thrown away."""
    async with asyncio.timeout(HANG_S), asking(2.0, 1000.0) as (asked, writer):
        writer.write(b"\x01" + (20_000).to_bytes(HEADER_BYTES, "big"))
        at_intervals(0.5, 5, writer.write, bytes(4_000))
        assert await asked == bytes(20_000)


@without_waiting
async def test_an_answer_that_drips_is_given_up_by_its_size_not_by_what_it_might_have_been() -> None:
    """A small answer has little time, though a large one was allowed: here 2 s, and it takes 3.5 s."""
    async with asyncio.timeout(HANG_S), asking(1.0, 20_000.0) as (asked, writer):
        writer.write(b"\x01" + (20_000).to_bytes(HEADER_BYTES, "big"))
        at_intervals(0.7, 5, writer.write, bytes(PROGRESS_BYTES))
        with pytest.raises(Unreachable, match="did not send name"):
            await asked


# ---- caps, over real daemons ----

SECONDS = 3.0


def most_bytes(line: Shaper, seconds: float) -> float:
    """What may pass in this time, the first burst included; a machine that stalls only makes it less."""
    assert line._bucket is not None
    return line.bps / 8 * seconds + line._bucket._burst_bytes


def size_of(*inboxes: Any) -> int:
    """Of the frames that have arrived, headers included."""
    return sum(HEADER_BYTES + len(frame) for inbox in inboxes for _, frame in inbox.frames)


@pytest.mark.swarm
async def test_the_rate_is_the_cap(real_world: Any) -> None:
    """Never more, whoever of the two has the cap; and not much less: half of it also where tests run."""
    bps = 16e6
    capped, _, streams = await real_world.add_peer(caps={"upload_bps": bps, "download_bps": bps})
    bob, _, bob_streams = await real_world.add_peer()
    ways = (streams, bob, bob_streams, streams.upload), (bob_streams, capped, streams, streams.download)
    async with asyncio.TaskGroup() as tasks:
        for way in ways:
            tasks.create_task(assert_rate(real_world, *way))


async def assert_rate(world: Any, sending: Any, to: Identity, receiving: Any, line: Shaper) -> None:
    """Of what passes one way, where this is the line that has the cap."""
    inbox = world.inbox()
    receiving.listen(inbox)
    began = time.monotonic()
    for _ in range(200):
        sending.send_bulk(to.peer_id, lambda: bytes(60_000))
    await inbox.wait_for(5)
    steady, before = time.monotonic(), size_of(inbox)
    while time.monotonic() - steady < SECONDS:
        await inbox.wait_for(len(inbox.frames) + 1)
        assert size_of(inbox) <= most_bytes(line, time.monotonic() - began)
    assert 8 * (size_of(inbox) - before) / (time.monotonic() - steady) > line.bps / 2


@pytest.mark.swarm
async def test_who_sends_finds_out_how_fast_its_line_is(real_world: Any) -> None:
    """Nobody told it: the two who read are capped, which its line does not differ from."""
    _, _, streams = await real_world.add_peer()
    peers = [await real_world.add_peer(caps={"download_bps": 16e6}) for _ in range(2)]
    inboxes = [real_world.inbox() for _ in peers]
    assert streams.uplink.bps is None
    for (peer, _, theirs), inbox in zip(peers, inboxes, strict=True):
        theirs.listen(inbox)
        for _ in range(6):
            streams.send_bulk(peer.peer_id, lambda: bytes(2**20))
    for inbox in inboxes:
        await inbox.wait_for(6)
    print(f"{streams.uplink.bps / 1e6:.1f} Mbit/s of 32")
    assert 4e6 < streams.uplink.bps < 48e6


@pytest.mark.swarm
async def test_all_receivers_share_one_cap_and_get_alike(real_world: Any) -> None:
    """Bob has ten times as much coming as Carol and Dave, who get theirs as if he had not."""
    _, _, streams = await real_world.add_peer(caps={"upload_bps": 16e6})
    peers = [await real_world.add_peer() for _ in range(3)]
    inboxes = [real_world.inbox() for _ in range(3)]
    for (peer, _, theirs), inbox in zip(peers, inboxes, strict=True):
        theirs.listen(inbox)
        streams.send_bulk(peer.peer_id, lambda: b"hello")
        await inbox.wait_for(1)
    began, before = time.monotonic(), size_of(*inboxes)
    for (peer, _, _), frames in zip(peers, (400, 40, 40), strict=True):
        for _ in range(frames):
            streams.send_bulk(peer.peer_id, lambda: bytes(20_000))
    for inbox in inboxes[1:]:
        await inbox.wait_for(1 + 40)
    assert size_of(*inboxes) - before <= most_bytes(streams.upload, time.monotonic() - began)
    assert len(inboxes[0].frames) < 200, "they did not wait behind all that is his"


@pytest.mark.swarm
async def test_a_control_frame_overtakes_parts_also_to_the_same_peer(real_world: Any) -> None:
    """Parts for many seconds wait for both; a small frame is there while the first of them are on their way."""
    bps, part_bytes = 4e6, 2_000_000
    alice, _, streams = await real_world.add_peer(caps={"upload_bps": bps})
    ends = []
    for _ in range(2):
        peer, _, theirs = await real_world.add_peer()
        ends.append((peer.peer_id, real_world.inbox()))
        theirs.listen(ends[-1][1])
        streams.send(peer.peer_id, b"hello")
        await ends[-1][1].wait_for(1)
    begun = [asyncio.Event() for _ in ends]

    def make(first: asyncio.Event) -> bytes:
        first.set()
        return bytes(part_bytes)

    for (to, _), first in zip(ends, begun, strict=True):
        for _ in range(4):
            streams.send_bulk(to, partial(make, first))
    async with asyncio.timeout(HANG_S):
        for first in begun:
            await first.wait()  # a part of seconds is being written to each
    began = time.monotonic()
    for to, inbox in ends:
        streams.send(to, b"vote")
        assert (await inbox.wait_for(2))[1] == (alice.peer_id, b"vote")
    assert time.monotonic() - began < 8 * part_bytes / bps, "one part alone takes longer"


@pytest.mark.swarm
async def test_a_slow_line_is_not_cut_off(real_world: Any) -> None:
    """A part at 0.5 Mbit/s to two peers at once, and as slow a one from each of them: much longer than the time in
    which there must be progress."""
    bps, size, patient = 0.5e6, 160_000, {"progress_timeout_s": 2.0}
    one, _, one_streams = await real_world.add_peer(caps={"upload_bps": bps, "download_bps": bps}, **patient)
    others = [await real_world.add_peer(**patient) for _ in range(2)]
    inbox = real_world.inbox()
    one_streams.listen(inbox)
    began = time.monotonic()
    for other, _, theirs in others:
        theirs.listen(inbox)
        one_streams.send_bulk(other.peer_id, lambda: bytes(size))
        theirs.send_bulk(one.peer_id, lambda: bytes(size))
    await inbox.wait_for(4)
    assert time.monotonic() - began > 2 * patient["progress_timeout_s"]
    senders = [one.peer_id, *(other.peer_id for other, _, _ in others)]
    assert sorted(sender for sender, _ in inbox.frames) == sorted([one.peer_id, *senders])
    assert all(len(frame) == size for _, frame in inbox.frames)
    assert all(streams.frames_dropped == 0 for streams in [one_streams, *(theirs for _, _, theirs in others)])


@pytest.mark.swarm
async def test_answers_pass_through_the_same_bucket_and_behind_the_frames(real_world: Any) -> None:
    """A chunk of a snapshot is as slow as the cap, slower while parts pass, and holds no part up."""
    donor, _, streams = await real_world.add_peer(caps={"upload_bps": 16e6})
    taker, _, taker_streams = await real_world.add_peer()
    node, asker = real_world.nodes[donor.peer_id], real_world.nodes[taker.peer_id]
    node.serve("chunk", lambda: bytes(2_000_000))
    began = time.monotonic()
    await asker.ask(donor.peer_id, "chunk", HANG_S)
    assert most_bytes(streams.upload, time.monotonic() - began) >= 2_000_000
    inbox = real_world.inbox()
    taker_streams.listen(inbox)
    streams.send_bulk(taker.peer_id, lambda: b"hello")
    await inbox.wait_for(1)
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(asker.ask(donor.peer_id, "chunk", HANG_S))
        for _ in range(30):
            streams.send_bulk(taker.peer_id, lambda: bytes(100_000))
        await inbox.wait_for(1 + 30)
        assert not loading.done(), "with equal shares the smaller of the two were here first"


class Connected(Sockets):
    """Says how it is connected, too."""

    def __init__(self) -> None:
        super().__init__()
        self.ways: dict[str, str] = {}

    async def connections(self) -> dict[str, str]:
        return self.ways

    def network_of(self, peer_id: str) -> str:
        return ""


async def test_who_is_reached_straight_by_now_is_not_kept_waiting_at_a_relay() -> None:
    """The stream through it ends with what was written, and the next frame goes by a new one; others stay."""
    daemon: Any = Connected()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(story: Any) -> asyncio.Task[None]:
            running.append(tasks.create_task(story))
            return running[-1]

        streams = Libp2pStreams(daemon, "/test", spawn, LIMITS)
        config = NetworkConfig(run=b"r" * 32, identity_path=Path(), socket_folder=Path(), listen=())
        node = Node(config, daemon, Any, Rpc(daemon, streams, "/test/ask", LIMITS), streams)
        daemon.ways = {"carol": "/p2p/relay/p2p-circuit", "dave": "/p2p/relay/p2p-circuit"}
        await node.drop_relayed()
        ends = {}
        for peer in ("carol", "dave"):
            streams.send(peer, b"hello")
            ends[peer] = await asyncio.open_connection(sock=await far_end(daemon, peer))
        assert await read_frame(ends["carol"][0], 2**20, 5.0) == b"hello"
        daemon.ways["carol"] = "/ip4/203.0.113.5/tcp/1"
        await node.drop_relayed()
        streams.send("carol", b"after")
        assert await ends["carol"][0].read() == b""
        ends["carol"][1].close()
        again, other = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(again, 2**20, 5.0) == b"after"
        await node.drop_relayed()
        streams.send("dave", b"still")
        assert [await read_frame(ends["dave"][0], 2**20, 5.0) for _ in range(2)] == [b"hello", b"still"]
        assert streams.frames_dropped == 0
        for end in (other, ends["dave"][1]):
            end.close()
        for task in running:
            task.cancel()


async def test_who_can_be_reached_again_is_dialled_at_once() -> None:
    """Not when the pause is over that was begun when it could not."""
    daemon: Any = Sockets()
    dialled, reachable = asyncio.Event(), daemon.open_stream

    async def refuse(*words: Any) -> Any:
        dialled.set()
        raise Unreachable("nobody there")

    daemon.open_stream = refuse
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        streams = Libp2pStreams(daemon, "/test", tasks.create_task, StreamLimits(retry_s=(2 * HANG_S, 2 * HANG_S)))
        streams.send("carol", b"lost")
        await dialled.wait()
        daemon.open_stream = reachable
        while not streams.frames_dropped:  # noqa: ASYNC110  # nothing reports it
            await asyncio.sleep(0)
        streams.send("carol", b"hello")
        await asyncio.sleep(0)
        streams.retry("carol")
        reader, writer = await asyncio.open_connection(sock=await far_end(daemon, "carol"))
        assert await read_frame(reader, 2**20, 5.0) == b"hello"
        writer.close()
        for _, task in streams._outgoing.values():
            task.cancel()
