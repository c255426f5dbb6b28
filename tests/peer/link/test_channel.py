"""Both ends of the line between trainer and link."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from peer.link import channel
from peer.link.channel import LinkEnd, LinkLost, TrainerEnd


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket pair that is closed afterwards."""
    mine, theirs = socket.socketpair()
    yield mine, theirs
    mine.close()
    theirs.close()


async def test_messages_cross_in_both_directions(ends: tuple[socket.socket, socket.socket]) -> None:
    """In order, whole, and with the types that msgpack keeps."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    link.send("begin", b"a" * 32, ("p0", "p1"))
    link.send("in_step")
    assert trainer.receive(5.0) == ("begin", b"a" * 32, ("p0", "p1"))
    assert trainer.receive(5.0) == ("in_step",)
    trainer.send("progress", 0.25)
    trainer.send("frozen", b"")
    assert await link.receive() == ("progress", 0.25)
    assert await link.receive() == ("frozen", b"")
    await link.close(5.0)


async def test_settings_are_taken_whatever_is_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    """Also before the link expects anything but the model."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    taken: list[dict[str, object]] = []
    link.on_settings = taken.append
    trainer.send("settings", {"upload_mbps": 5.0})
    trainer.send("model", 1)
    trainer.send("settings", {"upload_mbps": 0.0})
    trainer.send("leave")
    assert [await link.receive(), await link.receive()] == [("model", 1), ("leave",)]
    assert taken == [{"upload_mbps": 5.0}, {"upload_mbps": 0.0}]
    await link.close(5.0)


async def test_a_message_may_arrive_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    """The trainer's end keeps what it has of it."""
    trainer = TrainerEnd(ends[0])
    whole = channel._framed("commit", (b"x" * 300_000,))
    assert trainer.receive(0.0) is None
    ends[1].sendall(whole[:3])
    assert trainer.receive(0.0) is None
    rest = threading.Thread(target=ends[1].sendall, args=(whole[3:] + channel._framed("freeze", ()),))
    rest.start()
    assert trainer.receive(5.0) == ("commit", b"x" * 300_000)
    assert trainer.receive(5.0) == ("freeze",)
    rest.join()


async def test_the_link_never_waits_for_the_trainer(ends: tuple[socket.socket, socket.socket]) -> None:
    """A trainer in the middle of a step reads nothing for a while; everything is still there."""
    trainer, link = TrainerEnd(ends[0]), await LinkEnd.open(ends[1])
    for number in range(50):
        link.send("report", number, b"x" * 50_000)
    closing = asyncio.create_task(link.close(10.0))
    for number in range(50):
        assert await asyncio.to_thread(trainer.receive, 5.0) == ("report", number, b"x" * 50_000)
    await closing


async def test_a_lost_trainer_is_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    """Also in the middle of a message."""
    link = await LinkEnd.open(ends[1])
    ends[0].sendall(channel._framed("progress", (0.5,))[:-2])
    ends[0].close()
    with pytest.raises(LinkLost):
        await link.receive()
    await link.close(5.0)


def test_a_lost_link_is_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    """What it said before is still heard; then both directions are lost."""
    trainer = TrainerEnd(ends[0])
    ends[1].sendall(channel._framed("freeze", ()))
    ends[1].close()
    assert trainer.receive(5.0) == ("freeze",)
    with pytest.raises(LinkLost):
        trainer.receive(5.0)
    with pytest.raises(LinkLost):
        trainer.send("progress", 1.0)


def test_a_link_that_does_not_read_is_given_up_and_told_nothing_more(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every wait has a time-out. Half a message may be out, so what followed could not be understood: the link is
    lost, also for whoever only listens."""
    monkeypatch.setattr(channel, "SEND_TIMEOUT_S", 0.05)
    trainer = TrainerEnd(ends[0])
    with pytest.raises(LinkLost):
        trainer.send("progress", b"x" * 10_000_000)
    ends[1].setblocking(False)
    while len(ends[1].recv(1 << 16)) == 1 << 16:
        continue
    with pytest.raises(LinkLost):
        trainer.send("progress", 0.5)
    with pytest.raises(LinkLost):
        trainer.receive(0.0)
