"""Work in, words out: a real trainer does one thing at a time and tells how it ended, whatever thread it ends in."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.errors import BadInput, DeviceLost, DiskFull, MemoryFull, Unreachable
from peer.consensus.protocol.encoding import digest
from peer.node.lifecycle.inputs_effects import (
    Adopt,
    Apply,
    Done,
    Evaluate,
    HeldOutLoss,
    LayersReady,
    LeaveDevice,
    LifeInput,
    Moved,
    NoData,
    NoRoom,
    Replay,
    Resume,
    Save,
    Saved,
    Step,
    Stepped,
    Submit,
    TakeBack,
    TakeDevice,
    TrainerFailed,
    TrainerStatus,
    Work,
    Written,
)  # fmt: skip
from peer.node.lifecycle.inputs_effects import Trainer as Driven
from peer.node.store import snapshots
from peer.node.store.run_directory import genesis_head, read_chain_files, read_genesis
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.train import trainer as trainers
from peer.training.train.optimizers import learning_rate
from peer.training.train.trainer import LocalTrainer
from peer.training.train.worker import TrainerWorker
from tests.decided import DecidedRound
from tests.peer.tools.export.run_on_disk import CPU, make_run, small_spec, write_corpus
from tests.saved import saved
from tests.stepping import never
from tests.vectors import whole

FIRST = digest("anchor", 0)
WAIT_S = 60.0
STREAMING = {"overlap": "streaming", "merge": "rebase"}
Make = Callable[..., LocalTrainer]


class Driver:
    """Has a worker do something, and hears what comes of it."""

    def __init__(self, trainer: LocalTrainer, directory: Path) -> None:
        self.trainer = trainer
        self.objects = directory / "chain" / "objects"
        self.objects.mkdir(parents=True, exist_ok=True)
        self.warned: list[tuple[str, ...]] = []
        checkpoints = Checkpoints(directory / "checkpoints")
        self.worker = TrainerWorker(trainer, checkpoints, directory, lambda *words: self.warned.append(words))
        self.driven: Driven = self.worker
        self.inbox: queue.Queue[tuple[LifeInput, str]] = queue.Queue()

    def post(self, make: Callable[[float], LifeInput]) -> None:
        self.inbox.put((make(7.0), threading.current_thread().name))

    def do(self, work: Work, stop: Callable[[], bool] = never) -> Done:
        """Which is answered before `do` returns, once."""
        self.driven.do(work, self.post, stop)
        done = [heard for heard, _ in self.inbox.queue if isinstance(heard, Done)]
        assert len(done) == 1
        heard = self.hear(Done)
        assert isinstance(heard, Done)
        assert heard.now == 7.0
        return heard

    def hear(self, kind: type[LifeInput]) -> Any:
        heard, self.thread = self.inbox.get(timeout=WAIT_S)
        assert isinstance(heard, kind), heard
        return heard

    def decide(self, anchor: bytes = FIRST) -> DecidedRound:
        """The round to which this trainer alone has contributed; its means are on disk."""
        decided = DecidedRound([self.trainer], anchor)
        for name, payload in decided.objects.items():
            (self.objects / name.hex()).write_bytes(payload)
        return decided


@pytest.fixture
def drive(make: Make, tmp_path: Path) -> Callable[..., Driver]:
    """A driver of a trainer of its own."""
    return lambda me="p0", **round: Driver(make(me, **round), tmp_path / me / "run")


def a_step(position: float = 0.0, members: tuple[str, ...] | None = None) -> Step:
    return Step(most=5, position=position, members=members)


def test_a_step_is_made_at_its_position_with_the_shards_of_its_members(drive: Callable[..., Driver]) -> None:
    driver = drive()
    done = driver.do(a_step(3.5, ("p0", "p1")))
    spec = driver.trainer.spec
    assert isinstance(done.result, Stepped)
    assert done.result.steps == 1
    assert done.result.waited_s == driver.trainer.waited_s > 0.0  # nothing was read before the first step
    assert done.result.tokens == spec.inner.sequences * spec.inner.accumulation * spec.model.context
    assert done.result.learning_rate == learning_rate(spec, 0, 3.5)
    assert done.trainer == TrainerStatus(round=0, step=1, fresh=True, can_leave=False)
    shards = {shard for shard, _, _ in driver.trainer._batches.ranges()}
    assert driver.do(a_step()).trainer.step == 2
    assert {shard for shard, _, _ in driver.trainer._batches.ranges()} >= shards


def test_a_step_without_room_says_so(drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()

    def full(*args: Any) -> None:
        raise MemoryFull("no room for even one sequence")

    monkeypatch.setattr(driver.trainer._backend, "step", full)
    done = driver.do(a_step())
    assert done.result == NoRoom("no room for even one sequence")
    assert done.trainer == TrainerStatus(round=0, can_leave=False)


@pytest.mark.parametrize(("work", "method"), [(a_step(), "step"), (Evaluate(0), "loss")])
def test_data_that_are_away_end_nothing(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, work: Work, method: str
) -> None:
    driver = drive()

    def away(*args: Any) -> None:
        raise Unreachable("the data have not come")

    monkeypatch.setattr(driver.trainer._backend, method, away)
    assert driver.do(work).result == NoData("the data have not come")


def test_a_submission_is_written_after_done_by_another_thread(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are made meanwhile; without one in this round it begins the round itself."""
    driver, goes = drive(**STREAMING), threading.Event()
    write = trainers.write_contribution

    def write_later(*args: Any) -> None:
        assert goes.wait(WAIT_S)
        write(*args)

    monkeypatch.setattr(trainers, "write_contribution", write_later)
    driver.do(a_step(members=("p0",)))
    done = driver.do(Submit(FIRST, ("p0",)))
    assert (done.trainer.offered, done.trainer.fresh, done.trainer.step) == (True, False, 0)
    assert driver.do(a_step()).trainer.step == 1
    goes.set()
    assert driver.hear(Written) == Written(7.0, FIRST)
    assert driver.thread != threading.current_thread().name


def test_one_that_found_no_room_is_taken_back_and_made_again(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(**STREAMING)

    def full(*args: Any) -> None:
        raise DiskFull("the disk is full")

    driver.do(a_step(members=("p0",)))
    with monkeypatch.context() as patch:
        patch.setattr(trainers, "write_contribution", full)
        driver.do(Submit(FIRST, None))
        assert driver.hear(Written) == Written(7.0, FIRST, no_room="the disk is full")
    done = driver.do(TakeBack())
    assert (done.trainer.offered, done.trainer.fresh, done.trainer.step) == (False, True, 1)
    driver.do(Submit(FIRST, None))
    assert driver.hear(Written) == Written(7.0, FIRST)


def test_what_else_goes_wrong_beside_training_is_a_crash(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, broken = drive(), OSError("the disk is gone")

    def fail(*args: Any) -> None:
        raise broken

    monkeypatch.setattr(trainers, "write_contribution", fail)
    driver.do(a_step(members=("p0",)))
    driver.do(Submit(FIRST, None))
    assert driver.hear(TrainerFailed) == TrainerFailed(7.0, broken)


def offered(driver: Driver) -> DecidedRound:
    driver.do(a_step(members=("p0",)))
    driver.do(Submit(FIRST, None))
    driver.hear(Written)
    return driver.decide()


def test_an_update_is_applied_at_once_or_beside_the_next_steps(drive: Callable[..., Driver]) -> None:
    """The same state; `Done` first, and the digest with the last layer."""
    waits, layered = drive("p0"), drive("p1", overlap="layerwise")
    decided = offered(waits)
    done = waits.do(Apply(decided.update, beside=False))
    assert done.result == Moved(state=waits.trainer.anchor.state_digest())
    assert done.trainer == TrainerStatus(round=1, can_leave=False)
    decided = offered(layered)
    done = layered.do(Apply(decided.update, beside=True))
    assert (done.result, done.trainer.round) == (Moved(), 1)
    state = layered.hear(LayersReady).state
    assert state == layered.trainer.anchor.state_digest()
    assert isinstance(layered.do(a_step(members=("p1",))).result, Stepped)


def test_a_damaged_mean_changes_nothing(drive: Callable[..., Driver]) -> None:
    driver = drive()
    decided = offered(driver)
    path = driver.objects / decided.update.parts[-1].hex()
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    before = driver.trainer.anchor.state_digest()
    with pytest.raises(BadInput):
        driver.worker.do(Apply(decided.update, beside=False), driver.post, never)
    assert driver.inbox.empty()
    assert (driver.trainer.anchor.state_digest(), driver.worker.status.round) == (before, 0)
    path.write_bytes(right)
    assert driver.do(Apply(decided.update, beside=False)).trainer.round == 1


def test_a_layer_that_fails_is_a_crash_and_ends_the_next_work(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard also by a peer that waits and has nothing to do."""
    driver = drive(overlap="layerwise")
    decided = offered(driver)

    def fail(*args: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("peer.training.outer.kernels.outer_kernel", fail)
    driver.do(Apply(decided.update, beside=True))
    assert isinstance(driver.hear(TrainerFailed).error, MemoryError)
    for work in (a_step(), Evaluate(1), LeaveDevice()):
        with pytest.raises(MemoryError):
            driver.worker.do(work, driver.post, never)


GONE = "CUDA error: uncorrectable ECC error encountered"


def test_a_device_that_has_failed_is_told_from_a_mistake_of_ours(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever it does, and in what goes on beside it."""

    def fail(*args: Any) -> None:
        raise torch.AcceleratorError(GONE)

    driver = drive(overlap="layerwise")
    decided = offered(driver)
    monkeypatch.setattr("peer.training.outer.kernels.outer_kernel", fail)
    driver.do(Apply(decided.update, beside=True))
    beside = driver.hear(TrainerFailed).error
    assert isinstance(beside, DeviceLost)
    assert GONE in str(beside)
    for work in (a_step(), Evaluate(1), Save(FIRST, "last"), LeaveDevice()):
        with pytest.raises(DeviceLost, match="restart the machine or its driver"):
            driver.worker.do(work, driver.post, never)


def test_a_replayed_update_moves_and_needs_no_digest(drive: Callable[..., Driver], tmp_path: Path) -> None:
    """What was offered for its parent, and is not remembered, is offered again before."""
    driver = drive()
    before = saved(driver.trainer, FIRST, tmp_path / "before")
    decided = offered(driver)
    driver.trainer.restore(before)
    done = driver.do(Replay(decided.update))
    assert (done.result, done.trainer.round) == (Moved(), 1)
    assert float(whole(driver.trainer._backend.vectors.residual).abs().max()) < 1e-3
    done = driver.do(Resume(decided.next_anchor))
    assert done.result == Moved(state=driver.trainer.anchor.state_digest())


def test_the_held_out_loss_is_measured_until_somebody_says_stop(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()
    done = driver.do(Evaluate(0))
    assert isinstance(done.result, HeldOutLoss)
    assert 4.0 < done.result.loss < 7.0
    assert driver.do(Evaluate(0), lambda: True).result is None

    def full(*args: Any) -> None:
        raise MemoryFull("no room to measure even one sequence")

    monkeypatch.setattr(driver.trainer._backend, "loss", full)
    assert driver.do(Evaluate(0)).result == NoRoom("no room to measure even one sequence")
    monkeypatch.setattr(driver.trainer, "take_device", lambda: False)
    assert driver.do(Evaluate(0)).result is None
    assert driver.do(TakeDevice()).result == NoRoom()


@pytest.mark.parametrize("when", ["now", "last", "due"])
def test_a_checkpoint_is_on_disk_before_done_unless_it_is_due(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, when: Any
) -> None:
    driver, beside = drive(), when == "due"
    goes = threading.Event()
    write = driver.worker._saver._checkpoints.write

    def write_later(capture: Any) -> Path:
        assert not beside or goes.wait(WAIT_S)
        return write(capture)

    monkeypatch.setattr(driver.worker._saver._checkpoints, "write", write_later)
    driver.worker.do(Save(FIRST, when), driver.post, never)
    if beside:
        assert driver.hear(Done).result is None
        goes.set()
    told = driver.hear(Saved)
    if not beside:
        assert driver.hear(Done).result is None
    assert (told.round, told.no_room) == (0, "")
    assert told.size_bytes == sum(file.stat().st_size for file in Path(told.path).iterdir())


def test_a_full_disk_is_told_with_the_time_that_it_took(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()

    def full(capture: Any) -> None:
        raise DiskFull("no room for a checkpoint")

    monkeypatch.setattr(driver.worker._saver._checkpoints, "write", full)
    driver.worker.do(Save(FIRST, "now"), driver.post, never)
    told = driver.hear(Saved)
    assert (told.no_room, told.path, told.round) == ("no room for a checkpoint", "", 0)
    assert told.seconds >= 0.0


def test_what_moves_the_trainer_waits_for_a_snapshot(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is begun at once, from another thread; why there is none is told."""
    driver, order = drive(), list[str]()
    decided = offered(driver)
    goes = threading.Event()

    def write(*args: Any) -> None:
        assert goes.wait(WAIT_S)
        order.append("written")
        raise DiskFull("no room for a snapshot")

    monkeypatch.setattr(driver.worker._snapshots, "due", lambda round: True)
    monkeypatch.setattr(driver.worker._snapshots, "_write", write)
    driver.worker.write_snapshot(FIRST, bytes(32))
    apply = driver.trainer.apply

    def note(*args: Any, **named: Any) -> float:
        order.append("applied")
        return apply(*args, **named)

    monkeypatch.setattr(driver.trainer, "apply", note)
    wait = driver.worker._snapshots.wait
    monkeypatch.setattr(driver.worker._snapshots, "wait", lambda: goes.set() or wait())
    driver.do(Apply(decided.update, beside=False))
    assert order == ["written", "applied"]
    assert driver.warned == [("SNAPSHOT", "no room for a snapshot")]


def test_a_newcomer_goes_on_from_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it has learned."""
    write_corpus(tmp_path / "corpus")
    made = make_run(tmp_path, small_spec(tmp_path / "corpus", "llama"), rounds=2)
    driver = Driver(made.trainer, made.directory)
    worker = driver.worker
    found = read_chain_files(made.directory, genesis_head(read_genesis(made.directory)))
    second = found.heads[-1]
    monkeypatch.setattr(worker._snapshots, "due", lambda round: True)
    after_two = made.trainer.anchor.state_digest()
    worker.write_snapshot(second.anchor, after_two)
    assert worker._snapshots.wait() == ""
    newcomer = Driver(
        LocalTrainer(made.spec, made.trainer.me, tmp_path / "contributions", CPU, data_path=made.spec.data.path),
        made.directory,
    )
    newcomer.do(a_step(members=made.peers))
    learned = whole(newcomer.trainer.anchor.theta) - newcomer.trainer._backend.vectors.flat.new()
    done = newcomer.do(Adopt(2, second.anchor, found.heads[0].anchor))
    assert (done.result, done.trainer.round) == (Moved(), 2)
    assert newcomer.trainer.anchor.state_digest() == after_two
    assert torch.equal(whole(newcomer.trainer._backend.vectors.residual), learned)


def test_a_checkpoint_to_which_no_way_leads_is_written_with_a_snapshot(tmp_path: Path) -> None:
    """The first block is gone: from the snapshot on a restart finds the way."""
    write_corpus(tmp_path / "corpus")
    spec = small_spec(tmp_path / "corpus", "llama")
    spec = dataclasses.replace(spec, round=dataclasses.replace(spec.round, keep_rounds=1))
    made = make_run(tmp_path, spec, rounds=3)
    driver = Driver(made.trainer, made.directory)
    head = read_chain_files(made.directory, genesis_head(read_genesis(made.directory))).heads[-1]
    (made.directory / "chain" / "000001.block").unlink()
    for _ in range(2):
        driver.worker.do(Save(head.anchor, "now"), driver.post, never)
        state = Path(driver.hear(Saved).path) / "state.json"
        driver.hear(Done)
        assert json.loads(state.read_text())["snapshot"] == [3, head.anchor.hex()]
    assert snapshots.names(made.directory) == [(3, head.anchor)]
    assert driver.warned == []


def test_a_thread_that_gets_no_device_says_so_in_one_line(
    drive: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()

    def refuse(device: torch.device) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\nand more")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    monkeypatch.setattr(driver.trainer, "device", torch.device("cuda:0"))
    said = (
        r"^the trainer's thread cannot use cuda:0 \(CUDA error: invalid device ordinal\); see what `homefires doctor`"
    )
    with pytest.raises(DeviceLost, match=said):
        driver.worker.enter_thread()
