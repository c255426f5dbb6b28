"""The owner of the anchor: trains towards it, freezes what was learned, applies what was decided.

Holds four flat float32 vectors on the CPU beside the model: θ and m of the anchor, the balance,
and the parameters at which the current stretch of inner steps began.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peer.averaging.codec import Codec
from peer.averaging.contribution import Contribution, Effort, is_written, keep_newest, write_contribution
from peer.data.batches import Batches
from peer.data.open import held_out, open_source
from peer.model.build import build
from peer.model.flat import FlatParameters
from peer.rounds.layout import cut
from peer.rounds.settlement import Settlement, settle
from peer.rounds.update import Update
from peer.spec import RunSpec
from peer.train.age import Age
from peer.train.anchor import Anchor, LoadObject, advance
from peer.train.balance import Balance
from peer.train.checkpoint import VERSION, Checkpoint
from peer.train.evaluate import held_out_loss
from peer.train.generators import generator_states, set_generator_states
from peer.train.inner import InnerLoop, Step


@dataclass(frozen=True, kw_only=True)
class Undone:
    """In how many of the updates that were undone work of this peer was counted."""

    returned: int
    """It is owed again."""
    lost: int
    """It is not on this disk any more, so it is given up."""


class Trainer:
    """Model, data, inner optimizer, anchor and balance of one peer in one run."""

    def __init__(self, spec: RunSpec, me: str, folder: Path, device: torch.device) -> None:
        self.spec, self.me, self.device = spec, me, device
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._source = open_source(spec)
        self._model = build(spec).to(device)
        self._flat = FlatParameters(self._model)
        self._codec = Codec(spec.codec.wire)
        self.layer_sizes = tuple(layer.size for layer in self._flat.layers)
        self.layer_names = tuple(layer.name for layer in self._flat.layers)
        self.parts = cut(self.layer_sizes, spec.codec.part_elements)
        self.anchor = Anchor.initial(self._flat.new())
        self._balance = Balance.empty(self._flat.size)
        self._start = self.anchor.theta.clone()
        self._batches = Batches(self._source, spec, me, (me,), {})
        self._inner = InnerLoop(self._model, spec, self._batches, device)
        self._held_out: Tensor | None = None
        self.step_in_round = 0
        self._tokens = self._steps = 0
        self._age = Age()
        self._offered: bytes | None = None
        self._covered: set[bytes] = set()
        """Anchors whose contribution, still on disk, is in the balance or was counted out of it."""

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return self._flat.size

    @property
    def steps_in_round(self) -> int:
        """H of the round that leads to the next anchor."""
        return self.spec.steps_in(self.anchor.round)

    @property
    def frozen(self) -> bool:
        """Whether this anchor's contribution is offered."""
        return self._offered is not None

    @property
    def has_progress(self) -> bool:
        """Whether inner steps were made since the last contribution."""
        return self._tokens > 0

    def begin_round(self, members: Collection[str]) -> None:
        """Take my shards among the members of the last update, and me. Said twice in a round it changes nothing."""
        self._batches.reassign(sorted({*members, self.me}), self.anchor.cursors)

    def train_step(self, stop: Callable[[], bool] = lambda: False) -> Step:
        """One inner step; one with fewer micro-batches if `stop` says so after one of them.

        Steps beyond H of an overdue round go on at the round's last learning rate.
        """
        step = self._inner.step(self.anchor.round, min(self.step_in_round, self.steps_in_round - 1), stop)
        self.step_in_round += 1
        self._age.progressed(self.anchor.round)
        self._tokens += step.tokens
        self._steps += 1
        return step

    def freeze(self, anchor: bytes) -> None:
        """Put what was learned into the balance and have it on disk, encoded, as the contribution to `anchor`.

        A peer that stood here before others' branch won, and has come back, offers again what it offered then.
        Raises DiskFull, and then it may be tried again.
        """
        assert self._offered is None, "one contribution per anchor"
        self._collect_progress()
        if self._find_mine(anchor) is None:
            self._write_contribution(anchor)
        self._offered = anchor

    def _write_contribution(self, anchor: bytes) -> None:
        staleness = self._age.staleness(self.anchor.round)
        effort = Effort(self._tokens, self._steps, self._batches.ranges(), staleness)
        write_contribution(self._folder, anchor, self._balance.flat.numpy(), self.parts, self._codec, effort)
        # Of two branches, since a peer may change over to the other one and back.
        keep_newest(self._folder, 2 * self.spec.round.keep_rounds, anchor)
        self._covered = {known for known in self._covered | {anchor} if is_written(self._folder, known)}
        self._age.froze()
        self._batches.mark()
        self._tokens = self._steps = 0

    def apply(self, update: Update, load: LoadObject) -> float:
        """Move to the next anchor: the outer step on the agreed bytes, the balance less what was counted.

        The local parameters become the new anchor less the balance: what was learned and not yet
        counted is kept, and measured from where this peer now stands. Returns the norm of what was
        given up because it is older than the run takes; 0.0 if nothing was.
        """
        mine = self._find_mine(update.parent)
        self._collect_progress()
        self._step_anchor(update, load)
        self._settle(update, mine)
        given_up = self._give_up_if_too_old()
        self._offered = None
        self.step_in_round = 0
        self._start_from_anchor()
        return given_up

    def undo(self, updates: Sequence[Update], restored: Anchor) -> Undone:
        """Stand at the earlier anchor `restored` again: these updates, newest first, no longer count.

        What they counted of this peer's own work is owed again; what they discounted is not given back. Raises
        BadInput for a damaged contribution, and then nothing has changed.
        """
        assert updates[-1].round == restored.round + 1, "the updates lead back to the anchor"
        mine = [self._find_mine(update.parent) for update in updates]
        self._collect_progress()
        done = self._return(zip(updates, mine, strict=True))
        self.anchor.become(restored.theta, restored.momentum, restored.round, restored.cursors.items())
        self._age.went_back(restored.round)
        self._offered = None
        self.step_in_round = 0
        self._start_from_anchor()
        return done

    def jump(self, name: bytes, restored: Anchor) -> float:
        """Stand at the anchor `restored`, to which no way is known from where this peer stands: its work goes along.

        Only what it offered for `name`, where it stands, stays behind: updates that nobody can show may
        have counted it, and nothing counts twice. Returns the norm of all that is given up.
        """
        self.resume(name)
        self._collect_progress()
        given_up = 0.0
        if self._offered is not None and (mine := self._find_mine(self._offered)) is not None:
            for part, where in enumerate(self._slices()):
                decoded = self._decoded(mine.payload(part), where)
                self._balance.counted(where, decoded)
                given_up += float(torch.linalg.vector_norm(decoded, dtype=torch.float64)) ** 2
            self._age.counted()
        self.anchor.become(restored.theta, restored.momentum, restored.round, restored.cursors.items())
        self._age.went_back(restored.round)
        given_up = math.sqrt(given_up) + self._give_up_if_too_old()
        self._offered = None
        self.step_in_round = 0
        self._start_from_anchor()
        return given_up

    def replay(self, update: Update, load: LoadObject) -> float:
        """Apply an update that was decided before a restart; returns what `apply` does."""
        self.resume(update.parent)
        return self.apply(update, load)

    def resume(self, anchor: bytes) -> None:
        """Stand at `anchor` again: what was offered to it before a crash, and is not remembered, is offered again."""
        if self._offered == anchor or (mine := self._find_mine(anchor)) is None:
            return
        if anchor not in self._covered:
            self._take_back(mine)
        self._offered = anchor

    def _step_anchor(self, update: Update, load: LoadObject) -> None:
        advance(self.anchor, update, self.spec, self.parts, load)

    def checkpoint(self, anchor: bytes) -> Checkpoint:
        """All that this peer is now; `anchor` is the chain's name of where it stands. Changes nothing."""
        state = {
            "version": VERSION, "run": self.spec.digest().hex(), "peer": self.me, "anchor": anchor.hex(),
            "round": self.anchor.round, "cursors": sorted(self.anchor.cursors.items()),
            "offered": self._offered is not None, "step_in_round": self.step_in_round, "tokens": self._tokens,
            "steps": self._steps, "batches": self._batches.state(),
            "covered": sorted(anchor.hex() for anchor in self._covered),
            "age": (self._age.oldest, self._age.unoffered),
        }  # fmt: skip
        mine = {"balance": self._balance.flat, "start": self._start, "local": self._flat.new()}
        return Checkpoint(
            state=state,
            tensors={
                "anchor": {"theta": self.anchor.theta, "momentum": self.anchor.momentum},
                "peer": mine | generator_states(self.device),
                "optimizer": self._inner.optimizer_state(),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be what `checkpoint` says, to the bit. The model must be the one it was taken of."""
        state, mine = checkpoint.state, checkpoint.tensors["peer"]
        self.anchor.become(**checkpoint.tensors["anchor"], round=state["round"], cursors=state["cursors"])
        self._balance.flat.copy_(mine["balance"])
        self._start.copy_(mine["start"])
        self._flat.copy_from(mine["local"])
        self._inner.load_optimizer_state(checkpoint.tensors["optimizer"])
        set_generator_states(mine, self.device)
        self._offered = bytes.fromhex(state["anchor"]) if state["offered"] else None
        self._covered = {bytes.fromhex(anchor) for anchor in state["covered"]}
        self._age = Age(*state["age"])
        self.step_in_round, self._tokens, self._steps = state["step_in_round"], state["tokens"], state["steps"]
        self._batches.restore(state["batches"])

    def evaluate(self) -> tuple[float, int]:
        """Held-out loss of the anchor in nats per token, and the tokens it was measured on."""
        if self._held_out is None:
            self._held_out = held_out(self._source)
        local = self._flat.new()
        self._flat.copy_from(self.anchor.theta)
        loss = held_out_loss(self._model, self._held_out, self.device)
        self._flat.copy_from(local)
        return loss, self._held_out[:, 1:].numel()

    def _collect_progress(self) -> None:
        now = self._flat.new()
        self._balance.add_progress(self._start, now)
        self._start = now

    def _settle(self, update: Update, mine: Contribution | None) -> None:
        outcomes = settle(update, self.me, mine is not None)
        for part, (where, what) in enumerate(zip(self._slices(), outcomes, strict=True)):
            if what is Settlement.COUNTED:
                assert mine is not None
                self._balance.counted(where, self._decoded(mine.payload(part), where))
            elif what is Settlement.MISSED:
                self._balance.missed(where, self.spec.round.gamma)
        kept = Settlement.MISSED in outcomes and self.spec.round.gamma > 0
        if mine is not None and not kept:
            self._age.counted()

    def _give_up_if_too_old(self) -> float:
        """Work beyond the age limit would count nothing: start afresh. Returns its norm."""
        if self._age.staleness(self.anchor.round) <= self.spec.round.max_staleness:
            return 0.0
        self._age = Age()
        self._batches.mark()
        self._tokens = self._steps = 0
        return self._balance.missed(slice(None), 0.0)

    def _return(self, undone: Iterable[tuple[Update, Contribution | None]]) -> Undone:
        """Owe again what these updates counted of this peer's contributions to them."""
        returned = lost = 0
        for update, mine in undone:
            outcomes = settle(update, self.me, frozen=True)
            counted = [part for part, what in enumerate(outcomes) if what is Settlement.COUNTED]
            if not counted:
                continue
            if mine is None:
                lost += 1
                continue
            returned += 1
            self._age.returned(update.round - 1 - mine.effort.staleness)
            slices = tuple(self._slices())
            for part in counted:
                self._balance.returned(slices[part], self._decoded(mine.payload(part), slices[part]))
        return Undone(returned=returned, lost=lost)

    def _take_back(self, mine: Contribution) -> None:
        """Make the balance what was frozen; all but the encoding residue of it was written."""
        for part, where in enumerate(self._slices()):
            self._balance.restored(where, self._decoded(mine.payload(part), where))
        self._covered.add(mine.anchor)
        self._age = Age(self.anchor.round - mine.effort.staleness)
        self._batches.mark()
        self._tokens = self._steps = 0
        self._start_from_anchor()

    def _find_mine(self, anchor: bytes) -> Contribution | None:
        """What this peer offered for `anchor`, every byte as it was; None if nothing. Raises BadInput."""
        mine = Contribution.find(self._folder, anchor, self.parts, self._codec)
        if mine is not None:
            mine.check()
        return mine

    def _start_from_anchor(self) -> None:
        self._start = torch.sub(self.anchor.theta, self._balance.flat, out=self._start)
        self._flat.copy_from(self._start)

    def _slices(self) -> Iterator[slice]:
        return (slice(part.start, part.start + part.size) for part in self.parts)

    def _decoded(self, payload: bytes, where: slice) -> Tensor:
        return torch.from_numpy(self._codec.decode(payload)[: where.stop - where.start])
