"""Accounts for everything that a peer has produced: at the end none of it may be missing.

On every anchor, part by part: produced = counted on the chain that leads there + residual + discounted. The blocks of
the chain and the contributions on disk say what was counted, so the check need not believe the peer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import Block, PartOutcome, part_outcomes
from peer.consensus.protocol.layout import Part, cut
from peer.node.store.contributions import Contribution
from peer.node.store.run_directory import genesis_head, read_chain_files, read_genesis
from peer.schema.spec import RunSpec
from peer.training.checkpoint.capture import Capture
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.kernels import Kernels, PartUpdate
from peer.training.outer.layer_tensors import LayerTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from peer.training.checkpoint.checkpoint import Checkpoint
    from peer.training.train.trainer import LocalTrainer

FILE = "books.safetensors"
"""The newest."""
FOLDER = "books.kept"
"""Those of each checkpoint, for a peer that goes on from one."""


class BookedKernels:
    """Implements `peer.training.outer.kernels.Kernels` by others beside which double precision says what went into the
    residual, and what was given up for its age."""

    def __init__(self, kernels: Kernels, codec: Codec, size: int, look: Callable[[], object]) -> None:
        """`look` has the parameters be where the trainer's own process sees them."""
        self._kernels, self._codec, self._look = kernels, codec, look
        self.produced, self.discounted = (torch.zeros(size, dtype=torch.float64) for _ in range(2))
        self.encode, self.begin, self.keep_start = kernels.encode, kernels.begin, kernels.keep_start
        self.counted = kernels.counted

    def progress(self, t: LayerTensors) -> None:
        self._produce(t, slice(0, t.elements))
        self._kernels.progress(t)

    def apply(self, t: LayerTensors, updates: Sequence[PartUpdate]) -> float:
        for update in updates:
            here, part = t.of(update.part), update.part
            self._produce(t, here)
            owed = t.residual[here].double()
            if update.mine is not None:
                owed -= torch.from_numpy(self._codec.decode(update.mine)[: part.size]).double()
            lost = 1.0 if update.gives_up else 0.0 if update.kept is None else 1 - update.kept
            self.discounted[part.start : part.start + part.size] += owed * lost
        return self._kernels.apply(t, updates)

    def give_up(self, t: LayerTensors, part: Part) -> float:
        self.discounted[part.start : part.start + part.size] += t.residual[t.of(part)].double()
        return self._kernels.give_up(t, part)

    def restored(self, t: LayerTensors, part: Part, payload: bytes) -> None:
        """What was learned after the checkpoint and offered: the peer has it again."""
        owed = t.residual[t.of(part)].double()
        self._kernels.restored(t, part, payload)
        self.produced[part.start : part.start + part.size] += t.residual[t.of(part)].double() - owed

    @torch.no_grad()
    def _produce(self, t: LayerTensors, here: slice) -> None:
        self.keep_start(t)
        self._look()
        now = torch.cat([parameter.to("cpu", torch.float64) for _, parameter in t.local])
        self.produced[t.first + here.start : t.first + here.stop] += t.kept[here].double() - now[here]


def keep_books(trainer: LocalTrainer, directory: Path) -> None:
    """Have what this trainer owes noted, and the books written and read with every checkpoint. Not for runs with
    `overlap`."""
    backend, codec = trainer._backend, Codec(trainer.spec.codec.wire)
    kernels = BookedKernels(trainer._kernels, codec, trainer.parameters, backend.keep_inner)
    trainer._kernels_now = lambda: kernels
    take_checkpoint, take_up = trainer.checkpoint, trainer.restore
    (directory / FOLDER).mkdir(exist_ok=True)

    def take_both(anchor: bytes, snapshot: tuple[int, bytes] | None = None) -> Capture:
        checkpoint = take_checkpoint(anchor, snapshot)
        residual = torch.cat([trainer._backend.layer(number).residual for number in range(len(trainer.layer_sizes))])
        vectors = {"produced": kernels.produced, "discounted": kernels.discounted, "residual": residual}
        for path in (directory / FILE, directory / FOLDER / _name(checkpoint.state)):
            save_file(vectors, path, {"anchor": anchor.hex()})
        return checkpoint

    def take_up_both(checkpoint: Checkpoint, **named: bool) -> None:
        take_up(checkpoint, **named)
        with safe_open(directory / FOLDER / _name(checkpoint.state), "pt") as file:
            for vector in ("produced", "discounted"):
                getattr(kernels, vector).copy_(file.get_tensor(vector))

    vars(trainer).update(checkpoint=take_both, restore=take_up_both)


def _name(state: Mapping[str, Any]) -> str:
    """Of the books of a checkpoint that says this."""
    return "-".join(str(state[key]) for key in ("anchor", "step_in_round", "offered"))


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The books of one peer beside its chain; norms in the units of Δ."""

    anchor: str
    """Where it stood when it wrote them."""
    produced: float
    missing: float
    """The largest element of what is neither counted, nor owed, nor discounted: what rounding leaves."""


def audit_books(directory: Path, spec: RunSpec, me: str) -> Audited:
    """Add up what a peer that has ended left in its directory. Raises BadInput for what is damaged."""
    with safe_open(directory / FILE, "pt") as file:
        anchor = file.metadata()["anchor"]
        produced, discounted, owed = (file.get_tensor(name) for name in ("produced", "discounted", "residual"))
    found = read_chain_files(directory, genesis_head(read_genesis(directory)))
    chain, heads = found.blocks, found.heads
    at = next(number for number, head in enumerate(heads) if head.anchor.hex() == anchor)
    contributions = _Contributions(directory, spec, me)
    counted = contributions.sum_of(chain[:at])
    missing = produced - counted - discounted - owed.double()
    return Audited(anchor=anchor, produced=_largest(produced), missing=_largest(missing))


def _largest(vector: Tensor) -> float:
    return float(vector.abs().max()) if vector.isfinite().all() else math.inf


class _Contributions:
    """What one peer put into blocks, read from the files that it offered."""

    def __init__(self, directory: Path, spec: RunSpec, me: str) -> None:
        self._folder, self._me, self._codec = directory / "contributions", me, Codec(spec.codec.wire)
        self._layers = [layer.size for layer in FlatParameters(build(spec)).layers]
        self._parts = cut(self._layers, spec.codec.part_elements)

    def sum_of(self, blocks: Iterable[Block]) -> Tensor:
        """What these blocks counted of it, in double precision. A contribution that is gone is an AssertionError."""
        total = torch.zeros(sum(self._layers), dtype=torch.float64)
        for block in blocks:
            outcomes = part_outcomes(block.update, self._me, submitted=True)
            if PartOutcome.COUNTED not in outcomes:
                continue
            mine = Contribution.find(self._folder, block.update.parent, self._parts, self._codec)
            assert mine is not None, f"round {block.update.round} counted what {self._me} never offered"
            for number, (part, outcome) in enumerate(zip(self._parts, outcomes, strict=True)):
                if outcome is PartOutcome.COUNTED:
                    total[part.start : part.start + part.size] += _decoded(self._codec, mine, number, part)
        return total


def _decoded(codec: Codec, mine: Contribution, number: int, part: Part) -> Tensor:
    return torch.from_numpy(codec.decode(mine.payload(number))[: part.size]).double()
