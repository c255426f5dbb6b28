"""A device that runs out of memory, played by a model that raises what torch raises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dht.errors import MemoryFull
from peer.node.host.device import is_out_of_memory
from peer.parallel.autotune import rank_trials
from peer.parallel.autotune.search import Trial
from peer.parallel.autotune.trial import RUNGS, Noise, Trials, fit
from peer.schema.peak_memory import Rung
from peer.schema.spec import RunSpec, load
from peer.startup import describe
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.train.autotune_result import Tuned, TuneKey
from peer.training.train.backend import SingleDevice, held_out_loss
from peer.training.train.inner_loop import MicroBatch
from peer.training.train.trainer import LocalTrainer
from tests.stepping import loop_with

CPU = torch.device("cpu")


class Small:
    """Lets no more than so many sequences through at a time; more fail in the forward pass, or in the backward one."""

    def __init__(self, model: nn.Module, most: int, *, in_backward: bool = False) -> None:
        self.most, self._in_backward = most, in_backward
        self.sizes: list[int] = []
        inside: Any = model.base_model
        inside.register_forward_pre_hook(self._check, with_kwargs=True)
        if in_backward:
            # The first embedding comes last in a backward pass: all other gradients are there by then.
            next(model.parameters()).register_hook(self._check_gradient)

    def _check(self, module: nn.Module, args: Any, values: dict[str, Any]) -> None:
        self.sizes.append(len(values["input_ids"]))
        if not self._in_backward:
            self._raise_beyond()

    def _check_gradient(self, gradient: Tensor) -> None:
        self._raise_beyond()

    def _raise_beyond(self) -> None:
        if self.sizes[-1] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class Counting:
    """Sequences of which each is another, in order."""

    def __init__(self, context: int) -> None:
        self._tokens = torch.randint(0, 257, (64, context + 1), generator=torch.Generator().manual_seed(0))
        self.read = 0

    def next(self, sequences: int) -> Tensor:
        self.read += sequences
        return self._tokens[self.read - sequences : self.read]


@pytest.fixture
def spec() -> RunSpec:
    spec = load("micro")
    inner = dataclasses.replace(spec.inner, sequences=8, accumulation=2)
    return dataclasses.replace(spec, inner=inner)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def moved(spec: RunSpec, prepare: Callable[[nn.Module], object], micro: MicroBatch | None = None) -> tuple[Tensor, Any]:
    """Parameters after one inner step, and the step."""
    model = build(spec)
    prepare(model)
    feed = Counting(spec.model.context)
    step = loop_with(sgd(model), model, spec, feed, CPU, micro).step(0, 0)
    assert feed.read == 16
    return FlatParameters(model).new(), step


@pytest.mark.slow
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize(("most", "settled"), [(8, 8), (5, 4), (1, 1)])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_step(
    spec: RunSpec, most: int, settled: int, in_backward: bool
) -> None:
    """The same sequences, the same mean, no gradient counted twice; and it is said."""
    told: list[int] = []
    expected, reference = moved(spec, lambda model: None)
    micro = MicroBatch(8, told.append)
    found, step = moved(spec, lambda model: Small(model, most, in_backward=in_backward), micro)
    assert micro.sequences == settled
    assert told == [size for size in (4, 2, 1) if size >= settled and settled < 8]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert step.loss == pytest.approx(reference.loss, rel=1e-5)
    assert step.tokens == reference.tokens == 16 * spec.model.context


def test_the_specs_own_micro_batch_gives_the_bits_it_always_gave(spec: RunSpec) -> None:
    """As by hand: one backward pass per micro-batch of 8, each loss halved."""
    model = build(spec)
    feed = Counting(spec.model.context)
    for _ in range(2):
        tokens_BT = feed.next(8)
        logits_BTV = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten()) / 2
        torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), spec.inner.clip)
    by_hand = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    again = build(spec)
    kept: list[Tensor] = []

    class Keeping(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            kept.extend(value.grad.clone() for group in self.param_groups for value in group["params"])

    loop_with(Keeping(again.parameters()), again, spec, Counting(spec.model.context), CPU).step(0, 0)
    assert all(mine.equal(theirs) for mine, theirs in zip(kept, by_hand, strict=True))


@pytest.mark.parametrize("sequences", [3, 5, 16])
def test_any_micro_batch_is_the_same_mean(spec: RunSpec, sequences: int) -> None:
    """Also one that does not divide the step, and one that takes it whole."""
    expected, _ = moved(spec, lambda model: None)
    sizes: list[Small] = []
    found, step = moved(spec, lambda model: sizes.append(Small(model, 99)), MicroBatch(sequences))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert sum(sizes[0].sizes) == 16
    assert max(sizes[0].sizes) == sequences
    assert step.tokens == 16 * spec.model.context


def test_a_device_without_room_for_one_keeps_the_sequences_for_later(spec: RunSpec) -> None:
    """The peer pauses on MemoryFull; when there is room the step is made, as if nothing had been."""
    expected, _ = moved(spec, lambda model: None, MicroBatch(1))
    model = build(spec)
    small, feed, micro = Small(model, 0), Counting(spec.model.context), MicroBatch(8)
    loop = loop_with(sgd(model), model, spec, feed, CPU, micro)
    for _ in range(2):
        with pytest.raises(MemoryFull, match="no room for even one sequence"):
            loop.step(0, 0)
    small.most = 8
    loop.step(0, 0)
    assert feed.read == 16
    torch.testing.assert_close(FlatParameters(model).new(), expected, rtol=1e-5, atol=1e-6)


def test_a_pause_after_memory_ran_out_counts_what_was_trained(spec: RunSpec) -> None:
    """What was read and not trained is trained next."""
    model = build(spec)
    Small(model, 3)
    feed = Counting(spec.model.context)
    loop = loop_with(sgd(model), model, spec, feed, CPU, MicroBatch(8))
    assert loop.step(0, 0, stop=lambda: True).tokens == 2 * spec.model.context
    assert loop.step(0, 1).tokens == 16 * spec.model.context
    assert feed.read == 18


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_memory_that_is_not_there_has_many_words(error: RuntimeError) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))


@pytest.mark.slow
@pytest.mark.parametrize("most", [8, 5, 1])
def test_a_loss_is_measured_with_as_many_sequences_as_have_room(spec: RunSpec, most: int) -> None:
    """Each counts once, and the loss is the same."""
    tokens_BT = Counting(spec.model.context).next(11)
    model = build(spec)
    expected = held_out_loss(model, tokens_BT, CPU, sequences=8)
    small = Small(model, most)
    assert held_out_loss(model, tokens_BT, CPU, sequences=8) == pytest.approx(expected, rel=1e-6)
    assert sum(size for size in small.sizes if size <= most) == 11
    small.most = 0
    with pytest.raises(MemoryFull, match="no room to measure even one sequence"):
        held_out_loss(model, tokens_BT, CPU)
    assert model.training


def test_other_errors_are_not_taken_for_it(spec: RunSpec) -> None:
    model = build(spec)

    def fail(module: nn.Module, args: Any, values: Any) -> None:
        raise RuntimeError("a bug")

    inside: Any = model.base_model
    inside.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        SingleDevice(model, spec, Counting(spec.model.context), CPU).step(0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "found"), [(8, 8), (3, 2)])
def test_a_dry_run_finds_what_has_room(spec: RunSpec, most: int, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, on the processor, with a model that has so much room."""

    def build_small(spec: RunSpec) -> nn.Module:
        model = build(spec)
        Small(model, most)
        return model

    monkeypatch.setattr("peer.parallel.autotune.trial.build", build_small)
    result = fit(spec, "cpu", compile="no")
    assert result.sequences == found
    assert result.tokens_per_s == pytest.approx(16 * spec.model.context / result.step_s)
    assert result.basis.run == spec.digest().hex()


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 1])
def test_a_dry_run_computes_blocks_again_where_that_finds_room(
    spec: RunSpec, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of which `most` sequences fit as they are, and eight if the inside of blocks is not kept."""

    def build_small(spec: RunSpec) -> nn.Module:
        model: Any = build(spec)
        small = Small(model, most)
        for name, room in (("enable", 8), ("disable", most)):
            change = getattr(model, f"activation_checkpointing_{name}")

            def changed(*given: Any, change: Any = change, room: int = room) -> None:
                small.most = room
                change(*given)

            monkeypatch.setattr(model, f"activation_checkpointing_{name}", changed)
        return model  # type: ignore[no-any-return]

    monkeypatch.setattr("peer.parallel.autotune.trial.build", build_small)
    step_s = Trials._step_s

    def always_as_long(trials: Trials, loop: SingleDevice) -> float | None:
        return None if step_s(trials, loop) is None else 1.0

    monkeypatch.setattr(Trials, "_step_s", always_as_long)
    result = fit(spec, "cpu", compile="no")
    assert (result.sequences, result.recomputes) == (8, True)
    loop = SingleDevice(build(spec), spec, Counting(spec.model.context), CPU, MicroBatch(8), result)
    assert any(getattr(each, "gradient_checkpointing", False) for each in loop._model.modules())


@pytest.mark.parametrize("needs", RUNGS)
def test_a_dry_run_goes_down_as_far_as_it_must(spec: RunSpec, needs: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower rung that has room for more is not taken for that, if it changes what is learned."""

    def attempt(trials: Trials, sequences: int, attention: str) -> Trial | None:
        most = (4 + 4 * trials.rung.eight_bits) * (RUNGS.index(trials.rung) >= RUNGS.index(needs))
        return Trial(sequences=sequences, attention="", seconds=1.0, peak_bytes=0) if sequences <= most else None

    monkeypatch.setattr(Trials, "attempt", attempt)
    result = fit(spec, "cpu", compile="no")
    assert result.rung == needs
    assert ("8 bits" in describe(result, spec)) == needs.eight_bits
    assert ("gradients in 16 for want" in describe(result, spec)) == needs.half_gradients


def test_why_a_card_trains_in_float32_is_said(spec: RunSpec) -> None:
    basis = TuneKey(run="ab", device="cuda:0", name="an old card", torch="2", homefires="0")
    fit = Tuned(basis=basis, sequences=8, step_s=1.0, tokens_per_s=1.0, precision="float32")
    assert "float32, for it computes bfloat16 no faster:" in describe(fit, spec)
    assert "no faster" not in describe(dataclasses.replace(fit, precision="bfloat16"), spec)
    chosen = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, precision="float32"))
    assert "no faster" not in describe(fit, chosen)


@pytest.mark.slow
def test_a_dry_run_without_room_says_so(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_small(spec: RunSpec) -> nn.Module:
        model = build(spec)
        Small(model, 0)
        return model

    monkeypatch.setattr("peer.parallel.autotune.trial.build", build_small)
    with pytest.raises(MemoryFull, match="not even one sequence of micro"):
        fit(spec, "cpu", compile="no")


def test_memory_that_shrank_during_a_pause_is_seen_at_resume(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the driver tells it, with what this process itself holds in reserve; and back again."""
    basis = TuneKey(run="ab", device="auto", name="a GPU", torch="2", homefires="0")
    known = Tuned(basis=basis, sequences=8, step_s=1.0, tokens_per_s=1.0, fixed_bytes=1000, sequence_bytes=1000)
    trainer = LocalTrainer(spec, "me", tmp_path / "x", CPU, known)
    residence = trainer._backend.residence
    monkeypatch.setattr(residence, "come_back", lambda: setattr(residence, "is_aside", False))
    residence.is_aside = True
    assert trainer.take_device()  # a processor does not tell
    assert trainer._backend.micro.sequences == 8
    trainer._backend._device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2000)
    for free_bytes, sequences in ((4000, 4), (0, 1), (50_000, 8)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free_bytes=free_bytes: (free_bytes, 10**6))
        assert trainer.take_device()  # it was not away
        residence.is_aside = True
        assert trainer.take_device()
        assert trainer._backend.micro.sequences == sequences


@pytest.mark.cuda
def test_cuda_memory_that_runs_out_is_survived(spec: RunSpec) -> None:
    """On a real device, of which this process may have a fiftieth."""
    device = torch.device("cuda:0")
    torch.cuda.set_per_process_memory_fraction(0.02)
    large = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, sequences=1 << 14, accumulation=1))
    micro = MicroBatch(large.inner.sequences)

    class Plenty:
        def next(self, sequences: int) -> Tensor:
            return torch.zeros((sequences, spec.model.context + 1), dtype=torch.int64)

    model = build(large).to(device)
    step = loop_with(sgd(model), model, large, Plenty(), device, micro).step(0, 0)
    assert step.tokens == large.inner.sequences * spec.model.context
    assert micro.sequences < large.inner.sequences


@pytest.mark.parametrize(("sequences", "micro_batches"), [(8, 2), (16, 1)])
def test_a_dry_run_measures_the_gradient_beside_activations_where_steps_accumulate(
    spec: RunSpec, sequences: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes a parameter, which the first micro-batch of a step does not need yet."""
    read: list[int] = []

    class Counted(Noise):
        def next(self, sequences: int) -> Tensor:
            read.append(sequences)
            return super().next(sequences)

    monkeypatch.setattr("peer.parallel.autotune.trial.Noise", Counted)
    monkeypatch.setattr("peer.parallel.autotune.trial.LONG_S", 0.0)
    assert Trials(spec, CPU).attempt(sequences, "") is not None
    assert read == [sequences] * micro_batches


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_so_does_a_dry_run_of_several_ranks(micro_batches: int) -> None:
    made: list[int] = []

    class Ranks:
        def step(self, round: int, position: float, stop: Callable[[], bool]) -> None:
            made.append(1)
            while not stop():
                made.append(1)

    rank_trials._micro_batch_s(Ranks(), micro_batches)  # type: ignore[arg-type]
    assert len(made) == micro_batches
