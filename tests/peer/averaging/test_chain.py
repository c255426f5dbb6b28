"""The chain and the voter's memory in a run directory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput
from peer.averaging import chain
from peer.averaging.chain import ChainOnDisk, load_object
from peer.averaging.codec import Codec
from peer.averaging.contribution import Effort, write_contribution
from peer.rounds.names import digest, digest_of
from peer.rounds.state import Acceptor, Head
from peer.rounds.update import Block
from tests.peer.rounds.build import HEAD, PARTS, PAYLOADS, block, update

CODEC = Codec("float32")
JUNK = digest_of(b"junk")


class Later(Executor):
    """Runs what is submitted when told to, as a thread would at some time."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        while self.waiting:
            future, call = self.waiting.pop(0)
            future.set_result(call())


def open_chain(directory: Path, executor: Executor | None = None) -> ChainOnDisk:
    return ChainOnDisk(directory, HEAD, PARTS, CODEC, executor or Later(), lambda call: call())


def next_block(head: Head, number: int) -> Block:
    return Block(update(time=number, parent=head.anchor, round=head.round + 1), block().votes)


def commit(disk: ChainOnDisk, count: int) -> None:
    for number in range(count):
        item = next_block(disk.head, number)
        disk.commit(item, disk.head.after(item.update), frozenset())


def test_a_chain_is_found_again(tmp_path: Path) -> None:
    """Blocks, heads and ancestors after a restart."""
    disk = open_chain(tmp_path)
    commit(disk, 3)
    again = open_chain(tmp_path)
    assert again.blocks == disk.blocks
    assert again.head == disk.head
    assert again.ancestors == disk.ancestors == {head.anchor: number for number, head in enumerate(disk.heads)}
    assert open_chain(tmp_path / "empty").head == HEAD


def test_a_block_behind_head_does_not_count(tmp_path: Path) -> None:
    """The pointer is switched last: a crash before it leaves the chain as it was, and the block is written again."""
    disk = open_chain(tmp_path)
    commit(disk, 2)
    (tmp_path / "chain" / "000003.block").write_bytes(b"half a bl")
    again = open_chain(tmp_path)
    assert again.head == disk.head
    commit(again, 1)
    assert open_chain(tmp_path).head == again.head


def test_the_answer_to_a_peer_that_is_behind_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks and in bytes, but never empty."""
    disk = open_chain(tmp_path)
    commit(disk, 6)
    assert disk.blocks_after(disk.heads[2].anchor) == tuple(disk.blocks[2:])
    monkeypatch.setattr(chain, "BLOCKS_PER_ANSWER", 4)
    assert disk.blocks_after(HEAD.anchor) == tuple(disk.blocks[:4])
    monkeypatch.setattr(chain, "ANSWER_BYTES", 2 * len(disk.blocks[0].to_bytes()) + 20)
    assert disk.blocks_after(HEAD.anchor) == tuple(disk.blocks[:2])
    monkeypatch.setattr(chain, "ANSWER_BYTES", 1)
    assert disk.blocks_after(HEAD.anchor) == tuple(disk.blocks[:1])


def test_the_acceptor_survives(tmp_path: Path) -> None:
    """With the update it accepted; before the first promise there is none."""
    disk = open_chain(tmp_path)
    assert disk.load_acceptor() is None
    assert disk.accepted_update(None) is None
    accepted = Acceptor(HEAD.anchor, HEAD.instance, 4, (3, update().digest))
    disk.save_object(update().digest, update().to_bytes())
    disk.save_acceptor(accepted)
    again = open_chain(tmp_path)
    assert again.load_acceptor() == accepted
    assert again.accepted_update(accepted) == update()
    disk.save_acceptor(Acceptor(HEAD.anchor, HEAD.instance, 5))
    assert open_chain(tmp_path).load_acceptor() == Acceptor(HEAD.anchor, HEAD.instance, 5)


def test_a_restart_between_a_commit_and_the_next_promise(tmp_path: Path) -> None:
    """The acceptor on disk still names the update of the anchor before, whose object may be gone: that is history."""
    disk = open_chain(tmp_path)
    accepted = Acceptor(HEAD.anchor, HEAD.instance, 0, (0, update().digest))
    disk.save_object(update().digest, update().to_bytes())
    disk.save_acceptor(accepted)
    commit(disk, 3)
    again = open_chain(tmp_path)
    assert again.load(update().digest) is None
    assert again.accepted_update(again.load_acceptor()) is None


def test_storing_says_when_it_is_on_disk(tmp_path: Path) -> None:
    """Not before."""
    executor = Later()
    disk, done = open_chain(tmp_path, executor), []
    disk.store(digest_of(PAYLOADS[0]), PAYLOADS[0], lambda: done.append(disk.load(digest_of(PAYLOADS[0]))))
    assert done == []
    assert disk.load(digest_of(PAYLOADS[0])) is None
    executor.work()
    assert done == [PAYLOADS[0]]


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    """Two parts of zeros at the same time, and a third one later: one write, and everybody is told."""
    executor, done = Later(), []
    disk = open_chain(tmp_path, executor)
    for name in "ab":
        disk.store(JUNK, b"junk", lambda name=name: done.append(name))  # type: ignore[misc]
    assert len(executor.waiting) == 1
    executor.work()
    disk.store(JUNK, b"junk", lambda: done.append("c"))
    assert done == ["a", "b", "c"]
    assert executor.waiting == []


def test_what_no_block_names_is_removed(tmp_path: Path) -> None:
    """One round later, since writes may be under way; what a block names stays."""
    executor = Later()
    disk = open_chain(tmp_path, executor)
    for payload in (*PAYLOADS, b"junk"):
        disk.store(digest_of(payload), payload, lambda: None)
    executor.work()
    assert set(disk.held()) == {digest_of(payload) for payload in (*PAYLOADS, b"junk")}
    commit(disk, 1)
    assert disk.held() == {}
    commit(disk, 1)
    assert disk.load(JUNK) is None
    assert all(disk.load(digest_of(payload)) == payload for payload in PAYLOADS)


def test_an_object_of_an_earlier_block_is_never_removed(tmp_path: Path) -> None:
    """Also if the same bytes come again in a round that does not use them."""
    executor = Later()
    disk = open_chain(tmp_path, executor)
    disk.store(digest_of(PAYLOADS[0]), PAYLOADS[0], lambda: None)
    executor.work()
    commit(disk, 1)
    disk.store(digest_of(PAYLOADS[0]), PAYLOADS[0], lambda: None)
    for number in range(3):
        other = next_block(disk.head, number).update
        bare = Block(update(parent=other.parent, round=other.round, parts=(b"", b"", JUNK)), ())
        disk.commit(bare, disk.head.after(bare.update), frozenset())
    assert disk.load(digest_of(PAYLOADS[0])) == PAYLOADS[0]


def test_what_a_crash_left_behind_is_held_and_then_removed(tmp_path: Path) -> None:
    """Objects of an unfinished round with their sizes; half-written files are none."""
    disk = open_chain(tmp_path)
    disk.save_object(JUNK, b"junk")
    (tmp_path / "chain" / "objects" / f"{digest('x').hex()}.new").write_bytes(b"half")
    again = open_chain(tmp_path)
    assert again.held() == {JUNK: 4}
    commit(again, 2)
    assert again.load(JUNK) is None


def test_my_parts_come_with_their_paths(tmp_path: Path) -> None:
    """None for an anchor for which nothing was frozen."""
    disk = open_chain(tmp_path)
    (tmp_path / "x").mkdir()
    assert disk.my_part(HEAD.anchor, 0) is None
    balance = np.arange(5, dtype=np.float32)
    write_contribution(tmp_path / "x", HEAD.anchor, balance, PARTS, CODEC, Effort(1, 1, ()))
    found = disk.my_part(HEAD.anchor, 1)
    assert found is not None
    assert found[1] == CODEC.encode(balance[2:4])


def test_bytes_of_later_blocks_stay(tmp_path: Path) -> None:
    """While a peer catches up, what it already holds for a later block outlives any number of commits."""
    disk = open_chain(tmp_path)
    awaited = digest_of(b"later")
    disk.save_object(awaited, b"later")
    disk.save_object(JUNK, b"junk")
    for number in range(3):
        item = next_block(disk.head, number)
        disk.commit(item, disk.head.after(item.update), frozenset({awaited}))
    assert disk.load(awaited) == b"later"
    assert disk.load(JUNK) is None


@pytest.mark.parametrize("name", ["HEAD", "chain/000002.block", "chain/acceptor"])
@pytest.mark.parametrize("damage", ["empty", "cut", "gone"])
def test_damage_is_one_clear_line(tmp_path: Path, name: str, damage: str) -> None:
    """A voter's memory is no guesswork: a peer that lost some does not vote as if it had never been."""
    disk = open_chain(tmp_path)
    disk.save_acceptor(Acceptor(HEAD.anchor, HEAD.instance, 4))
    commit(disk, 3)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    if (name, damage) == ("chain/acceptor", "gone"):
        assert open_chain(tmp_path).load_acceptor() is None  # as before the first promise
        return
    with pytest.raises(
        BadInput, match=f"{path} is {'gone' if damage == 'gone' else 'damaged'}.*join with a new folder"
    ):
        open_chain(tmp_path).load_acceptor()


def test_a_damaged_object_is_not_applied(tmp_path: Path) -> None:
    """Neither one of other bytes nor one that is gone."""
    disk = open_chain(tmp_path)
    disk.save_object(JUNK, b"junk")
    assert load_object(tmp_path, JUNK) == b"junk"
    path = tmp_path / "chain" / "objects" / JUNK.hex()
    path.write_bytes(b"junc")
    with pytest.raises(BadInput, match="its bytes are not those that were agreed"):
        load_object(tmp_path, JUNK)
    path.unlink()
    with pytest.raises(BadInput, match="is gone"):
        load_object(tmp_path, JUNK)
