"""The whole story of a peer, on one screen: join a run, train, agree, write checkpoints, and leave.

The link runs in a child process and starts first, so that it loads hivemind while this process
loads torch. Everything this process has to say is an event.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import DiskFull, HomefiresError, RunMismatch
from peer.averaging.child import Left, LinkChild
from peer.averaging.pipe import LinkLost
from peer.averaging.replaying import Replaying
from peer.averaging.snapshots import drop_after
from peer.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    PeerStarted,
    PhaseEntered,
    RoundCommitted,
    RoundStarted,
)  # fmt: skip
from peer.rounds.names import next_anchor
from peer.rounds.update import Block, Update
from peer.spec import PeerSettings, RunSpec, parse
from peer.telling import Progress, Session, norms_of, penalties_of, weights_of

if TYPE_CHECKING:
    from peer.train.checkpoint import Checkpoints
    from peer.train.snapshotter import Snapshotter
    from peer.train.trainer import Trainer

SPEC_TIMEOUT_S = 90.0
POLL_S = 0.5
PAUSED_WHY = "its owner paused it; resume with: homefires resume"
RETRY_S = 5.0
LINKS_LOST = 3
LINK_LOST_WINDOW_S = 600.0


def join(link: LinkChild, me: str, settings: PeerSettings, directory: Path, session: Session) -> None:
    """Take part in a run until it is finished or `session.stopping` says to leave."""
    session.say("JOINING", "looking for the run")
    spec = parse(link.expect("spec", SPEC_TIMEOUT_S)[0])
    session.say("JOINING", "building the model and reading the data")
    session.building = True
    trainer = _make_trainer(spec, settings, me, directory)
    first_state = trainer.anchor.state_digest()
    checkpoints, anchor = _restore(trainer, directory, session)
    session.building = False
    session.emit(_started(settings, me, trainer, directory))
    peer = Peer(
        link, trainer, checkpoints, _make_snapshotter(directory, spec), spec, session, first_state, anchor,
        min_step_s=settings.min_step_s,
    )  # fmt: skip
    try:
        peer.take_part()
    except (HomefiresError, LinkLost):
        peer.write_checkpoint(last=True)
        raise
    if not link.has_ended:
        with suppress(LinkLost):  # whoever asked this peer to leave may have asked its link, too
            link.send("finish" if peer.finished else "leave")
    peer.write_checkpoint(last=True)
    peer.finish_snapshot()


@dataclass
class Peer:
    """A peer in a run: one trainer, one link, one round after the other."""

    link: LinkChild
    trainer: Trainer
    checkpoints: Checkpoints
    snapshotter: Snapshotter
    spec: RunSpec
    session: Session
    first_state: bytes
    """State digest of the initial parameters, which all peers of a run must share."""
    anchor: bytes
    """The chain's name of where the trainer stands; empty before the first round."""
    members: tuple[str, ...] = ()
    """Of the update that led here, less those who left."""
    min_step_s: float = 0.0
    """What `settings.min_step_s` says."""
    met: bool = False
    """Whether a link has said where the chain on this disk stands."""
    in_step: bool = False
    freeze_asked: bool = False
    round_begun: bool = False
    said_paused: bool = False
    """Whether the link knows that no more steps are made for this anchor."""
    went_on: bool = False
    """Whether this peer was paused and trains again, at this anchor."""
    checkpoint_failed: bool = False
    links_lost_at: list[float] = field(default_factory=list)
    round_began_at: float = field(default_factory=time.monotonic)
    """When this anchor came to be here."""
    training_since: float = field(default_factory=time.monotonic)
    idle_since: float | None = None
    """Since when this peer can make no inner step; None while it trains."""
    exposed_s: float = 0.0
    learning_rate: float = 0.0
    """Of the newest inner step."""
    progress: Progress = field(default_factory=lambda: Progress())
    replaying: Replaying = field(default_factory=Replaying)

    @property
    def finished(self) -> bool:
        return 0 < self.spec.run.rounds <= self.trainer.anchor.round

    def take_part(self) -> None:
        """Until the run is finished or somebody asks this peer to leave; a full disk or a lost link ends nothing."""
        while not (self.finished and self.met) and not self.session.stopping:
            try:
                if self.link.has_ended:
                    self.meet_again()
                elif not self.met:
                    self.meet()
                else:
                    self.catch_up_or_train()
            except DiskFull as error:
                self.pause(str(error))
            except LinkLost:
                self.note_lost_link()
            except Left:
                return

    # ---- meeting the link, once or again ----

    def meet(self) -> None:
        """Tell the link what the model looks like and where the trainer stands; from there it replays."""
        self.link.send("model", self.trainer.layer_sizes, self.first_state, self.anchor)
        anchor, self.members = self.link.expect("begin", None)
        if self.anchor not in (b"", anchor):
            raise RunMismatch(
                f"{self.checkpoints.folder} is at round {self.trainer.anchor.round}, where the chain beside it does "
                "not lead; move the checkpoints away to start from the chain"
            )
        self.anchor, self.met = anchor, True

    def meet_again(self) -> None:
        """A new link in place of one that has ended; the trainer stays as it is."""
        self.session.say("JOINING", "connecting again")
        self.in_step = self.said_paused = False
        self.link.restart()
        self.link.expect("spec", SPEC_TIMEOUT_S)
        self.meet()

    def note_lost_link(self) -> None:
        """A link that ends without a word is started again, unless that happens again and again: LinkLost."""
        now = time.monotonic()
        self.links_lost_at = [at for at in self.links_lost_at if now - at < LINK_LOST_WINDOW_S] + [now]
        if len(self.links_lost_at) > LINKS_LOST:
            raise LinkLost
        self.session.warn("LINK", "the link ended unexpectedly and is started again; nothing is lost")

    def pause(self, why: str) -> None:
        """The disk is full. What was learned stays in memory; after `RETRY_S` it is tried again."""
        self.session.say("PAUSED", f"{why}; make room, training goes on by itself")
        until = time.monotonic() + RETRY_S
        while time.monotonic() < until and not self.session.stopping:
            if self.link.has_ended:
                time.sleep(POLL_S)
                continue
            try:
                self._hear(POLL_S)
            except DiskFull:
                continue  # the link writes to the same disk
            except LinkLost:
                self.note_lost_link()

    def catch_up_or_train(self) -> None:
        """One turn: hear the link, then do what this peer's state asks for."""
        if self.trainer.frozen:
            self.session.wishes.round_is_given()
        if not self.in_step:
            self.session.say("SYNCING", "catching up with the others")
            self._hear(POLL_S)
        elif self.session.wishes.pausing:
            self._sit_out()
        elif self.trainer.frozen and not self._overdue():
            self.session.say("AVERAGING", f"round {self.trainer.anchor.round + 1} is being agreed")
            self._hear(POLL_S)
        else:
            self._go_on()
            self.session.say("TRAINING", self._why_it_trains())
            began_at, stands = time.monotonic(), self._stands()
            self._train_step()
            self._hear(0.0)
            while (left_s := began_at + self.min_step_s - time.monotonic()) > 0 and self._stands() == stands:
                self._hear(min(left_s, POLL_S))

    def _stands(self) -> tuple[object, ...]:
        """What must not change while this peer rests after an inner step."""
        asked = self.freeze_asked, self.session.wishes.pausing, self.session.stopping
        return self.anchor, self.trainer.frozen, self.in_step, *asked

    def _why_it_trains(self) -> str:
        round = self.trainer.anchor.round + 1
        if not self.trainer.frozen:
            return f"towards round {round}"
        if self.went_on:
            return f"towards round {round + 1}, since its part of round {round} is given"
        return f"round {round} is overdue; training goes on"

    # ---- paused by its owner ----

    def _sit_out(self) -> None:
        """Give what was learned so far, make no inner step, hold nobody up; such time is not exposed."""
        self._end_idling()
        if not self.said_paused:
            self._give_before_pause()
            self.link.send("paused", self.anchor)
            self.said_paused = True
        self.session.say("PAUSED", PAUSED_WHY)
        self._hear(POLL_S)

    def _give_before_pause(self) -> None:
        if self.trainer.frozen or not self.trainer.has_progress:
            return
        if self.progress.losses:
            self.session.emit(self.progress.event(self.trainer, self.learning_rate))
        try:
            self._write_contribution()
        except DiskFull as error:  # the others must hear of the pause all the same
            return self.session.warn("DISK", f"{error}; what was learned stays in memory and is given later")
        self.write_checkpoint()

    def _go_on(self) -> None:
        """Train again after a pause: whoever gave nothing for this anchor may still do so."""
        if not self.said_paused:
            return
        self.said_paused, self.freeze_asked, self.went_on = False, False, True
        self.idle_since = None
        self.training_since = time.monotonic()
        self.progress = Progress(since=time.monotonic())
        self.link.send("resumed")

    # ---- train and freeze ----

    def _train_step(self) -> None:
        trainer = self.trainer
        if not self.round_begun:
            self._begin_round()
        step = trainer.train_step(lambda: self.session.wishes.pausing)
        self.learning_rate = step.learning_rate
        self.progress.add(step.loss, step.tokens)
        time_share = (time.monotonic() - self.training_since) / self.spec.round.max_train_s
        share = max(trainer.step_in_round / trainer.steps_in_round, time_share)
        freezing = not trainer.frozen and (share >= 1 or self.freeze_asked)
        if freezing or self.progress.due():
            progress = self.progress.event(trainer, step.learning_rate)
            self.session.emit(progress)
            self.link.send("progress", share, progress.loss, progress.tokens_per_s)
        if freezing:
            self._freeze()
        if self.checkpoints.due(round_ends=freezing):
            self.write_checkpoint()

    def _begin_round(self) -> None:
        self.trainer.begin_round(self.members)
        self._end_idling()
        self.training_since = time.monotonic()
        round = self.trainer.anchor.round
        self.session.emit(RoundStarted(round=round, steps=self.trainer.steps_in_round))
        self.round_begun = True

    def _freeze(self) -> None:
        self.idle_since = time.monotonic()
        self._write_contribution()
        self.link.send("frozen", self.anchor)

    def _write_contribution(self) -> None:
        self.freeze_asked = False
        self.session.emit(PhaseEntered(round=self.trainer.anchor.round, phase="freeze"))
        self.trainer.freeze(self.anchor)
        self.session.wishes.round_is_given()

    def write_checkpoint(self, *, last: bool = False) -> None:
        """Have all of this peer on disk. Without room for it the one before stays, and training goes on.

        The `last` one of a life is followed by nothing. Before the first round there is nothing to keep.
        """
        if not self.anchor:
            return
        checkpoint = self.trainer.checkpoint(self.anchor)
        try:
            path = self.checkpoints.write(checkpoint)
        except DiskFull as error:
            if last:
                self.session.warn("CHECKPOINT", f"{error}; inner steps since the one before are lost")
            elif not self.checkpoint_failed:
                self.session.warn("CHECKPOINT", str(error))
            self.checkpoint_failed = True
            return
        self.checkpoint_failed = False
        self.session.emit(
            CheckpointWritten(round=self.trainer.anchor.round, path=str(path), bytes=checkpoint.size_bytes)
        )

    def _overdue(self) -> bool:
        """A round that takes longer than every deadline together holds nobody: training goes on."""
        table = self.spec.round
        longest_s = table.gather_s + 2 * (table.silence_s + table.exchange_s)
        if self.idle_since is None or time.monotonic() - self.idle_since < longest_s:
            return self.idle_since is None
        self._end_idling()
        return True

    def _end_idling(self) -> None:
        if self.idle_since is not None:
            self.exposed_s += time.monotonic() - self.idle_since
            self.idle_since = None
            self.progress = Progress(since=time.monotonic())

    # ---- what the link says ----

    def _hear(self, timeout_s: float) -> None:
        message = self.link.receive(timeout_s)
        while message is not None:
            kind, *fields = message
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
                case "in_step":
                    self.in_step = True
                case "behind":
                    self.in_step = False
                case "report":
                    name, values = fields
                    self.session.emit(Event.registry[name](**values))
                case _:
                    raise AssertionError(f"no such message: {kind}")
            message = None if self.session.stopping else self.link.receive(0.0)

    def _replay(self, packed: bytes, last_round: int) -> None:
        """Apply an update of the chain on this disk again."""
        update = Block.from_bytes(packed).update
        self.finish_snapshot()
        self.session.say_given_up(self.trainer.replay(update, self.link.load_object), update.round)
        self.anchor, self.members = next_anchor(update.parent, update.digest), update.staying
        for event in self.replaying.after(update.round, last_round):
            self.session.emit(event)

    def _undo(self, packed: tuple[bytes, ...], anchor: bytes, members: tuple[str, ...]) -> None:
        """Stand at an earlier anchor again, since the others' branch won; its updates follow as usual."""
        from peer.train.rewind import restore_at

        updates = [Block.from_bytes(block).update for block in packed]
        self.finish_snapshot()
        restored = restore_at(self.link.directory, self.spec, anchor, updates[-1].round - 1)
        undone = self.trainer.undo(updates, restored)
        self.anchor, self.members = anchor, members
        self._begin_anew()
        if self.idle_since is None:
            self.idle_since = time.monotonic()
        self.session.say_undone(updates, undone)
        # Before anything else happens: what was counted on the other branch is in the balance of no older checkpoint.
        self.write_checkpoint()
        drop_after(self.link.directory, self.trainer.anchor.round)
        self.link.send("applied", anchor, self.trainer.anchor.state_digest())

    def _jump(self, round: int, anchor: bytes, members: tuple[str, ...]) -> None:
        """Stand where a snapshot was taken, since no chain leads there from here; updates follow as usual."""
        from peer.train.snapshotter import read_anchor

        self.finish_snapshot()
        given_up = self.trainer.jump(self.anchor, read_anchor(self.link.directory, round, anchor))
        self.anchor, self.members = anchor, members
        self._begin_anew()
        self.session.say_left_behind(given_up, round)
        # Before anything else happens: an older checkpoint stands where no chain leads on.
        self.write_checkpoint()

    def _resume(self, anchor: bytes) -> None:
        """Stand where the chain on this disk ends; at the very start the first founder measures it."""
        self.anchor = anchor
        self.trainer.resume(anchor)
        self._begin_anew()
        self.round_began_at = self.idle_since = time.monotonic()
        self.link.send("applied", anchor, self.trainer.anchor.state_digest())
        if self.trainer.anchor.round == 0 and min(self.members) == self.trainer.me:
            self._evaluate()

    def _apply(self, packed: bytes, anchor: bytes, bytes_sent: int, bytes_received: int) -> None:
        update = Block.from_bytes(packed).update
        if self.idle_since is None:
            self.idle_since = time.monotonic()
        self.finish_snapshot()
        self.session.emit(PhaseEntered(round=update.round - 1, phase="apply"))
        self.session.say_given_up(self.trainer.apply(update, self.link.load_object), update.round)
        state = self.trainer.anchor.state_digest()
        self.anchor, self.members = anchor, update.staying
        self._begin_anew()
        self._end_idling()
        group, imposed = [pledge.peer for pledge in update.members], penalties_of(update, self.trainer.layer_names)
        self.session.emit(
            RoundCommitted(
                round=update.round, digest=anchor.hex(), state=state.hex(), group=group,
                weights=weights_of(update, self.trainer.parts),
                penalties=[asdict(penalty) for penalty in imposed],
                tokens=sum(pledge.tokens for pledge in update.members), bytes_sent=bytes_sent,
                bytes_received=bytes_received, round_s=round(time.monotonic() - self.round_began_at, 3),
                exposed_s=round(self.exposed_s, 3), void=sum(part == b"" for part in update.parts),
                norms=norms_of(update),
            )
        )  # fmt: skip
        for penalty in imposed:
            if self.in_step or penalty.about == self.trainer.me:  # a newcomer need not tell what was long ago
                self.session.emit(penalty)
        self.round_began_at = self.idle_since = time.monotonic()
        self.exposed_s = 0.0
        # Last: it may raise LinkLost, and the round is told to people once.
        self.link.send("applied", anchor, state)
        if self.in_step and self.snapshotter.due(update.round):
            self.snapshotter.start(self.trainer.anchor, anchor, state)
        if not self.session.wishes.pausing and self._my_turn_to_evaluate(update):
            self._evaluate()

    def _begin_anew(self) -> None:
        """This peer stands at another anchor, or with another link: nothing has been said here yet."""
        self.freeze_asked = self.round_begun = self.said_paused = self.went_on = False

    def finish_snapshot(self) -> None:
        """It is written beside training, until the anchor is about to change."""
        why = self.snapshotter.wait()
        if why:
            self.session.warn("SNAPSHOT", why)

    def _my_turn_to_evaluate(self, update: Update) -> bool:
        """All anchors are alike, so one member measures each; they take turns."""
        every, last = self.spec.data.eval_every, self.spec.run.rounds
        if not self.members or (update.round % every and update.round != last):
            return False
        return self.members[(update.round // every) % len(self.members)] == self.trainer.me

    def _evaluate(self) -> None:
        loss, tokens = self.trainer.evaluate()
        self.session.emit(Evaluated(round=self.trainer.anchor.round, loss=loss, tokens=tokens))
        self.link.send("evaluated", self.trainer.anchor.round, loss)


def _make_trainer(spec: RunSpec, settings: PeerSettings, me: str, directory: Path) -> Trainer:
    import torch

    from peer.train.inner import choose_device
    from peer.train.trainer import Trainer

    if settings.threads:
        torch.set_num_threads(settings.threads)
    return Trainer(spec, me, directory / "x", choose_device(settings.device))


def _make_snapshotter(directory: Path, spec: RunSpec) -> Snapshotter:
    from peer.train.snapshotter import Snapshotter

    return Snapshotter(directory, spec)


def _restore(trainer: Trainer, directory: Path, session: Session) -> tuple[Checkpoints, bytes]:
    """Be what the newest intact checkpoint says; returns the anchor it was taken at, empty without one."""
    from peer.train.checkpoint import Checkpoints, newest

    checkpoints = Checkpoints(directory / "checkpoints")

    def set_aside(path: Path, why: str) -> None:
        session.warn("CHECKPOINT", f"checkpoint {path} is not used: {why}")
        checkpoints.set_aside(path)

    found = newest(checkpoints.folder, trainer.spec.digest().hex(), trainer.me, set_aside)
    if found is None:
        return checkpoints, b""
    trainer.restore(found)
    session.say("JOINING", f"going on from the checkpoint of round {trainer.anchor.round}")
    return checkpoints, found.anchor


def _started(settings: PeerSettings, me: str, trainer: Trainer, directory: Path) -> PeerStarted:
    return PeerStarted(
        name=settings.name or me[-8:], version=version("homefires"), device=str(trainer.device),
        parameters=trainer.parameters, directory=str(directory), rounds=trainer.spec.run.rounds,
        settings=asdict(settings),
    )  # fmt: skip
