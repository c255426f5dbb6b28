"""What a peer says on the board, and what is left out so that it is heard at all."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.metadata import version

import pytest

from dht.addresses import circuit
from dht.clock import MOST_S
from dht.errors import KeyInUse
from dht.identity import Identity
from dht.records import HEAD, HEAD_TTL_S, Genesis, PeerRecord, sign_record
from peer.consensus.protocol.messages import Heartbeat
from peer.network.link.discovery import COPIES_DIFFER_S, Announcer, TrainingFigures
from tests.memory_board import MemoryBoard

RUN, NOW_S = b"r" * 32, 1_800_000_000.0
SAID = Heartbeat(b"a" * 32, 3, 9, b"s" * 32, True, 100, 10, False, "Zoë")
LEARNING = TrainingFigures(loss=2.5, tokens_per_s=1000.0, evaluated=2.25, evaluated_round=2, device_gb=24.5)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> MemoryBoard:
    monkeypatch.setattr("peer.network.link.discovery.time.time", lambda: NOW_S)
    return MemoryBoard(RUN, lambda: NOW_S)


def of(board: MemoryBoard, name: str = "Zoë", addrs: tuple[str, ...] = ()) -> Announcer:
    return Announcer(board, Identity.generate(), RUN, name, addrs=lambda: addrs)


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


async def test_of_two_copies_of_a_folder_the_later_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one reads what the later one says, and goes on."""
    now = [NOW_S]
    monkeypatch.setattr("peer.network.link.discovery.time.time", lambda: now[0])
    board, identity = MemoryBoard(RUN, lambda: now[0]), Identity.generate()
    first = Announcer(board, identity, RUN, "Zoë")
    now[0] += 100
    second = Announcer(board, identity, RUN, "Zoë")
    for _ in range(2):
        now[0] += COPIES_DIFFER_S
        await second.publish(SAID)
        assert await first.read_heads() == await second.read_heads() == {}
    now[0] += 1
    await first.publish(SAID)
    assert await first.read_heads() == {}
    with pytest.raises(KeyInUse, match="that one began before and goes on, this one ends"):
        await second.read_heads()


async def test_a_peer_that_starts_again_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said before it crashed stays on the board for a while, also where its clock was ahead."""
    now = [NOW_S]
    monkeypatch.setattr("peer.network.link.discovery.time.time", lambda: now[0])
    board, identity = MemoryBoard(RUN, lambda: now[0]), Identity.generate()
    before = Announcer(board, identity, RUN, "Zoë")
    now[0] += 100
    await before.publish(SAID)
    again = Announcer(board, identity, RUN, "Zoë", life=round(1e6 * (now[0] - MOST_S)))
    for _ in range(10):
        now[0] += MOST_S
        assert await again.read_heads() == {}


async def test_an_older_client_with_the_same_key_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know of copies, so this one has to end."""
    now = [NOW_S]
    monkeypatch.setattr("peer.network.link.discovery.time.time", lambda: now[0])
    board, identity = MemoryBoard(RUN, lambda: now[0]), Identity.generate()
    mine = Announcer(board, identity, RUN, "Zoë")
    now[0] += 2 * COPIES_DIFFER_S
    await mine.publish(SAID)
    (record,) = (await board.read(HEAD)).values()
    body = replace(PeerRecord.unpack(record.body), life=None)
    now[0] += 1
    await board.publish(HEAD, sign_record(identity, RUN, HEAD, body.pack(), now[0] + HEAD_TTL_S), HEAD_TTL_S)
    with pytest.raises(KeyInUse):
        await mine.read_heads()
