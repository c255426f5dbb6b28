"""What a trainer computes with: where the model lies, a round's arithmetic there, and updates beside inner steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from peer.codec.codec import Codec
from peer.model.build import build
from peer.outer.arithmetic import device_for
from peer.outer.kernels import Kernels, TorchKernels
from peer.spec import RunSpec
from peer.train.backend import Backend, MicroBatch, Sequences, SingleDevice, use_attention
from peer.train.layerwise import Layerwise
from peer.train.tuned import Tuned


class UpdateBeside(Protocol):
    """How an update is applied layer by layer beside the next inner step; see `peer.train.layerwise.Layerwise`."""

    @property
    def waited_s(self) -> float: ...

    def begin(self, apply_layer: Callable[[int], object], finish: Callable[[], bytes]) -> Future[bytes]: ...

    def reading(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Engine:
    """All of it, of one peer."""

    backend: Backend
    kernels: Callable[[], Kernels]
    """Those for where the parameters lie at present."""
    beside: UpdateBeside | None
    """None where the run has no overlap."""


MakeEngine = Callable[[Sequences], Engine]
"""Given where training sequences come from."""


def one_device(
    spec: RunSpec, device: torch.device, fit: Tuned | None = None,
    told_smaller: Callable[[int], None] = lambda sequences: None, folder: Path | None = None,
) -> MakeEngine:  # fmt: skip
    """In this process. `told_smaller` hears of a micro-batch that was halved; `folder` has room for what no memory
    has."""

    def make(batches: Sequences) -> Engine:
        model = build(spec).to(device)
        use_attention(model, fit)
        micro = MicroBatch(fit.sequences if fit else spec.inner.sequences, told_smaller)
        backend, codec = SingleDevice(model, spec, batches, device, micro, fit, folder), Codec(spec.codec.wire)
        beside = None if spec.round.overlap == "none" else Layerwise(backend, device)
        kernels = TorchKernels(codec, device_for(device, codec))
        return Engine(backend=backend, kernels=lambda: kernels, beside=beside)

    return make
