"""A peer that starts again stands where its newest checkpoint was taken, by the chain on its disk; or near it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dht.errors import BadInput
from peer.consensus.protocol.head import ChainHead
from peer.node.store import snapshots
from peer.node.store.chain import start_chain_at
from peer.node.store.kept_way import KeptWay
from peer.node.store.run_directory import genesis_head, read_base_at, read_genesis
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import AlertRaised, Event
from peer.startup import restore
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.checkpoint.replay import origin_of, read_chain, restore_at
from peer.training.train.trainer import LocalTrainer
from tests.peer.tools.export.run_on_disk import CPU, ROUNDS, RunOnDisk, make_run, small_spec, write_corpus
from tests.saved import everything, same, words
from tests.stepping import step


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three rounds, and two steps into the next."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    run = make_run(root, small_spec(root / "corpus", "llama"))
    run.trainer.begin_round(run.peers)
    for _ in range(2):
        step(run.trainer)
    head = read_chain(run.directory, run.spec).head
    Checkpoints(run.directory / "checkpoints").write(run.trainer.checkpoint(head.anchor))
    return run


@pytest.fixture
def run(made: RunOnDisk, tmp_path: Path) -> RunOnDisk:
    """The same in a folder that the test may change. The trainer stays as it is."""
    return dataclasses.replace(made, directory=Path(shutil.copytree(made.directory, tmp_path / "peer")))


def start_again(run: RunOnDisk, said: list[Event] | None = None) -> tuple[LocalTrainer, bytes]:
    trainer = LocalTrainer(run.spec, run.trainer.me, run.directory / "contributions", CPU, data_path=run.spec.data.path)
    _, anchor = restore(trainer, run.directory, Reporter([].append if said is None else said.append))
    return trainer, anchor


def snapshot(run: RunOnDisk, head: ChainHead) -> Path:
    anchor = restore_at(run.directory, run.spec, head.anchor, head.round)
    base = read_base_at(run.directory, genesis_head(read_genesis(run.directory)), head.anchor, head.round, 9)
    return snapshots.write(
        run.directory, anchor.sizes, anchor.chunks, run=run.spec.digest(), base=base,
        cursors=anchor.cursors, state=anchor.state_digest(),
    )  # fmt: skip


def heads(run: RunOnDisk) -> list[ChainHead]:
    chain = read_chain(run.directory, run.spec)
    found = [chain.base]
    for update in chain.updates:
        found.append(found[-1].after(update))
    return found


def nothing(run: RunOnDisk) -> None:
    """From the first parameters."""


def on_the_way(run: RunOnDisk) -> None:
    """From a snapshot: what leads to it is gone."""
    snapshot(run, heads(run)[2])
    for number in (1, 2):
        (run.directory / "chain" / f"{number:06d}.block").rename(run.directory / f"{number}.gone")


@pytest.mark.parametrize("prepare", [nothing, on_the_way])
def test_it_stands_where_the_checkpoint_was_taken_with_every_bit(
    run: RunOnDisk, prepare: Callable[[RunOnDisk], None]
) -> None:
    head = heads(run)[-1]
    prepare(run)
    trainer, anchor = start_again(run)
    assert anchor == head.anchor
    assert same(everything(trainer, anchor), everything(run.trainer, anchor)) == []
    assert words(trainer, anchor) == words(run.trainer, anchor)


def test_where_the_chain_began_anew_its_work_goes_along(run: RunOnDisk) -> None:
    """Blocks before the snapshot and the checkpoint's own are gone, as when others' snapshot was brought."""
    own, theirs = heads(run)[-1], heads(run)[1]
    snapshot(run, theirs)
    base = read_base_at(run.directory, genesis_head(read_genesis(run.directory)), theirs.anchor, 1, 9)
    start_chain_at(run.directory, base, KeptWay(0))
    for path in (run.directory / "chain").glob("*.block"):
        path.unlink()
    said: list[Event] = []
    trainer, anchor = start_again(run, said)
    assert (anchor, trainer.anchor.round) == (theirs.anchor, 1)
    (alert,) = [event for event in said if isinstance(event, AlertRaised)]
    assert "cannot be computed any more" in alert.text
    owed = [trainer._backend.layer(number).residual for number in range(len(trainer.layer_sizes))]
    assert any(layer.any() for layer in owed)
    for number, residual in enumerate(owed):
        assert torch.equal(residual, run.trainer._backend.layer(number).residual)
        t = trainer._backend.layer(number)
        assert torch.equal(torch.cat([each for _, each in t.local]), t.theta - t.residual)
    assert own.anchor != anchor


def test_without_any_snapshot_its_work_goes_along_to_the_beginning(run: RunOnDisk) -> None:
    """From there it makes all outer steps again, once the others have given what is gone."""
    (run.directory / "chain" / f"{ROUNDS:06d}.block").write_bytes(b"damaged")
    said: list[Event] = []
    trainer, anchor = start_again(run, said)
    assert (anchor, trainer.anchor.round) == (b"", 0)
    assert trainer.anchor.state_digest() == trainer.start.state
    (alert,) = [event for event in said if isinstance(event, AlertRaised)]
    assert f"{ROUNDS:06d}.block is damaged" in alert.text
    assert "what it owes goes along to where the run begins" in alert.text
    assert any(trainer._backend.layer(number).residual.any() for number in range(len(trainer.layer_sizes)))


def test_a_checkpoint_names_the_snapshot_on_the_way(run: RunOnDisk) -> None:
    """None where it begins at the first parameters; what was found before is not looked for again."""
    _, first, second, last = heads(run)
    at = run.directory, last.anchor, last.round
    assert origin_of(*at, {}) is None
    snapshot(run, second)
    assert origin_of(*at, {first.anchor: None}) == (2, second.anchor)
    assert origin_of(run.directory, second.anchor, 2, {}) == (2, second.anchor)
    for number in (1, 2):
        (run.directory / "chain" / f"{number:06d}.block").unlink()
    shutil.rmtree(snapshots.path_of(run.directory, 2, second.anchor))
    assert origin_of(*at, {second.anchor: None}) is None
    with pytest.raises(BadInput):
        origin_of(*at, {second.anchor: (2, second.anchor)})
