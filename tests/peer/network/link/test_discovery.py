"""Whoever the board names is told to the machine and dialled; a dial that hangs holds nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dht.records import PeerRecord
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.rounds.interface import Received
from peer.network.link import discovery
from peer.network.link.discovery import PeerDiscovery
from peer.schema.events import DeviceReported
from peer.testing.child_process import HANG_S

HEAD = Heartbeat(b"a" * 32, 3, 9, b"", True, 1, 1, False)
NOWHERE = ("/ip4/10.0.0.1/tcp/1",)


@dataclass
class Around:
    """Node, notices and driver in one; `hanging` is never reached."""

    others: dict[str, tuple[Heartbeat | None, tuple[str, ...]]]
    hanging: str = ""
    answers: tuple[str, ...] | None = None
    """Who can be reached; None: everybody."""
    looks: int = 3
    met: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    reported: list[DeviceReported] = field(default_factory=list)
    device_gb: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)
    heard: list[Mapping[str, float]] = field(default_factory=list)
    reads: int = 0
    where: list[tuple[str, ...]] = field(default_factory=list)
    on_read: Callable[[], None] = lambda: None
    state: Any = field(default_factory=lambda: SimpleNamespace(heard={}, electorate=("p1", "p2")))
    read_again: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_heads(self) -> dict[str, PeerRecord]:
        self.reads += 1
        if self.reads == 2:
            self.on_read()
        if self.reads == self.looks:
            self.read_again.set()
        return {
            peer: record(head, addresses, self.speeds.get(peer), self.device_gb.get(peer))
            for peer, (head, addresses) in self.others.items()
        }

    async def meet(self, peer: str, addresses: tuple[str, ...]) -> bool:
        self.met.append(peer)
        self.where.append(addresses)
        if peer == self.hanging:
            await asyncio.Event().wait()
        return self.answers is None or peer in self.answers

    def deliver(self, event: Received) -> None:
        self.told.append(event.sender)
        self.state.heard[event.sender] = (event.message, event.now)


def record(
    head: Heartbeat | None, addresses: tuple[str, ...], tokens_per_s: float | None, device_gb: float | None
) -> PeerRecord:
    said = HEAD if head is None else head
    return PeerRecord(
        run=b"r" * 32, anchor=b"" if head is None else head.anchor, round=said.round, weight=said.weight, state=b"",
        ready=said.ready, tokens=said.tokens, steps=said.steps, leaving=False,
        name="", version="1", addrs=addresses, tokens_per_s=tokens_per_s, device_gb=device_gb,
    )  # fmt: skip


async def follow(around: Around, monkeypatch: pytest.MonkeyPatch, looks: int = 3) -> None:
    """So many looks at the board."""
    around.looks = looks
    monkeypatch.setattr(discovery, "READ_BOARD_S", 0.0)
    follower = PeerDiscovery(around, around, around, around.heard.append, around.reported.append)  # type: ignore[arg-type]
    task = asyncio.create_task(follower.follow())
    async with asyncio.timeout(HANG_S):
        await around.read_again.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_everyone_is_told_and_dialled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again while it is heard, or was dialled lately; one that takes no part yet is dialled only."""
    around = Around({"p1": (HEAD, NOWHERE), "p2": (None, NOWHERE)})
    await follow(around, monkeypatch)
    assert around.told == ["p1"]
    assert sorted(around.met) == ["p1", "p2"]


async def test_a_silent_peer_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection may be gone."""
    monkeypatch.setattr(discovery, "MEET_AGAIN_S", -1.0)
    around = Around({"p1": (HEAD, NOWHERE)})
    await follow(around, monkeypatch)
    assert around.met.count("p1") >= 2


async def test_a_peer_that_says_to_be_elsewhere_is_met_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, though it is heard: who starts again looks where it was met last. Not at each word of it: after a while."""
    moved = ("/ip4/10.0.0.2/tcp/1",)
    for again_s, met in ((-1.0, [NOWHERE, moved]), (HANG_S, [NOWHERE])):
        monkeypatch.setattr(discovery, "MEET_AGAIN_S", again_s)
        around = Around({"p1": (HEAD, NOWHERE)})
        monkeypatch.setattr(around, "on_read", lambda around=around: around.others.update(p1=(HEAD, moved)))
        around.state.heard["p1"] = (HEAD, float("inf"))
        await follow(around, monkeypatch)
        assert around.where == met


async def test_a_dial_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board is read on, and the others are met."""
    around = Around({"p1": (HEAD, NOWHERE), "p2": (HEAD, NOWHERE)}, hanging="p1")
    await follow(around, monkeypatch)
    assert set(around.met) == {"p1", "p2"}


async def test_dials_of_names_that_hang_keep_no_voter_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes later: anybody may put names on the board whose addresses swallow all that is sent there."""
    around = Around({f"s{index}": (HEAD, NOWHERE) for index in range(500)})
    meet = around.meet

    async def hang(peer: str, addresses: tuple[str, ...]) -> bool:
        reached = await meet(peer, addresses)
        if peer != "p1":
            await asyncio.Event().wait()
        return reached

    monkeypatch.setattr(around, "meet", hang)
    monkeypatch.setattr(around, "on_read", lambda: around.others.update(p1=(HEAD, NOWHERE)))
    await follow(around, monkeypatch, looks=20)
    assert "p1" in around.met
    assert len(around.met) == 1 + discovery.DIALS


async def test_names_that_never_answered_are_dialled_rarely_and_voters_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may fill the board with names: 30 dials a second failed in every home."""
    monkeypatch.setattr(discovery, "MEET_AGAIN_S", -1.0)
    around = Around({f"s{index}": (HEAD, NOWHERE) for index in range(500)} | {"p1": (HEAD, NOWHERE)}, answers=("p1",))
    await follow(around, monkeypatch, looks=100)
    strange = [peer for peer in around.met if peer != "p1"]
    assert len(strange) <= discovery.STRANGE_DIALS + 1 + discovery.STRANGE_DIALS_PER_S * HANG_S
    assert around.met.count("p1") >= 50


async def test_a_stranger_that_answered_once_is_dialled_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MEET_AGAIN_S", -1.0)
    around = Around({"s": (HEAD, NOWHERE)})
    await follow(around, monkeypatch, looks=100)
    assert around.met.count("s") >= 50


async def test_speeds_are_told_of_those_who_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time, since they change; and of the electorate alone, for anybody may write on the board."""
    everybody = {peer: (HEAD, NOWHERE) for peer in ("p1", "p2", "stranger")}
    around = Around(everybody, speeds={"p1": 1500.0, "stranger": 1e9})
    await follow(around, monkeypatch)
    assert around.heard[:2] == [{"p1": 1500.0}] * 2


async def test_the_memory_of_a_gpu_is_reported_once_and_of_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = {peer: (HEAD, NOWHERE) for peer in ("p1", "p2", "stranger")}
    around = Around(everybody, device_gb={"p1": 24.0, "stranger": 80.0})
    await follow(around, monkeypatch)
    assert around.reported == [DeviceReported(about="p1", device_gb=24.0)]


async def test_who_says_another_figure_each_time_is_not_written_down_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But who has another GPU after a while is."""
    around = Around({"p1": (HEAD, NOWHERE)}, device_gb={"p1": 24.0})
    read_heads = around.read_heads

    async def another_each_time() -> dict[str, PeerRecord]:
        around.device_gb["p1"] += 1.0
        return await read_heads()

    monkeypatch.setattr(around, "read_heads", another_each_time)
    await follow(around, monkeypatch)
    assert len(around.reported) == 1
    monkeypatch.setattr(discovery, "DEVICE_AGAIN_S", -1.0)
    around.reported.clear()
    around.read_again.clear()
    around.reads = 0
    await follow(around, monkeypatch)
    assert len(around.reported) >= 3
