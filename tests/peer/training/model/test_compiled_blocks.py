"""Compiled blocks: one graph, loss and gradients of plain ones, hooks outside of them, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peer.parallel.autotune.search import Trial
from peer.parallel.autotune.trial import Trials, fit
from peer.schema import spec as specs
from peer.schema.architectures import ARCHITECTURES
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import is_flagged
from peer.training.model import compiled_blocks, net
from peer.training.model.build import build
from peer.training.model.compiled_blocks import (
    blocks_of,
    can_compile,
    compile_blocks,
    is_compiled,
    plain_blocks,
    uncompile_blocks,
)
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.net import Batch, Net, attend_without_looking, recompute_blocks
from peer.training.train.autotune_result import Tuned
from peer.training.train.backend import SingleDevice
from peer.training.train.inner_loop import MicroBatch
from peer.training.train.layer_hooks import LayerGates
from tests.peer.training.model.test_build import make_spec
from tests.peer.training.model.test_net import compute_in_chunks, gradients, packed, windows

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
EXPERTS = {"gpt_oss", "mixtral", "olmoe", "qwen3_moe"}


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Graphs are traced, with their gradients, and run as they are: no compiler is needed. Counts them."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(graphs))
        # The gradient of softplus has other strides than torch thinks, unless it is decomposed, as a compiler does it.
        is_odd = any(node.target is torch.nn.functional.softplus for node in graph.graph.nodes)
        name = "aot_eager_decomp_partition" if is_odd else "aot_eager"
        return torch._dynamo.lookup_backend(name)(graph, inputs)

    torch._dynamo.reset()
    net._compiled_slope.cache_clear()
    monkeypatch.setattr(compiled_blocks, "BACKEND", backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about what it looks at
        yield graphs
    torch._dynamo.reset()


def loss_and_gradients(model: nn.Module, read_BT: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    loss, _ = Net(model)(Batch.of(read_BT))
    torch.autograd.backward(loss)
    return loss.detach(), gradients(model)


BY_DAY = ("llama", "gpt2")


@pytest.mark.parametrize(
    "architecture",
    [
        *BY_DAY,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in sorted(ARCHITECTURES.keys() - EXPERTS - {*BY_DAY})),
    ],
)
def test_compiled_blocks_compute_what_plain_ones_do(architecture: str, traced: list[int]) -> None:
    """All of one kind in one graph, whole windows and packed ones."""
    model = build(make_spec(architecture)).eval()
    attend_without_looking(model, 16)
    assert len(blocks_of(model)) > 1
    for read_BT in (windows(), packed()):
        if architecture == "opt" and is_flagged(read_BT):
            continue  # it learns no conversations
        expected, by_plain = loss_and_gradients(model, read_BT)
        compile_blocks(model)
        assert is_compiled(model)
        found, by_compiled = loss_and_gradients(model, read_BT)
        uncompile_blocks(model)
        torch.testing.assert_close(found, expected, rtol=2e-7, atol=0)
        for name, gradient in by_plain.items():
            torch.testing.assert_close(by_compiled[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    kinds = len(set(getattr(model.config, "layer_types", None) or [""]))  # type: ignore[arg-type, union-attr]
    most = 2 * 2 * (kinds + 1)
    assert len(traced) <= most, "one for each kind of block, and the last norm; for each kind of windows, and its rows"


def test_compiled_blocks_may_be_computed_again(traced: list[int]) -> None:
    """For want of memory: nothing of their inside is kept, and loss and gradients are the same."""
    read_BT = windows()
    models = [build(make_spec("llama")) for _ in range(2)]
    for model in models:
        attend_without_looking(model, read_BT.shape[1] - 1)
        recompute_blocks(model)
    compile_blocks(models[1])
    (loss, expected), (compiled_loss, found) = (loss_and_gradients(model, read_BT) for model in models)
    assert traced
    torch.testing.assert_close(compiled_loss, loss, rtol=2e-7, atol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loss_in_chunks_is_compiled_with_the_blocks(
    bfloat16: bool, traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of one size in one graph, the last of another in one more; no graph for a loss without gradients."""
    compute_in_chunks(monkeypatch, 30)
    read_BT = windows()
    model = build(make_spec("llama"))
    attend_without_looking(model, read_BT.shape[1] - 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        expected, by_plain = loss_and_gradients(model, read_BT)
        compile_blocks(model)
        found, by_compiled = loss_and_gradients(model, read_BT)
    tokens = read_BT[:, 1:].numel()
    assert tokens > 30
    assert len(traced) == 2 + (1 if tokens % 30 == 0 else 2), "a block, the last norm, and the chunks"
    allowed = 1e-2 if bfloat16 else 1e-4
    torch.testing.assert_close(found, expected, rtol=2e-3 if bfloat16 else 2e-7, atol=0)
    for name, gradient in by_plain.items():
        torch.testing.assert_close(by_compiled[name], gradient, rtol=allowed, atol=allowed, msg=name)
    graphs = len(traced)
    with torch.no_grad(), plain_blocks(model):
        Net(model)(Batch.of(read_BT))
    assert len(traced) == graphs


def test_a_model_of_experts_is_not_compiled() -> None:
    """Hooks inside of its blocks collect what its routers say."""
    assert not any(can_compile(build(make_spec(name))) for name in EXPERTS)


def test_hooks_wait_for_each_block_and_for_nothing_inside_of_it() -> None:
    entered: list[Collection[int]] = []
    model = build(make_spec("llama"))
    attend_without_looking(model, 16)
    whole, batch = Net(model), Batch.of(windows())
    compile_blocks(model)
    flat = FlatParameters(model)
    gates = LayerGates(model, flat, CPU, entered.append, lambda: whole(batch), whole)
    entered.clear()
    whole(batch)
    read = [sorted(layers) for layers in entered if layers]
    assert not gates.early
    assert read == [[number] for number in range(len(flat.layers))] + [list(range(len(flat.layers)))]


class Feed:
    def __init__(self, context: int) -> None:
        self._drawn, self._context = torch.Generator().manual_seed(0), context

    def next(self, sequences: int) -> Tensor:
        return torch.randint(0, 257, (sequences, self._context + 1), generator=self._drawn)


def loop_of(spec: RunSpec, *, compiled: bool, micro: int) -> SingleDevice:
    basis: Any = None
    fit = Tuned(basis=basis, sequences=micro, step_s=1.0, tokens_per_s=1.0, compiled=compiled)
    return SingleDevice(build(spec), spec, Feed(spec.model.context), CPU, MicroBatch(micro), fit)


@pytest.fixture
def spec() -> RunSpec:
    """Of steps of five sequences."""
    micro = specs.load("micro")
    return dataclasses.replace(micro, inner=dataclasses.replace(micro.inner, sequences=5, accumulation=1))


def losses(loop: SingleDevice) -> Sequence[float | None]:
    return [loop.step(2, step).loss for step in range(4)]


def test_a_short_micro_batch_is_padded(spec: RunSpec, traced: list[int]) -> None:
    """Two, two and one: all in graphs of two rows; an evaluation of other shapes uses none."""
    plain, compiled = loop_of(spec, compiled=False, micro=2), loop_of(spec, compiled=True, micro=2)
    expected, found = losses(plain), losses(compiled)
    assert found == pytest.approx(expected, rel=1e-6)
    assert len(traced) == 2, "a block, and the last norm"
    tokens_BT = Feed(spec.model.context).next(3)
    assert compiled.loss(tokens_BT, lambda: False) == pytest.approx(plain.loss(tokens_BT, lambda: False), rel=1e-6)
    assert len(traced) == 2


def test_without_a_compiler_blocks_are_plain_and_no_sequence_is_lost(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C compiler")

    expected = losses(loop_of(spec, compiled=False, micro=2))
    monkeypatch.setattr(compiled_blocks, "BACKEND", fails)
    loop = loop_of(spec, compiled=True, micro=2)
    assert losses(loop) == expected
    assert not is_compiled(loop._model)
    assert "blocks are not compiled any more" in caplog.text


def test_a_dry_run_finds_compiled_blocks_only_if_they_are_equal(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(spec, CPU)
    plain = trials.attempt(2, "")
    assert plain is not None
    slow, fast = (dataclasses.replace(plain, seconds=plain.seconds * times) for times in (1000.0, 0.001))
    for other, is_faster in ((slow, True), (fast, False)):
        made = trials.compiled(other)
        assert made is not None
        assert made.is_faster is is_faster
        assert made.compiling_s > 0
    assert not is_compiled(trials._model)
    real = Trials._loss_and_norm

    def wrong(self: Trials, trial: Trial) -> tuple[float, float]:
        loss, norm = real(self, trial)
        return loss * (1 + 1e-3 * is_compiled(self._model)), norm

    monkeypatch.setattr(Trials, "_loss_and_norm", wrong)
    assert trials.compiled(slow) is None

    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C compiler")

    torch._dynamo.reset()
    monkeypatch.setattr(compiled_blocks, "BACKEND", fails)
    assert trials.compiled(slow) is None
    assert not is_compiled(trials._model)


@pytest.mark.parametrize(("compile", "rounds", "compiled"), [("auto", 8, False), ("auto", 0, True), ("yes", 8, True)])
def test_a_processor_takes_compiled_blocks_where_the_run_is_long_or_its_owner_says_so(
    compile: str, rounds: int, compiled: bool, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps save a millisecond each; compiling took longer than eight rounds of that."""
    monkeypatch.setattr(Trials, "attempt", lambda trials, sequences, attention: trial_of(trials, sequences))
    result = fit(replace_rounds(spec, rounds), "cpu", compile=compile)
    assert result.compiled is compiled


def trial_of(trials: Trials, sequences: int) -> Trial:
    """With seconds that are made up: compiled blocks are a little faster."""
    trials._model = build(trials._spec) if trials._model is None else trials._model
    seconds = 0.010 - 0.001 * is_compiled(trials._model)
    return Trial(sequences=sequences, attention="", seconds=seconds, peak_bytes=0)


def replace_rounds(spec: RunSpec, rounds: int) -> RunSpec:
    return dataclasses.replace(spec, run=dataclasses.replace(spec.run, rounds=rounds))


def test_plain_blocks_are_for_compiled_models_alone() -> None:
    """A peer that compiles nothing does not load the compiler."""
    model = build(make_spec("llama"))
    with plain_blocks(model) as nothing:
        assert nothing is None
