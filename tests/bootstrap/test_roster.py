"""The organiser's list: who is on it, when it is signed anew, and that it outlives its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap.roster import PROMOTED_FILE, ROSTER_FILE, RosterFile, demote, load_promoted, promote
from dht.errors import BadInput
from dht.identity import Identity, RunKeys
from peer.consensus.organiser.rosters import NUMBER_BYTES
from peer.consensus.protocol.block import MAX_MEMBERS, Roster
from peer.consensus.protocol.encoding import unpack
from peer.schema.events import AlertRaised, Event

RUN = b"r" * 32
ORGANISER = Identity.from_seed(b"o" * 32)
PEERS = tuple(Identity.from_seed(bytes([index]) * 32).peer_id for index in range(MAX_MEMBERS + 8))
FOUNDERS = tuple(sorted(PEERS[:3]))


class Node:
    """One life of the organiser's node, as far as its list goes."""

    def __init__(self, folder: Path, organiser: Identity = ORGANISER) -> None:
        self.events: list[Event] = []
        self.file = RosterFile(folder, organiser, RUN, self.events.append)

    def told(self, level: str) -> list[str]:
        return [event.text for event in self.events if isinstance(event, AlertRaised) and event.level == level]


async def given(file: RosterFile, number: int = 0) -> Roster | None:
    packed = await file.answer(PEERS[0], number.to_bytes(NUMBER_BYTES, "big"))
    return None if packed is None else Roster.unpacked(unpack(packed))


async def test_founders_alone_need_no_list_and_nobody_asks_for_one(tmp_path: Path) -> None:
    """Everybody knows them from the genesis."""
    node = Node(tmp_path)
    assert node.file.look(FOUNDERS, (), ()) == Roster(0, FOUNDERS)
    assert await given(node.file) is None
    assert not (tmp_path / ROSTER_FILE).exists()


async def test_each_change_is_signed_with_a_greater_number_and_is_on_disk(tmp_path: Path) -> None:
    node = Node(tmp_path)
    admitted = node.file.look(FOUNDERS, {PEERS[4]}, ())
    assert admitted.known == tuple(sorted((*FOUNDERS, PEERS[4])))
    assert RunKeys(ORGANISER, RUN).verify(ORGANISER.peer_id, "roster", admitted.payload(), admitted.signature)
    assert node.file.look(FOUNDERS, {PEERS[4]}, ()) is admitted
    assert await given(node.file) == admitted
    assert await given(node.file, admitted.number) is None

    out = node.file.look(FOUNDERS, {PEERS[4]}, (FOUNDERS[0], PEERS[9]))
    assert out.number > admitted.number
    assert out.known == tuple(sorted((*FOUNDERS[1:], PEERS[4])))
    assert out.out == tuple(sorted((FOUNDERS[0], PEERS[9])))
    assert Node(tmp_path).file.newest == out
    again = Node(tmp_path).file.look(FOUNDERS, (), ())
    assert again.number > out.number, "also when it is the founders alone again"


def test_whom_the_organiser_promotes_is_known_until_it_takes_that_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    promote(tmp_path, PEERS[5], "by hand")
    assert PEERS[5] in node.file.look(FOUNDERS, (), ()).known
    assert load_promoted(tmp_path) == {PEERS[5]: "by hand"}
    demote(tmp_path, PEERS[5])
    assert node.file.look(FOUNDERS, (), ()).known == FOUNDERS
    with pytest.raises(BadInput, match="was not promoted"):
        demote(tmp_path, PEERS[5])
    with pytest.raises(BadInput, match="is not a peer id"):
        promote(tmp_path, "somebody", "by hand")


def test_where_there_is_no_room_founders_and_promoted_come_first_and_the_rest_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    promote(tmp_path, PEERS[-1], "by hand")
    roster = node.file.look(FOUNDERS, frozenset(PEERS), ())
    assert len(roster.known) == MAX_MEMBERS
    assert {*FOUNDERS, PEERS[-1]} <= set(roster.known)
    (text,) = node.told("info")
    assert f"{len(PEERS) - MAX_MEMBERS} more are strangers" in text


def test_who_votes_is_kept_out_before_others_where_there_is_no_room(tmp_path: Path) -> None:
    last = max(PEERS[:3])
    roster = Node(tmp_path).file.look(FOUNDERS, (), (*PEERS[3:], last))
    assert len(roster.out) == MAX_MEMBERS
    assert last in roster.out


def test_a_damaged_table_changes_nothing_and_is_told_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    promote(tmp_path, PEERS[5], "by hand")
    before = node.file.look(FOUNDERS, (), ())
    (tmp_path / PROMOTED_FILE).write_text("{")
    for _ in range(3):
        assert node.file.look(FOUNDERS, (), ()) == before
    (text,) = node.told("error")
    assert "damaged" in text


def test_a_list_that_is_damaged_or_of_another_organiser_is_refused(tmp_path: Path) -> None:
    Node(tmp_path).file.look(FOUNDERS, {PEERS[4]}, ())
    with pytest.raises(BadInput, match="has not signed"):
        Node(tmp_path, Identity.from_seed(b"x" * 32))
    (tmp_path / ROSTER_FILE).write_bytes(b"no list")
    with pytest.raises(BadInput, match="is damaged"):
        Node(tmp_path)
