"""The life of a peer as one pure function: state and input in, state and effects out.

`step` accounts for the time that has passed, handles the input, and then, if the trainer is idle, decides what it does
next. That is `_next`: the whole policy on one screen. Nothing here waits; the result of slow work comes back as an
input.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from dht.errors import DeviceLost, Unreachable
from peer.node.lifecycle.inputs_effects import (
    LOOKS,
    Adopt,
    Apply,
    Began,
    ClockJumped,
    Done,
    Emit,
    Fail,
    Greet,
    Greeted,
    LayersReady,
    LeaveAsked,
    LeaveDevice,
    LifeEffect,
    LifeInput,
    LinkEnded,
    LinkWaits,
    OwnerChanged,
    Positioned,
    Replay,
    Replayed,
    Resume,
    RoundDecided,
    Save,
    Saved,
    Say,
    SnapshotTaken,
    SpeedsHeard,
    Step,
    Submit,
    SubmitAsked,
    SyncChanged,
    TakeBack,
    TakeDevice,
    TrainerFailed,
    TrainerStatus,
    Woken,
    Work,
    Written,
)
from peer.node.lifecycle.link_changes import give_up, link_says, reconnect
from peer.node.lifecycle.pace import Pace
from peer.node.lifecycle.state import (
    SPEC_TIMEOUT_S,
    AnchorState,
    Following,
    Joining,
    Life,
    Mode,
    Offered,
    Offline,
    Open,
    Progress,
    Saves,
    Writing,
)
from peer.node.lifecycle.trainer_results import done, layers_ready, saved, written
from peer.node.lifecycle.turn import Turn, describe, grant_finish, tell_pause, tell_progress
from peer.schema.events import PhaseEntered, RoundStarted
from peer.schema.ipc import Leave, StepsGoOn
from peer.schema.spec import RunSpec


def begin(
    run: RunSpec, me: str, trainer: TrainerStatus, anchor: bytes, now: float, owner: OwnerChanged | None = None,
    *, serves: bool = False,
) -> Life:  # fmt: skip
    """A peer that knows its run, and has a trainer at `anchor` (empty: at its initial parameters) and a link.
    `serves`: it works for the lead of a cluster."""
    return Life(
        run=run, me=me, at=now, trainer=trainer, round=AnchorState(anchor, (), now), pace=Pace(run),
        progress=Progress(now, 0.0), saves=Saves(now), owner=owner or OwnerChanged(now), told_at=now,
        serves=serves,
    )  # fmt: skip


def step(life: Life, event: LifeInput) -> tuple[Life, tuple[LifeEffect, ...]]:
    """The life after an event, and the effects, in order."""
    turn = Turn(life.aged(event.now))
    if life.mode is Mode.LEFT:
        return turn.life, ()
    _take_in(turn, event)
    if any(member != life.me for member in turn.life.round.members):
        turn.set(had_others=True)
    if turn.life.work is None and not turn.life.saved_last:
        _next(turn)
    describe(turn)
    return turn.life, (*turn.effects, *turn.last)


def _take_in(turn: Turn, event: LifeInput) -> None:
    match event:
        case Done():
            done(turn, event)
        case RoundDecided() | Replayed() | SnapshotTaken() | Positioned():
            turn.set(moves=(*turn.life.moves, event), asked_there=False)
            turn.interrupt()
        case SubmitAsked():
            _submit_asked(turn)
        case SyncChanged() if isinstance(turn.life.connection, Following):
            turn.set(connection=Following(event.in_step))
            turn.interrupt()
        case SpeedsHeard():
            turn.set(pace=turn.life.pace.heard(event.tokens_per_s))
        case Written():
            written(turn, event)
        case LayersReady():
            layers_ready(turn, event)
        case Saved():
            saved(turn, event)
        case OwnerChanged():
            turn.set(owner=event, granted=False)
            if event.holds:
                turn.interrupt(at_once=True)
            grant_finish(turn)
        case LeaveAsked():
            leave(turn, finished=False)
        case TrainerFailed():
            _crashed(turn, event)
        case Greeted() | LinkWaits() | Began() | LinkEnded() | ClockJumped():
            link_says(turn, event)
        case Woken():
            _woken(turn)


def _submit_asked(turn: Turn) -> None:
    life = turn.life
    if life.moves or life.moving is not None:
        turn.set(asked_there=True)
    elif isinstance(life.round.submission, Open):
        turn.set_round(submission=Open(asked=True))
        turn.interrupt()


def _crashed(turn: Turn, event: TrainerFailed) -> None:
    """The last checkpoint is still tried, once; but not from a device that is gone, which would not answer."""
    life = turn.life
    submission = life.round.submission
    turn.set_round(applying=None, submission=Offered() if isinstance(submission, Writing) else submission)
    if event.in_work:
        turn.set(work=None, moving=None, saved_last=life.leaving and isinstance(life.work, Save))
    if isinstance(event.error, DeviceLost):
        leave(turn, finished=False)
        turn.set(saved_last=True)
    turn.add(Fail(event.error))


def _woken(turn: Turn) -> None:
    life = turn.life
    if life.at >= life.overdue_at:
        turn.set_round(released="overdue")
    if life.stuck is not None and life.at >= life.stuck.retry_at:
        turn.set(stuck=None)
    if isinstance(life.connection, Joining) and life.at >= (life.connection.spec_by or float("inf")):
        give_up(turn, Unreachable(f"the link did not get the run's spec within {SPEC_TIMEOUT_S:.0f} s"))


def leave(turn: Turn, *, finished: bool) -> None:
    if turn.life.leaving:
        return
    turn.set(leaving=True, chores=(), moves=())
    turn.interrupt(at_once=True)
    if not isinstance(turn.life.connection, Offline):
        turn.add(Say(Leave(finished)))


# ---- what it does next ----


def _next(turn: Turn) -> None:
    """The trainer is idle: decide what it does now, if anything."""
    life = turn.life
    submission = life.round.submission
    if isinstance(submission, Writing) and submission.failed:
        return turn.do(TakeBack())
    # While layers are on their way, or a contribution is written, nothing but an inner step leaves them alone.
    settled = life.round.applying is None and not isinstance(submission, Writing)
    if life.leaving:
        return _end(turn) if settled else None
    if life.chores and settled:
        chore, *rest = life.chores
        turn.set(chores=tuple(rest))
        return _next(turn) if isinstance(chore, LOOKS) and life.owner.holds else _do_chore(turn, chore)
    if life.moves:
        return _move(turn) if settled else None
    if life.finished and life.met and not life.serves:  # its lead may need it for the loss of the last round
        leave(turn, finished=True)
        return _next(turn)
    match life.connection:
        case Joining(stage="hello") if settled:
            turn.set(connection=replace(life.connection, stage="begin"))
            return turn.add(Greet(life.round.anchor))
        case Offline():
            return _offline(turn, life.connection)
        case Following(in_step=False) if life.owner.holds:
            return turn.do(LeaveDevice()) if life.holds_device else _stand_aside(turn)
        case Joining() | Following(in_step=False):
            return None
    if life.sits_out:
        return _sit_out(turn)
    if life.round.pause_told:
        _next_duty(turn)
    return _train(turn)


def _end(turn: Turn) -> None:
    """Write the last checkpoint; before the first round there is nothing to keep."""
    if turn.life.round.anchor:
        turn.set(saves=replace(turn.life.saves, running=True))
        return turn.do(Save(turn.life.round.anchor, "last"))
    turn.set(saved_last=True)
    return None


def _do_chore(turn: Turn, chore: Work) -> None:
    if isinstance(chore, Save):
        turn.set(saves=replace(turn.life.saves, running=True))
    turn.do(chore)


def _move(turn: Turn) -> None:
    life = turn.life
    move, *rest = life.moves
    turn.set(moves=tuple(rest), moving=move)
    match move:
        case RoundDecided():
            turn.add(Emit(PhaseEntered(round=move.update.round - 1, phase="apply")))
            follows = life.in_step and not life.sits_out and move.update.round != life.run.run.rounds
            turn.do(Apply(move.update, life.run.round.overlap != "none" and follows))
        case Replayed():
            turn.do(Replay(move.update))
        case SnapshotTaken():
            turn.do(Adopt(move.round, move.anchor, life.round.anchor))
        case Positioned():
            turn.do(Resume(move.anchor))
        case _:
            assert_never(move)


def _offline(turn: Turn, connection: Offline) -> None:
    life = turn.life
    if connection.cause == "CLOCK" and life.holds_device:
        return turn.do(LeaveDevice())
    if life.over_quota or not connection.link_ended:  # without traffic no link begins
        return None
    if connection.cause == "QUOTA" or life.at >= connection.retry_at:
        reconnect(turn, connection.why if connection.cause == "CLOCK" else "")
    return None


def _stand_aside(turn: Turn) -> None:
    """Without traffic left, and with nothing more to give or to hear, the peer has no link. A peer that only pauses
    votes and applies every round."""
    if turn.life.over_quota:
        turn.set(connection=Offline("QUOTA", link_ended=False))
        turn.add(Say(Leave(finished=False)))


def _sit_out(turn: Turn) -> None:
    """Contribute what was learned so far, make no inner step, hold nobody up."""
    life = turn.life
    if life.round.applying is not None:
        return None
    if life.holds_device:  # first: its owner need not wait for a disk
        return turn.do(LeaveDevice())
    waits = isinstance(life.round.submission, Writing)
    if not life.round.pause_told and not waits:
        if isinstance(life.round.submission, Open) and life.trainer.fresh and not life.finished:
            return _submit(turn)
        tell_pause(turn)
    if not life.trainer.offered and not life.trainer.fresh and not waits:
        _stand_aside(turn)
    return None


def _next_duty(turn: Turn) -> None:
    """Train again after a pause: a peer that gave nothing for this anchor may still do so."""
    life = turn.life
    if isinstance(life.round.submission, Open):
        turn.set_round(pause_told=False, submission=Open())
    else:
        turn.set_round(pause_told=False, released="resumed")
    if life.elapsed_s() >= life.run.round.max_train_s:
        turn.set_round(agreed_at=life.at)  # the others may be gone: it is as if the round began now
    turn.set(progress=Progress(life.at, life.times.exposed_s))
    turn.say(StepsGoOn())


def _train(turn: Turn) -> None:
    life = turn.life
    if life.stuck is not None or life.granted:
        return None
    if life.held():
        if life.round.held_since is None:
            turn.set_round(held_since=life.at)
        return None
    if life.part_is_made():
        return _submit(turn) if life.round.applying is None else None
    if life.rests_until > life.at:
        return None
    if not life.trainer.on_device:
        return turn.do(TakeDevice())
    members = _begin_round(turn)
    turn.set(rests_until=life.at + life.owner.min_step_s)
    life = turn.life
    position = life.pace.position(life.round_in_training, life.trainer.step, life.elapsed_s())
    return turn.do(Step(_most(life), position, members))


def _submit(turn: Turn) -> None:
    members = _begin_round(turn)
    tell_progress(turn)
    turn.add(Emit(PhaseEntered(round=turn.life.trainer.round, phase="submit")))
    turn.do(Submit(turn.life.round.anchor, members))


def _begin_round(turn: Turn) -> tuple[str, ...] | None:
    """Share out the data of this round, once."""
    life = turn.life
    if life.round.begun:
        return None
    turn.set_round(begun=True)
    round = life.trainer.round
    turn.add(Emit(RoundStarted(round=round, steps=life.pace.expected(round))))
    return life.round.members


def _most(life: Life) -> int:
    """How many inner steps may follow each other before the next look at other work."""
    if isinstance(life.round.submission, Open) and life.round.submission.asked:
        return 1
    if life.serves:
        return 1
    made, pace = life.trainer.step, life.pace
    most = pace.steps(life.round_in_training) - made
    if pace.step_s:
        most = min(most, int((life.run.round.max_train_s - life.elapsed_s()) / pace.step_s))
    if life.streams and life.trainer.offered and not life.round.released:
        most = min(most, life.run.round.delay - made)
    return max(1, most)
