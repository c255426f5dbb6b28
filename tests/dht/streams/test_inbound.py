"""Who gives way when too many have opened streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dht.streams.inbound import Door, InboundStreams
from dht.streams.shaper import Lane


def door(sender: str, lane: Lane = Lane.CONTROL) -> Door:
    return lane, sender


async def read_for_ever() -> None:
    await asyncio.Event().wait()


class Streams:
    """Tasks that end when they are cut off."""

    def __init__(self, most: int) -> None:
        self.incoming = InboundStreams(most)
        self.tasks: dict[Door, asyncio.Task[None]] = {}

    def open(self, *senders: str) -> None:
        for sender in senders:
            self.tasks[door(sender)] = task = asyncio.create_task(read_for_ever())
            self.incoming.add(door(sender), task)

    async def cut(self) -> set[str]:
        """Who was cut off."""
        await asyncio.sleep(0)
        return {sender for (_, sender), task in self.tasks.items() if task.cancelled()}


@pytest.fixture
def streams() -> Iterator[Streams]:
    found = Streams(3)
    yield found
    for task in found.tasks.values():
        task.cancel()


async def test_the_oldest_of_those_who_never_said_anything_gives_way(streams: Streams) -> None:
    streams.open("a", "b", "c")
    streams.incoming.heard(door("a"))
    streams.open("d")
    assert await streams.cut() == {"b"}
    assert len(streams.incoming) == 3


async def test_else_the_one_that_was_silent_longest(streams: Streams) -> None:
    streams.open("a", "b", "c")
    for sender in "abca":
        streams.incoming.heard(door(sender))
    streams.open("d")
    assert await streams.cut() == {"b"}


async def test_strangers_that_talk_all_the_time_make_room_first(streams: Streams) -> None:
    """A voter says little between two rounds."""
    streams.incoming.is_known = lambda peer: peer in ("a", "c")
    streams.open("a", "b", "c")
    for sender in "ab":
        streams.incoming.heard(door(sender))
    streams.open("d")
    assert await streams.cut() == {"b"}
    streams.open("e")
    assert await streams.cut() == {"b", "d"}
    streams.incoming.is_known = lambda peer: True
    streams.open("f")
    assert await streams.cut() == {"b", "c", "d"}


async def test_a_new_stream_of_the_same_sender_replaces_its_last_and_nobody_else(streams: Streams) -> None:
    streams.open("a", "b", "c")
    before = streams.tasks[door("b")]
    streams.open("b")
    await asyncio.sleep(0)
    assert before.cancelled()
    assert await streams.cut() == set()
    streams.incoming.end(door("b"), before)
    assert len(streams.incoming) == 3, "what ended was the last one"


async def test_what_has_ended_makes_room(streams: Streams) -> None:
    streams.open("a", "b", "c")
    streams.incoming.heard(door("a"))
    streams.incoming.end(door("a"), streams.tasks[door("a")])
    streams.open("d")
    assert await streams.cut() == set()
    streams.incoming.heard(door("a"))
    assert len(streams.incoming) == 3


async def test_one_or_all_can_be_cut_off(streams: Streams) -> None:
    streams.open("a", "b")
    streams.incoming.heard(door("a"))
    streams.incoming.cut("a")
    assert await streams.cut() == {"a"}
    streams.incoming.close_all()
    assert await streams.cut() == {"a", "b"}
