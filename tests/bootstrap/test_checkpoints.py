"""What the organiser's node signs of the chain that it follows, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.checkpoints import EVERY_S, FILE, CheckpointBook, read_checkpoint
from bootstrap.organiser import more_invites
from dht.errors import BadInput
from dht.identity import Identity, RunKeys
from dht.invite import INVITE_FILE, issue, parse
from peer.consensus.protocol.head import ChainHead

IDENTITY, RUN = Identity.from_seed(b"o" * 32), b"r" * 32
GENESIS = ChainHead(anchor=bytes(32), round=0, weight=0, electorate=("a", "b"), members=())


def head(round: int) -> ChainHead:
    return replace(GENESIS, anchor=bytes([round]) * 32, round=round)


class Days:
    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.book = CheckpointBook(folder, IDENTITY, RUN, 8, lambda: self.now_s)

    def at(self, hours: float, round: int) -> int:
        self.now_s = hours * EVERY_S
        self.book.look(head(round))
        return 0 if self.book.newest is None else self.book.newest.round


def test_one_an_hour_of_a_round_that_lies_two_snapshots_back(tmp_path: Path) -> None:
    days = Days(tmp_path)
    days.book.look(None)
    days.book.look(GENESIS)
    assert [days.at(0, 3), days.at(0.1, 18), days.at(0.2, 19), days.at(0.5, 60)] == [0, 0, 3, 3]
    assert [days.at(1.1, 34), days.at(1.2, 35), days.at(3, 36)] == [3, 19, 19]
    newest = read_checkpoint(tmp_path)
    assert newest == days.book.newest
    assert newest is not None
    assert newest.genuine(RunKeys(Identity.from_seed(b"p" * 32), RUN), IDENTITY.peer_id)
    assert newest.head.instance == head(19).instance
    assert Days(tmp_path).book.newest == newest, "it lies in the folder"


def test_new_invites_name_the_newest(tmp_path: Path) -> None:
    IDENTITY.save(tmp_path / "identity.key")
    peer = IDENTITY.peer_id
    first = issue(IDENTITY, run="r", spec_hash=RUN, addrs=(f"/ip4/127.0.0.1/tcp/1/p2p/{peer}",))
    (tmp_path / INVITE_FILE).write_text(first)
    assert parse(more_invites(tmp_path), 0).checkpoint is None
    days = Days(tmp_path)
    days.at(0, 3)
    days.at(1, 40)
    assert parse(more_invites(tmp_path), 0).checkpoint == (3, head(3).anchor)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=f"{tmp_path / FILE} is damaged"):
        Days(tmp_path)
