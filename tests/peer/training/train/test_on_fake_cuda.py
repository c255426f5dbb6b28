"""The life of a trainer on a card that is none: the bits of a processor, few waits, and nothing that two streams race
for."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.layout import cut
from peer.node.host.device import choose_device
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.checkpoint.checkpoint import Checkpoints, newest
from peer.training.checkpoint.replay import first_anchor
from peer.training.checkpoint.saver import CheckpointSaver
from peer.training.outer import copy_stream, kernels
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from peer.training.train import optimizers
from peer.training.train.autotune_result import Tuned, TuneKey
from peer.training.train.layerwise import _Copies
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.fake_cuda import fake_cuda
from tests.noted_card import NotedCard
from tests.stepping import step, submit

pytestmark = pytest.mark.slow

NAMES = ("p0", "p1")
ANCHORS = [digest("anchor", number) for number in range(2)]
WAIT_S = 60.0
END = _Copies.end
ACCUMULATION = 2

BATCHES = 2
"""Of an evaluation."""
PER_STEP = {"event in _number": 1}
"""What the host waits for in one step: the end of the step before."""
BESIDE = {"stream in end", "event in _arrived"}
"""For what the threads wait that apply an update, if they have not ended."""


@pytest.fixture(scope="module")
def spec(corpus: Path) -> RunSpec:
    """Small, with an update that is applied beside steps, and several micro-batches in one."""
    micro = specs.load("micro")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, context=16, config=micro.model.config | small),
        data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=4),
        inner=dataclasses.replace(micro.inner, sequences=2, accumulation=ACCUMULATION, precision="float32"),
        round=dataclasses.replace(micro.round, overlap="layerwise"),
        codec=dataclasses.replace(micro.codec, wire="int4", part_elements=512),
    )


class Life:
    """Of two trainers, one of whom is looked at: what it computes, and what it waits for in each phase."""

    def __init__(
        self, spec: RunSpec, wanted: str, folder: Path, cuda: NotedCard | None = None, fit: Tuned | None = None
    ) -> None:
        folder.mkdir()
        self.spec, self.folder, self.cuda, self.fit = spec, folder, cuda, fit
        self.device = choose_device(wanted)
        if cuda is not None:
            torch.cuda.set_device(self.device)  # as the trainer's thread does
        self.found: list[object] = []
        self.losses: list[float | None] = []
        self.stepped = threading.Event()
        """A step has been made beside the update, for whose end the host waits only then."""
        self.waits: dict[str, Counter[str]] = {}
        self.one, self.two = (self.trainer(name) for name in NAMES)

    def trainer(self, name: str) -> LocalTrainer:
        folder, path = self.folder / name, self.spec.data.path
        trainer = LocalTrainer(self.spec, name, folder, self.device, self.fit, data_path=path)
        trainer.begin_round(NAMES)
        return trainer

    def close(self) -> None:
        self.one.close()
        self.two.close()

    def phase(self, name: str, do: Callable[[], Any]) -> Any:
        before = len(self.cuda.waits) if self.cuda else 0
        result = do()
        noted = self.cuda.waits[before:] if self.cuda else []
        self.waits[name] = Counter(f"{wait.kind} in {wait.function}" for wait in noted)
        return result

    def step(self, name: str) -> None:
        self.phase(name, lambda: self.losses.append(step(self.one).loss))
        step(self.two)

    def round_beside_a_step(self) -> DecidedRound:
        self.step("first step")
        self.step("step")
        for trainer in (self.one, self.two):
            submit(trainer, ANCHORS[0])
        decided = DecidedRound([self.one, self.two], ANCHORS[0])
        with patch.object(_Copies, "end", lambda copies: self._end(copies)):
            self.one.apply(decided.update, decided.objects.__getitem__, beside=True)
            self.two.apply(decided.update, decided.objects.__getitem__)
            self.step("step beside")
            self.stepped.set()
            assert self.one.layers is not None
            self.found.append(self.one.layers.result(WAIT_S))
        self.found.append(self.two.anchor.state_digest())
        self.one._require_layers()
        return decided

    def _end(self, copies: _Copies) -> None:
        assert self.stepped.wait(WAIT_S)
        END(copies)

    def checkpoint_and_leave(self) -> None:
        self.phase("evaluate", lambda: self.found.append(self.one.evaluate()))
        with closing(CheckpointSaver(Checkpoints(self.folder / "checkpoints"))) as saver:
            capture = self.one.checkpoint(ANCHORS[1])
            self.one.read_beside(capture)
            written = saver.save(capture, beside=True)
            self.step("step beside a checkpoint")
            written.result(WAIT_S)
        self.phase("leave", self.one.leave_device)
        self.phase("return", self.one.take_device)
        self.step("step after it")

    def resync(self, decided: DecidedRound) -> None:
        """Both go on from a snapshot of the first round."""
        for trainer in (self.one, self.two):
            submit(trainer, ANCHORS[1])
        second = DecidedRound([self.one, self.two], ANCHORS[1], left_out={"p1"})
        second.apply_to(self.one, self.two)
        self.found.append(self.one.anchor.state_digest())
        for trainer in (self.one, self.two):
            self.found.append(trainer.adopt(second.next_anchor, self._first(decided)))
        self.step("step after a snapshot")

    def restore(self, decided: DecidedRound) -> None:
        found = newest(self.folder / "checkpoints", self.spec.digest().hex(), "p0", print)
        assert found is not None
        with closing(self.trainer("p0")) as restored:
            restored.anchor.become(self._first(decided))
            restored.restore(found)
            self.found.append(_loss_of(restored, step(restored).loss))

    def _first(self, decided: DecidedRound) -> OuterState:
        """The anchor after the first round, from its means alone."""
        anchor = first_anchor(self.spec)
        layout = cut(anchor.sizes, self.spec.codec.part_elements)
        advance(anchor, decided.update, self.spec, layout, decided.objects.__getitem__)
        return anchor

    def tensors(self) -> Iterator[Tensor]:
        for trainer in (self.one, self.two):
            yield from (each.clone().cpu() for each in trainer._backend._parameters)  # type: ignore[attr-defined]
            yield from (each.clone().cpu() for each in trainer._backend.vectors.tensors())  # type: ignore[attr-defined]
            for number in range(len(trainer._backend.layers)):
                yield from (each.clone().cpu() for each in trainer._backend.optimizer_of(number).values())


def _loss_of(trainer: LocalTrainer, told: float | None) -> float | None:
    """Of its newest step, which has not told it if it was made on a card."""
    newest = trainer._backend.newest_loss()  # type: ignore[attr-defined]
    return told if newest is None else newest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lived:
    found: list[object]
    losses: list[float | None]
    tensors: list[Tensor]
    places: str
    waits: dict[str, Counter[str]]
    worked_on: Collection[str] = ()
    """The kinds of devices on which a round's arithmetic was done."""


def whole_life(
    spec: RunSpec, wanted: str, folder: Path, cuda: NotedCard | None = None, fit: Tuned | None = None
) -> Lived:
    worked_on = set[str]()
    take = kernels.Scratch.take

    def noted(scratch: kernels.Scratch) -> None:
        worked_on.add(scratch.device.type)
        take(scratch)

    with patch.object(kernels.Scratch, "take", noted), closing(Life(spec, wanted, folder, cuda, fit)) as life:
        decided = life.round_beside_a_step()
        life.checkpoint_and_leave()
        life.resync(decided)
        life.restore(decided)
        life.losses.append(_loss_of(life.one, None))
        return Lived(
            found=life.found, losses=life.losses, tensors=list(life.tensors()), places=str(life.one.vector_slots),
            waits=life.waits, worked_on=worked_on,
        )  # fmt: skip


@pytest.fixture(scope="module")
def lived(spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lived, NotedCard]:
    with fake_cuda() as cuda:
        return whole_life(spec, "cuda", tmp_path_factory.mktemp("card") / "life", cuda), cuda


def test_a_life_on_a_card_has_the_bits_of_a_processor(
    spec: RunSpec, tmp_path: Path, lived: tuple[Lived, NotedCard]
) -> None:
    there, cuda = lived
    here = whole_life(spec, "cpu", tmp_path / "life")
    assert not cuda.mixed
    assert there.places == "anchor and residual in device"
    assert there.worked_on == {"cuda"}, "all of a round's arithmetic is done where the model is"
    assert there.found == here.found
    assert there.losses == [None, *here.losses[:-1]], "each is told a step later"
    for one, other in zip(there.tensors, here.tensors, strict=True):
        assert torch.equal(one, other)


def test_so_has_one_whose_moments_take_a_byte_and_gradients_two(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the host waits no more often."""
    monkeypatch.setattr(optimizers, "LEAST", 100)  # this model is small
    basis = TuneKey(run="", device="cuda", name="", torch="", homefires="")
    fit = Tuned(
        basis=basis, sequences=2, step_s=1.0, tokens_per_s=1.0, recomputes=True, eight_bits=True, half_gradients=True
    )  # fmt: skip
    with fake_cuda() as cuda:
        there = whole_life(spec, "cuda", tmp_path / "card", cuda, fit)
    here = whole_life(spec, "cpu", tmp_path / "life", fit=fit)
    assert (there.found, there.losses) == (here.found, [None, *here.losses[:-1]])
    assert all(map(torch.equal, there.tensors, here.tensors))
    assert any(tensor.dtype == torch.uint8 for tensor in here.tensors)
    assert (cuda.mixed, cuda.races) == ([], set())
    assert there.waits["step after it"] == PER_STEP


def test_the_host_waits_for_the_card_as_seldom_as_it_is_written_here(lived: tuple[Lived, NotedCard]) -> None:
    waits = lived[0].waits
    assert waits["first step"] == {}
    for name in ("step", "step after it"):
        assert waits[name] == PER_STEP, name
    assert waits["evaluate"] == {"item in _summed": BATCHES}, "for the loss of each"
    beside = waits["step beside"]
    assert {what: beside[what] for what in PER_STEP} == PER_STEP
    assert BESIDE.issuperset(set(beside) - set(PER_STEP))
    assert not [what for what in waits["leave"] + waits["return"] + waits["evaluate"] if what.startswith("pageable")]


def test_no_two_streams_race(lived: tuple[Lived, NotedCard]) -> None:
    assert lived[1].races == set()


@pytest.mark.parametrize(
    ("of", "wait", "instead"),
    [(_Copies, "meet", lambda copies, layer: None), (copy_stream, "_arrived", lambda buffer, end: buffer)],
)
def test_a_wait_that_is_taken_out_is_found(
    spec: RunSpec, tmp_path: Path, of: object, wait: str, instead: Callable[..., object]
) -> None:
    """A step that does not wait for a layer's stream, and a host that reads what is on its way to it."""
    with (
        fake_cuda() as cuda,
        patch.object(of, wait, instead),
        closing(Life(spec, "cuda", tmp_path / "x", cuda)) as life,
    ):
        life.round_beside_a_step()
    assert cuda.races


def test_a_pause_leaves_nothing_of_the_size_of_the_model(spec: RunSpec, tmp_path: Path) -> None:
    with fake_cuda() as cuda, closing(Life(spec, "cuda", tmp_path / "life", cuda)) as life:
        submit(life.one, ANCHORS[0])
        life.step("step")  # from here on where steps began is kept
        submit(life.two, ANCHORS[0])
        DecidedRound([life.one, life.two], ANCHORS[0]).apply_to(life.one, life.two)
        before, model = cuda.allocated_bytes(), 4 * life.one.parameters
        life.one.leave_device()
        # Parameters, two moments, anchor, momentum and residual; and where steps began, which is of no use here.
        assert before - cuda.allocated_bytes() >= 7 * model
        life.one.take_device()
        life.step("step after it")
