"""The organiser's folder and runs that have lost their quorum: who waits, who goes on, and a person's word."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from bootstrap import restarts
from bootstrap.restarts import FOLDER, ORDER_FILE, RestartBook, let_go_on, read_waiting
from dht.access import RejectCode
from dht.errors import BadInput
from dht.identity import Identity, RunKeys
from peer.consensus.organiser.restart_desk import packed_question, read_restart
from peer.consensus.protocol.block import Roster, Stuck
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.validation import fault_of_restart
from peer.schema.events import AlertRaised, Event

RUN, ANCHOR = b"r" * 32, digest("anchor")
ORGANISER = Identity.from_seed(b"o" * 32)
PEERS = sorted((Identity.from_seed(letter * 32) for letter in (b"a", b"b", b"c")), key=lambda peer: peer.peer_id)
THREE = tuple(peer.peer_id for peer in PEERS)
FOUNDERS = Roster(0, THREE)


class Node:
    """One life of the organiser's node, as far as Restarts go."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self.refused: list[tuple[RejectCode, str, str]] = []
        self.holders: list[str] = []
        self.book = RestartBook(folder, ORGANISER, RUN, self.events.append, lambda restart: self.holders)
        self.book.know(THREE, Roster(0, THREE))

    def shown(self, peer: Identity, request: bytes) -> bytes | None:
        return self.book.answer(peer.peer_id, request, lambda *refused: self.refused.append(refused))

    def told(self, code: str) -> list[str]:
        return [event.text for event in self.events if isinstance(event, AlertRaised) and event.code == code]


def stuck(peer: Identity, roster: Roster = FOUNDERS) -> bytes:
    return packed_question(Stuck(peer.peer_id, ANCHOR, THREE, 1).signed(RunKeys(peer, RUN)), roster)


def test_who_only_asks_hears_that_the_node_is_there(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.shown(PEERS[0], b"") == b""
    node.book.desk.roster = Roster()
    assert node.shown(PEERS[0], stuck(PEERS[0])) == b"", "nobody is stuck before the run has begun"
    assert node.book.desk.standing(0.0) == []


def test_a_restart_is_on_disk_before_it_is_told_and_the_same_in_the_next_life(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert [node.shown(peer, stuck(peer)) for peer in PEERS[:2]] == [b"", b""]
    told = node.shown(PEERS[2], stuck(PEERS[2]))
    assert told
    (path,) = (tmp_path / FOLDER).iterdir()
    assert path.read_bytes() == told
    head = ChainHead(anchor=ANCHOR, round=0, weight=0, electorate=THREE, members=(), roster=Roster(0, THREE))
    assert fault_of_restart(RunKeys(PEERS[0], RUN), ORGANISER.peer_id, head, read_restart(told)) == ""
    assert "goes on" in node.told("RESTART")[0]
    assert Node(tmp_path).shown(PEERS[0], stuck(PEERS[0])) == told


def test_a_damaged_restart_is_told_with_its_name(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "ab").write_bytes(b"no restart")
    with pytest.raises(BadInput, match="ab is damaged"):
        Node(tmp_path)


def test_what_is_no_word_of_the_asker_is_refused_with_its_id(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.shown(PEERS[1], stuck(PEERS[0])) is None
    assert node.shown(PEERS[1], b"\xc1") is None
    assert node.shown(PEERS[1], stuck(PEERS[1], Roster(0, THREE[1:2]))) is None
    assert node.shown(PEERS[1], stuck(PEERS[1], Roster(1, THREE[1:2]).signed(RunKeys(PEERS[1], RUN)))) is None
    assert [(code, who) for code, who, _ in node.refused] == [(RejectCode.RECORD, PEERS[1].peer_id)] * 4


def test_the_node_says_once_who_waits_for_whom(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shown(PEERS[0], stuck(PEERS[0]))
    for _ in range(3):
        node.book.look()
    (text,) = node.told("STUCK")
    assert f"{THREE[0]} came here, {THREE[1]}, {THREE[2]} did not" in text
    assert read_waiting(tmp_path).lines == (text,)


def test_a_person_lets_them_go_on_and_hears_what_came_of_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shown(PEERS[0], stuck(PEERS[0]))
    node.book.look()
    said: list[str] = []
    person = threading.Thread(target=lambda: said.append(let_go_on(tmp_path, read_waiting(tmp_path))))
    person.start()
    while person.is_alive():
        node.book.look()
    assert "they go on" in said[0]
    told = node.shown(PEERS[0], stuck(PEERS[0]))
    assert told
    restart = read_restart(told)
    assert (restart.electorate, restart.forced) == ((THREE[0],), True)
    assert read_waiting(tmp_path).abouts == ()


def test_where_no_node_reads_it_the_word_is_taken_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shown(PEERS[0], stuck(PEERS[0]))
    node.book.look()
    with pytest.raises(BadInput, match="no node"):
        let_go_on(tmp_path, read_waiting(tmp_path), within_s=0.01)
    node.book.look()
    assert node.shown(PEERS[0], stuck(PEERS[0])) == b""


def test_an_order_of_an_earlier_life_counts_no_more_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.shown(PEERS[0], stuck(PEERS[0]))
    node.book.look()
    (tmp_path / ORDER_FILE).write_text(json.dumps(list(read_waiting(tmp_path).abouts)))
    node = Node(tmp_path)
    assert read_waiting(tmp_path).abouts == (), "nobody has come to this one"
    node.shown(PEERS[0], stuck(PEERS[0]))
    node.book.look()
    assert not (tmp_path / FOLDER).exists()
    (tmp_path / ORDER_FILE).write_text("{")
    node.book.look()
    assert "damaged" in node.told("RECORD")[0]
    assert not (tmp_path / ORDER_FILE).exists()


def test_who_claims_a_decision_and_gives_it_to_nobody_holds_the_run_up_for_half_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.holders = ["somebody"]
    for peer in PEERS:
        assert node.shown(peer, stuck(peer)) == b""
    monkeypatch.setattr(restarts, "PASSED_S", 0.0)
    assert node.shown(PEERS[0], stuck(PEERS[0]))


def test_nobody_goes_on_before_what_others_here_have_decided_unless_a_person_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.holders = ["somebody"]
    for _ in range(2):
        assert [node.shown(peer, stuck(peer)) for peer in PEERS] == [b"", b"", b""]
    (text,) = node.told("PASSED")
    assert "somebody still have" in text
    node.holders = []
    assert node.shown(PEERS[0], stuck(PEERS[0])), "who could give what was decided is away"

    other = tmp_path / "other"
    other.mkdir()
    node = Node(other)
    node.holders = ["somebody"]
    for peer in PEERS:
        node.shown(peer, stuck(peer))
    node.book.look()
    (other / ORDER_FILE).write_text(json.dumps(list(read_waiting(other).abouts)))
    node.book.look()
    assert node.shown(PEERS[0], stuck(PEERS[0]))
