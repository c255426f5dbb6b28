"""What is placed: a model cut into stages, and the figures by which a layout on some devices is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dht.errors import BadInput
from peer.planning.placement.pairwise_network import Matrix, Network

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StageWorkload:
    """What the devices of a pipeline send each other, and what a stage needs. Raises BadInput for impossible values."""

    stages: int
    """K, the number of stages of the model. Each pipeline has one device per stage."""
    stage_bytes: float
    """c_dp: bytes of the gradients of one stage, which its devices average with each other."""
    cut_bytes: float
    """c_pp: bytes of the activations of one pipeline's macro-batch between two stages; the same amount comes back as
    gradients."""
    sync_steps: int = 1
    """H: stages are averaged once in this number of steps (DiLoCo)."""
    stage_memory_bytes: float = 0.0
    """The memory that a device needs to hold a stage."""
    compute_s: float = 0.0
    """Seconds of computing in one step of a device of speed 1. 0 leaves computing out, as the paper does."""
    micro_batches: int = 1
    """B: the number of pieces in which a pipeline's batch goes through its stages. With one piece, all stages wait
    for each other."""

    def __post_init__(self) -> None:
        for name, least in (("stages", 1), ("sync_steps", 1), ("micro_batches", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("stage_bytes", "cut_bytes", "stage_memory_bytes", "compute_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadInput(f"{name} is {value}; it must be finite and not negative")


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """A `StageWorkload` on the devices that can hold a stage, in matrices. Devices are numbered from 0; `peers` maps
    them to the network.

    Attributes:
        stages, pipelines: K and M. Devices beyond K · M are spares.
        peers: shape (devices,): the index of each device in the network.
        exchange_s: shape (devices, devices): seconds per step in which two devices of one stage average,
            2 (α + c_dp / (M β)) / H.
        hop_s: shape (devices, devices): seconds per step between devices of neighbouring stages, 2 (α + c_pp / β).
        compute_s: shape (devices,): seconds of computing per step.
        micro_batches: B: pieces in which a batch goes through the stages.
        in_step: whether every step waits for the slowest pipeline (H = 1).
    """

    stages: int
    pipelines: int
    peers: Indices
    exchange_s: Matrix
    hop_s: Matrix
    compute_s: Vector
    micro_batches: int
    in_step: bool

    def __len__(self) -> int:
        return len(self.peers)

    @property
    def placed(self) -> int:
        """The number of devices that are not spares."""
        return self.stages * self.pipelines

    @property
    def alike(self) -> bool:
        return bool((self.compute_s == self.compute_s[0]).all())

    def computing_s(self, compute_XKM: Matrix) -> Matrix:
        """Shape (X, M): seconds of computing per step of each pipeline, from those of its devices; a column is a
        pipeline.

        The first piece fills the pipeline, then its slowest stage sets the pace: Σ e + (B − 1) · max e of a piece (AMP,
        arXiv:2210.07297), as in `peer/planning/plan/cluster_cost.py`.
        """
        filled_XM: Matrix = compute_XKM.sum(axis=1) + (self.micro_batches - 1) * compute_XKM.max(axis=1)
        return filled_XM / self.micro_batches


def problem_of(
    network: Network,
    work: StageWorkload,
    *,
    memory_bytes: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    pipelines: int | None = None,
) -> PlacementProblem:
    """The placement problem for this work on this network. It has as many pipelines as the devices suffice for, or
    `pipelines`; links are symmetrised.

    `memory_bytes` and `speeds` hold one value per peer of the network. A speed is relative to a device of speed 1.
    Raises BadInput if a stage fits on too few devices.
    """
    fits = _fitting(network, work, memory_bytes)
    most = len(fits) // work.stages
    if most == 0:
        needs = f" with {work.stage_memory_bytes:.0f} bytes of memory" if len(fits) < len(network) else ""
        raise BadInput(f"{work.stages} stages need at least as many devices{needs}; there are {len(fits)}")
    if pipelines is not None and not 1 <= pipelines <= most:
        raise BadInput(f"{pipelines} pipelines of {work.stages} stages; {len(fits)} devices suffice for 1 to {most}")
    pipelines = pipelines or most
    links = network.symmetrised().only(fits.tolist())
    return PlacementProblem(
        stages=work.stages, pipelines=pipelines, peers=fits,
        exchange_s=2 * links.transfer_s(work.stage_bytes / pipelines) / work.sync_steps,
        hop_s=2 * links.transfer_s(work.cut_bytes),
        compute_s=work.compute_s / _checked("speed", speeds, len(network))[fits],
        micro_batches=work.micro_batches, in_step=work.sync_steps == 1,
    )  # fmt: skip


def _fitting(network: Network, work: StageWorkload, memory_bytes: Sequence[float] | None) -> Indices:
    if memory_bytes is None:
        return np.arange(len(network))
    memory = _checked("memory", memory_bytes, len(network), zero=True)
    return np.flatnonzero(memory >= work.stage_memory_bytes)


_RANGE = {False: "positive", True: "0 or more"}


def _checked(what: str, values: Sequence[float] | None, count: int, *, zero: bool = False) -> Vector:
    if values is None:
        return np.ones(count)
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (count,):
        raise BadInput(f"{what} has shape {array.shape}; {count} peers need one value each")
    good = array >= 0 if zero else array > 0
    if not good.all():
        wrong = int(np.flatnonzero(~good)[0])
        raise BadInput(f"the {what} of peer {wrong} is {array[wrong]}; it must be {_RANGE[zero]}")
    return array
