"""A peer that stands where its link says: it applies, replays, undoes and skips updates, and tells of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from dht.errors import MemoryFull
from peer.credit.summary import LocalCosts, summarize
from peer.events import Evaluated, Event, PeerStateChanged, PhaseEntered
from peer.lifecycle.exposed_time import ExposedTime
from peer.lifecycle.pace import Pace
from peer.link.channel import LinkLost
from peer.link.handle import LinkProcess
from peer.protocol.block import Block, Update
from peer.protocol.head import next_anchor
from peer.rounds.timeouts import ready_after_others_s
from peer.spec import RunSpec
from peer.store.snapshots import drop_after
from peer.telemetry.forecast import Forecaster
from peer.telemetry.reporter import Reporter
from peer.train.saver import CheckpointSaver

if TYPE_CHECKING:
    from peer.train.checkpoint import Checkpoints
    from peer.train.saver import SnapshotWriter
    from peer.train.trainer import Trainer

MOVING = ("commit", "replay", "undo", "snapshot", "resume")
"""What the link says to have the trainer stand at another anchor."""

SAY_EVERY_S = 1.0


@dataclass
class Replaying:
    """Says at most once a second which round is done. Nothing is transferred, so there are no bytes to count."""

    clock: Callable[[], float] = time.monotonic
    said_at: float | None = None

    def after(self, round: int, last_round: int) -> Iterator[Event]:
        """What to say after `round` was applied; the chain on disk ends at `last_round`."""
        now = self.clock()
        if self.said_at is None:
            self.said_at = now
        if now - self.said_at >= SAY_EVERY_S:
            self.said_at = now
            yield PeerStateChanged(state="SYNCING", why=f"round {round} of {last_round} from its own disk")


@dataclass
class ChainFollower:
    """The trainer, the link, and where both stand."""

    link: LinkProcess
    trainer: Trainer
    checkpoints: Checkpoints
    snapshotter: SnapshotWriter
    spec: RunSpec
    session: Reporter
    first_state: bytes
    """State digest of the initial parameters, which all peers of a run must share."""
    anchor: bytes
    """The chain's name of where the trainer stands; empty before the first round."""
    members: tuple[str, ...] = ()
    """Of the update that led here, less those who left."""
    in_step: bool = False
    freeze_asked: bool = False
    giving: bool = False
    """Whether this peer's contribution is being written; the link hears of it from the thread that writes."""
    round_begun: bool = False
    said_paused: bool = False
    """Whether the link knows that no more steps are made for this anchor."""
    went_on: bool = False
    """Whether this peer was paused and trains again, at this anchor."""
    held_since: float | None = None
    """Since when this peer waits for what follows this anchor."""
    overdue: bool = False
    """Whether it has waited for longer than any round may take."""
    round_began_at: float = field(default_factory=time.monotonic)
    """When this anchor came to be here."""
    agreed_at: float = field(init=False)
    """When the link heard that this anchor was agreed, which was before it could be computed."""
    exposure: ExposedTime = field(default_factory=ExposedTime)
    exposed_before_s: float = 0.0
    """What was exposed before this anchor came to be here."""
    keeper: CheckpointSaver = field(init=False)
    replaying: Replaying = field(default_factory=Replaying)
    applying: tuple[Update, int, int] | None = None
    """The update that led here and the bytes of its round, while it is applied beside training."""
    pace: Pace = field(init=False)
    forecaster: Forecaster = field(init=False)

    def __post_init__(self) -> None:
        self.keeper, self.pace = CheckpointSaver(self.checkpoints, self.snapshotter, self.session.emit), Pace(self.spec)
        self.forecaster = Forecaster(
            self.spec, self.trainer.me, self.trainer.parameters,
            lambda: asdict(self.session.chosen.settings), self.session.emit,
        )  # fmt: skip
        self.agreed_at = time.monotonic()

    def _hear(self, timeout_s: float) -> None:
        message = self.link.receive(timeout_s)
        while message is not None:
            kind, *fields = message
            if kind in MOVING:
                self._finish_apply()
            match kind:
                case "commit":
                    self._apply(*fields)
                case "replay":
                    self._replay(*fields)
                case "undo":
                    self._undo(*fields)
                case "snapshot":
                    self._jump(*fields)
                case "resume":
                    self._resume(fields[0])
                case "freeze":
                    self.freeze_asked = not self.trainer.frozen
                case "speeds":
                    self.pace = self.pace.heard(fields[0])
                case "in_step":
                    self.in_step = True
                case "behind":
                    self.in_step = False
                case "report":
                    name, values = fields
                    event = Event.registry[name](**values)
                    self.session.emit(event)
                    self.forecaster.heard(event)
                case _:
                    raise AssertionError(f"no such message: {kind}")
            message = None if self.session.stopping else self.link.receive(0.0)

    def _replay(self, packed: bytes, last_round: int) -> None:
        update = Block.from_bytes(packed).update
        self.keeper.finish_snapshot()
        self.session.say_given_up(self.trainer.replay(update, self.link.load_object), update.round)
        self.anchor, self.members = next_anchor(update.parent, update.digest), update.staying
        for event in self.replaying.after(update.round, last_round):
            self.session.emit(event)

    def _undo(self, packed: tuple[bytes, ...], anchor: bytes, members: tuple[str, ...]) -> None:
        """Stand at an earlier anchor again, since the others' branch won; its updates follow as usual."""
        from peer.train.replay import restore_at

        self.exposure.begin()
        updates = [Block.from_bytes(block).update for block in packed]
        self.keeper.finish_snapshot()
        self.forecaster.restarted()
        restored = restore_at(self.link.directory, self.spec, anchor, updates[-1].round - 1)
        undone = self.trainer.undo(updates, restored)
        self.anchor, self.members = anchor, members
        self._begin_anew()
        self.session.say_undone(updates, undone)
        # Before anything else happens: what was counted on the other branch is in the residual of no older checkpoint.
        self.write_checkpoint(wait=True)
        drop_after(self.link.directory, self.trainer.anchor.round)
        self.link.send("applied", anchor, self.trainer.anchor.state_digest())

    def _jump(self, round: int, anchor: bytes, members: tuple[str, ...]) -> None:
        """Stand where a snapshot was taken, since no chain leads there from here; updates follow as usual."""
        from peer.train.replay import read_anchor

        self.keeper.finish_snapshot()
        given_up = self.trainer.jump(self.anchor, read_anchor(self.link.directory, round, anchor))
        self.anchor, self.members = anchor, members
        self._begin_anew()
        self.session.say_left_behind(given_up, round)
        # Before anything else happens: an older checkpoint stands where no chain leads on.
        self.write_checkpoint(wait=True)

    def _resume(self, anchor: bytes) -> None:
        """Stand where the chain on this disk ends; at the very start the first founder measures it."""
        self.anchor = anchor
        self.trainer.resume(anchor)
        self.forecaster.restarted()
        self._begin_anew()
        self.exposure.begin()
        self._begin_to_count()
        self.agreed_at = time.monotonic()
        self.link.send("applied", anchor, self.trainer.anchor.state_digest())
        if self.trainer.anchor.round == 0 and min(self.members) == self.trainer.me:
            self.session.say("SYNCING", "measuring the held-out loss of the first parameters")
            self._evaluate()

    def _apply(self, packed: bytes, anchor: bytes, bytes_sent: int, bytes_received: int, agreed_at: float) -> None:
        update = Block.from_bytes(packed).update
        self.agreed_at = agreed_at
        self.exposure.begin()
        self.keeper.finish_snapshot()
        self.session.emit(PhaseEntered(round=update.round - 1, phase="apply"))
        beside = self._applies_beside_training(update)
        apply = self.trainer.begin_apply if beside else self.trainer.apply
        self.session.say_given_up(apply(update, self.link.load_object), update.round)
        self.anchor, self.members = anchor, update.staying
        self.pace = self.pace.was_late(ready_after_others_s(update, self.trainer.me))
        self._begin_anew()
        if beside:
            self.applying = update, bytes_sent, bytes_received
        else:
            self._tell_commit(update, bytes_sent, bytes_received, self.trainer.anchor.state_digest())

    def _applies_beside_training(self, update: Update) -> bool:
        """Whether an inner step follows at once, whose layers wait for theirs."""
        if self.spec.round.overlap == "none" or update.round == self.spec.run.rounds:
            return False
        return self.in_step and not self.session.wishes.pausing

    def _finish_apply(self) -> None:
        """Before this anchor is left, offered to or written down: wait for its last layer, and tell of it."""
        if self.applying is None:
            return
        self.exposure.begin()
        state = self.trainer.finish_apply()
        applied, self.applying = self.applying, None
        self._tell_commit(*applied, state)

    def _waited_for_layers_s(self) -> float:
        return 0.0 if self.applying is None else self.trainer.waited_s

    def _tell_commit(self, update: Update, bytes_sent: int, bytes_received: int, state: bytes) -> None:
        round_s, exposed_s = self._begin_to_count()
        committed, imposed = summarize(
            update, self.anchor, state, self.trainer.turns.parts(update.round - 1),
            fragments=self.spec.round.fragments, tokens_cap=self.spec.tokens_cap, layers=self.trainer.layer_names,
            cost=LocalCosts(bytes_sent=bytes_sent, bytes_received=bytes_received, round_s=round_s, exposed_s=exposed_s),
        )  # fmt: skip
        self.session.emit(committed)
        for penalty in imposed:
            if self.in_step or penalty.about == self.trainer.me:  # a newcomer need not tell what was long ago
                self.session.emit(penalty)
        if self.in_step:
            self.forecaster.committed(update, round_s, self.pace)
        # Last: it may raise LinkLost, and the round is told to people once.
        self.link.send("applied", self.anchor, state)
        if self.in_step:
            self.keeper.start_snapshot(self.trainer.anchor, self.anchor, state)
        leaves = self.session.stopping or self.session.wishes.pausing
        if not leaves and self._my_turn_to_evaluate(update):
            self._evaluate()

    def _begin_anew(self) -> None:
        """This peer stands at another anchor, or with another link: nothing has been said here yet."""
        self.giving = self.freeze_asked = self.round_begun = self.said_paused = self.went_on = self.overdue = False
        self.held_since = None

    def _begin_to_count(self) -> tuple[float, float]:
        """A round begins; returns how long the one before took, and for how much of it no step could be made."""
        now, exposed_s = time.monotonic(), self.exposure.seconds
        taken = now - self.round_began_at, exposed_s - self.exposed_before_s
        self.round_began_at, self.exposed_before_s = now, exposed_s
        return taken

    def _my_turn_to_evaluate(self, update: Update) -> bool:
        """All anchors are alike, so one member measures each; they take turns."""
        every, last = self.spec.data.eval_every, self.spec.run.rounds
        if not self.members or (update.round % every and update.round != last):
            return False
        return self.members[(update.round // every) % len(self.members)] == self.trainer.me

    def _evaluate(self) -> None:
        if self.session.wishes.pausing or not self.trainer.reload_model():
            return
        try:
            measured = self.trainer.evaluate(lambda: self.session.wishes.pausing)
        except MemoryFull as error:
            self.session.warn("MEMORY", f"{error}; the held-out loss of this round is not measured here")
            return
        if measured is None:
            return
        loss, tokens = measured
        self.session.emit(Evaluated(round=self.trainer.anchor.round, loss=loss, tokens=tokens))
        self.link.send("evaluated", self.trainer.anchor.round, loss)

    def write_checkpoint(self, *, wait: bool = False, last: bool = False) -> None:
        """Have all of this peer on disk; see `CheckpointSaver.write`. Before the first round there is nothing to
        keep."""
        if self.anchor:
            with suppress(LinkLost) if last else nullcontext():
                self._finish_apply()
            self.exposure.begin()
            self.keeper.write(self.trainer.checkpoint(self.anchor), wait=wait, last=last)
