"""One rank's piece of the model: inner steps together with the other ranks, and a round's work on what it owns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from peer.codec.codec import Codec
from peer.host.device import choose_device
from peer.model.build import build_unset, next_token_logits
from peer.outer.arithmetic import device_for
from peer.outer.kernels import TorchKernels
from peer.plan.sharding_strategy import ShardingStrategy
from peer.ranks.arena import Arena
from peer.ranks.gather_gates import GatherGates
from peer.ranks.gather_guard import GatherGuard
from peer.ranks.rank_kernels import RankKernels
from peer.ranks.rank_messages import (
    Answered,
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
    RankSetup,
    StandAtAnchor,
    StandBack,
)
from peer.ranks.rank_optimizer import RankOptimizer
from peer.ranks.rank_shards import RankShards
from peer.ranks.sharded_model import forget_gathered, shard
from peer.spec import parse
from peer.train.backend import uses_bfloat16

MEET_S = 300.0
"""Ranks that have not met by then, or wait so long within a step, never will."""

WRITES = frozenset({"apply", "begin"})
"""Calls that change parameters."""


class RankModel:
    """What one rank is told to do."""

    def __init__(self, setup: RankSetup, arena: Arena) -> None:
        """Meets the other ranks. The parameters are θ of the arena."""
        torch.set_num_threads(setup.threads)
        self._spec, self._rank, self._ranks = parse(setup.spec), setup.rank, setup.ranks
        self._device = choose_device(setup.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo", init_method=f"file://{setup.rendezvous}",
            rank=setup.rank, world_size=setup.ranks, timeout=timedelta(seconds=MEET_S),
        )  # fmt: skip
        strategy = ShardingStrategy(kind=setup.sharding, ranks=setup.ranks, group=setup.group, offloads=setup.offloads)
        self._model = model = _on_device(build_unset(self._spec), self._device, setup.attention)
        shard(model, strategy, self._device)
        self._shards = RankShards(model, strategy, setup.rank, arena)
        self._optimizer = RankOptimizer(model, self._spec, self._shards, arena)
        codec = Codec(self._spec.codec.wire)
        kernels = TorchKernels(codec, device_for(self._shards.device, codec))
        self._kernels = RankKernels(self._shards, kernels, codec, arena.payload)
        self._sparse = codec.is_sparse
        self._guard = GatherGuard(len(setup.sizes), partial(GatherGates, model, self._shards.flat))
        self._unpublished: set[int] = set()
        """Layers of the version that is being made beside inner steps."""
        self._aside: list[list[Tensor]] = []
        """The local parameters while θ is in their place."""
        self._beside = _Beside(self._device) if self._device.type == "cuda" else None
        self._shards.be_at_anchor()
        self._follow()
        self._bfloat16 = uses_bfloat16(self._spec, self._device)

    # ---- inner steps: all ranks are told the same, in the same order ----

    def step(self, command: Command) -> Answered:
        """By the thread that makes inner steps."""
        answer = self._step(command)
        self._follow()
        return answer

    def _follow(self) -> None:
        if self._beside is not None:
            self._beside.follow()

    def _step(self, command: Command) -> Answered:
        match command:
            case Backward():
                return self._backward(command)
            case FinishStep():
                made = self._optimizer.step(command.learning_rate, command.scale)
                return Answered(value=float(made), waited_s=self._guard.waited_s, peak_bytes=self.peak_bytes())
            case StandAtAnchor():
                return self._stand_at_anchor()
            case MeasureLoss():
                return self._measure(command)
            case StandBack():
                return self._stand_back()
            case BeginVersion():
                self._unpublished = set(range(len(self._shards.held)))
                return Answered(version=self._guard.begin())
            case LoadLayer():
                self._about_to_write()
                self._shards.take_layer(command.layer)
                self._optimizer.load_layer(command.layer, command.memory)
                return Answered()
        raise AssertionError(f"{type(command).__name__} is no command of steps")

    def _backward(self, command: Backward) -> Answered:
        if command.seed is not None:
            torch.manual_seed(command.seed + self._rank)
            self.begin_peak()
        tokens_BT = self._tokens(command.tokens, command.rows)
        with self._guard.reading():
            with self._autocast():
                logits_BTV = next_token_logits(self._model, tokens_BT)
            loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
            # FSDP takes the mean over the ranks; their shares of the step add up to it.
            torch.autograd.backward(loss * (command.scale * self._ranks))
        return Answered(value=loss.item() * command.scale)

    def begin_peak(self) -> None:
        """Count what a step takes from here on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """The most since then; 0 where the device does not count."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bfloat16 else nullcontext()

    def _tokens(self, octets: bytes, rows: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(octets, np.int32).reshape(rows, -1).astype(np.int64)).to(self._device)

    @torch.no_grad()
    def _stand_at_anchor(self) -> Answered:
        self._about_to_write()
        self._aside = [[run.local.clone() for run in runs] for runs in self._shards.held]
        self._shards.be_at_anchor()
        self._model.eval()
        return Answered()

    @torch.no_grad()
    def _measure(self, command: MeasureLoss) -> Answered:
        tokens_BT = self._tokens(command.tokens, command.rows)
        with self._guard.reading():
            logits_BTV = next_token_logits(self._model, tokens_BT).float()
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
        return Answered(value=loss.item() if command.counts else 0.0)

    @torch.no_grad()
    def _stand_back(self) -> Answered:
        self._about_to_write()
        for runs, values in zip(self._shards.held, self._aside, strict=True):
            for run, value in zip(runs, values, strict=True):
                run.local.copy_(value)
        self._aside = []
        self._model.train()
        return Answered()

    # ---- a round: no rank waits for another ----

    def round(self, command: Command) -> Answered:
        """By a thread of its own; while an inner step computes only for layers that this step has to wait for."""
        with self._beside or nullcontext():
            return self._round(command)

    def _round(self, command: Command) -> Answered:
        match command:
            case LayerWork():
                if command.call in WRITES:
                    self._about_to_write()
                before = self._kernels.octets
                value = self._kernels.do(command)
                return Answered(value=value, octets=self._kernels.octets - before)
            case FollowLayer():
                self._shards.follow(command.layer, sparse=self._sparse)
                return Answered()
            case PublishLayer():
                self._publish(command)
                return Answered()
            case CopyLayer():
                self._shards.keep_layer(command.layer, self._aside[command.layer] if self._aside else None)
                return Answered(memory=self._optimizer.keep_layer(command.layer))
        raise AssertionError(f"{type(command).__name__} is no command of a round")

    def _about_to_write(self) -> None:
        """No copy of a parameter stays that was gathered before it changes. A version that is being made began so."""
        if not self._unpublished:
            forget_gathered(self._model)

    def _publish(self, command: PublishLayer) -> None:
        """What was written is on the device: every command of a round ends with that."""
        self._guard.publish(command.layer, command.version)
        self._unpublished.discard(command.layer)


class _Beside:
    """The stream on which a GPU does a round's work, as a context in which it is the one.

    A step that waits in a collective operation for a rank that has left it holds up its own stream for ever, and
    parameters are to be copied nevertheless. FSDP's streams know nothing of this one: it is empty when the context
    ends.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream, self._stepped = torch.cuda.Stream(device), torch.cuda.Event()
        self._context: AbstractContextManager[object] = nullcontext()

    def follow(self) -> None:
        """What is done next here comes after what the calling thread's stream has been told so far."""
        self._stepped.record()

    def __enter__(self) -> None:
        self._stream.wait_event(self._stepped)
        self._context = torch.cuda.stream(self._stream)
        self._context.__enter__()

    def __exit__(self, *about: object) -> None:
        self._context.__exit__(None, None, None)
        self._stream.synchronize()


def _on_device(model: nn.Module, device: torch.device, attention: str) -> nn.Module:
    """Buffers are there; parameters come when they are divided."""
    if attention:
        choose: Callable[[str], None] = model.set_attn_implementation  # type: ignore[assignment]
        choose(attention)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    return model
