"""The chain and the voter's memory in a run directory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import VOID, Block
from peer.consensus.protocol.encoding import digest, digest_of
from peer.consensus.protocol.head import ChainHead
from peer.consensus.rounds.state import Acceptor
from peer.node.store import chain
from peer.node.store.chain import ChainStore, start_chain_at
from peer.node.store.contributions import WorkStats, write_contribution
from peer.node.store.kept_way import KeptWay
from peer.node.store.objects import load_object
from peer.node.store.run_directory import ChainBase
from tests.peer.consensus.rounds.build import HEAD, PARTS, PAYLOADS, block, update

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


def open_chain(directory: Path, executor: Executor | None = None, **limits: int) -> ChainStore:
    return ChainStore(directory, HEAD, PARTS, CODEC, executor or Later(), lambda call: call(), **limits)


def next_block(head: ChainHead, number: int) -> Block:
    return Block(update(time=number, parent=head.anchor, round=head.round + 1), block().votes)


def commit(disk: ChainStore, count: int) -> None:
    for number in range(count):
        item = next_block(disk.head, number)
        disk.commit(item, disk.head.after(item.update), frozenset())


def commit_void(disk: ChainStore, number: int = 0) -> Block:
    """A block without bytes; another `number` makes another one."""
    void = update(time=number, parent=disk.head.anchor, round=disk.head.round + 1, parts=(VOID, VOID, VOID))
    disk.commit(Block(void, block().votes), disk.head.after(void), frozenset())
    return disk.blocks[-1]


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


def test_acceptors_survive(tmp_path: Path) -> None:
    """One per instance, with the update it accepted; before the first promise there is none."""
    disk = open_chain(tmp_path)
    assert disk.load_acceptors() == {}
    assert disk.accepted_update(None) is None
    accepted = Acceptor(HEAD.anchor, HEAD.instance, 4, accepted=(3, update().digest))
    restarted = Acceptor(HEAD.anchor, digest_of(b"restarted"), 1)
    disk.save_object(update().digest, update().to_bytes())
    disk.save_acceptor(accepted)
    disk.save_acceptor(restarted)
    again = open_chain(tmp_path)
    assert again.load_acceptors() == {HEAD.instance: accepted, restarted.instance: restarted}
    assert again.accepted_update(accepted) == update()
    assert again.accepted_update(restarted) is None
    disk.save_acceptor(Acceptor(HEAD.anchor, HEAD.instance, 5))
    assert open_chain(tmp_path).load_acceptors()[HEAD.instance] == Acceptor(HEAD.anchor, HEAD.instance, 5)


def test_what_was_accepted_is_kept_as_long_as_the_vote(tmp_path: Path) -> None:
    """Another update may have been decided there than this peer accepted."""
    disk = open_chain(tmp_path, keep_rounds=3)
    accepted = Acceptor(HEAD.anchor, HEAD.instance, 0, accepted=(0, update().digest))
    disk.save_object(update().digest, update().to_bytes())
    disk.save_object(update().parts[0], PAYLOADS[0])
    disk.save_acceptor(accepted)
    for _ in range(3):
        commit_void(disk)
        disk.save_acceptor(Acceptor(disk.head.anchor, disk.head.instance, 0))
    again = open_chain(tmp_path, keep_rounds=3)
    assert again.accepted_update(again.load_acceptors()[HEAD.instance]) == update()
    assert again.load(update().parts[0]) == PAYLOADS[0]
    assert set(again.held()) == {update().digest, update().parts[0]}
    for _ in range(3):
        commit_void(again)
        again.save_acceptor(Acceptor(again.head.anchor, again.head.instance, 0))
    assert HEAD.instance not in again.load_acceptors()
    assert again.load(update().digest) is again.load(update().parts[0]) is None


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
    (tmp_path / "contributions").mkdir()
    assert disk.my_part(HEAD.anchor, 0) is None
    residual = np.arange(5, dtype=np.float32)
    payloads = [CODEC.encode(residual[part.start : part.start + part.size]) for part in PARTS]
    write_contribution(tmp_path / "contributions", HEAD.anchor, payloads, WorkStats(1, 1, ()))
    found = disk.my_part(HEAD.anchor, 1)
    assert found is not None
    assert found[1] == CODEC.encode(residual[2:4])


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


@pytest.mark.parametrize("name", ["HEAD", "chain/000002.block", "chain/acceptors"])
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
    if (name, damage) == ("chain/acceptors", "gone"):
        assert open_chain(tmp_path).load_acceptors() == {}  # as before the first promise
        return
    with pytest.raises(
        BadInput, match=f"{path} is {'gone' if damage == 'gone' else 'damaged'}.*join with a new folder"
    ):
        open_chain(tmp_path)


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


class Crash(BaseException):
    """The machine ends here."""


def crash_before(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this many renames and removals pass, and end instead of the next one."""
    left = [number]
    for name in ("replace", "unlink"):
        real = getattr(Path, name)

        def cut(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            if not left[0]:
                raise Crash
            left[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(Path, name, cut)


def crash_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path], ChainStore],
    change: Callable[[ChainStore], object],
) -> list[ChainStore]:  # fmt: skip
    """What is found after a crash before each rename and removal of `change`, and after the whole of it."""
    found = []
    for number in range(100):
        directory = tmp_path / str(number)
        directory.mkdir()
        disk = prepare(directory)
        with monkeypatch.context() as cutting:
            crash_before(number, cutting)
            try:
                change(disk)
            except Crash:
                whole = False
            else:
                whole = True
        found.append(open_chain(directory, keep_rounds=2, quota_bytes=0))
        if whole:
            assert number > 1, "nothing was cut"
            return found
    raise AssertionError("never done")


def chain_of(rounds: int) -> Callable[[Path], ChainStore]:
    """A small chain beside two snapshots, so that its oldest blocks may go."""

    def prepare(directory: Path) -> ChainStore:
        disk = open_chain(directory, keep_rounds=2, quota_bytes=0)
        for number in range(rounds):
            commit_void(disk, number)
            if disk.head.round in (2, 4):
                (directory / "snapshots" / f"{disk.head.round:08d}-{disk.head.anchor.hex()}").mkdir(parents=True)
        return disk

    return prepare


def test_a_crash_in_the_middle_of_a_commit_that_prunes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base, HEAD and the blocks fit each other at every moment, and the commit can be made again."""
    found = crash_everywhere(tmp_path, monkeypatch, chain_of(4), lambda disk: commit_void(disk, 4))
    assert {(disk.base.head.round, disk.head.round) for disk in found} == {(0, 4), (2, 5)}
    for disk in found:
        if disk.head.round == 4:
            commit_void(disk, 4)
        assert disk.head == found[-1].head
        assert (disk.tally.first, disk.tally.last, disk.tally.anchor) == (1, 2, disk.base.head.anchor)
        assert disk.tally == found[-1].tally
        assert sorted(path.name for path in (tmp_path / "0" / "chain").glob("*.block")) == [
            "000003.block", "000004.block", "000005.block",
        ]  # fmt: skip


# ---- the base and the quota ----


def test_beyond_the_quota_the_oldest_blocks_go_with_their_bytes(tmp_path: Path) -> None:
    """As far as the older snapshot and `keep_rounds` allow; bytes that a later block names stay."""
    disk = open_chain(tmp_path, keep_rounds=2, quota_bytes=0)
    for number in range(4):
        for payload in (b"junk", *PAYLOADS[number : number + 1]):
            disk.save_object(digest_of(payload), payload)
        names = (digest_of(PAYLOADS[number]), VOID, JUNK) if number < 3 else (VOID, VOID, VOID)
        item = update(parent=disk.head.anchor, round=number + 1, parts=names)
        disk.commit(Block(item, ()), disk.head.after(item), frozenset())
        if disk.head.round in (2, 3):
            (tmp_path / "snapshots" / f"{disk.head.round:08d}-{disk.head.anchor.hex()}").mkdir(parents=True)
    assert disk.base.head.round == 2, "the older snapshot"
    second = disk.heads[0]
    commit_void(disk)
    assert disk.blocks_after(HEAD.anchor) == ()
    assert disk.blocks_after(second.anchor) == tuple(disk.blocks)
    assert [disk.load(digest_of(payload)) for payload in PAYLOADS] == [None, None, PAYLOADS[2]]
    assert disk.load(JUNK) == b"junk"
    again = open_chain(tmp_path, keep_rounds=2, quota_bytes=0)
    assert again.heads == disk.heads
    assert again.heads[0] == second
    assert again.base == disk.base
    assert [item.round for item in again.updates_up_to(again.head.anchor)] == [3, 4, 5]
    assert [item.round for item in again.updates_up_to(second.anchor)] == [1, 2]


def test_within_the_quota_everything_stays(tmp_path: Path) -> None:
    """One byte less and the oldest block goes."""
    disk = chain_of(0)(tmp_path)
    sizes = [0]
    disk.quota_bytes = 10**9
    for number in range(6):
        sizes.append(len(commit_void(disk, number).to_bytes()))
        if disk.head.round in (2, 4):
            (tmp_path / "snapshots" / f"{disk.head.round:08d}-{disk.head.anchor.hex()}").mkdir(parents=True)
    quota = sum(sizes) + sizes[-1]
    same = open_chain(tmp_path, keep_rounds=2, quota_bytes=quota)
    head = (tmp_path / "HEAD").read_bytes()
    commit_void(same, 9)
    assert same.base.head.round == 0
    (tmp_path / "HEAD").write_bytes(head)
    less = open_chain(tmp_path, keep_rounds=2, quota_bytes=quota - 1)
    commit_void(less, 9)
    assert less.base.head.round == 1


def test_a_chain_can_begin_at_a_snapshot(tmp_path: Path) -> None:
    """What others wrote before it is not here; what this peer had before does not count any more."""
    donor = open_chain(tmp_path / "donor")
    commit(donor, 9)
    disk = open_chain(tmp_path)
    commit_void(disk, 5)
    start_chain_at(tmp_path, ChainBase.after(donor.updates_up_to(donor.heads[6].anchor)), KeptWay(0))
    disk = open_chain(tmp_path)
    assert disk.heads == [donor.heads[6]]
    assert list((tmp_path / "chain").glob("*.block")) == []
    for item in donor.blocks_after(donor.heads[6].anchor):
        disk.commit(item, disk.head.after(item.update), frozenset())
    again = open_chain(tmp_path)
    assert again.head == donor.head
    assert again.trail == donor.trail[-3:]
    assert again.updates_up_to(again.head.anchor) == donor.updates_up_to(donor.head.anchor)


@pytest.mark.parametrize("byte", [3, 40, -1])
def test_a_damaged_base_is_named(tmp_path: Path, byte: int) -> None:
    """Every byte of it is bound by the anchor in HEAD."""
    donor = open_chain(tmp_path / "donor")
    commit(donor, 3)
    start_chain_at(tmp_path, ChainBase.after(donor.updates_up_to(donor.head.anchor)), KeptWay(0))
    (path,) = (tmp_path / "chain").glob("*.base")
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"{path} is damaged"):
        open_chain(tmp_path)


def test_without_head_a_pruned_chain_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Its first block is not number 1."""
    chain_of(6)(tmp_path)
    (tmp_path / "HEAD").unlink()
    with pytest.raises(BadInput, match="HEAD is gone"):
        open_chain(tmp_path)
