"""The owner of the anchor: it trains from it, submits what was learned, and applies what was decided.

Beside the model it holds θ and m of the anchor, the residual, and the start of the present inner steps unless that
follows from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from dht.errors import DiskFull
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol.block import VOID, Update
from peer.consensus.protocol.head import next_anchor
from peer.consensus.protocol.layout import Part, cut
from peer.node.host.gpu import device_gb
from peer.node.lifecycle.inputs_effects import Continuations, HeldOutLoss, TrainerStatus
from peer.node.lifecycle.round_progress import RoundProgress, TooOld
from peer.node.store.contributions import (
    Contribution,
    SharedContribution,
    WorkStats,
    is_written,
    prune_contributions,
    write_contribution,
)
from peer.schema.spec import RunSpec
from peer.training.checkpoint.capture import Capture, LayerCapture
from peer.training.checkpoint.checkpoint import VERSION, Checkpoint
from peer.training.checkpoint.layer_state import load_layer
from peer.training.checkpoint.replay import RunStart, first_anchor
from peer.training.data.open_source import open_source
from peer.training.data.sampler import IdleSampler, ShardSampler
from peer.training.outer.apply import LayerUpdate
from peer.training.outer.copy_stream import on_copy_stream
from peer.training.outer.kernels import Kernels
from peer.training.outer.layer_tensors import LayerTensors, Origin
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import LoadObject
from peer.training.train.anchor_review import AnchorReview
from peer.training.train.autotune_result import Tuned
from peer.training.train.engine import MakeEngine, one_device
from peer.training.train.inner_loop import InnerStep
from peer.training.train.round_vectors import VectorSlots


class LocalTrainer:
    """Model, data, inner optimizer, anchor and residual of one peer in one run."""

    def __init__(
        self, spec: RunSpec, me: str, folder: Path, device: torch.device, fit: Tuned | None = None,
        on_halved: Callable[[int], None] = lambda sequences: None, data_path: str = "",
        make_engine: MakeEngine | None = None, reads: bool = True,
    ) -> None:  # fmt: skip
        """On `device`, unless `make_engine` makes another engine. `reads`: whether it reads the run's data itself; a
        worker's lead does it. `folder`: for contributions, in the folder of the peer."""
        self.spec, self.me, self.device = spec, me, device
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._source = open_source(spec, data_path, folder.parent) if reads else None
        self._batches = IdleSampler() if self._source is None else ShardSampler(self._source, spec, me, (me,), {})
        make_engine = make_engine or one_device(spec, device, fit, on_halved, folder)
        engine = make_engine(self._batches)
        self._backend, self._kernels_now, self._layerwise = engine.backend, engine.kernels, engine.beside
        self.span = span = engine.span
        self._codec = Codec(spec.codec.wire)
        self.anchor = self._backend.anchor
        layers = span.layers if span else self._backend.layers
        self.layer_sizes = tuple(layer.size for layer in layers)
        """Of the whole model, and so what follows."""
        self.layer_names = tuple(layer.name for layer in layers)
        self.parts = cut(self.layer_sizes, spec.codec.part_elements)
        self.held = span.held if span else range(len(layers))
        """The layers that are here."""
        self.start = RunStart.of(self.anchor) if span is None else RunStart(self.layer_sizes, span.first_state)
        self._member = span.homes.member if span else me
        self.progress = RoundProgress(spec, self._member, self.parts)
        self._review = None if self._source is None else AnchorReview(spec, self._source, self._backend)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="submit")
        self._writing: Future[None] | None = None
        """The write of the newest contribution, until its end is looked at."""
        self.layers: Future[bytes] | None = None
        """The newest update that is applied beside training: ends with H(θ, m) after the last layer."""
        self._device_gb = device_gb() if self._backend.can_leave else None

    @property
    def _kernels(self) -> Kernels:
        return self._kernels_now()

    @property
    def parameters(self) -> int:
        return sum(self.layer_sizes)

    @property
    def vector_slots(self) -> VectorSlots:
        """Where what a round needs beside the model lies."""
        return self._backend.vector_slots

    @property
    def status(self) -> TrainerStatus:
        progress = self.progress
        return TrainerStatus(
            round=progress.round, step=progress.step, fresh=progress.fresh, offered=progress.offered is not None,
            on_device=not self._backend.is_offloaded, can_leave=self._backend.can_leave,
            device_gb=self._device_gb,
        )  # fmt: skip

    @property
    def waited_s(self) -> float:
        """Seconds of waiting: inner steps for data and layers of the newest update, all for the newest checkpoint."""
        layers_s = self._batches.waited_s + (0.0 if self._layerwise is None else self._layerwise.waited_s)
        return layers_s + (0.0 if self._backend.capture is None else self._backend.capture.waited_s)

    def begin_round(self, members: Collection[str]) -> None:
        """Take my shards among the members of the last update, and me. A second call in a round changes nothing."""
        self._batches.reassign(sorted({*members, self.me}), self.anchor.cursors)

    def step(self, position: float, stop: Callable[[], bool]) -> InnerStep:
        """One inner step; one with fewer micro-batches if `stop` says so after one of them. Raises MemoryFull.

        `position` says where between step 0 and step H of the round in training its learning rate is taken.
        """
        self._keep_starts()
        with self._reading():
            step = self._backend.step(self.progress.in_training, position, stop)
        if step.tokens:
            predicted = step.predicted if self.spec.aggregation.weigh == "predicted" else None
            self.progress.stepped(step.tokens if predicted is None else predicted)
        return step

    def submit(self, anchor: bytes) -> Future[None]:
        """Add the progress to the residual, and write it to disk, encoded, as the contribution to `anchor`.

        Encoding and writing go on beside the next inner steps, which do not change the residual: nothing that does may
        follow before the future has ended. It ends with DiskFull if there is no room: then call `take_back`. A peer
        that stood here before it crashed offers again what it offered then.
        """
        assert self.progress.offered is None, "one contribution per anchor"
        self._about_to_change()
        self._collect_progress()
        if self._current_contribution(anchor) is None:
            effort = self.progress.offer(anchor, self._batches.ranges())
            self._batches.mark()
            if self.span is not None:
                effort = self.span.homes.submit(anchor, effort)
            self._writing = self._writer.submit(self._write_contribution, anchor, effort)
            return self._writing
        self.progress.offer_again(anchor)
        written: Future[None] = Future()
        written.set_result(None)
        return written

    def take_back(self) -> None:
        """Undo a submission that found no room: nothing is offered, nothing is lost."""
        assert self._writing is not None
        assert isinstance(self._writing.exception(timeout=0), DiskFull)
        self._writing = None
        self._batches.put_back(self.progress.take_back())

    def _write_contribution(self, anchor: bytes, effort: WorkStats) -> None:
        payloads = (self._kernels.encode(tensors, part) for part, tensors in self._local_parts(self.progress.round))
        with on_copy_stream(self.device):
            write_contribution(self._folder, anchor, payloads, effort, self._shared(anchor))
        # Twice: whoever goes on from the older of its checkpoints settles what was offered since once more.
        prune_contributions(self._folder, 2 * self.spec.round.keep_rounds, anchor)

    def _shared(self, anchor: bytes) -> SharedContribution | None:
        if self.span is None:
            return None
        homes, parts = self.span.homes, self.progress.turns.parts(self.progress.round)
        first = sum(part.layer < self.held.start for part in parts)
        return SharedContribution(
            first_part=first,
            delegates=homes.delegates,
            gather=lambda leaves: homes.gather_leaves(anchor, parts, leaves),
        )

    def _current_contribution(self, anchor: bytes) -> Contribution | None:
        return self._contribution_for(anchor, self.progress.round)

    def _require_layers(self) -> None:
        """Called before anything looks at more than one layer. Raises the error of an update that failed beside
        training."""
        if self.layers is not None:
            assert self.layers.done(), "layers are on their way"
            self.layers.result()
            self.layers = None

    def _stand_still(self) -> None:
        """Called before anything looks at whole vectors or changes the residual: no update or write is under way."""
        self._require_layers()
        if self._writing is not None:
            assert self._writing.done(), "a contribution is being written"
            assert self._writing.exception() is None, "one that finds no room is taken back first"
            self._writing = None
            known = (*self.progress.covered, self.progress.offered)
            self.progress.covered = {anchor for anchor in known if anchor and is_written(self._folder, anchor)}

    def _about_to_change(self) -> None:
        """Called before residual, anchor and vectors change: no update or write is under way, nobody reads."""
        self._stand_still()
        if self._backend.capture is not None:
            self._backend.capture.before_move()

    # ---- to another anchor ----

    def apply(self, update: Update, load: LoadObject, *, beside: bool = False) -> float:
        """Move to the next anchor: the outer step on the agreed bytes, and the residual less what was counted.

        The local parameters become the new anchor less the residual: work that is not yet counted is kept, and measured
        from the new position. Layers that the round does not average stay as they are, to the bit. Offered work is
        settled before later work is added, which was offered to nobody and which no age discounts.

        `beside`: work over the whole model follows layer by layer, beside the next inner steps, which wait for each
        layer when they need it. Only such steps may follow before `layers` has ended.

        Returns the norm of what was given up because it is too old for the run; 0.0 if nothing was. Raises BadInput,
        and then nothing has changed.
        """
        self._about_to_change()
        mine = self._current_contribution(update.parent)
        parts, own = self.progress.turns.parts(self.progress.round), self._interpolates
        here = [(part, name) for part, name in zip(parts, update.parts, strict=True) if part.layer in self.held]
        wire = Codec(self.spec.codec.wire)
        # Every byte is here and was checked.
        means = {name: wire.without_rows(load(name), part.size) for part, name in here if name != VOID}
        settled = self.progress.settle(update, mine is not None)
        self.anchor.arrive([item for member in update.members for item in member.ranges], self.spec.windows_most)
        self._drop(settled.too_old)
        gives_up = bool(settled.too_old.fragments)
        change = LayerUpdate(
            spec=self.spec, update=update, means=means, mine=mine, outcomes=settled.outcomes, parts=parts,
            layers=self.held, layer=self._layer, kernels=self._kernels,
            own=None if gives_up else own, gives_up=gives_up,
        )  # fmt: skip
        if not beside:
            return change.apply()
        assert self._layerwise is not None
        # What is given up is a norm over all layers: then none is left for later.
        given_up = change.apply() if gives_up else 0.0
        later = (lambda layer: 0.0) if gives_up else (lambda layer: change.apply_layer(self.held[layer]))
        name = next_anchor(update.parent, update.digest)
        self.layers = self._layerwise.begin(later, lambda: self.state_digest(name))
        return given_up

    def state_digest(self, anchor: bytes) -> bytes:
        """H(θ, m) of this peer's position, by the chain `anchor`; empty for a worker of a cluster, whose lead knows
        it. See `peer.consensus.codec.state_digest`."""
        if self.span is None:
            return self.anchor.state_digest()
        return self.span.homes.state_digest(
            anchor, self.anchor.round, self.anchor.layer_digests(), self.anchor.cursors
        )  # fmt: skip

    def initial(self) -> OuterState:
        """The run's initial parameters, made again, for the layers here."""
        return first_anchor(self.spec) if self.span is None else self.span.initial()

    @property
    def _interpolates(self) -> float | None:
        """The weight of its own parameters when the anchor comes; None: it goes to the anchor."""
        table = self.spec.round
        if not self.progress.is_ahead or table.merge == "rebase" or self._codec.is_sparse:
            return None
        return table.alpha

    def adopt(self, name: bytes, restored: OuterState) -> float:
        """Move to the anchor `restored`, which does not follow from this peer's position: its work goes along.

        Only its offer for `name`, its present anchor, is given up: updates that nobody can show may have counted it,
        and nothing may count twice. Returns the norm of everything that is given up.
        """
        self.resume(name)
        squared, round = 0.0, self.progress.round
        if (
            self.progress.offered is not None
            and (mine := self._current_contribution(self.progress.offered)) is not None
        ):
            for number, part, tensors in self._numbered_parts(round):
                squared += self._kernels.counted(tensors, part, mine.payload(number))
            self.progress.turns.work(round).counted()
        self._stand_at(restored)
        too_old = self.progress.forget_too_old()
        self._drop(too_old)
        norms = (self._kernels.give_up(tensors, part) for part, tensors in self._local_parts(*too_old.fragments))
        given_up = math.sqrt(squared) + math.hypot(*norms)
        self._collect_progress()
        self._begin_at_anchor(self.progress.turns.everything)
        return given_up

    def resume(self, anchor: bytes) -> None:
        """Stand at `anchor` again: what was offered to it before a crash, and is not remembered, is offered again."""
        self._about_to_change()
        if self.progress.offered == anchor or (mine := self._current_contribution(anchor)) is None:
            return
        if anchor not in self.progress.covered:
            self._owe_again(mine)
        self.progress.offer_again(anchor)

    def replay(self, update: Update, load: LoadObject) -> float:
        """Apply an update that was decided before a restart; returns what `apply` does."""
        self.resume(update.parent)
        return self.apply(update, load)

    def _owe_again(self, mine: Contribution) -> None:
        """Put an offer back into the residual: all of it was written except the rounding error, or what a sparse
        codec left out."""
        round = self.progress.round
        self._collect_progress()
        for number, part, tensors in self._numbered_parts(round):
            self._kernels.restored(tensors, part, mine.payload(number))
        self.progress.turns.restored(round, mine.effort.steps, mine.effort.staleness)
        self.progress.covered.add(mine.anchor)
        self._batches.pass_over(mine.effort.ranges)
        self._batches.mark()
        self._begin_at_anchor((round,))

    def _stand_at(self, restored: OuterState) -> None:
        for tensors in self._all_layers():
            if tensors.start is Origin.AT_ANCHOR:
                self._kernels.keep_start(tensors)
        self.anchor.become(restored)
        self.progress.stand_at(restored.round)

    def _drop(self, too_old: TooOld) -> None:
        """Add everything to the residual that is given up with it."""
        if too_old.dropped:
            self._collect_progress()
        if too_old.everything:
            self._batches.mark()

    def _keep_starts(self) -> None:
        """Called before the parameters move away from the start of the present steps. Layers of an update under way
        begin at the anchor, or have their start kept already."""
        if self.layers is not None and not self.layers.done():
            return
        for tensors in self._all_layers():
            if tensors.start is Origin.AT_PARAMETERS:
                self._kernels.keep_start(tensors)

    def _collect_progress(self) -> None:
        for tensors in self._all_layers():
            self._kernels.progress(tensors)

    def _layer(self, number: int) -> LayerTensors:
        """By the number that it has in the model; one that is here."""
        return self._backend.layer(number - self.held.start)

    def _all_layers(self) -> Iterator[LayerTensors]:
        return map(self._layer, self.held)

    def _begin_at_anchor(self, rounds: Iterable[int]) -> None:
        """Set the local parameters of the averaged layers to the anchor less the residual. Other layers stay as they
        are, since that difference would round. All progress must be in the residual."""
        for number in sorted({part.layer for part in self.progress.turns.parts(*rounds)}.intersection(self.held)):
            self._kernels.begin(self._layer(number))

    def _local_parts(self, *rounds: int) -> Iterator[tuple[Part, LayerTensors]]:
        """The parts of the layers here that these rounds average, each once, with its layer."""
        return ((part, tensors) for _, part, tensors in self._numbered_parts(*rounds))

    def _numbered_parts(self, *rounds: int) -> Iterator[tuple[int, Part, LayerTensors]]:
        """The same, each part with its place among all parts that these rounds average."""
        for number, part in enumerate(self.progress.turns.parts(*rounds)):
            if part.layer in self.held:
                yield number, part, self._layer(part.layer)

    def _contribution_for(self, anchor: bytes, round: int) -> Contribution | None:
        """The offer for `anchor` of this round, byte for byte; None if there is none. Raises BadInput."""
        mine = Contribution.find(self._folder, anchor, self.progress.turns.parts(round), self._codec)
        if mine is not None:
            mine.check()
        return mine

    # ---- on disk ----

    def checkpoint(self, anchor: bytes, snapshot: tuple[int, bytes] | None = None) -> Capture:
        """This peer's whole state, to be written; `anchor` is the chain's name of its position. Changes nothing.
        `snapshot`, by round and anchor, is the one from which the chain leads here."""
        self._stand_still()
        progress = self.progress
        assert progress.round == self.anchor.round
        state: dict[str, Any] = {
            "version": VERSION, "run": self.spec.digest().hex(), "peer": self.me, "anchor": anchor.hex(),
            "round": self.anchor.round, "snapshot": snapshot and [snapshot[0], snapshot[1].hex()],
            "offered": progress.offered is not None, "step_in_round": progress.step, "batches": self._batches.state(),
            "covered": sorted(anchor.hex() for anchor in progress.covered), "turns": progress.turns.state(),
        }  # fmt: skip
        if self.stored_layers is not None:
            state |= {"layers": self.stored_layers, "cursors": sorted(self.anchor.cursors.items())}
        backend, sparse = self._backend, self._codec.is_sparse
        copied = backend.keep_inner()
        layers = [
            LayerCapture.of(
                backend.layer(number), backend.optimizer_of(number), sparse=sparse, copied=copied,
                with_anchor=self.span is not None,
            )
            for number in range(len(self.held))
        ]  # fmt: skip
        return Capture(state=state, layers=layers, rest=backend.rest(), device=self.device)

    @property
    def stored_layers(self) -> list[int] | None:
        """What checkpoints say of which layers they have: the first, and the one after the last; None for all."""
        return None if self.span is None else [self.held.start, self.held.stop]

    def read_beside(self, capture: Capture) -> None:
        """From here on `capture` is told before anything changes that it may not have read."""
        assert self._backend.capture is None or self._backend.capture.has_ended, "one checkpoint at a time"
        self._backend.capture = capture

    def restore(self, checkpoint: Checkpoint, *, known: bool = True) -> None:
        """Load `checkpoint`, to the bit. The model must be the one of which it was taken. The anchor must be the one
        at which it was taken. If that is not `known`, the anchor may be any, and `adopt` must follow: the residual
        is loaded, and of the progress since only what the checkpoint can tell."""
        self._about_to_change()
        state, progress = checkpoint.state, self.progress
        assert not known or self.anchor.round == checkpoint.round, "the anchor is that of the checkpoint"
        for number in range(len(self.held)):
            stored, layer = dict(checkpoint.layer(number)), self._backend.layer(number)
            load_layer(layer, stored, sparse=self._codec.is_sparse, known=known)
            remembered = {name: tensor for name, tensor in stored.items() if "." in name}
            self._backend.load_optimizer_of(number, remembered)
        self._backend.load_rest(checkpoint.rest)
        progress.round, progress.step = checkpoint.round, state["step_in_round"]
        progress.offered = checkpoint.anchor if state["offered"] else None
        progress.covered = {bytes.fromhex(anchor) for anchor in state["covered"]}
        progress.turns.restore(state["turns"])
        self._batches.restore(state["batches"])

    # ---- on the device ----

    def evaluate(self, stop: Callable[[], bool] = lambda: False) -> HeldOutLoss | None:
        """Held-out loss of the anchor; None if `stop` says so. Raises MemoryFull."""
        self._require_layers()
        assert self._review is not None, "whoever reads measures"
        with self._reading():
            return self._review.loss(stop)

    def continue_prompts(self, stop: Callable[[], bool] = lambda: False) -> Continuations | None:
        """The anchor's continuations of the run's prompts; None if `stop` says so. Raises MemoryFull."""
        self._require_layers()
        assert self._review is not None, "whoever reads looks"
        with self._reading():
            return self._review.continuations(stop)

    def leave_device(self) -> None:
        """Give a GPU's memory to others until `take_device`; the bits stay as they are."""
        self._require_layers()
        self._backend.offload()

    def take_device(self) -> bool:
        """Whether model and optimizer are on the device (again); False while others use its memory."""
        if not self._backend.is_offloaded:
            return True
        self._require_layers()
        return self._backend.reload()

    def close(self) -> None:
        """End ranks or homes that compute for it, and present writes. Nothing follows."""
        self._backend.close()
        if self._layerwise is not None:
            self._layerwise.close()
        self._writer.shutdown()

    def _reading(self) -> AbstractContextManager[None]:
        """The context of forward and backward passes."""
        return nullcontext() if self._layerwise is None else self._layerwise.reading()
