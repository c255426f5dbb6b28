"""Handles the trainer's results: steps, moves, contributions, checkpoints."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from peer.consensus.rounds.timeouts import ready_after_others_s
from peer.node.lifecycle import state_text
from peer.node.lifecycle.inputs_effects import (
    Adopt,
    Apply,
    Continuations,
    ContinuePrompts,
    Done,
    Emit,
    Evaluate,
    ForgetForecast,
    HeldOutLoss,
    LayersReady,
    Move,
    Moved,
    NoData,
    NoRoom,
    Positioned,
    Replay,
    Replayed,
    Resume,
    RoundDecided,
    Save,
    Saved,
    SnapshotTaken,
    Step,
    Stepped,
    Submit,
    TakeBack,
    TakeDevice,
    Written,
)
from peer.node.lifecycle.state import AWAY_MOST_S, RETRY_S, AnchorState, Halted, Offered, Open, Saves, Writing
from peer.node.lifecycle.turn import Turn, grant_finish, tell_pause, tell_progress, tell_round
from peer.schema.events import CheckpointWritten, Evaluated, PeerStateChanged, SampleWritten
from peer.schema.ipc import LossMeasured, OfferContribution, StandsAt

PROGRESS_S = 1.0
"""People and the link hear of inner steps so often, and when a part is made."""
REPLAY_TOLD_S = 1.0
"""So often they hear which round of its own disk it has replayed."""


def done(turn: Turn, event: Done) -> None:
    work, move = turn.life.work, turn.life.moving
    assert work is not None, "something was to be done"
    turn.set(work=None, moving=None, trainer=event.trainer)
    match work, event.result:
        case Step(), Stepped() as stepped:
            _stepped(turn, stepped)
        case ((Step() | TakeDevice()), NoRoom(why)):
            why = f"{why}; {state_text.MAKE_ROOM}" if why else state_text.OTHERS_USE_IT
            turn.set(stuck=Halted(why, turn.life.at + RETRY_S))
        case Step(), NoData(why):
            _missed(turn, why)
        case Submit(), _:
            quiet = turn.life.sits_out
            turn.set_round(submission=Writing(quiet))
            grant_finish(turn)
        case TakeBack(), _:
            turn.set_round(submission=Open())
        case ((Apply() | Replay() | Adopt() | Resume()), Moved() as moved):
            assert move is not None
            _moved(turn, move, moved)
        case Evaluate(round), HeldOutLoss(loss, tokens, by_source, precision):
            turn.add(Emit(Evaluated(round=round, loss=loss, tokens=tokens, by_source=by_source, precision=precision)))
            turn.say(LossMeasured(round, loss))
        case ContinuePrompts(round), Continuations(texts):
            assert turn.life.run.evaluate is not None
            for prompt, text in zip(turn.life.run.evaluate.prompts, texts, strict=False):
                turn.add(
                    Emit(SampleWritten(round=round, prompt=state_text.one_line(prompt), text=state_text.one_line(text)))
                )
        case ContinuePrompts(), NoRoom(why) if why:
            turn.warn("MEMORY", f"{why}; the prompts of this run are not continued here in this round")
        case Evaluate(), NoRoom(why) if why:
            turn.warn("MEMORY", f"{why}; the held-out loss of this round is not measured here")
        case Evaluate(), NoData(why):
            turn.warn("DATA", f"{why}; the held-out loss of this round is not measured here")
        case Save(when="last"), _:
            turn.set(saved_last=True)


def _missed(turn: Turn, why: str) -> None:
    """The others do not wait, so an attempt costs nobody else anything."""
    life = turn.life
    wait_s = min(AWAY_MOST_S, RETRY_S * 2.0**life.missed)
    why = f"{why}; tried again after {wait_s:.0f} s, training goes on by itself"
    turn.set(stuck=Halted(why, life.at + wait_s, away=True), missed=life.missed + 1)


def _stepped(turn: Turn, stepped: Stepped) -> None:
    life = turn.life
    now, times, progress = life.at, life.times, life.progress
    waited_s = min(stepped.waited_s, now - life.work_began_at)
    times = replace(times, training_s=times.training_s - waited_s, exposed_s=times.exposed_s + waited_s)
    rests_until = max(life.rests_until, now + stepped.rest_s) if stepped.rest_s > 0 else life.rests_until
    seconds = (max(now - waited_s, rests_until) - life.work_began_at) / stepped.steps
    pace = life.pace.stepped(seconds, stepped.tokens // stepped.steps)
    measured = 0 if stepped.loss is None else stepped.steps
    progress = replace(
        progress, steps=progress.steps + stepped.steps, tokens=progress.tokens + stepped.tokens,
        losses=progress.losses + measured * (stepped.loss or 0.0), measured=progress.measured + measured,
        learning_rate=stepped.learning_rate,
    )  # fmt: skip
    turn.set(missed=0, times=times, rests_until=rests_until, stepped_at=now, pace=pace, progress=progress)
    if now - progress.since >= PROGRESS_S:
        tell_progress(turn)
    if not isinstance(life.round.submission, Writing) and turn.life.save_is_due(round_ends=False):
        turn.add_chore(Save(life.round.anchor, "due"))


def _moved(turn: Turn, move: Move, moved: Moved) -> None:
    match move:
        case RoundDecided():
            turn.add(*map(Emit, state_text.given_up(moved, move.update.round)))
            turn.set(pace=turn.life.pace.was_late(ready_after_others_s(move.update, turn.life.me)))
            _stand_at(turn, move.anchor, move.update.staying, move.agreed_at)
            if moved.state is None:
                turn.set_round(applying=move)
            else:
                tell_round(turn, move, moved.state)
        case Replayed():
            turn.add(*map(Emit, state_text.given_up(moved, move.update.round)))
            _stand_at(turn, move.anchor, move.update.staying, turn.life.round.agreed_at)
            _tell_replay(turn, move)
        case SnapshotTaken():
            turn.add(*map(Emit, state_text.left_behind(moved, move.round)))
            _stand_at(turn, move.anchor, move.members, turn.life.round.agreed_at)
            # Before anything else happens: an older checkpoint stands where no chain leads on.
            turn.add_chore(Save(move.anchor, "now"))
        case Positioned():
            assert moved.state is not None
            _stand_at(turn, move.anchor, turn.life.round.members, turn.life.at)
            turn.set(told_at=turn.life.at, told_exposed_s=turn.life.times.exposed_s)
            turn.add(ForgetForecast())
            turn.say(StandsAt(move.anchor, moved.state))
            if turn.life.trainer.round == 0 and min(turn.life.round.members) == turn.life.me:
                turn.add_chore(Evaluate(0), *([] if turn.life.run.evaluate is None else [ContinuePrompts(0)]))
        case _:
            assert_never(move)


def _stand_at(turn: Turn, anchor: bytes, members: tuple[str, ...], agreed_at: float) -> None:
    """Nothing was sent from here yet; what was offered before a crash is offered again."""
    life = turn.life
    asked = life.asked_there and not life.moves
    submission = Offered() if life.trainer.offered else Open(asked)
    turn.set(round=AnchorState(anchor, members, agreed_at, submission=submission))
    if not life.moves:
        turn.set(asked_there=False)


def _tell_replay(turn: Turn, move: Replayed) -> None:
    told_at = turn.life.replay_told_at
    if told_at is not None and turn.life.at - told_at >= REPLAY_TOLD_S:
        why = f"round {move.update.round} of {move.last_round} from its own disk"
        turn.add(Emit(PeerStateChanged(state="SYNCING", why=why)))
        told_at = None
    if told_at is None:
        turn.set(replay_told_at=turn.life.at)


def written(turn: Turn, event: Written) -> None:
    """The others are told at once, even in the middle of a long step."""
    life = turn.life
    submission = life.round.submission
    if event.anchor != life.round.anchor or not isinstance(submission, Writing):
        return
    if event.no_room:
        turn.set_round(submission=Writing(submission.quiet, failed=True))
        if life.sits_out:  # the others must hear of the pause all the same
            turn.warn("DISK", f"{event.no_room}; what was learned stays in memory and is given later")
            tell_pause(turn)
        else:
            turn.set(stuck=Halted(f"{event.no_room}; {state_text.MAKE_ROOM}", life.at + RETRY_S))
        return
    turn.set_round(submission=Offered())
    if not submission.quiet:
        turn.say(OfferContribution(event.anchor))
    if life.in_step and life.sits_out:
        tell_pause(turn)
    if submission.quiet or turn.life.save_is_due(round_ends=True):
        turn.add_chore(Save(event.anchor, "due"))


def layers_ready(turn: Turn, event: LayersReady) -> None:
    applied = turn.life.round.applying
    assert applied is not None
    turn.set_round(applying=None)
    tell_round(turn, applied, event.state)


def saved(turn: Turn, event: Saved) -> None:
    life = turn.life
    turn.set(saves=Saves(life.at, event.seconds, running=False, failed=bool(event.no_room)))
    if not event.no_room:
        turn.add(Emit(CheckpointWritten(round=event.round, path=event.path, bytes=event.size_bytes)))
    elif isinstance(life.work, Save) and life.work.when == "last":
        turn.warn("CHECKPOINT", f"{event.no_room}; inner steps since the one before are lost")
    elif not life.saves.failed:
        turn.warn("CHECKPOINT", event.no_room)
