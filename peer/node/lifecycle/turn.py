"""One input of a peer's life while it is handled: the state so far, the effects, and what people are told."""

from __future__ import annotations

from typing import Unpack

from msgspec.structs import replace

from peer.consensus.protocol.block import Update
from peer.node.lifecycle import state_text
from peer.node.lifecycle.inputs_effects import (
    LOOKS,
    ContinuePrompts,
    Do,
    Emit,
    EmitRound,
    Evaluate,
    ForgetForecast,
    GrantFinish,
    Interrupt,
    LifeEffect,
    RoundDecided,
    Say,
    Step,
    Work,
    WriteSnapshot,
)
from peer.node.lifecycle.life_changes import AnchorChanges, LifeChanges
from peer.node.lifecycle.state import Following, Life, Open, Progress
from peer.schema.events import AlertRaised, InnerProgressed, PeerStateChanged
from peer.schema.ipc import PausedAt, ReportProgress, StandsAt, ToLink


class Turn:
    """The state while one input is handled, and the effects."""

    __slots__ = ("effects", "last", "life")

    def __init__(self, life: Life) -> None:
        self.life = life
        self.effects: list[LifeEffect] = []
        self.last: tuple[LifeEffect, ...] = ()
        """Work comes last: nothing else is asked for until it is done."""

    def set(self, **changes: Unpack[LifeChanges]) -> None:
        self.life = replace(self.life, **changes)

    def set_round(self, **changes: Unpack[AnchorChanges]) -> None:
        self.life = replace(self.life, round=replace(self.life.round, **changes))

    def add(self, *effects: LifeEffect) -> None:
        self.effects += effects

    def say(self, message: ToLink) -> None:
        """Tell the link. A link that does not follow the chain yet is told everything when it begins."""
        if isinstance(self.life.connection, Following):
            self.effects.append(Say(message))

    def warn(self, code: str, text: str) -> None:
        self.effects.append(Emit(AlertRaised(level="warning", code=code, text=text)))

    def add_chore(self, *chores: Work) -> None:
        """Work that comes before the next step."""
        self.set(chores=(*self.life.chores, *chores))

    def do(self, work: Work) -> None:
        assert self.life.work is None, "one piece of work at a time"
        self.last = (Do(work),)
        self.set(work=work, work_began_at=self.life.at)

    def interrupt(self, *, at_once: bool = False) -> None:
        """The present step is completed, but no further one is made; an owner need not even wait for that. A worker
        of a cluster that waits for its lead's next step makes none."""
        if isinstance(self.life.work, Step) or (at_once and isinstance(self.life.work, LOOKS)):
            self.add(Interrupt(at_once or self.life.serves))


def tell_progress(turn: Turn) -> None:
    """The loss since people last heard, and the speed in the time that was not exposed."""
    life, progress = turn.life, turn.life.progress
    if not progress.steps:
        return
    exposed_s = life.times.exposed_s
    seconds = max(life.at - progress.since - (exposed_s - progress.exposed_s), 1e-6)
    loss = progress.losses / progress.measured if progress.measured else None
    tokens = 0 if life.serves else progress.tokens  # its lead counts them
    told = InnerProgressed(
        round=life.round_in_training, step=life.trainer.step, steps=life.pace.expected(life.round_in_training),
        loss=loss, tokens=tokens, tokens_per_s=round(tokens / seconds, 1),
        learning_rate=progress.learning_rate,
    )  # fmt: skip
    speed = 0.0 if life.serves else life.pace.tokens_per_s or told.tokens_per_s
    turn.set(progress=Progress(life.at, exposed_s, learning_rate=progress.learning_rate))
    turn.add(Emit(told))
    turn.say(ReportProgress(life.share(), loss, speed, life.trainer.device_gb))


def tell_round(turn: Turn, move: RoundDecided, state: bytes) -> None:
    life, update = turn.life, move.update
    exposed_s = life.times.exposed_s
    turn.add(
        EmitRound(
            update=update, anchor=move.anchor, state=state, bytes_sent=move.bytes_sent,
            bytes_received=move.bytes_received, round_s=life.at - life.told_at,
            exposed_s=exposed_s - life.told_exposed_s, in_step=life.in_step,
        )
    )  # fmt: skip
    turn.say(StandsAt(move.anchor, state))
    turn.set(told_at=life.at, told_exposed_s=exposed_s)
    if life.in_step:
        turn.add(WriteSnapshot(move.anchor, state))
    if _is_my_turn(life, update, life.run.data.eval_every) or (
        _is_last(life, update) and life.me in life.round.members
    ):
        turn.add_chore(Evaluate(update.round))
    if life.run.evaluate is not None and _is_my_turn(life, update, life.run.evaluate.every):
        turn.add_chore(ContinuePrompts(update.round))


def _is_my_turn(life: Life, update: Update, every: int) -> bool:
    """All anchors are alike, so one member evaluates each, in turn."""
    members = life.round.members
    if not members or (update.round % every and not _is_last(life, update)):
        return False
    return members[(update.round // every) % len(members)] == life.me


def _is_last(life: Life, update: Update) -> bool:
    """What the run has come to is measured by each peer: it is what each of their owners is told at the end."""
    return update.round == life.run.run.rounds


def tell_pause(turn: Turn) -> None:
    turn.set_round(pause_told=True)
    turn.add(ForgetForecast())
    turn.say(PausedAt(turn.life.round.anchor))


def grant_finish(turn: Turn) -> None:
    """Its contribution is made: a peer that was asked to finish the round pauses now."""
    life = turn.life
    if life.owner.finishing and not life.granted and not isinstance(life.round.submission, Open):
        turn.set(granted=True)
        turn.add(GrantFinish())


def describe(turn: Turn) -> None:
    """People hear it once per change, before what is done about it."""
    sentence = state_text.sentence(turn.life)
    if sentence is None or not state_text.is_news(sentence, turn.life.said):
        return
    turn.set(said=sentence)
    state, why, until = sentence
    turn.add(Emit(PeerStateChanged(state=state, why=why, until=until)))
