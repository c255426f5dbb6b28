"""The inner loop: read, forward, backward, clip, step. A step is made completely, or not at all.

On a GPU the host waits once in a step, for the end of the step before, so that the device always has work: a loss is
known one step late. Between micro-batches it waits until the device has at most `BEHIND` of them in hand before it
asks whether to stop, so that a pause comes at most that much later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dht.errors import MemoryFull, Unreachable
from peer.node.host.device import first_line, is_out_of_memory, wait_for
from peer.schema.spec import RunSpec
from peer.training.data.chat.token_flags import predicted_tokens, step_scale
from peer.training.model.compiled_blocks import is_compiled, is_of_compiler, uncompile_blocks
from peer.training.model.net import Batch, Net
from peer.training.outer.copy_stream import upload

# B = sequences in a micro-batch, T = context + 1 tokens

log = logging.getLogger(__name__)

BEHIND = 1
"""Micro-batches that a GPU has in hand while the host asks whether to stop."""
UNREAD = "unread"


@dataclass(frozen=True, kw_only=True)
class InnerStep:
    loss: float | None
    """Nats per token that the step predicted; on a GPU of the step before, and None for the first one."""
    tokens: int
    """Tokens read."""
    learning_rate: float
    predicted: int | None = None
    """Those of them that were predicted; None at a home of a cluster whose lead counts them."""


class Sequences(Protocol):
    """Where training sequences come from; `peer.training.data.sampler.ShardSampler` in a run."""

    def next(self, sequences: int) -> Tensor:
        """Tokens (sequences, context + 1), int64."""
        ...


class MicroBatch:
    """How many sequences are on the device at a time: the volunteer's own choice, whatever the spec's micro-batch
    is. The gradient of a step is the same mean over the same sequences; its last bits may differ."""

    def __init__(self, sequences: int, told: Callable[[int], None] = lambda sequences: None) -> None:
        assert sequences >= 1
        self.sequences = sequences
        self._told = told

    def halve(self) -> None:
        assert self.sequences > 1
        self.sequences = (self.sequences + 1) // 2
        self._told(self.sequences)


class StepReader:
    """Reads sequences for inner steps. Sequences of a step that could not be made are read again next."""

    def __init__(self, source: Sequences) -> None:
        self._source = source
        self._unread: list[Tensor] = []
        """The next one first."""

    def next(self, sequences: int) -> Tensor:
        """At most so many, of (sequences, context + 1)."""
        if not self._unread:
            return self._source.next(sequences)
        head, *rest = self._unread
        self._unread = [head[sequences:], *rest] if len(head) > sequences else rest
        return head[:sequences]

    def put_back(self, taken: Sequence[Tensor]) -> None:
        self._unread = [*taken, *self._unread]

    def state(self) -> dict[str, Tensor]:
        """Sequences that nobody else reads."""
        return {UNREAD: torch.cat(self._unread)} if self._unread else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._unread = [tensors[UNREAD].clone()] if UNREAD in tensors else []


class Gradients(Protocol):
    """How the gradients of a step are computed."""

    def __call__(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        """Leave those of all micro-batches, clipped, in the parameters; returns the step's loss.

        `taken` gets the sequences that were read. Fewer micro-batches than a step has once `stop` says so.
        """
        ...


class InnerLoop:
    """Makes steps, each completely or not at all, with as large a micro-batch as memory holds."""

    def __init__(
        self, reader: StepReader, micro: MicroBatch, parameters: Sequence[Tensor], device: torch.device,
        gradients: Gradients, update: Callable[[float], bool],
    ) -> None:  # fmt: skip
        """`update` makes the optimizers' step at a learning rate; it returns False, with nothing changed, without
        memory for it."""
        self._reader, self._micro, self._parameters, self._device = reader, micro, parameters, device
        self._gradients, self._update, self._losses = gradients, update, LateLosses()

    def step(self, rate: float, stop: Callable[[], bool]) -> tuple[float | None, int, int]:
        """The loss, as `InnerStep` has it, how many sequences the step read, and how many of their tokens it predicted.

        Fewer than a whole step's if `stop` says so after one of the micro-batches. Where a micro-batch or the optimizer
        finds no memory, the micro-batch is halved and the step begins anew with the same sequences. Raises MemoryFull
        if not even one sequence fits, and Unreachable without data: then the step may be tried again.
        """
        while (made := self._attempt(rate, stop)) is None:
            self._make_smaller()
        loss, taken = made
        return self._losses.swap(loss), sum(map(len, taken)), sum(map(predicted_tokens, taken))

    def newest_loss(self) -> float | None:
        """The loss of the newest step, once it has ended, if no step has returned it."""
        return self._losses.flush()

    def _attempt(self, rate: float, stop: Callable[[], bool]) -> tuple[Tensor, list[Tensor]] | None:
        """A step: its loss, and the sequences that it read; None if memory ran out.

        Then parameters and optimizer are as they were, and its sequences are read again next.
        """
        taken: list[Tensor] = []
        loss: Tensor | None = None
        try:
            loss = self._gradients(taken, stop)
        except Unreachable:
            self._undo(taken)
            raise
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Outside of `except`: what the error's traceback holds is gone, and its memory with it.
        if loss is not None and self._update(rate):
            return loss, taken
        self._undo(taken)
        return None

    def _undo(self, taken: Sequence[Tensor]) -> None:
        """As if the step had not begun."""
        for parameter in self._parameters:
            parameter.grad = None
        self._reader.put_back(taken)

    def _make_smaller(self) -> None:
        """Halve the micro-batch. Raises MemoryFull if it cannot be halved."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._micro.sequences == 1:
            raise MemoryFull(f"the memory of {self._device} has no room for even one sequence")
        self._micro.halve()


class WholeModel:
    """The gradients of a whole model, which lies on one device; its blocks may be compiled."""

    def __init__(
        self, net: Net, spec: RunSpec, reader: StepReader, micro: MicroBatch, parameters: Sequence[Tensor],
        device: torch.device, *, bfloat16: bool, recomputes: bool,
    ) -> None:  # fmt: skip
        """`recomputes` says that blocks are computed again in the backward pass, each with its own copies in 16 bit:
        those of all blocks need not last until the end of the forward pass, as autocast keeps them otherwise."""
        self._net, self._reader, self._micro, self._parameters = net, reader, micro, parameters
        self._device, self._clip = device, spec.inner.clip
        self._whole = spec.inner.sequences * spec.inner.accumulation
        self._is_compiled = is_compiled(net.model)
        autocast = partial(torch.autocast, device.type, torch.bfloat16, cache_enabled=not recomputes)
        self._autocast: Callable[[], AbstractContextManager[object]] = autocast if bfloat16 else nullcontext

    def gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        """Of all micro-batches of a step, clipped: see `Gradients`. Where the compiler fails blocks are plain again."""
        try:
            return self._gradients(taken, stop)
        except RuntimeError as error:
            if not is_of_compiler(error):
                raise
            log.warning("blocks are not compiled any more, training is slower: %s", first_line(error))
        uncompile_blocks(self._net.model)
        self._is_compiled = False
        for parameter in self._parameters:
            parameter.grad = None
        self._reader.put_back(taken)
        taken.clear()
        return self._gradients(taken, stop)

    def _gradients(self, taken: list[Tensor], stop: Callable[[], bool]) -> Tensor:
        loss, done, ends = torch.zeros((), device=self._device), 0, deque[Any]()
        while done < self._whole and not (done and self._asked_to_stop(ends, stop)):
            taken.append(self._reader.next(min(self._micro.sequences, self._whole - done)))
            loss += self._backward(taken[-1])
            done += len(taken[-1])
            if self._device.type == "cuda":
                ends.append(torch.cuda.current_stream(self._device).record_event())
        scale = step_scale(taken, self._whole)
        if scale != 1:
            loss *= scale
            torch._foreach_mul_([each.grad for each in self._parameters if each.grad is not None], scale)
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        return loss

    def _backward(self, read_BT: Tensor) -> Tensor:
        """Adds to the gradients; returns what a micro-batch adds to the step's loss."""
        batch = Batch.of(read_BT)
        if self._is_compiled:
            batch = batch.padded(self._micro.sequences)  # a graph holds for one number of rows
        with self._autocast():
            summed, balance = self._net(batch.moved(lambda values: upload(values, self._device)))
        loss, share = summed / read_BT[:, 1:].numel(), self._whole / len(read_BT)
        torch.autograd.backward((loss if balance is None else loss + balance) / share)
        added: Tensor = loss.detach() / share
        return added

    def _asked_to_stop(self, ends: deque[Any], stop: Callable[[], bool]) -> bool:
        """Ask `stop` once the device has few micro-batches in hand, not when they have all been queued.

        Otherwise a pause would begin, and a rest would be measured, while a GPU has seconds of work left.
        """
        while len(ends) > BEHIND:
            ends.popleft().synchronize()
        if self._device.type == "mps":
            wait_for(self._device)
        return stop()


class LateLosses:
    """The losses of steps: one on a GPU is read when the next step has been queued, any other at once."""

    def __init__(self) -> None:
        self._under_way: tuple[Tensor, Any] | None = None

    def swap(self, loss: Tensor) -> float | None:
        """The loss before, after a wait for the end of its step; None before the first."""
        if not loss.is_cuda:
            return loss.item()
        pinned = torch.empty((), pin_memory=True).copy_(loss, non_blocking=True)
        before, self._under_way = self._under_way, (pinned, torch.cuda.current_stream(loss.device).record_event())
        return _number(before)

    def flush(self) -> float | None:
        """The newest one, which is then forgotten; None if there is none that was not read."""
        before, self._under_way = self._under_way, None
        return _number(before)


def _number(under_way: tuple[Tensor, Any] | None) -> float | None:
    if under_way is None:
        return None
    number, end = under_way
    end.synchronize()
    return number.item()
