"""One rank's shard of the model: inner steps together with the other ranks, and a round's work on what it owns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from peer.consensus.codec.codec import Codec
from peer.node.host.device import choose_device
from peer.parallel.fsdp.gather_guard import GatherGuard
from peer.parallel.fsdp.gather_hooks import GatherGates
from peer.parallel.fsdp.rank_kernels import RankKernels
from peer.parallel.fsdp.rank_messages import (
    Backward,
    BeginVersion,
    Command,
    CopyLayer,
    FinishStep,
    FollowLayer,
    LayerWork,
    LoadLayer,
    MeasureLoss,
    PublishLayer,
    RankAnswer,
    RankSetup,
    StandAtAnchor,
    StandBack,
)
from peer.parallel.fsdp.rank_optimizer import RankOptimizer
from peer.parallel.fsdp.rank_shards import RankShards
from peer.parallel.fsdp.sharded_model import add_up_gradients, forget_gathered, forget_gradients, lie_in, shard
from peer.parallel.fsdp.shared_parameters import Arena
from peer.planning.plan.sharding_strategy import ShardingStrategy
from peer.schema.spec import parse
from peer.training.model.build import build_unset
from peer.training.model.net import Batch, attend_without_looking, call_for_loss
from peer.training.outer.bitwise_check import device_for
from peer.training.outer.copy_stream import upload
from peer.training.outer.kernels import TorchKernels
from peer.training.train.backend import uses_bfloat16

MEET_S = 300.0
"""A rank that has not met the others by then, or waits so long within a step, never will."""

WRITES = frozenset({"apply", "begin"})
"""The calls that change parameters."""


class RankModel:
    """Executes the commands for one rank."""

    def __init__(self, setup: RankSetup, arena: Arena) -> None:
        """Meets the other ranks. The parameters are θ, or unset until they are loaded."""
        torch.set_num_threads(setup.threads)
        self._spec, self._rank, self._ranks = parse(setup.spec), setup.rank, setup.ranks
        self._device = choose_device(setup.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo", init_method=f"file://{setup.rendezvous}",
            rank=setup.rank, world_size=setup.ranks, timeout=timedelta(seconds=MEET_S),
        )  # fmt: skip
        strategy = ShardingStrategy(kind=setup.sharding, ranks=setup.ranks, group=setup.group, offloads=setup.offloads)
        self._model = model = _on_device(build_unset(self._spec), self._device)
        attend_without_looking(model, self._spec.model.context)
        call_for_loss(model)
        shard(model, strategy, self._device, pins=not strategy.uses_arena or arena.pin_inner(self._device))
        if strategy.uses_arena:
            lie_in(model, arena.local)
        self._shards = RankShards(model, strategy, setup.rank, arena)
        self._optimizer = RankOptimizer(model, self._spec, self._shards, arena, in_arena=strategy.uses_arena)
        codec = Codec(self._spec.codec.wire)
        kernels = TorchKernels(codec, device_for(self._shards.device, codec))
        self._kernels = RankKernels(self._shards, kernels, codec, arena.payload)
        self._sparse = codec.is_sparse
        self._guard = GatherGuard(len(setup.sizes), partial(GatherGates, model, self._shards.flat))
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._unpublished: set[int] = set()
        """The layers that are not yet published, of the version that is made during inner steps."""
        self._aside: list[list[Tensor]] = []
        """The local parameters while θ is in their place."""
        if setup.begins:
            self._shards.be_at_anchor()
            self._optimizer.begin()
        self._finish()
        self._bfloat16 = uses_bfloat16(self._spec, self._device)

    # ---- inner steps: all ranks are told the same, in the same order ----

    def step(self, command: Command) -> RankAnswer:
        """Execute a command on the thread that makes inner steps."""
        match command:
            case Backward():
                return self._backward(command)
            case FinishStep():
                made = self._optimizer.step(command.learning_rate, command.scale)
                self._finish()
                return RankAnswer(value=float(made), waited_s=self._guard.waited_s, peak_bytes=self.peak_bytes())
            case StandAtAnchor():
                return self._stand_at_anchor()
            case MeasureLoss():
                return self._measure(command)
            case StandBack():
                return self._stand_back()
            case BeginVersion():
                self._unpublished = set(range(len(self._shards.held)))
                return RankAnswer(version=self._guard.begin())
            case LoadLayer():
                self._about_to_write()
                self._shards.take_layer(command.layer)
                self._optimizer.load_layer(command.layer, command.memory)
                self._finish()
                return RankAnswer()
        raise AssertionError(f"{type(command).__name__} is no command of steps")

    def _backward(self, command: Backward) -> RankAnswer:
        if command.seed is not None:
            torch.manual_seed(command.seed + self._rank)
            self.begin_peak()
            forget_gradients(self._model)
        add_up_gradients(self._model, command.is_last)
        batch = self._batch(command.tokens, command.rows)
        with self._guard.reading():
            with self._autocast():
                summed, balance = self._model(batch)
            loss = summed / batch.tokens_BT.numel()
            whole = loss if balance is None else loss + balance
            # FSDP takes the mean over the ranks; their shares of the step add up to it.
            torch.autograd.backward(whole * (command.scale * self._ranks))
        return RankAnswer(value=loss.item() * command.scale)

    def _finish(self) -> None:
        """Wait for the device: an answer means that the work is done, since what a round does next has its own
        stream."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def begin_peak(self) -> None:
        """From now on, count the peak memory of a step."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """The peak memory since `begin_peak`; 0 if the device does not count it."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bfloat16 else nullcontext()

    def _batch(self, octets: bytes, rows: int) -> Batch:
        tokens = np.frombuffer(octets, np.int32).reshape(rows, -1).astype(np.int64)
        return Batch.of(torch.from_numpy(tokens)).moved(lambda values: upload(values, self._device))

    @torch.no_grad()
    def _stand_at_anchor(self) -> RankAnswer:
        self._about_to_write()
        self._aside = [[run.local.clone() for run in runs] for runs in self._shards.held]
        self._shards.be_at_anchor()
        self._model.eval()
        self._finish()
        return RankAnswer()

    @torch.no_grad()
    def _measure(self, command: MeasureLoss) -> RankAnswer:
        with self._guard.reading():
            loss, _ = self._model(self._batch(command.tokens, command.rows))
        return RankAnswer(value=loss.item() if command.counts else 0.0)

    @torch.no_grad()
    def _stand_back(self) -> RankAnswer:
        self._about_to_write()
        for runs, values in zip(self._shards.held, self._aside, strict=True):
            for run, value in zip(runs, values, strict=True):
                run.local.copy_(value)
        self._aside = []
        self._model.train()
        self._finish()
        return RankAnswer()

    # ---- a round: no rank waits for another ----

    def round(self, command: Command) -> RankAnswer:
        """Execute a command on the thread of the round. While an inner step computes, that is only done for layers
        for which this step has to wait."""
        with self._aside_stream():
            return self._of_round(command)

    def _of_round(self, command: Command) -> RankAnswer:
        match command:
            case LayerWork():
                if command.call in WRITES:
                    self._about_to_write()
                before = self._kernels.octets
                value = self._kernels.do(command)
                return RankAnswer(value=value, octets=self._kernels.octets - before)
            case FollowLayer():
                self._shards.follow(command.layer, sparse=self._sparse)
                return RankAnswer()
            case PublishLayer():
                self._guard.publish(command.layer, command.version)
                self._unpublished.discard(command.layer)
                return RankAnswer()
            case CopyLayer():
                self._shards.keep_layer(command.layer, self._aside[command.layer] if self._aside else None)
                return RankAnswer(memory=self._optimizer.keep_layer(command.layer))
        raise AssertionError(f"{type(command).__name__} is no command of a round")

    def _about_to_write(self) -> None:
        """Drop all gathered copies of parameters before they change. For a version in progress, `begin` has done so."""
        if not self._unpublished:
            forget_gathered(self._model)

    @contextmanager
    def _aside_stream(self) -> Iterator[None]:
        """On a GPU, the work of a round runs at the same time as a step's kernels, and is finished when it is
        answered."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()


def _on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its buffers on the device; the parameters follow when they are sharded."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    return model
