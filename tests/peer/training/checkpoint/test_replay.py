"""An earlier anchor of a run directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dht.errors import BadInput, RunMismatch
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.head import ChainHead
from peer.node.store import snapshots
from peer.node.store.chain import ChainStore
from peer.node.store.run_directory import genesis_head, read_base_at, read_genesis
from peer.schema.events import RoundCommitted, read_events
from peer.training.checkpoint.replay import restore_at
from tests.peer.tools.export.run_on_disk import ROUNDS, RunOnDisk, make_run, signed_genesis, small_spec, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three rounds."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    return make_run(root, small_spec(root / "corpus", "llama"))


@pytest.fixture
def directory(made: RunOnDisk, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.directory, tmp_path / "peer"))


@pytest.fixture
def disk(made: RunOnDisk, directory: Path) -> Iterator[ChainStore]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield ChainStore(
            directory, genesis_head(read_genesis(directory)), made.trainer.parts, Codec(made.spec.codec.wire), executor,
            lambda call: call(),
        )  # fmt: skip


def states(directory: Path) -> list[str]:
    """What the peer reported after each round, from the first on."""
    return [line.event.state for line in read_events(directory) if isinstance(line.event, RoundCommitted)]


def state_at(made: RunOnDisk, directory: Path, head: ChainHead) -> str:
    anchor = restore_at(directory, made.spec, head.anchor, head.round)
    assert anchor.round == head.round
    return anchor.state_digest().hex()


def test_every_anchor_of_the_chain_is_found(made: RunOnDisk, directory: Path, disk: ChainStore) -> None:
    """By the outer steps from the first parameters on."""
    assert [state_at(made, directory, head) for head in disk.heads[1:]] == states(directory)
    assert restore_at(directory, made.spec, disk.heads[0].anchor, 0).round == 0
    with pytest.raises(BadInput, match="is not the block that led to where this peer stood"):
        restore_at(directory, made.spec, b"e" * 32, ROUNDS)


def test_a_snapshot_on_the_way_saves_the_rest_of_it(made: RunOnDisk, directory: Path, disk: ChainStore) -> None:
    """The means of the rounds before it may be gone. A damaged one is passed by."""
    second = restore_at(directory, made.spec, disk.heads[2].anchor, 2)
    base = read_base_at(directory, disk.heads[0], disk.heads[2].anchor, 2, 9)
    path = snapshots.write(
        directory, second.sizes, second.chunks, run=made.spec.digest(), base=base,
        cursors=second.cursors, state=second.state_digest(),
    )  # fmt: skip
    means = {part: directory / "chain" / "objects" / part.hex() for part in disk.blocks[0].update.parts}
    payloads = {file: file.read_bytes() for file in means.values() if file.is_file()}
    for file in payloads:
        file.unlink()
    assert [state_at(made, directory, head) for head in disk.heads[2:]] == states(directory)[1:]
    vectors = path / "vectors"
    vectors.write_bytes(vectors.read_bytes()[:-1])
    with pytest.raises(BadInput, match="is gone"):
        restore_at(directory, made.spec, disk.heads[3].anchor, 3)
    for file, payload in payloads.items():
        file.write_bytes(payload)
    assert [state_at(made, directory, head) for head in disk.heads[2:]] == states(directory)[1:]


def test_a_machine_that_computes_other_initial_parameters_is_told(made: RunOnDisk, directory: Path) -> None:
    """Every outer step from there would be wrong."""
    genesis = read_genesis(directory)
    other = type(genesis)(run=genesis.run, founders=genesis.founders, state=bytes(32))
    (directory / "genesis").write_bytes(signed_genesis(other))
    with pytest.raises(RunMismatch, match="computed other initial parameters"):
        restore_at(directory, made.spec, genesis_head(other).anchor, 0)
