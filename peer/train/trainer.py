"""The owner of the anchor: trains towards it, freezes what was learned, applies what was decided.

Holds four flat float32 vectors on the CPU beside the model: θ and m of the anchor, the residual,
and the parameters at which the current stretch of inner steps began.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dht.errors import BadSpec, DiskFull
from peer.codec.codec import Codec
from peer.data.open_source import held_out, open_source
from peer.data.sampler import ShardSampler
from peer.lifecycle.fragments import FragmentSchedule, Staleness
from peer.model.build import build
from peer.model.flat import FlatParameters
from peer.protocol.block import VOID, Update
from peer.protocol.layout import cut
from peer.spec import RunSpec
from peer.store.contributions import Contribution, WorkStats, is_written, prune_contributions, write_contribution
from peer.train.apply import LayerUpdate, Means
from peer.train.atomic import free_bytes, is_out_of_memory
from peer.train.backend import InnerStep, MicroBatch, SingleDevice, use_attention
from peer.train.checkpoint import VERSION, Checkpoint, generator_states, set_generator_states
from peer.train.evaluation import SEQUENCES, Stopped, held_out_loss
from peer.train.layerwise import Layerwise
from peer.train.offload import return_memory
from peer.train.outer import LoadObject, OuterState
from peer.train.residual import Residual, ResidualLedger, RewindResult, start_from
from peer.train.tuned import Tuned, room_for


@dataclass(frozen=True, kw_only=True)
class _Freeze:
    """A contribution that is being written, and what its trainer counted as its own before."""

    effort: WorkStats
    age: Staleness
    step_in_round: int
    written: Future[None]


class Trainer:
    """Model, data, inner optimizer, anchor and residual of one peer in one run."""

    def __init__(
        self, spec: RunSpec, me: str, folder: Path, device: torch.device, fit: Tuned | None = None,
        told_smaller: Callable[[int], None] = lambda sequences: None,
    ) -> None:  # fmt: skip
        self.spec, self.me, self.device = spec, me, device
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._source = open_source(spec)
        self._model = build(spec).to(device)
        self._fit = fit
        use_attention(self._model, fit)
        self._flat = FlatParameters(self._model)
        self._codec = Codec(spec.codec.wire)
        self.layer_sizes = tuple(layer.size for layer in self._flat.layers)
        self.layer_names = tuple(layer.name for layer in self._flat.layers)
        self.parts = cut(self.layer_sizes, spec.codec.part_elements)
        """Of the whole model."""
        try:
            self.turns = FragmentSchedule(self.parts, spec.round.fragments)
        except ValueError as error:
            raise BadSpec(f"round.fragments is {spec.round.fragments}: {error}") from error
        self.anchor = OuterState.initial(self._flat.new())
        self._residual = Residual.empty(self._flat.size)
        self._ledger = ResidualLedger(spec, me, folder, self._residual, self.turns)
        self._start = self.anchor.theta.clone()
        self._batches = ShardSampler(self._source, spec, me, (me,), {})
        self._micro = MicroBatch(fit.sequences if fit else spec.inner.sequences, told_smaller)
        self._inner = SingleDevice(self._model, spec, self._batches, device, micro=self._micro)
        waits = spec.round.overlap == "none"
        self._layerwise = None if waits else Layerwise(self._model, self._flat, device)
        self._held_out: Tensor | None = None
        self.step_in_round = 0
        self._offered: bytes | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="freeze")
        self._freezing: _Freeze | None = None
        self._covered: set[bytes] = set()
        """Anchors whose contribution, still on disk, is in the residual or was counted out of it."""

    @property
    def parameters(self) -> int:
        return self._flat.size

    @property
    def streams(self) -> bool:
        """Whether inner steps that follow a contribution belong to the next round."""
        return self.spec.round.overlap == "streaming"

    @property
    def round_in_training(self) -> int:
        """The anchor to which the steps that are made now will be offered, by its number."""
        return self.anchor.round + (self.streams and self.frozen)

    @property
    def steps_in_round(self) -> int:
        """H of `round_in_training`."""
        return self.spec.steps_in(self.round_in_training)

    @property
    def frozen(self) -> bool:
        """Whether this anchor's contribution is offered."""
        return self._offered is not None

    @property
    def has_progress(self) -> bool:
        """Whether inner steps were made that the next contribution would offer first."""
        return self.turns.work(self.anchor.round).tokens > 0

    def begin_round(self, members: Collection[str]) -> None:
        """Take my shards among the members of the last update, and me. Said twice in a round it changes nothing."""
        self._batches.reassign(sorted({*members, self.me}), self.anchor.cursors)

    def train_step(self, stop: Callable[[], bool] = lambda: False, position: float | None = None) -> InnerStep:
        """One inner step; one with fewer micro-batches if `stop` says so after one of them.

        `position` says where between step 0 and step H of the round its learning rate is taken, if the round's pace
        is not one step after the other. Steps beyond H, while a round is overdue, go on at the last learning rate.
        """
        if position is None:
            position = min(self.step_in_round, self.steps_in_round - 1)
        with self._reading():
            step = self._inner.step(self.round_in_training, position, stop)
        self.step_in_round += 1
        self.turns.progressed(self.anchor.round + self.frozen, step.tokens)
        return step

    def refit(self) -> None:
        """After a pause: what had room before may have none now, or have it again. Nothing where memory is not told."""
        if self._fit is not None and self.device.type == "cuda":
            room_bytes = free_bytes(self.device) + torch.cuda.memory_reserved(self.device)
            self._micro.sequences = room_for(self._fit, room_bytes)

    def freeze(self, anchor: bytes) -> None:
        """Put what was learned into the residual and have it on disk, encoded, as the contribution to `anchor`.

        A peer that stood here before others' branch won, and has come back, offers again what it offered then.
        Raises DiskFull, and then it may be tried again.
        """
        self.begin_submit(anchor)
        self.finish_submit()

    def begin_submit(self, anchor: bytes, announce: Callable[[], None] = lambda: None) -> None:
        """`freeze`, but encoding and writing go on beside the next inner steps: they do not change the residual.

        `announce` is called when all is on disk, by the thread that wrote it, and not at all without room.
        """
        assert self._offered is None, "one contribution per anchor"
        self._wait_for_layers()
        self._collect_progress()
        round = self.anchor.round
        if self._ledger.find(anchor, round) is None:
            age = self.turns.work(round).copy().age
            effort = self.turns.offer(round, self._batches.ranges())
            self._freezing = _Freeze(
                effort=effort, age=age, step_in_round=self.step_in_round,
                written=self._writer.submit(self._write_and_announce, anchor, effort, announce),
            )  # fmt: skip
            self._batches.mark()
        else:
            announce()
        self._offer(anchor)

    @property
    def is_frozen_on_disk(self) -> bool:
        """Whether `finish_submit` would not wait."""
        return self._freezing is None or self._freezing.written.done()

    def finish_submit(self) -> None:
        """Wait until what is offered is on disk. Raises DiskFull, and then nothing is offered and nothing is lost."""
        if self._freezing is None:
            return
        freezing, self._freezing = self._freezing, None
        try:
            freezing.written.result()
        except BaseException:
            self._take_back_offer(freezing)
            raise
        self._covered = {
            known for known in (*self._covered, self._offered) if known and is_written(self._folder, known)
        }

    def _take_back_offer(self, freezing: _Freeze) -> None:
        """As if no freeze had begun: what was made since belongs to the contribution that is still to be made."""
        self._offered = None
        self.turns.take_back(self.anchor.round, freezing.effort, freezing.age)
        self._batches.put_back(freezing.effort.ranges)
        if self.streams:
            self.step_in_round += freezing.step_in_round

    def _wait_for_contribution(self) -> None:
        """Before the residual changes. Without room on the disk nothing is offered."""
        with suppress(DiskFull):
            self.finish_submit()

    def _offer(self, anchor: bytes) -> None:
        self._offered = anchor
        if self.streams:
            self.step_in_round = 0

    def _write_and_announce(self, anchor: bytes, effort: WorkStats, announce: Callable[[], None]) -> None:
        self._write_contribution(anchor, effort)
        announce()

    def _write_contribution(self, anchor: bytes, effort: WorkStats) -> None:
        parts = self.turns.parts(self.anchor.round)
        write_contribution(self._folder, anchor, self._residual.flat.numpy(), parts, self._codec, effort)
        # Of two branches, since a peer may change over to the other one and back.
        prune_contributions(self._folder, 2 * self.spec.round.keep_rounds, anchor)

    def apply(self, update: Update, load: LoadObject) -> float:
        """Move to the next anchor: the outer step on the agreed bytes, the residual less what was counted.

        The local parameters become the new anchor less the residual: what was learned and not yet
        counted is kept, and measured from where this peer now stands. What the round does not average stays
        as it is, to the bit. What was offered is settled before what came after it is added, which nobody
        was offered and no age discounts. Returns the norm of what was given up because it is older than the
        run takes; 0.0 if nothing was. Raises BadInput, and then nothing has changed.
        """
        self._wait_for_layers()
        self._wait_for_contribution()
        return self._begin_move(update, *self._everything_for(update, load)).apply()

    def begin_apply(self, update: Update, load: LoadObject) -> float:
        """`apply`, but all that goes over the whole model follows layer by layer, beside the next inner steps.

        At return every byte was checked, and round, cursors and what is offered are the next anchor's. Inner steps
        wait for each layer as they come to it; everything else waits for all. Then say `finish_apply`. Returns what
        `apply` returns. Raises BadInput, and then nothing has changed.
        """
        assert self._layerwise is not None
        assert not self._layerwise.busy, "the update before is finished"
        self._wait_for_contribution()
        move = self._begin_move(update, *self._everything_for(update, load))
        if move.given_up is None:
            self._layerwise.begin(move.apply_layer, self.anchor.state_digest)
            return 0.0
        given_up = move.apply()  # at once: the norm is that of all layers
        self._layerwise.begin(lambda layer: None, self.anchor.state_digest)
        return given_up

    def _everything_for(self, update: Update, load: LoadObject) -> tuple[Contribution | None, Means]:
        """What this peer has offered, and all encoded means by digest: every byte is here and was checked."""
        mine = self._ledger.find(update.parent, self.anchor.round)
        return mine, {name: load(name) for name in update.parts if name != VOID}

    def _begin_move(self, update: Update, mine: Contribution | None, means: Means) -> LayerUpdate:
        """Stand at the next anchor, but for what its layers hold."""
        averaged, outcomes = self.anchor.round, self._ledger.outcomes(update, mine)
        gives_up = self._ledger.staleness_after(update, mine) > self.spec.round.max_staleness
        own = None if gives_up else self._interpolates
        if self._ledger.all_counted(outcomes):
            self.turns.work(averaged).age.counted()
        self.anchor.arrive([item for member in update.members for item in member.ranges])
        if gives_up:
            too_old = self._forget_too_old()
            assert len(too_old) == 1, "no fragment grows older but in its turn"
        self._begin_anew()
        return LayerUpdate(
            spec=self.spec, update=update, means=means, mine=mine, outcomes=outcomes, parts=self.turns.parts(averaged),
            anchor=self.anchor, residual=self._residual, start=self._start, flat=self._flat, own=own,
            given_up=[] if gives_up else None,
        )  # fmt: skip

    @property
    def is_applied(self) -> bool:
        """Whether `finish_apply` would not wait."""
        return self._layerwise is None or self._layerwise.done

    @property
    def waited_s(self) -> float:
        """Seconds that inner steps have waited for layers of the newest update."""
        return 0.0 if self._layerwise is None else self._layerwise.waited_s

    def finish_apply(self) -> bytes:
        """Wait until the update is applied; returns the anchor's state digest. Raises what went wrong meanwhile."""
        assert self._layerwise is not None
        return self._layerwise.finish()

    def _reading(self) -> AbstractContextManager[None]:
        """Forward and backward passes are made inside."""
        return nullcontext() if self._layerwise is None else self._layerwise.reading()

    def _wait_for_layers(self) -> None:
        """Before anything looks at whole vectors."""
        if self._layerwise is not None:
            self._layerwise.wait()

    def _begin_anew(self) -> None:
        if not (self.streams and self.frozen):
            self.step_in_round = 0
        self._offered = None

    @property
    def _interpolates(self) -> float | None:
        """How much it keeps of its own parameters when the anchor comes; None: it goes to the anchor."""
        table = self.spec.round
        meanwhile = self.streams and self.frozen and self.step_in_round > 0
        if not meanwhile or table.merge == "rebase" or self._codec.is_sparse:
            return None
        return table.alpha

    def undo(self, updates: Sequence[Update], restored: OuterState) -> RewindResult:
        """Stand at the earlier anchor `restored` again: these updates, newest first, no longer count.

        What they counted of this peer's own work is owed again; what they discounted is not given back. Raises
        BadInput for a damaged contribution, and then nothing has changed.
        """
        assert updates[-1].round == restored.round + 1, "the updates lead back to the anchor"
        self._wait_for_layers()
        self._wait_for_contribution()
        mine = [self._ledger.find(update.parent, update.round - 1) for update in updates]
        self._collect_progress()
        done = self._ledger.unsettle(zip(updates, mine, strict=True))
        self._stand_at(restored)
        self._start_from_anchor(update.round - 1 for update in updates)
        return done

    def jump(self, name: bytes, restored: OuterState) -> float:
        """Stand at the anchor `restored`, to which no way is known from where this peer stands: its work goes along.

        Only what it offered for `name`, where it stands, stays behind: updates that nobody can show may
        have counted it, and nothing counts twice. Returns the norm of all that is given up.
        """
        self.resume(name)
        given_up, round = 0.0, self.anchor.round
        if self._offered is not None and (mine := self._ledger.find(self._offered, round)) is not None:
            given_up = self._ledger.leave_behind(mine, round)
        self._stand_at(restored)
        too_old = self.turns.slices(self._forget_too_old())
        given_up = math.sqrt(given_up) + math.hypot(*(self._residual.give_up(where) for where in too_old))
        self._collect_progress()
        self._start_from_anchor(self.turns.everything)
        return given_up

    def _stand_at(self, restored: OuterState) -> None:
        self.anchor.become(restored.theta, restored.momentum, restored.round, restored.cursors.items())
        self.turns.went_back(restored.round)
        self._offered, self.step_in_round = None, 0

    def replay(self, update: Update, load: LoadObject) -> float:
        """Apply an update that was decided before a restart; returns what `apply` does."""
        self.resume(update.parent)
        return self.apply(update, load)

    def resume(self, anchor: bytes) -> None:
        """Stand at `anchor` again: what was offered to it before a crash, and is not remembered, is offered again."""
        self._wait_for_layers()
        self._wait_for_contribution()
        if self._offered == anchor or (mine := self._ledger.find(anchor, self.anchor.round)) is None:
            return
        if anchor not in self._covered:
            self._take_back(mine)
        self._offer(anchor)

    def checkpoint(self, anchor: bytes) -> Checkpoint:
        """All that this peer is now; `anchor` is the chain's name of where it stands. Changes nothing.

        Waits for what is being written; without room for it nothing is offered.
        """
        self._wait_for_layers()
        self._wait_for_contribution()
        state = {
            "version": VERSION, "run": self.spec.digest().hex(), "peer": self.me, "anchor": anchor.hex(),
            "round": self.anchor.round, "cursors": sorted(self.anchor.cursors.items()),
            "offered": self._offered is not None, "step_in_round": self.step_in_round, "batches": self._batches.state(),
            "covered": sorted(anchor.hex() for anchor in self._covered), "turns": self.turns.state(),
        }  # fmt: skip
        mine = {"residual": self._residual.flat, "start": self._start, "local": self._flat.new()}
        return Checkpoint(
            state=state,
            tensors={
                "anchor": {"theta": self.anchor.theta, "momentum": self.anchor.momentum},
                "peer": mine | self._inner.unread_state() | generator_states(self.device),
                "optimizer": self._inner.optimizer_state(),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be what `checkpoint` says, to the bit. The model must be the one it was taken of."""
        self._wait_for_layers()
        state, mine = checkpoint.state, checkpoint.tensors["peer"]
        self.anchor.become(**checkpoint.tensors["anchor"], round=state["round"], cursors=state["cursors"])
        self._residual.flat.copy_(mine["residual"])
        self._start.copy_(mine["start"])
        self._flat.copy_from(mine["local"])
        self._inner.load_optimizer_state(checkpoint.tensors["optimizer"])
        set_generator_states(mine, self.device)
        self._offered = bytes.fromhex(state["anchor"]) if state["offered"] else None
        self._covered = {bytes.fromhex(anchor) for anchor in state["covered"]}
        self.turns.restore(state["turns"])
        self.step_in_round = state["step_in_round"]
        self._batches.restore(state["batches"])
        self._inner.load_unread(mine)

    def evaluate(self, stop: Callable[[], bool] = lambda: False) -> tuple[float, int] | None:
        """Held-out loss of the anchor in nats per token, and the tokens it was measured on; None if `stop` says so.

        Raises MemoryFull. Where a fit says how much has room on the device, no more is tried.
        """
        self._wait_for_layers()
        if self._held_out is None:
            self._held_out = held_out(self._source)
        local = self._flat.new()
        self._flat.copy_from(self.anchor.theta)
        try:
            with self._reading():
                sequences = min(SEQUENCES, self._micro.sequences) if self._fit else SEQUENCES
                loss = held_out_loss(self._model, self._held_out, self.device, sequences, stop)
        except Stopped:
            return None
        finally:
            self._flat.copy_from(local)
        return loss, self._held_out[:, 1:].numel()

    def offload_model(self) -> None:
        """Give a GPU's memory to others until `reload_model`; the bits stay as they are."""
        if self.device.type == "cuda":
            self._wait_for_layers()
            self._inner.residence.leave()

    def reload_model(self) -> bool:
        """Whether model and optimizer are on the device (again); False while others use its memory."""
        if not self._inner.residence.is_aside:
            return True
        self._wait_for_layers()
        try:
            self._inner.residence.come_back()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if self._inner.residence.is_aside:
            return_memory(self.device)  # of what had found room
        return not self._inner.residence.is_aside

    def _collect_progress(self) -> None:
        for where, now in self._flat.each():
            self._residual.add_progress(where, self._start[where], now)

    def _forget_too_old(self) -> list[int]:
        """The fragments of which work is owed beyond the age limit: it would count nothing. It is to be given up.

        What came after the freeze is younger and stays, unless it was made for an earlier anchor.
        """
        round = self.anchor.round
        too_old = self.turns.too_old(round, self.spec.round.max_staleness)
        dropped = [fragment for fragment in too_old if not self.turns.drop_offered(fragment, round)]
        if dropped:
            self._collect_progress()
        for fragment in dropped:
            self.turns.drop(fragment)
        if len(dropped) == len(self.turns.everything):
            self._batches.mark()
        return too_old

    def _take_back(self, mine: Contribution) -> None:
        """Make the residual what was frozen."""
        self._collect_progress()
        self._ledger.take_back(mine, self.anchor.round)
        self._covered.add(mine.anchor)
        self._batches.pass_over(mine.effort.ranges)
        self._batches.mark()
        self._start_from_anchor((self.anchor.round,))

    def _start_from_anchor(self, rounds: Iterable[int]) -> None:
        """Have as local parameters what the anchor less the residual is, where these rounds have averaged.

        With a sparse codec the anchor itself. All else stays as it is: there, that difference would round. All progress
        is in the residual before.
        """
        for where in self.turns.slices(rounds):
            start_from(self.anchor.theta[where], self._residual.flat[where], self._start[where], self._codec)
        self._flat.copy_from(self._start)
