"""The anchor at the head of a run directory: from the newest snapshot if there is one, else from the beginning."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.node.store import snapshots
from peer.node.store.chain import start_chain_at
from peer.node.store.kept_way import KeptWay
from peer.node.store.run_directory import genesis_head, read_base_at, read_genesis
from peer.training.checkpoint.replay import read_chain, restore_anchor
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from tests.peer.tools.export.run_on_disk import RunOnDisk, make_run, small_spec, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three rounds."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    return make_run(root, small_spec(root / "corpus", "llama"))


@pytest.fixture
def run(made: RunOnDisk, tmp_path: Path) -> RunOnDisk:
    """The same in a folder that the test may change. The trainer stays as it is."""
    return dataclasses.replace(made, directory=Path(shutil.copytree(made.directory, tmp_path / "peer")))


def restored_state(run: RunOnDisk) -> bytes:
    chain = read_chain(run.directory, run.spec)
    return restore_anchor(chain, run.spec, FlatParameters(build(run.spec))).state_digest()


def test_the_chain_alone_is_enough(run: RunOnDisk) -> None:
    """All outer steps again, from the first parameters."""
    assert restored_state(run) == run.trainer.anchor.state_digest()


def prune(run: RunOnDisk) -> None:
    """Have the chain begin at its head, and a snapshot there."""
    genesis, anchor = genesis_head(read_genesis(run.directory)), run.trainer.anchor
    head = read_chain(run.directory, run.spec).head
    base = read_base_at(run.directory, genesis, head.anchor, head.round, 4)
    snapshots.write(
        run.directory, anchor.sizes, anchor.chunks, run=run.spec.digest(), base=base,
        cursors=anchor.cursors, state=anchor.state_digest(),
    )  # fmt: skip
    start_chain_at(run.directory, base, KeptWay(0))


def test_a_pruned_chain_needs_a_snapshot(run: RunOnDisk) -> None:
    """From it the outer steps go on; without one nobody can tell the parameters."""
    prune(run)
    chain = read_chain(run.directory, run.spec)
    assert (chain.base, chain.updates) == (chain.head, ())
    assert restored_state(run) == run.trainer.anchor.state_digest()
    shutil.rmtree(run.directory / "snapshots")
    with pytest.raises(BadInput, match="begins at round 3, and no intact snapshot"):
        restored_state(run)


def test_a_damaged_snapshot_is_not_used(run: RunOnDisk, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why; here the beginning of the chain is gone, too."""
    prune(run)
    (path,) = (run.directory / "snapshots").glob("*/vectors")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(BadInput, match="no intact snapshot"):
        restored_state(run)
    assert f"{path} is damaged" in caplog.text
