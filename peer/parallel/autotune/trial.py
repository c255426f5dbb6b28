"""A dry run: a few steps on noise with one micro-batch size after the other, in the process of
`peer/parallel/autotune/__main__.py`.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from dht.errors import MemoryFull
from peer.node.host.device import choose_device, first_line, free_bytes, is_out_of_memory
from peer.parallel.autotune.compile_gain import repays
from peer.parallel.autotune.search import BETTER, SearchResult, Trial, find
from peer.schema.peak_memory import PLAIN, Rung
from peer.schema.spec import RunSpec
from peer.training.model.build import build
from peer.training.model.compiled_blocks import can_compile, compile_blocks, is_of_compiler, uncompile_blocks
from peer.training.model.flat_parameters import trained
from peer.training.model.net import Batch, Net, attend_without_looking, recompute_blocks
from peer.training.train.autotune_result import Tuned, TuneKey
from peer.training.train.backend import SingleDevice, uses_bfloat16

WARM_STEPS, TIMED_STEPS = 1, 2
LONG_S = 5.0
"""A step that takes this long is timed only once, the first time."""
ATTENTIONS = ("sdpa", "eager")
RUNGS = (
    PLAIN, Rung(recomputes=True), Rung(recomputes=True, eight_bits=True),
    Rung(recomputes=True, eight_bits=True, half_gradients=True),
)  # fmt: skip
"""The fastest one first."""
APART, APART_BFLOAT16 = 1e-5, 1e-2
"""The allowed relative difference between compiled and plain blocks, in loss and gradient norm."""


def fit(spec: RunSpec, wanted: str, most: int = 0, *, offload: bool = False, compile: str = "auto") -> Tuned:
    """Find the fastest configuration on the device that a value of `settings.devices` names. The owner says
    `offload`, used if nothing else fits, and `compile`. Raises BadInput, BadSpec, MemoryFull."""
    device = choose_device(wanted)
    whole = spec.inner.sequences * spec.inner.accumulation
    limit = min(whole, most or whole)
    # On a processor other programs want the memory too, and kernels are few: the spec's micro-batch, or less.
    is_gpu = device.type != "cpu"
    attentions = ATTENTIONS if is_gpu else ("",)
    free = free_bytes(device)
    trials = Trials(spec, device)
    usual, most = min(spec.inner.sequences, limit), limit if is_gpu else spec.inner.sequences
    found, rung = _found(trials, usual, most, attentions)
    if found is None:
        raise MemoryFull(f"not even one sequence of {spec.run.name} has room on {device}; close other programs")
    best, compiled = found.best, None
    if compile != "no" and (made := trials.compiled(best)) is not None:
        saved_s = (best.seconds - made.trial.seconds) * whole / best.sequences  # in a step
        if compile == "yes" or (made.is_faster and (is_gpu or repays(spec, saved_s, made.compiling_s))):
            compiled = best = made.trial
    step_s = best.seconds * whole / best.sequences
    return Tuned(
        basis=basis_of(spec, (wanted,), (device,), offload=offload, compile=compile), sequences=best.sequences,
        attention=best.attention, recomputes=rung.recomputes, eight_bits=rung.eight_bits,
        half_gradients=rung.half_gradients, compiled=compiled is not None,
        precision="bfloat16" if uses_bfloat16(spec, device) else "float32", step_s=step_s,
        tokens_per_s=whole * spec.model.context / step_s, fixed_bytes=found.fixed_bytes,
        sequence_bytes=found.sequence_bytes, free_bytes=free,
    )  # fmt: skip


def _found(
    trials: Trials, usual: int, most: int, attentions: Sequence[str]
) -> tuple[SearchResult | None, Rung]:  # fmt: skip
    """The fastest micro-batch, and its rung: a lower one is tried if the spec's own micro-batch, of `usual` sequences,
    does not fit, and one that changes what is learned if nothing fits without it."""
    found, chosen = None, PLAIN
    for rung in RUNGS:
        if found is not None and (rung.eight_bits or found.best.sequences >= usual):
            break
        trials.rung = rung
        leaner = find(trials.attempt, usual, most, attentions)
        if leaner and not (found and leaner.best.sequences_per_s <= BETTER * found.best.sequences_per_s):
            found, chosen = leaner, rung
    trials.rung = chosen
    return found, chosen


def basis_of(
    spec: RunSpec, wanted: Sequence[str], devices: Sequence[torch.device], *, sharding: str = "auto",
    offload: bool = False, compile: str = "auto",
) -> TuneKey:  # fmt: skip
    """The conditions under which a dry run on these devices is valid; `wanted` are the devices' names as the dry run
    gets them."""
    return TuneKey(
        run=spec.digest().hex(), device=" ".join(wanted), name=" and ".join(map(kind_of, devices)),
        torch=torch.__version__, homefires=version("homefires"), sharding=sharding if len(devices) > 1 else "auto",
        offload=offload, compile=compile,
    )  # fmt: skip


def kind_of(device: torch.device) -> str:
    """The name of the hardware."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@dataclass(frozen=True, kw_only=True)
class CompiledTrial:
    """A trial with compiled blocks, which compute what plain ones do."""

    trial: Trial
    compiling_s: float
    is_faster: bool


class Trials:
    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self._model: Any = None
        self.rung = PLAIN

    def attempt(self, sequences: int, attention: str) -> Trial | None:
        """Time some inner steps, of two micro-batches each if those of the run have several: from the second one on,
        the gradient needs memory in addition to the activations."""
        try:
            return self._timed(sequences, attention)
        except MemoryFull:
            return None
        except (RuntimeError, ValueError, ImportError) as error:
            if is_of_compiler(error):
                raise
            if is_out_of_memory(error) or attention not in ("", ATTENTIONS[0]):
                return None  # no room for the model itself or the optimizer, or no such kernel here
            raise
        finally:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def compiled(self, plain: Trial) -> CompiledTrial | None:
        """Try the same micro-batch with compiled blocks. None unless their loss and gradient agree with those of
        plain ones; None also without a compiler."""
        if not can_compile(self._model):
            return None
        if plain.attention:
            self._model.set_attn_implementation(plain.attention)
        attend_without_looking(self._model, self._spec.model.context)
        recompute_blocks(self._model, self.rung.recomputes)
        expected = self._loss_and_norm(plain)
        compile_blocks(self._model)
        try:
            started = time.perf_counter()
            found = self._loss_and_norm(plain)
            compiling_s = time.perf_counter() - started
            trial = self.attempt(plain.sequences, plain.attention)
        except RuntimeError as error:
            if not (is_of_compiler(error) or is_out_of_memory(error)):
                raise
            print(f"homefires: blocks are not compiled: {first_line(error)}", file=sys.stderr)
            return None
        finally:
            uncompile_blocks(self._model)
        allowed = APART_BFLOAT16 if uses_bfloat16(self._spec, self._device) else APART
        is_equal = all(math.isclose(one, other, rel_tol=allowed) for one, other in zip(expected, found, strict=True))
        if trial is None or not is_equal:
            return None
        is_faster = trial.sequences_per_s > BETTER * plain.sequences_per_s
        return CompiledTrial(trial=trial, compiling_s=compiling_s, is_faster=is_faster)

    def _loss_and_norm(self, trial: Trial) -> tuple[float, float]:
        """The loss of one micro-batch of noise, in nats, and the norm of its gradient."""
        batch = Batch.of(Noise(self._spec, int(self._model.config.vocab_size)).next(trial.sequences))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=uses_bfloat16(self._spec, self._device)):
            loss, _ = Net(self._model)(batch.moved(lambda values: values.to(self._device)))
        torch.autograd.backward(loss)
        parameters = trained(self._model)
        norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        for each in parameters:
            each.grad = None
        return loss.item(), norm.item()

    def _timed(self, sequences: int, attention: str) -> Trial | None:
        if self._model is None:
            self._model = build(self._spec).to(self._device)
        recompute_blocks(self._model, self.rung.recomputes)
        if attention:
            self._model.set_attn_implementation(attention)
        micro_batches = 2 if sequences < self._spec.inner.sequences * self._spec.inner.accumulation else 1
        inner = replace(self._spec.inner, sequences=sequences, accumulation=micro_batches)
        spec = replace(self._spec, inner=inner)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        noise = Noise(spec, int(self._model.config.vocab_size))
        loop = SingleDevice(self._model, spec, noise, self._device, rung=self.rung)
        seconds = self._step_s(loop)
        if seconds is None:
            return None
        if seconds < LONG_S:
            timed = [self._step_s(loop) for _ in range(TIMED_STEPS)]
            seconds = min(value for value in timed if value is not None)
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
        each_s = seconds / micro_batches
        return Trial(sequences=sequences, attention=attention, seconds=each_s, peak_bytes=peak)

    def _step_s(self, loop: SingleDevice) -> float | None:
        """Seconds of a step until the device has finished it; None if it had to continue with a smaller micro-batch,
        or if its loss is not finite."""
        before, started = loop.micro.sequences, time.perf_counter()
        step = loop.step(0, 0)
        newest = loop.newest_loss()
        seconds = time.perf_counter() - started
        loss = step.loss if newest is None else newest
        return seconds if loop.micro.sequences == before and loss is not None and math.isfinite(loss) else None


class Noise:
    """Random tokens: their values do not change what they cost."""

    def __init__(self, spec: RunSpec, vocabulary: int) -> None:
        self._context, self._vocabulary = spec.model.context, vocabulary
        self._generator = torch.Generator().manual_seed(spec.run.seed)

    def next(self, sequences: int) -> Tensor:
        """Tokens (sequences, context + 1), int64."""
        return torch.randint(0, self._vocabulary, (sequences, self._context + 1), generator=self._generator)
