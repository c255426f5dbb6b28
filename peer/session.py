"""The whole story of a peer, on one screen: join a run, train, agree, and leave.

The link runs in a child process and starts first, so that it loads hivemind while this process
loads torch. Everything this process has to say is an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from peer.averaging.child import LinkChild
from peer.events import (
    Evaluated,
    Event,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PhaseEntered,
    RoundCommitted,
    RoundStarted,
)  # fmt: skip
from peer.rounds.update import Block, Update
from peer.spec import PeerSettings, RunSpec, parse

if TYPE_CHECKING:
    from peer.train.trainer import Trainer

SPEC_TIMEOUT_S = 90.0
POLL_S = 0.5
PROGRESS_S = 1.0


def join(link: LinkChild, me: str, settings: PeerSettings, directory: Path, session: Session) -> None:
    """Take part in a run until it is finished or `session.stopping` says to leave."""
    session.say("JOINING", "looking for the run")
    spec = parse(link.expect("spec", SPEC_TIMEOUT_S)[0])
    session.say("JOINING", "building the model and reading the data")
    session.building = True
    trainer = _make_trainer(spec, settings, me, directory)
    session.building = False
    session.emit(_started(settings, me, trainer, directory))
    link.send("model", trainer.layer_sizes, trainer.anchor.state_digest())
    anchor, members = link.expect("begin", None)
    peer = Peer(link, trainer, spec, session, anchor, members)
    while not peer.finished and not session.stopping:
        peer.catch_up_or_train()
    link.send("finish" if peer.finished else "leave")


@dataclass
class Session:
    """Where events go, and whether somebody asked this peer to leave."""

    emit: Callable[[Event], None]
    stopping: bool = False
    building: bool = False
    """The model is being built: a signal need not wait for that."""
    state: str = ""
    why: str = ""

    def say(self, state: str, why: str) -> None:
        """Say what this peer does and why, once per change."""
        if (state, why) != (self.state, self.why):
            self.state, self.why = state, why
            self.emit(PeerStateChanged(state=state, why=why))

    def left(self) -> bool:
        return self.stopping


@dataclass
class Peer:
    """A peer in a run: one trainer, one link, one round after the other."""

    link: LinkChild
    trainer: Trainer
    spec: RunSpec
    session: Session
    anchor: bytes
    members: tuple[str, ...]
    in_step: bool = False
    freeze_asked: bool = False
    round_began_at: float = field(default_factory=time.monotonic)
    """When this anchor came to be here."""
    training_since: float = field(default_factory=time.monotonic)
    idle_since: float | None = None
    """Since when this peer can make no inner step; None while it trains."""
    exposed_s: float = 0.0
    progress: Progress = field(default_factory=lambda: Progress())

    @property
    def finished(self) -> bool:
        return 0 < self.spec.run.rounds <= self.trainer.anchor.round

    def catch_up_or_train(self) -> None:
        """One turn: hear the link, then do what this peer's state asks for."""
        if not self.in_step:
            self.session.say("SYNCING", "catching up with the others")
            self._hear(POLL_S)
        elif self.trainer.frozen and not self._overdue():
            self.session.say("AVERAGING", f"round {self.trainer.anchor.round + 1} is being agreed")
            self._hear(POLL_S)
        else:
            self._train_step()
            self._hear(0.0)

    # ---- train and freeze ----

    def _train_step(self) -> None:
        trainer = self.trainer
        if trainer.step_in_round == 0:
            self._begin_round()
        step = trainer.train_step()
        self.progress.add(step.loss, step.tokens)
        time_share = (time.monotonic() - self.training_since) / self.spec.round.max_train_s
        share = max(trainer.step_in_round / trainer.steps_in_round, time_share)
        freezing = not trainer.frozen and (share >= 1 or self.freeze_asked)
        if freezing or self.progress.due():
            self.session.emit(self.progress.event(trainer, step.learning_rate))
            self.link.send("progress", share)
        if freezing:
            self._freeze()

    def _begin_round(self) -> None:
        self.trainer.begin_round(self.members)
        self._end_idling()
        self.training_since = time.monotonic()
        round = self.trainer.anchor.round
        self.session.emit(RoundStarted(round=round, steps=self.trainer.steps_in_round))
        self.session.say("TRAINING", f"towards round {round + 1}")

    def _freeze(self) -> None:
        self.freeze_asked = False
        self.idle_since = time.monotonic()
        self.session.emit(PhaseEntered(round=self.trainer.anchor.round, phase="freeze"))
        self.trainer.freeze(self.anchor)
        self.link.send("frozen", self.anchor)

    def _overdue(self) -> bool:
        """A round that takes longer than every deadline together holds nobody: training goes on."""
        table = self.spec.round
        longest_s = table.gather_s + 2 * (table.patience_s + table.exchange_s)
        if self.idle_since is None or time.monotonic() - self.idle_since < longest_s:
            return self.idle_since is None
        self.session.say("TRAINING", f"round {self.trainer.anchor.round + 1} is overdue; training goes on")
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
                    update = Block.from_bytes(fields[0]).update
                    self.trainer.replay(update, self.link.load_object)
                    self.members = tuple(pledge.peer for pledge in update.members)
                case "resume":
                    self._resume(fields[0])
                case "freeze":
                    self.freeze_asked = not self.trainer.frozen
                case "in_step":
                    self.in_step = True
                case "report":
                    name, values = fields
                    self.session.emit(Event.registry[name](**values))
                case _:
                    raise AssertionError(f"no such message: {kind}")
            message = self.link.receive(0.0)

    def _resume(self, anchor: bytes) -> None:
        """Stand where the chain on this disk ends; at the very start the first founder measures it."""
        self.anchor = anchor
        self.trainer.resume(anchor)
        self.round_began_at = self.idle_since = time.monotonic()
        self.link.send("applied", anchor, self.trainer.anchor.state_digest())
        if self.trainer.anchor.round == 0 and min(self.members) == self.trainer.me:
            self._evaluate()

    def _apply(self, packed: bytes, anchor: bytes, bytes_sent: int, bytes_received: int) -> None:
        update = Block.from_bytes(packed).update
        if self.idle_since is None:
            self.idle_since = time.monotonic()
        self.session.emit(PhaseEntered(round=update.round - 1, phase="apply"))
        self.trainer.apply(update, self.link.load_object)
        state = self.trainer.anchor.state_digest()
        self.anchor, self.members = anchor, tuple(pledge.peer for pledge in update.members)
        self.freeze_asked = False
        self.link.send("applied", anchor, state)
        self._end_idling()
        self.session.emit(
            RoundCommitted(
                round=update.round, digest=anchor.hex(), state=state.hex(), group=list(self.members),
                weights=dict(zip(self.members, update.weights[0], strict=True)), penalties=[],
                tokens=sum(pledge.tokens for pledge in update.members), bytes_sent=bytes_sent,
                bytes_received=bytes_received, round_s=round(time.monotonic() - self.round_began_at, 3),
                exposed_s=round(self.exposed_s, 3), void=sum(part == b"" for part in update.parts),
            )
        )  # fmt: skip
        self.round_began_at = self.idle_since = time.monotonic()
        self.exposed_s = 0.0
        self.trainer.step_in_round = 0
        if self._my_turn_to_evaluate(update):
            self._evaluate()

    def _my_turn_to_evaluate(self, update: Update) -> bool:
        """All anchors are alike, so one member measures each; they take turns."""
        every, last = self.spec.data.eval_every, self.spec.run.rounds
        if update.round % every and update.round != last:
            return False
        return self.members[(update.round // every) % len(self.members)] == self.trainer.me

    def _evaluate(self) -> None:
        loss, tokens = self.trainer.evaluate()
        self.session.emit(Evaluated(round=self.trainer.anchor.round, loss=loss, tokens=tokens))


@dataclass
class Progress:
    """Training loss and speed since the last report."""

    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    since: float = field(default_factory=time.monotonic)

    def add(self, loss: float, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    def due(self) -> bool:
        return time.monotonic() - self.since >= PROGRESS_S

    def event(self, trainer: Trainer, learning_rate: float) -> InnerProgressed:
        """What happened since the last call; starts anew."""
        seconds = max(time.monotonic() - self.since, 1e-6)
        event = InnerProgressed(
            round=trainer.anchor.round, step=trainer.step_in_round, steps=trainer.steps_in_round,
            loss=sum(self.losses) / len(self.losses), tokens=self.tokens,
            tokens_per_s=round(self.tokens / seconds, 1), learning_rate=learning_rate,
        )  # fmt: skip
        self.losses, self.tokens, self.since = [], 0, time.monotonic()
        return event


def _make_trainer(spec: RunSpec, settings: PeerSettings, me: str, directory: Path) -> Trainer:
    import torch

    from peer.train.inner import choose_device
    from peer.train.trainer import Trainer

    if settings.threads:
        torch.set_num_threads(settings.threads)
    return Trainer(spec, me, directory / "x", choose_device(settings.device))


def _started(settings: PeerSettings, me: str, trainer: Trainer, directory: Path) -> PeerStarted:
    return PeerStarted(
        name=settings.name or me[-8:], version=version("homefires"), device=str(trainer.device),
        parameters=trainer.parameters, directory=str(directory),
    )  # fmt: skip
