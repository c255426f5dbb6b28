"""An update that is applied layer by layer beside the next inner step: the bits of one that is applied at once."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dht.errors import BadInput, MemoryFull
from peer.consensus.protocol.block import VOID, Update
from peer.consensus.protocol.encoding import digest
from peer.node.host import threads
from peer.node.lifecycle.inputs_effects import Apply
from peer.schema import spec as specs
from peer.testing.child_process import HANG_S
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.outer import kernels
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.train.trainer import LocalTrainer
from peer.training.train.worker import TrainerWorker
from tests import saved
from tests.decided import DecidedRound, contribution
from tests.fake_cuda import CARD, fake_cuda
from tests.stepping import step, submit
from tests.vectors import whole

CPU = torch.device("cpu")
FIRST = digest("anchor", 0)
NAMES = ("p0", "p1")
TIMEOUT_S = 60.0
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2},
    # Dropout draws from torch's generator, which must be where it would be.
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2},
}

Make = Callable[..., LocalTrainer]


@pytest.fixture
def make(corpus: Path, tmp_path: Path) -> Make:
    """A trainer that applies updates by layers, or one that does not; the same name is the same folder."""

    def make_one(
        me: str = "p0", overlap: str = "layerwise", wire: str = "int4", architecture: str = "llama", **round: Any
    ) -> LocalTrainer:
        micro = specs.load("micro")
        spec = dataclasses.replace(
            micro,
            model=dataclasses.replace(micro.model, architecture=architecture, context=16, config=SMALL[architecture]),
            data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=4),
            inner=dataclasses.replace(micro.inner, sequences=2),
            codec=dataclasses.replace(micro.codec, wire=wire, part_elements=512),  # type: ignore[arg-type]
            round=dataclasses.replace(micro.round, overlap=overlap, **round),  # type: ignore[arg-type]
        )
        (tmp_path / f"{me}-{overlap}").mkdir(exist_ok=True)
        return LocalTrainer(spec, me, tmp_path / f"{me}-{overlap}" / "x", CPU, data_path=spec.data.path)

    return make_one


class Twins:
    """The same peer twice: one applies updates at once, the other layer by layer. Whatever they do is compared."""

    def __init__(self, make: Make, me: str, **how: Any) -> None:
        self.blocking, self.layered = make(me, "none", **how), make(me, "layerwise", **how)
        self.generator = torch.get_rng_state()

    def train(self, steps: int) -> None:
        """Each draws what it would draw alone."""
        losses = []
        for trainer in (self.blocking, self.layered):
            torch.set_rng_state(self.generator)
            trainer.begin_round(NAMES)
            losses.append([step(trainer).loss for _ in range(steps)])
            after = torch.get_rng_state()
        self.generator = after
        assert losses[0] == losses[1]

    def submit(self, anchor: bytes) -> None:
        submit(self.blocking, anchor)
        submit(self.layered, anchor)
        assert contribution(self.blocking, anchor).leaves == contribution(self.layered, anchor).leaves

    def apply(self, update: Update, objects: dict[bytes, bytes]) -> None:
        """The layered one is not waited for."""
        given_up = self.blocking.apply(update, objects.__getitem__)
        assert self.layered.apply(update, objects.__getitem__, beside=True) == given_up

    def finish(self, anchor: bytes) -> None:
        assert ready(self.layered) == self.blocking.anchor.state_digest()
        assert everything(self.layered, anchor) == everything(self.blocking, anchor)


def ready(trainer: LocalTrainer) -> bytes:
    """H(θ, m), once the last layer is there."""
    assert trainer.layers is not None
    return trainer.layers.result(TIMEOUT_S)


def everything(trainer: LocalTrainer, anchor: bytes = FIRST) -> dict[str, Any]:
    """All that a peer is, its bits included."""
    bits = {
        name: tensor.numpy().tobytes()
        for name, tensor in saved.everything(trainer, anchor).items()
        if not name.startswith("rest.generator")  # of the process, not the peer
    }
    return bits | {key: value for key, value in trainer.checkpoint(anchor).state.items() if key != "run"}


def refused(decided: DecidedRound, parts: Sequence[int]) -> Update:
    """The same, but all that came for these parts was refused."""
    means = tuple(VOID if part in parts else mean for part, mean in enumerate(decided.update.parts))
    return dataclasses.replace(decided.update, parts=means)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "wire", "threads"),
    [("llama", "float32", 4), ("gpt2", "int4", 4), ("llama", "sparse", 1)],
)
def test_round_after_round_every_bit_is_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch, architecture: str, wire: str, threads: int
) -> None:
    """Losses, checkpoints and digests; with parts that are void or refused, a missed round, and an overdue one.

    With one layer in work at a time, and with all of them.
    """
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    first, second = (Twins(make, me, wire=wire, architecture=architecture) for me in NAMES)
    last = len(first.blocking.parts) - 1
    anchor = FIRST
    rounds: list[dict[str, Any]] = [
        {}, {"void": {0, last}}, {"left_out": {"p1"}}, {"refused": {1, 2}}, {"late": True}, {"overdue": 2}, {},
    ]  # fmt: skip
    for kind in rounds:
        for twins in (first, second):
            twins.train(2)
        first.submit(anchor)
        frozen = [first.blocking]
        if not kind.get("late"):
            second.submit(anchor)
            frozen.append(second.blocking)
        if kind.get("overdue"):
            second.train(kind["overdue"])
        decided = DecidedRound(frozen, anchor, left_out=kind.get("left_out", ()), void=kind.get("void", ()))
        update = refused(decided, kind.get("refused", ()))
        for twins in (first, second):
            twins.apply(update, decided.objects)
            twins.train(1)
            twins.finish(anchor)
        assert first.layered.anchor.state_digest() == second.layered.anchor.state_digest()
        anchor = decided.next_anchor
    assert first.layered.anchor.round == len(rounds)


def test_work_that_is_too_old_is_given_up_all_the_same(make: Make) -> None:
    """Its norm is told, too."""
    steady, away = make("p0"), Twins(make, "p1", max_staleness=1)
    away.train(1)
    anchor = FIRST
    for _ in range(2):
        steady.begin_round(NAMES)
        step(steady)
        submit(steady, anchor)
        decided = DecidedRound([steady], anchor)
        decided.apply_to(steady)
        away.apply(decided.update, decided.objects)
        away.finish(anchor)
        anchor = decided.next_anchor
    assert not whole(away.layered._backend.vectors.residual).any()
    away.train(1)


def decide(trainer: LocalTrainer) -> DecidedRound:
    """A round of this trainer alone."""
    trainer.begin_round(NAMES)
    step(trainer)
    submit(trainer, FIRST)
    return DecidedRound([trainer], FIRST)


class Held:
    """The thread that applies stands still before the outer step of the last part, until it is released."""

    def __init__(self, trainer: LocalTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self.in_time = True
        self._steps = kernels.outer_kernel
        self._last = trainer.anchor.theta[-1][trainer.anchor.of(trainer.parts[-1])].data_ptr()
        monkeypatch.setattr(kernels, "outer_kernel", self._step_tile)

    def _step_tile(self, theta: Tensor, *others: Any) -> None:
        if theta.data_ptr() == self._last:
            self.reached.set()
            self.in_time &= self.released.wait(TIMEOUT_S)
        self._steps(theta, *others)


def test_the_next_step_begins_while_later_layers_are_on_their_way(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final norm is not there before all blocks have run forward: a peer that waited for it would wait for ever."""
    trainer = make()
    decided = decide(trainer)
    held = Held(trainer, monkeypatch)
    trainer._backend._model.get_submodule("model.layers.2").register_forward_hook(lambda *_: held.released.set())
    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
    assert trainer.layers is not None
    assert not trainer.layers.done()
    trainer.begin_round(NAMES)
    step(trainer)
    ready(trainer)
    assert held.in_time


def test_a_step_that_does_not_wait_for_its_layers_learns_from_a_mix(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the twins above would show without gates: other losses than a peer that waits.

    All layers but the last are there: torch itself notices one that changes within a step.
    """
    monkeypatch.setattr(threads, "LAYERS_MOST", 1)
    twins = Twins(make, "p0")
    twins.train(2)
    twins.submit(FIRST)
    decided = DecidedRound([twins.blocking], FIRST)
    held = Held(twins.layered, monkeypatch)
    assert twins.layered._layerwise is not None
    twins.layered._layerwise.gates._enter = lambda layers: None
    twins.apply(decided.update, decided.objects)
    assert held.reached.wait(TIMEOUT_S)
    assert step(twins.blocking).loss != step(twins.layered).loss
    held.released.set()
    ready(twins.layered)


@pytest.mark.slow
@pytest.mark.parametrize(
    "look",
    [
        lambda trainer: submit(trainer, digest("anchor", 1)),
        lambda trainer: trainer.checkpoint(FIRST),
        lambda trainer: trainer.evaluate(),
        lambda trainer: trainer.resume(digest("anchor", 1)),
    ],
    ids=["submit", "checkpoint", "evaluate", "resume"],
)  # fmt: skip
def test_nobody_looks_at_the_whole_before_the_last_layer(
    make: Make, monkeypatch: pytest.MonkeyPatch, look: Callable[[LocalTrainer], object]
) -> None:
    """The lifecycle gives no such work before: whatever comes all the same is refused, and changes nothing."""
    twins = Twins(make, "p0")
    twins.train(1)
    twins.submit(FIRST)
    decided = DecidedRound([twins.blocking], FIRST)
    held = Held(twins.layered, monkeypatch)
    twins.apply(decided.update, decided.objects)
    with pytest.raises(AssertionError, match="on their way"):
        look(twins.layered)
    held.released.set()
    twins.finish(decided.next_anchor)
    assert held.in_time
    look(twins.layered)


@pytest.mark.parametrize("damaged", ["mean", "contribution"])
def test_a_damaged_byte_changes_nothing(make: Make, damaged: str) -> None:
    """Not even in layers before it: every byte is looked at first. With the right bytes it goes on."""
    trainer = make()
    decided = decide(trainer)
    before = everything(trainer)
    last = decided.update.parts[-1]
    path = trainer._folder / f"{FIRST.hex()}.parts"
    mine = path.read_bytes()

    def load(name: bytes) -> bytes:
        if damaged == "mean" and name == last:
            raise BadInput("its bytes are not those that were agreed")
        return decided.objects[name]

    if damaged == "contribution":
        path.write_bytes(mine[:-1] + bytes([mine[-1] ^ 1]))
    with pytest.raises(BadInput):
        trainer.apply(decided.update, load, beside=True)
    path.write_bytes(mine)
    assert everything(trainer) == before
    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
    step(trainer)
    ready(trainer)
    assert trainer.anchor.round == 1


def test_what_fails_beside_training_ends_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that comes to the layer gets the error, and so does whoever wants to keep what is half applied."""
    trainer = make()
    decided = decide(trainer)

    def fail(*args: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(kernels, "outer_kernel", fail)
    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
    for look in (lambda: step(trainer), lambda: ready(trainer), lambda: trainer.checkpoint(FIRST), trainer.evaluate):
        with pytest.raises(MemoryError, match="no room"):
            look()


def test_what_steps_waited_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as exposed. The last layer comes once somebody has begun to wait."""
    trainer = make()
    decided = decide(trainer)
    held = Held(trainer, monkeypatch)
    seconds = itertools.count()

    def clock() -> float:
        held.released.set()
        return float(next(seconds))

    assert trainer._layerwise is not None
    monkeypatch.setattr(trainer._layerwise.guard, "_clock", clock)
    trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
    step(trainer)
    assert trainer.waited_s >= 1.0
    ready(trainer)
    assert held.in_time


@pytest.mark.parametrize("beside", [True, False])
def test_memory_that_an_update_has_no_room_in_is_not_the_steps_own(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """The step that waits for the layer keeps its micro-batch, and the peer ends with a line."""
    trainer = make()
    worker = TrainerWorker(trainer, Checkpoints(tmp_path / "checkpoints"), tmp_path, lambda *words: None)
    trainer.begin_round(NAMES)
    step(trainer)
    submit(trainer, FIRST)
    decided = DecidedRound([trainer], FIRST)

    def no_room(*_: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(kernels.TorchKernels, "apply", no_room)
    monkeypatch.setattr(worker, "_load", decided.objects.__getitem__)
    if beside:
        trainer.apply(decided.update, decided.objects.__getitem__, beside=True)
        with pytest.raises(MemoryFull, match="has no room for what this peer was at, which is half done"):
            step(trainer)
        assert trainer.layers is not None
        assert isinstance(trainer.layers.exception(HANG_S), MemoryFull)
    with pytest.raises(MemoryFull, match="has no room for what this peer was at, which is half done"):
        worker.do(Apply(decided.update, beside=beside), lambda make: None, lambda: False)
    assert trainer._backend.micro.sequences == trainer.spec.inner.sequences  # type: ignore[attr-defined]
    worker.close()


def test_room_for_where_steps_began_is_in_main_memory_where_a_device_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    empty_like = torch.empty_like

    def full(tensor: Tensor, **how: Any) -> Tensor:
        if how.get("device") != CPU:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty_like(tensor, **how)

    with fake_cuda():
        there = torch.zeros(8, device=CARD)
        tensors = LayerTensors(first=0, local=((slice(0, 8), there),), residual=there, theta=there, momentum=there)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "empty_like", full)
            assert tensors.room_for_start().device == CPU
        assert tensors.room_for_start().device == CARD, "as soon as there is room"
