"""A bit that a disk has turned over, anywhere in a chain: the peer starts where all is whole, and says so."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import Block
from peer.consensus.rounds.state import Acceptor
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.chain_repair import repair_chain
from peer.node.store.run_directory import block_path, genesis_head, read_base_at, read_genesis
from peer.tools.audit.run_files import SignatureChecker
from peer.training.checkpoint.replay import read_chain, restore_at
from tests.peer.tools.export.run_on_disk import ROUNDS, RunOnDisk, make_run, small_spec, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three rounds."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    return make_run(root, small_spec(root / "corpus", "llama"))


@pytest.fixture
def run(made: RunOnDisk, tmp_path: Path) -> RunOnDisk:
    """The same in a folder that the test may change."""
    return dataclasses.replace(made, directory=Path(shutil.copytree(made.directory, tmp_path / "peer")))


def opened(run: RunOnDisk, use: Callable[[ChainStore], None] = lambda disk: None) -> ChainStore:
    genesis = genesis_head(read_genesis(run.directory))
    with ThreadPoolExecutor(max_workers=1) as executor:
        disk = ChainStore(
            run.directory, genesis, run.trainer.parts, Codec(run.spec.codec.wire), executor, lambda call: call()
        )
        use(disk)
        return disk


def repaired(run: RunOnDisk) -> tuple[str, ...]:
    """What was found; a second look finds nothing, and the link can open what is left."""
    said = repair_chain(run.directory, SignatureChecker(run.spec.digest()))
    before = files(run)
    assert repair_chain(run.directory, SignatureChecker(run.spec.digest())) == ()
    assert files(run) == before
    opened(run)
    assert all("\n" not in line for line in said)
    return said


def files(run: RunOnDisk) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}


def flip(path: Path, at: int) -> None:
    """One bit of the byte at `at`, which may be counted from the end."""
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 4
    path.write_bytes(content)


def snapshot(run: RunOnDisk, round: int) -> None:
    genesis = genesis_head(read_genesis(run.directory))
    head = opened(run).heads[round]
    anchor = restore_at(run.directory, run.spec, head.anchor, round)
    base = read_base_at(run.directory, genesis, head.anchor, round, 9)
    snapshots.write(
        run.directory, anchor.sizes, anchor.chunks, run=run.spec.digest(), base=base, cursors=anchor.cursors,
        state=anchor.state_digest(),
    )  # fmt: skip


def test_what_is_whole_is_left_as_it_is(run: RunOnDisk) -> None:
    before = files(run)
    assert repaired(run) == ()
    assert files(run) == before


@pytest.mark.parametrize("at", [0, 3, 20, 60, -2])
def test_head_is_found_again_from_the_blocks(run: RunOnDisk, at: int) -> None:
    """They prove each other: nothing is lost, and nobody is asked."""
    head = opened(run).head
    flip(run.directory / "HEAD", at)
    (said,) = repaired(run)
    assert f"{run.directory / 'HEAD'} is " in said
    assert f"this peer stands at round {ROUNDS}" in said
    assert opened(run).head == head


@pytest.mark.parametrize("round", range(1, ROUNDS + 1))
def test_the_chain_ends_before_a_damaged_block(run: RunOnDisk, round: int) -> None:
    """Wherever the bit is: in the update, or in a vote; the anchor before is the one of all."""
    heads, whole = opened(run).heads, files(run)
    path = block_path(run.directory, round)
    size = len(path.read_bytes())
    for at in range(0, size, size // 23):
        flip(path, at)
        (said,) = repaired(run)
        assert f"this peer stands at round {round - 1}, and what follows is asked of the others again" in said
        assert opened(run).head == heads[round - 1]
        for name, content in whole.items():
            Path(name).write_bytes(content)


def test_a_block_that_is_gone_is_asked_for(run: RunOnDisk) -> None:
    block_path(run.directory, 2).unlink()
    (said,) = repaired(run)
    assert said.startswith(f"{block_path(run.directory, 2)} is gone: this peer stands at round 1")


def test_the_chain_ends_before_a_damaged_mean(run: RunOnDisk) -> None:
    """It is removed: nobody is given it, and what comes of others is written in its place."""
    disk = opened(run)
    path = run.directory / "chain" / "objects" / disk.blocks[1].update.parts[0].hex()
    flip(path, 7)
    (said,) = repaired(run)
    assert f"{path} is damaged" in said
    assert not path.exists()
    assert opened(run).head == disk.heads[1]


def test_a_mean_that_comes_back_stays(run: RunOnDisk) -> None:
    """A voter names what it accepted, also while the bytes are gone."""
    disk = opened(run)
    update, before = disk.blocks[-1].update, disk.heads[-2]
    payload = disk.load(update.parts[0])
    assert payload is not None

    def accept(disk: ChainStore) -> None:
        disk.save_object(update.digest, update.to_bytes())
        disk.save_acceptor(Acceptor(before.anchor, before.instance, 0, accepted=(0, update.digest)))

    def commit_again(disk: ChainStore) -> None:
        assert disk.head == before
        whole = disk.disk_bytes
        disk.save_object(update.parts[0], payload)
        assert disk.disk_bytes == whole + len(payload)
        block = Block(update, ())
        for _ in range(3):
            disk.objects.sweep(frozenset())
        disk.commit(block, before.after(update), frozenset())
        disk.objects.sweep(frozenset())
        assert disk.load(update.parts[0]) == payload

    opened(run, accept)
    flip(run.directory / "chain" / "objects" / update.parts[0].hex(), 1)
    repaired(run)
    opened(run, commit_again)


def test_before_a_snapshot_nothing_is_needed(run: RunOnDisk) -> None:
    """The chain begins there then; means that no start reads any more are not even looked at."""
    disk = opened(run)
    snapshot(run, 2)
    mean = run.directory / "chain" / "objects" / disk.blocks[0].update.parts[0].hex()
    flip(mean, 7)
    assert repaired(run) == ()
    flip(block_path(run.directory, 1), 100)
    (said,) = repaired(run)
    assert said.startswith(f"{block_path(run.directory, 1)} is damaged")
    assert f"this peer stands at round {ROUNDS}" in said
    chain = read_chain(run.directory, run.spec)
    assert (chain.base.round, chain.head) == (2, disk.head)


def test_a_damaged_base_is_that_of_a_snapshot(run: RunOnDisk) -> None:
    disk = opened(run)
    snapshot(run, 2)
    flip(block_path(run.directory, 1), 100)
    repaired(run)
    (base,) = (run.directory / "chain").glob("*.base")
    flip(base, 50)
    assert repaired(run) == (f"{base} was damaged, and is written again from a snapshot",)
    assert opened(run).head == disk.head


def test_an_accepted_update_is_in_its_block(run: RunOnDisk) -> None:
    """What was decided can be written again; what a voter promised nobody else knows."""
    disk = opened(run)
    update, before = disk.blocks[-1].update, disk.heads[-2]
    accepted = Acceptor(before.anchor, before.instance, 0, accepted=(0, update.digest))

    def accept(disk: ChainStore) -> None:
        disk.save_object(update.digest, update.to_bytes())
        disk.save_acceptor(accepted)

    opened(run, accept)
    flip(run.directory / "chain" / "objects" / update.digest.hex(), 9)
    repaired(run)
    assert opened(run).accepted_update(accepted) == update
    flip(run.directory / "chain" / "acceptors", 40)
    with pytest.raises(BadInput, match="acceptors is damaged"):
        repair_chain(run.directory, SignatureChecker(run.spec.digest()))


def test_a_damaged_genesis_is_asked_of_others(run: RunOnDisk) -> None:
    flip(run.directory / "genesis", 4)
    (said,) = repair_chain(run.directory, SignatureChecker(run.spec.digest()))
    assert "genesis is damaged" in said
    assert not (run.directory / "genesis").exists()
    assert repair_chain(run.directory, SignatureChecker(run.spec.digest())) == ()
