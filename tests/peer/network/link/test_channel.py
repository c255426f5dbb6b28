"""Both ends of the line between trainer and link."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from peer.network.link import channel
from peer.network.link.channel import LENGTH_BYTES, LinkEnd, LinkLost, TrainerEnd, framed
from peer.schema.events import AlertRaised
from peer.schema.ipc import (
    MAX_BYTES,
    AskSubmit,
    BeginAt,
    ChangeLimits,
    Hello,
    InStep,
    Leave,
    LinkLimits,
    ReplayBlock,
    ReportEvent,
    ReportProgress,
)

ANCHOR = b"a" * 32
PROGRESS = ReportProgress(0.25, None, 100.0, None)
NO_MESSAGES = {
    "no msgpack": b"\xc1",
    "cut short": msgspec.msgpack.encode({"type": "Leave", "finished": True})[:-1],
    "a bare tuple": msgspec.msgpack.encode(("leave",)),
    "an unknown tag": msgspec.msgpack.encode({"type": "Jump"}),
    "a misspelt field": msgspec.msgpack.encode({"type": "InStep", "hier": True}),
    "out of bounds": msgspec.msgpack.encode({"type": "StandsAt", "anchor": b"short", "state": ANCHOR}),
    "no UTF-8": b"\x82\xa4type\xa7Waiting\xa3why\xa1\xff",
    "too deep": b"\x83\xa4type\xabReportEvent\xa4name\xa1x\xa6fields\x81\xa1a" + b"\x91" * 100_000,
}

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A socket pair that is closed afterwards."""
    mine, theirs = socket.socketpair()
    yield mine, theirs
    mine.close()
    theirs.close()


async def test_messages_cross_in_both_directions(ends: Ends) -> None:
    """In order and whole."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    link.send(BeginAt(ANCHOR, ("p0", "p1")))
    link.report(AlertRaised(level="info", code="TEST", text="words"))
    assert trainer.receive(5.0) == BeginAt(ANCHOR, ("p0", "p1"))
    assert trainer.receive(5.0) == ReportEvent("AlertRaised", {"level": "info", "code": "TEST", "text": "words"})
    trainer.send(PROGRESS)
    trainer.send(Leave(True))
    assert await link.receive() == PROGRESS
    assert await link.receive() == Leave(True)
    await link.close(5.0)


async def test_limits_are_taken_whatever_is_waited_for(ends: Ends) -> None:
    """Also before the link expects anything but the model."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    taken: list[LinkLimits] = []
    link.on_limits = taken.append
    hello = Hello((1,), ANCHOR, b"")
    low, high = LinkLimits(1, 0.0, 5.0, 0.0, 0.0), LinkLimits(1, 0.0, 0.0, 0.0, 0.0)
    for message in (ChangeLimits(low), hello, ChangeLimits(high), Leave(False)):
        trainer.send(message)
    assert [await link.receive(), await link.receive()] == [hello, Leave(False)]
    assert taken == [low, high]
    await link.close(5.0)


async def test_a_message_may_arrive_in_pieces(ends: Ends) -> None:
    """The trainer's end keeps what it has of it."""
    trainer, block = TrainerEnd(ends[0]), ReplayBlock(b"x" * 300_000, 1)
    whole = framed(block)
    assert trainer.receive(0.0) is None
    ends[1].sendall(whole[:3])
    assert trainer.receive(0.0) is None
    rest = threading.Thread(target=ends[1].sendall, args=(whole[3:] + framed(AskSubmit()),))
    rest.start()
    assert trainer.receive(5.0) == block
    assert trainer.receive(5.0) == AskSubmit()
    rest.join()


async def test_the_link_never_waits_for_the_trainer(ends: Ends) -> None:
    """A trainer that reads nothing for a while finds everything still there."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    blocks = [ReplayBlock(b"x" * 50_000, number) for number in range(50)]
    for block in blocks:
        link.send(block)
    closing = asyncio.create_task(link.close(10.0))
    for block in blocks:
        assert await asyncio.to_thread(trainer.receive, 5.0) == block
    await closing


async def test_a_lost_trainer_is_noticed(ends: Ends) -> None:
    """Also in the middle of a message."""
    link = await LinkEnd.open(ends[1])
    ends[0].sendall(framed(PROGRESS)[:-2])
    ends[0].close()
    with pytest.raises(LinkLost):
        await link.receive()
    await link.close(5.0)


def test_a_lost_link_is_noticed(ends: Ends) -> None:
    """What it said before is still heard; then both directions are lost."""
    trainer = TrainerEnd(ends[0])
    ends[1].sendall(framed(AskSubmit()))
    ends[1].close()
    with pytest.raises(LinkLost):
        trainer.send(PROGRESS)
    assert trainer.receive(5.0) == AskSubmit()
    for _ in range(2):
        with pytest.raises(LinkLost):
            trainer.receive(5.0)


def test_who_hangs_up_still_hears_the_other(ends: Ends) -> None:
    """And says nothing more; the link notices."""
    trainer = TrainerEnd(ends[0])
    trainer.hang_up()
    assert ends[1].recv(1) == b""
    ends[1].sendall(framed(InStep(True)))
    assert trainer.receive(5.0) == InStep(True)
    with pytest.raises(LinkLost):
        trainer.receive(0.0)
    with pytest.raises(LinkLost):
        trainer.send(PROGRESS)


def test_a_link_that_does_not_read_is_given_up_and_told_nothing_more(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every wait has a time-out. Half a message may be out, so what followed could not be understood: the link is
    lost, also for whoever only listens, and whatever it goes on to say."""
    monkeypatch.setattr(channel, "SEND_TIMEOUT_S", 0.05)
    trainer = TrainerEnd(ends[0])
    with pytest.raises(LinkLost):
        trainer.send(Hello((1,) * 1_000_000, ANCHOR, b""))
    ends[1].setblocking(False)
    while len(ends[1].recv(1 << 16)) == 1 << 16:
        continue
    with pytest.raises(LinkLost):
        trainer.send(PROGRESS)
    with pytest.raises(BrokenPipeError):
        ends[1].sendall(framed(AskSubmit()))
    with pytest.raises(LinkLost):
        trainer.receive(0.0)


def of_length(size: int) -> bytes:
    return size.to_bytes(LENGTH_BYTES, "big")


@pytest.mark.parametrize("packed", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_a_link_that_says_what_is_no_message_is_lost(ends: Ends, packed: bytes) -> None:
    """And what follows it is not heard."""
    trainer = TrainerEnd(ends[0])
    ends[1].sendall(framed(AskSubmit()))
    told = threading.Thread(target=ends[1].sendall, args=(of_length(len(packed)) + packed + framed(AskSubmit()),))
    told.start()
    assert trainer.receive(5.0) == AskSubmit()
    for _ in range(2):
        with pytest.raises(LinkLost):
            trainer.receive(5.0)
    told.join()
    with pytest.raises(LinkLost):
        trainer.send(PROGRESS)


@pytest.mark.parametrize("packed", NO_MESSAGES.values(), ids=NO_MESSAGES)
async def test_a_trainer_that_says_what_is_no_message_is_lost(ends: Ends, packed: bytes) -> None:
    """And what follows it is not heard."""
    link = await LinkEnd.open(ends[1])
    ends[0].sendall(framed(PROGRESS))
    told = threading.Thread(target=ends[0].sendall, args=(of_length(len(packed)) + packed + framed(PROGRESS),))
    told.start()
    assert await link.receive() == PROGRESS
    for _ in range(2):
        with pytest.raises(LinkLost):
            await link.receive()
    told.join()
    await link.close(5.0)


async def test_a_length_beyond_all_messages_is_not_waited_for(ends: Ends) -> None:
    """Nothing is read for it."""
    link = await LinkEnd.open(ends[1])
    ends[0].sendall(of_length(MAX_BYTES + 1))
    async with asyncio.timeout(5.0):
        with pytest.raises(LinkLost):
            await link.receive()
    await link.close(5.0)


def test_the_longest_message_is_waited_for_and_none_beyond(ends: Ends) -> None:
    trainer = TrainerEnd(ends[0])
    ends[1].sendall(of_length(MAX_BYTES))
    assert trainer.receive(0.0) is None
    trainer._buffer.clear()
    ends[1].sendall(of_length(MAX_BYTES + 1))
    with pytest.raises(LinkLost):
        trainer.receive(5.0)
