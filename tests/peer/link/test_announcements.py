"""What a peer says on the board, and what is left out so that it is heard at all."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.metadata import version

import pytest

from dht.addresses import circuit
from dht.identity import Identity
from dht.records import HEAD, Genesis, sign_record
from peer.link.discovery import Announcer, TrainingFigures
from peer.protocol.messages import Heartbeat
from tests.memory_board import MemoryBoard

RUN, NOW_S = b"r" * 32, 1_800_000_000.0
SAID = Heartbeat(b"a" * 32, 3, 9, b"s" * 32, True, 100, 10, False, "Zoë")
LEARNING = TrainingFigures(loss=2.5, tokens_per_s=1000.0, evaluated=2.25, evaluated_round=2, device_gb=24.5)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> MemoryBoard:
    monkeypatch.setattr("peer.link.discovery.time.time", lambda: NOW_S)
    return MemoryBoard(RUN, lambda: NOW_S)


def of(board: MemoryBoard, name: str = "Zoë", addrs: tuple[str, ...] = ()) -> Announcer:
    return Announcer(board, Identity.generate(), RUN, name, lambda: addrs)


async def test_others_hear_how_training_goes(board: MemoryBoard) -> None:
    zoe, reader = of(board), of(board)
    await zoe.publish(SAID, LEARNING)
    (head,) = (await reader.read_heads()).values()
    assert (head.loss, head.tokens_per_s, head.evaluated, head.evaluated_round) == (2.5, 1000.0, 2.25, 2)
    assert head.device_gb == 24.5
    assert (head.anchor, head.round, head.name, head.ready) == (SAID.anchor, 3, "Zoë", True)
    assert head.version == version("homefires")
    assert await reader.read_others() == {zoe.identity.peer_id: (SAID, ())}
    assert await zoe.read_heads() == {}, "a peer is no other of itself"


async def test_who_cannot_be_dialled_is_found_through_its_relays(board: MemoryBoard) -> None:
    """Its own addresses come first, as they are when it speaks; of its relays likewise, two at most."""
    relays = [Identity.generate().peer_id for _ in range(3)]
    held, addrs = list[str](), ["/ip4/192.168.1.7/tcp/1"]
    zoe = replace(of(board), relays=lambda: tuple(held), addrs=lambda: tuple(addrs))
    me = zoe.identity.peer_id
    held.extend(relays)
    addrs[:] = ["/ip4/203.0.113.5/tcp/1"]
    await zoe.publish(SAID, LEARNING)
    ((_, ways),) = (await of(board).read_others()).values()
    assert ways == (*addrs, circuit(relays[0], me), circuit(relays[1], me))


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e12, -1.0, None])
async def test_a_loss_that_is_none_does_not_hide_the_peer(board: MemoryBoard, loss: float | None) -> None:
    """A run may diverge: its records must be valid all the same."""
    await of(board).publish(SAID, TrainingFigures(loss=loss, evaluated=2.25, evaluated_round=2))
    (head,) = (await of(board).read_heads()).values()
    assert (head.loss, head.evaluated) == (None, 2.25)


async def test_where_a_record_has_no_room_for_both_the_addresses_stay(board: MemoryBoard) -> None:
    """Four of the longest addresses beside the longest name, an admission and the largest numbers."""
    peer = Identity.generate().peer_id
    addresses = tuple(f"/ip6/2001:db8:ffff:ffff:ffff:ffff:ffff:fff{n}/tcp/65535/p2p/{peer}" for n in range(4))
    large = Heartbeat(b"a" * 32, 2**62, 2**62, b"s" * 32, True, 2**62, 2**62, False)
    await replace(of(board, "𝔸" * 32, addresses), admission=lambda: b"a" * 72).publish(large, LEARNING)
    (head,) = (await of(board).read_heads()).values()
    assert head.addrs == addresses
    assert head.loss is None
    await of(board, "short", addresses[:2]).publish(large, LEARNING)
    assert {head.loss for head in (await of(board).read_heads()).values()} == {None, 2.5}


async def test_a_record_of_another_kind_is_skipped(board: MemoryBoard) -> None:
    """One author signs a genesis under the topic of heads: the others are read all the same."""
    mallory, zoe = Identity.generate(), of(board)
    body = Genesis(run=RUN, founders=(mallory.peer_id,), state=b"s" * 32).pack()
    board._topics[HEAD] = {mallory.peer_id: sign_record(mallory, RUN, HEAD, body, NOW_S + 60)}
    await zoe.publish(SAID)
    assert set(await of(board).read_heads()) == {zoe.identity.peer_id}
