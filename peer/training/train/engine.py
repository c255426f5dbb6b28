"""What a trainer computes with: the model's residence, a round's arithmetic there, and updates beside inner steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.layout import Part
from peer.node.store.contributions import WorkStats
from peer.schema.spec import RunSpec
from peer.training.model.build import build
from peer.training.model.flat_parameters import Layer
from peer.training.outer.bitwise_check import device_for
from peer.training.outer.kernels import Kernels, TorchKernels
from peer.training.outer.outer_state import OuterState
from peer.training.train.autotune_result import Tuned
from peer.training.train.backend import Backend, SingleDevice, use_attention
from peer.training.train.inner_loop import MicroBatch, Sequences
from peer.training.train.layerwise import Layerwise


class UpdateBeside(Protocol):
    """How an update is applied layer by layer beside the next inner step; see
    `peer.training.train.layerwise.Layerwise`."""

    @property
    def waited_s(self) -> float: ...

    def begin(self, apply_layer: Callable[[int], object], finish: Callable[[], bytes]) -> Future[bytes]: ...

    def reading(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


class Homes(Protocol):
    """The other homes of this peer's cluster, as its trainer needs them. Waits end with HomeGone."""

    @property
    def member(self) -> str:
        """The peer id under which this home's work counts: the lead's."""

    @property
    def delegates(self) -> tuple[tuple[int, int, str], ...]:
        """The homes that send layers' parts, beside the lead: (first layer, last layer, peer id)."""

    def submit(self, anchor: bytes, effort: WorkStats) -> WorkStats:
        """The statistics of the contribution to `anchor`, as the lead states them; a lead makes the others submit,
        too."""

    def gather_leaves(self, anchor: bytes, parts: Sequence[Part], leaves: Sequence[bytes]) -> Sequence[bytes]:
        """Send the leaves of those of the round's `parts` that are on this disk; a lead gets all."""

    def state_digest(self, anchor: bytes, round: int, layers: Sequence[bytes], cursors: Mapping[int, int]) -> bytes:
        """The digest of the whole state, of which this home has layers with these digests; empty for a worker, and
        if another home has gone on."""

    def share_chunks(self, anchor: bytes, chunks: Sequence[bytes], complete: Callable[[Sequence[bytes]], None]) -> None:
        """This home wrote its layers of a snapshot, whose chunks have these digests. Returns at once; `complete` is
        called with those of all layers once all homes have written theirs, by any thread. Only for the newest
        `anchor`."""


@dataclass(frozen=True, kw_only=True)
class HeldSpan:
    """Neighbouring layers of a model whose other layers are with other homes."""

    layers: tuple[Layer, ...]
    """Of the whole model."""
    held: range
    """The numbers of the layers here: the backend counts from the first of them."""
    first_state: bytes
    """Digest of the run's first parameters, all of them."""
    initial: Callable[[], OuterState]
    """The first parameters of the layers that are here, made anew."""
    homes: Homes


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Everything with which one peer computes."""

    backend: Backend
    kernels: Callable[[], Kernels]
    """The kernels for where the parameters lie at present."""
    beside: UpdateBeside | None
    """None where the run has no overlap."""
    span: HeldSpan | None = None
    """None if the whole model is here."""


MakeEngine = Callable[[Sequences], Engine]
"""Given where training sequences come from."""


def one_device(
    spec: RunSpec, device: torch.device, fit: Tuned | None,
    on_halved: Callable[[int], None], folder: Path | None,
) -> MakeEngine:  # fmt: skip
    """All in this process. `on_halved` is called when a micro-batch was halved; `folder` has room for what no memory
    has."""

    def make(batches: Sequences) -> Engine:
        model = build(spec).to(device)
        use_attention(model, fit)
        micro = MicroBatch(fit.sequences if fit else spec.inner.sequences, on_halved)
        backend, codec = SingleDevice(model, spec, batches, device, micro, fit, folder), Codec(spec.codec.wire)
        beside = None if spec.round.overlap == "none" else Layerwise(backend, device)
        kernels = TorchKernels(codec, device_for(device, codec))
        return Engine(backend=backend, kernels=lambda: kernels, beside=beside)

    return make
