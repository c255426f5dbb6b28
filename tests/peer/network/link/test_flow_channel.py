"""The line between trainer and link for frames of other homes: whole, in order, and ended by whatever is wrong."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from peer.network.link import flow_channel
from peer.network.link.channel import LinkLost
from peer.network.link.flow_channel import HEADER, FlowEnd, FlowLinkEnd
from peer.testing.child_process import HANG_S

SIZES = (0, 1, 70_000, 5, 9 << 20, 0, 300_000)


@pytest.fixture
def ends() -> Iterator[tuple[FlowEnd, socket.socket]]:
    """The trainer's end, and the socket of the other."""
    mine, theirs = socket.socketpair()
    end = FlowEnd(mine)
    yield end, theirs
    end.close()
    theirs.close()


@pytest.fixture
async def link(ends: tuple[FlowEnd, socket.socket]) -> AsyncIterator[FlowLinkEnd]:
    link = FlowLinkEnd(ends[1])
    yield link
    link.close()


async def test_frames_pass_whole_and_in_order_both_ways_at_once(
    ends: tuple[FlowEnd, socket.socket], link: FlowLinkEnd
) -> None:
    """The trainer sends from two threads."""
    end, _ = ends
    frames = [Random(size).randbytes(size) for size in SIZES]
    heard = []

    def send(to: str) -> None:
        for frame in frames:
            end.send(to, frame)

    def receive() -> list[tuple[str, bytes] | None]:
        return [end.receive(HANG_S) for _ in frames]

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        for to in ("bob", "carol"):
            tasks.create_task(asyncio.to_thread(send, to))
        receiving = tasks.create_task(asyncio.to_thread(receive))
        for frame in frames:
            await link.send("dave", frame)
        for _ in range(2 * len(frames)):
            to, sent = await link.receive()
            heard.append((to, bytes(sent)))
    for to in ("bob", "carol"):
        assert [frame for who, frame in heard if who == to] == frames
    assert receiving.result() == [("dave", frame) for frame in frames]


async def test_whoever_sends_may_be_cancelled(ends: tuple[FlowEnd, socket.socket], link: FlowLinkEnd) -> None:
    """In the middle of a frame, and while it waits for room: what the trainer hears is whole all the same."""
    end, _ = ends
    large = bytes(16 << 20)
    sending = [asyncio.create_task(link.send("bob", large)) for _ in range(3)]
    await asyncio.wait(sending[:2])  # one is being written, one waits
    sending[2].cancel()
    heard = [await asyncio.to_thread(end.receive, HANG_S) for _ in range(2)]
    await link.send("carol", b"next")
    assert heard == [("bob", large)] * 2
    assert await asyncio.to_thread(end.receive, HANG_S) == ("carol", b"next")


async def test_a_trainer_that_takes_nothing_holds_its_senders_up(
    ends: tuple[FlowEnd, socket.socket], link: FlowLinkEnd
) -> None:
    """Until it ends: then they hear that it has."""
    end, _ = ends
    sending = [asyncio.create_task(link.send("bob", bytes(16 << 20))) for _ in range(4)]
    waiting = (await asyncio.wait(sending, timeout=0.2))[1]
    assert waiting
    end.hang_up()
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(*waiting)
        with pytest.raises(LinkLost):
            await link.receive()
        with pytest.raises(LinkLost):
            await link.send("bob", b"")


def test_nothing_comes_in_time(ends: tuple[FlowEnd, socket.socket]) -> None:
    assert ends[0].receive(0.01) is None


@pytest.mark.parametrize("packed", [HEADER.pack(200, 1), HEADER.pack(1, (256 << 20) + 1), HEADER.pack(1, 1) + b"\xffx"])
def test_what_is_no_frame_ends_the_line(ends: tuple[FlowEnd, socket.socket], packed: bytes) -> None:
    """An id that is too long or no text, and a frame that is too large."""
    end, theirs = ends
    theirs.sendall(packed)
    for _ in range(2):
        with pytest.raises(LinkLost):
            end.receive(HANG_S)
    with pytest.raises(LinkLost):
        end.send("bob", b"x")


async def test_a_trainer_that_speaks_nonsense_is_lost(ends: tuple[FlowEnd, socket.socket], link: FlowLinkEnd) -> None:
    ends[0]._socket.sendall(HEADER.pack(1, (256 << 20) + 1))
    with pytest.raises(LinkLost):
        await link.receive()


def test_a_link_that_takes_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_channel, "SEND_TIMEOUT_S", 1.0)
    mine, theirs = socket.socketpair()
    end = FlowEnd(mine)
    with theirs:
        until_lost(lambda: end.send("bob", bytes(8 << 20)))
    end.close()


def test_closing_wakes_whoever_waits(ends: tuple[FlowEnd, socket.socket]) -> None:
    """A thread that receives, and one that sends to a link that takes nothing."""
    end, _ = ends
    ways: list[Callable[[], object]] = [lambda: end.receive(HANG_S), lambda: end.send("bob", bytes(4 << 20))]
    threads = [threading.Thread(target=until_lost, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    end.close()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()


def until_lost(do: Callable[[], object]) -> None:
    with suppress(LinkLost):
        while True:
            do()
