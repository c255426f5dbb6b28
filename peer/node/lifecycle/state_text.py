"""Sentences about a peer's life: its state, the reason and its end; and the effect of a move on the peer's own work."""

from __future__ import annotations

from collections.abc import Iterator

from peer.node.lifecycle.inputs_effects import Evaluate, Moved
from peer.node.lifecycle.state import RETRY_S, Joining, Life, Mode, Offline, Open
from peer.node.limits.policy import until_of, why_of
from peer.schema.events import AlertRaised, printable

UNTIL_S = 60.0
"""An end that moves by less is not said again."""
SAMPLE_CHARACTERS = 2000
"""Of a continued text, or of the prompt before it, at most."""
OTHERS_USE_IT = f"the GPU has no room for the model: others use it; tried every {RETRY_S:.0f} s"

MAKE_ROOM = "make room, training goes on by itself"

Sentence = tuple[str, str, float | None]
"""State, why, and Unix time at which it ends by itself, if that is known."""


def one_line(text: str) -> str:
    """A text of several lines as other machines show it: bounded, and without terminal control characters."""
    return printable(" ↵ ".join(text[:SAMPLE_CHARACTERS].splitlines()))


def sentence(life: Life) -> Sentence | None:
    """What people should read now; None if the last text still holds."""
    holds = life.owner.holds
    match life.mode:
        case Mode.LEFT:
            return None
        case Mode.OFFLINE | Mode.JOINING:
            return _without_link(life)
        case Mode.SYNCING if isinstance(life.work, Evaluate):
            return "SYNCING", "measuring the held-out loss of the first parameters", None
        case Mode.SYNCING:
            return "SYNCING", "catching up with the others", None
        case Mode.PAUSED:
            return "PAUSED", why_of(holds), until_of(holds)
        case Mode.STUCK:
            assert life.stuck is not None
            return "PAUSED", life.stuck.why, None
        case Mode.AVERAGING:
            return "AVERAGING", f"round {life.trainer.round + 1} is being agreed{_alone(life)}", None
        case Mode.TRAINING:
            return "TRAINING", f"{_towards(life)}{_alone(life)}", None


def _without_link(life: Life) -> Sentence | None:
    connection, holds = life.connection, life.owner.holds
    assert isinstance(connection, Joining | Offline)
    clock_why = connection.clock_why if isinstance(connection, Joining) else connection.why
    if isinstance(connection, Offline) or clock_why:
        if holds:
            return "PAUSED", why_of(holds), until_of(holds)
        return ("PAUSED", clock_why, None) if clock_why else None
    if connection.why:
        return "JOINING", connection.why, None
    return ("JOINING", "connecting again", None) if connection.again else None


def _towards(life: Life) -> str:
    round, here = life.trainer.round + 1, life.round
    if isinstance(here.submission, Open):
        return f"towards round {round}"
    if round == life.run.run.rounds and here.released != "overdue":
        return f"its part of round {round}, the last one, is given"
    if here.released == "resumed":
        return f"towards round {round + 1}, since its part of round {round} is given"
    if here.released == "overdue":
        return f"round {round} is overdue; training goes on"
    return f"towards round {round + 1}, while round {round} is being agreed"


def _alone(life: Life) -> str:
    """A peer that goes on without the earlier members, as after a restart, must not look as if all was well."""
    is_alone = life.round.members == (life.me,) and (life.had_others or life.run.run.founders > 1)
    return ", alone: nobody else counts its work until somebody joins" if is_alone else ""


def is_news(sentence: Sentence, said: Sentence) -> bool:
    """Whether people should hear it; not for an end that moves with every key press."""
    (*state, until), (*before, before_until) = sentence, said
    if state != before:
        return True
    if until is None or before_until is None:
        return until is not before_until
    return abs(until - before_until) >= UNTIL_S


def given_up(moved: Moved, round: int) -> Iterator[AlertRaised]:
    """Work that was older than the run accepts was given up."""
    if moved.given_up:
        text = f"work of norm {moved.given_up:.3g} was too old at round {round} and is given up"
        yield AlertRaised(level="warning", code="STALE", text=f"{text}; training goes on from there")


def left_behind(moved: Moved, round: int) -> Iterator[AlertRaised]:
    """Its last offer, or work that was too old, was left behind for a snapshot."""
    if moved.given_up:
        text = f"this peer goes on at round {round}; of what it had learned, work of norm {moved.given_up:.3g}"
        text = f"{text} may have been counted already or is too old, and is not offered again"
        yield AlertRaised(level="warning", code="RESYNC", text=text)
