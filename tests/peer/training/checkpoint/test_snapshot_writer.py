"""Snapshots as the trainer writes and reads them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from dht.errors import BadInput
from peer.consensus.protocol.head import ChainHead, next_anchor
from peer.node.store import snapshots
from peer.parallel.pipeline.home_group import LeadHomes, WorkerHome
from peer.schema.ipc import Assignment, StageHolder
from peer.training.checkpoint import saver
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.checkpoint.replay import become_snapshot, read_anchor, read_chain, restore_at
from peer.training.checkpoint.saver import SnapshotWriter, WithHomes
from peer.training.outer.outer_state import OuterState
from tests.peer.tools.export.run_on_disk import ROUNDS, RunOnDisk, make_run, small_spec, write_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three rounds, with a snapshot every three."""
    root = tmp_path_factory.mktemp("run")
    write_corpus(root / "corpus")
    spec = small_spec(root / "corpus", "llama")
    every = dataclasses.replace(spec.round, snapshot_rounds=ROUNDS, keep_rounds=ROUNDS)
    return make_run(root, dataclasses.replace(spec, round=every))


@pytest.fixture
def run(made: RunOnDisk, tmp_path: Path) -> RunOnDisk:
    """The same in a folder that the test may change. The trainer stays as it is."""
    return dataclasses.replace(made, directory=Path(shutil.copytree(made.directory, tmp_path / "peer")))


def nobody_warned(code: str, text: str) -> None:
    pytest.fail(f"{code}: {text}")


def head_of(run: RunOnDisk) -> ChainHead:
    return read_chain(run.directory, run.spec).head


def write(run: RunOnDisk, name: bytes) -> str:
    """Why it failed, if it did."""
    writer, anchor = SnapshotWriter(run.directory, run.spec, None, nobody_warned), run.trainer.anchor
    writer.start(anchor, name, anchor.state_digest())
    return writer.wait()


def test_a_snapshot_is_the_anchor(run: RunOnDisk) -> None:
    """Parameters, momentum, round and cursors, and the head that all peers have there."""
    head, anchor = head_of(run), run.trainer.anchor
    assert write(run, head.anchor) == ""
    found = read_anchor(run.directory, ROUNDS, head.anchor)
    assert (found.round, found.cursors, found.state_digest()) == (ROUNDS, anchor.cursors, anchor.state_digest())
    manifest = snapshots.read_manifest(snapshots.path_of(run.directory, ROUNDS, head.anchor))
    assert manifest.base.head == head
    assert manifest.run == run.spec.digest()
    became = OuterState.initial([torch.zeros(size) for size in anchor.sizes])
    become_snapshot(became, run.directory, ROUNDS, head.anchor)
    assert became.state_digest() == anchor.state_digest()
    with pytest.raises(BadInput, match="is of another model"):
        become_snapshot(OuterState.initial([torch.zeros(7)]), run.directory, ROUNDS, head.anchor)


def test_a_damaged_snapshot_changes_nothing(run: RunOnDisk) -> None:
    """Though its last byte alone is another one, and all before it could have been taken."""
    head, anchor = head_of(run), run.trainer.anchor
    assert write(run, head.anchor) == ""
    with (snapshots.path_of(run.directory, ROUNDS, head.anchor) / snapshots.VECTORS).open("r+b") as file:
        file.seek(-1, 2)
        last = file.read()
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    became = OuterState.initial([torch.zeros(size) for size in anchor.sizes])
    before = became.state_digest()
    with pytest.raises(BadInput, match="is damaged; remove"):
        become_snapshot(became, run.directory, ROUNDS, head.anchor)
    assert (became.round, became.state_digest()) == (0, before)


def test_one_is_due_every_so_many_rounds_as_far_as_the_disk_allows(
    run: RunOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing takes a twentieth of the time at most; then only every second or fourth of those rounds has one."""
    now = [1000.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])
    writer, anchor = SnapshotWriter(run.directory, run.spec, None, nobody_warned), run.trainer.anchor
    name, real = head_of(run).anchor, snapshots.write

    def slow(*args: object, **fields: object) -> Path:
        now[0] += 7.0
        return real(*args, **fields)  # type: ignore[arg-type]

    def due(first: int, round_s: float) -> list[int]:
        found = []
        for round in range(first, first + 24):
            now[0] += round_s
            found += [round] if writer.due(round) else []
        return found

    assert due(0, 1.0) == [3, 6, 9, 12, 15, 18, 21]
    monkeypatch.setattr(snapshots, "write", slow)
    writer.start(anchor, name, anchor.state_digest())
    assert writer.wait() == ""
    assert due(24, 50.0)[2:] == [33, 36, 39, 42, 45]
    assert due(48, 25.0)[2:] == [60, 66]
    assert due(72, 13.0)[-1:] == [84]
    assert due(50, 1000.0)[:3] == [51, 54, 57], "from an earlier snapshot on"


def test_what_goes_wrong_is_told_and_stops_nothing(run: RunOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain has left this anchor meanwhile; or the disk is full."""
    assert "does not lead to the model where this peer stands" in write(run, b"e" * 32)
    assert snapshots.names(run.directory) == []
    usage = shutil.disk_usage(run.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "no room for a snapshot" in write(run, head_of(run).anchor)
    assert list((run.directory / "snapshots").iterdir()) == []


def test_what_a_checkpoint_needs_stays(run: RunOnDisk) -> None:
    """However many are newer; once no checkpoint names it, it goes with the next."""
    shelf = Checkpoints(run.directory / "checkpoints")
    chain = read_chain(run.directory, run.spec)
    first = chain.updates[1].parent
    shelf.write(run.trainer.checkpoint(chain.head.anchor, (1, first)))
    for update in (*chain.updates, *chain.updates[1:]):
        name = next_anchor(update.parent, update.digest)
        anchor = restore_at(run.directory, run.spec, name, update.round)
        writer = SnapshotWriter(run.directory, run.spec, None, nobody_warned)
        writer.start(anchor, name, anchor.state_digest())
        assert writer.wait() == ""
    assert [round for round, _ in snapshots.names(run.directory)] == [1, 2, 3]
    assert snapshots.named_by_checkpoints(run.directory) == {(1, first)}
    (shelf.folder / "00000001" / "state.json").write_text("half")
    assert snapshots.named_by_checkpoints(run.directory) == set()
    assert write(run, chain.head.anchor) == ""
    assert [round for round, _ in snapshots.names(run.directory)] == [2, 3]


# ---- homes of a cluster ----


class Homes:
    """A lead and a worker of one cluster that stand at the anchor of `run`, and frames between them that wait until
    somebody passes them on."""

    def __init__(self, run: RunOnDisk, root: Path) -> None:
        anchor = run.trainer.anchor
        spans = range(2), range(2, len(anchor.theta))
        self.assignment = Assignment(
            1, tuple(StageHolder(peer, span[0], span[-1]) for peer, span in zip("lw", spans, strict=True)), (), "int8"
        )
        self.frames: list[tuple[str, bytes]] = []
        send = lambda to, frame: self.frames.append((to, frame))  # noqa: E731
        self.homes: dict[str, LeadHomes | WorkerHome] = {
            "l": LeadHomes(self.assignment, send),
            "w": WorkerHome(self.assignment, "w", send, written=lambda anchor: None, ask_submit=lambda: None),
        }
        self.name, self.state, self.warned = head_of(run).anchor, anchor.state_digest(), list[str]()
        self.writers, self.anchors = dict[str, SnapshotWriter](), dict[str, OuterState]()
        for peer, span in zip("lw", spans, strict=True):
            directory = Path(shutil.copytree(run.directory, root / peer, ignore=shutil.ignore_patterns("snapshots")))
            held = WithHomes(anchor.sizes, self.homes[peer].share_chunks)
            self.anchors[peer] = of_layers(anchor, span)
            self.writers[peer] = SnapshotWriter(directory, run.spec, held, lambda code, text: self.warned.append(text))

    def start(self, peer: str) -> None:
        """Its layers are on disk when this returns."""
        self.writers[peer].start(self.anchors[peer], self.name, self.state if peer == "l" else b"")
        assert self.writers[peer].wait() == ""

    def pass_on(self) -> None:
        while self.frames:
            to, frame = self.frames.pop(0)
            self.homes[to].take({"l": "w", "w": "l"}[to], frame)

    def close(self) -> None:
        """Once all is written."""
        for writer in self.writers.values():
            writer.close()


def of_layers(anchor: OuterState, span: range) -> OuterState:
    return OuterState(
        anchor.theta[span.start : span.stop], anchor.momentum[span.start : span.stop], anchor.round, anchor.cursors,
        first_layer=span.start, first_element=sum(anchor.sizes[: span.start]),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["lw", "wl"])
def test_homes_of_a_cluster_write_what_a_whole_peer_does(run: RunOnDisk, tmp_path: Path, order: str) -> None:
    """Each its layers, under one manifest: nothing is offered before all are there. A home goes on from its own."""
    assert write(run, head_of(run).anchor) == ""
    (whole,) = (run.directory / "snapshots").glob("*-*")
    made = Homes(run, tmp_path)
    made.start(order[0])
    made.pass_on()
    assert snapshots.names(tmp_path / order[0]) == []
    made.start(order[1])
    made.pass_on()
    made.close()
    assert made.warned == []
    for peer, anchor in made.anchors.items():
        path = tmp_path / peer / "snapshots" / whole.name
        assert (path / "manifest").read_bytes() == (whole / "manifest").read_bytes()
        assert (path / "vectors").stat().st_size == (whole / "vectors").stat().st_size
        restored = OuterState(
            [torch.zeros_like(each) for each in anchor.theta], [torch.zeros_like(each) for each in anchor.momentum],
            0, {}, first_layer=anchor.layers.start, first_element=sum(run.trainer.anchor.sizes[: anchor.layers.start]),
        )  # fmt: skip
        become_snapshot(restored, tmp_path / peer, anchor.round, made.name)
        assert restored.layer_digests() == anchor.layer_digests()
        with pytest.raises(BadInput, match="damaged"):
            read_anchor(tmp_path / peer, anchor.round, made.name)


def test_a_home_that_wrote_something_else_makes_no_snapshot(run: RunOnDisk, tmp_path: Path) -> None:
    """The lead knows the state of all. It says so, and nothing is left."""
    made = Homes(run, tmp_path)
    made.anchors["w"].theta[0][0] += 1.0
    made.start("w")
    made.start("l")
    made.pass_on()
    made.close()
    assert made.warned == [f"these are not the chunks of the state of round {ROUNDS}"]
    assert list((tmp_path / "l" / "snapshots").iterdir()) == []
