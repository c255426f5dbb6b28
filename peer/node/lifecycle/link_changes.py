"""A peer's link during its life: it starts, reports where the chain stands, ends, and is started again."""

from __future__ import annotations

from msgspec.structs import replace

from dht.errors import ClockOff, DiskFull, HomefiresError, RunMismatch, Unreachable
from peer.node.lifecycle import state_text
from peer.node.lifecycle.inputs_effects import Began, ClockJumped, Fail, Greeted, LinkEnded, LinkWaits, Reconnect
from peer.node.lifecycle.state import (
    CLOCK_RETRY_S,
    LINK_LOST_WINDOW_S,
    LINKS_LOST,
    RETRY_S,
    SPEC_TIMEOUT_S,
    Following,
    Joining,
    Offline,
)
from peer.node.lifecycle.turn import Turn


def link_says(turn: Turn, event: Greeted | LinkWaits | Began | LinkEnded | ClockJumped) -> None:
    life = turn.life
    connection = life.connection
    match event, connection:
        case Greeted(), Joining(stage="spec"):
            turn.set(connection=replace(connection, stage="hello", spec_by=None))
        case LinkWaits(), Joining():
            turn.set(connection=replace(connection, why=event.why))
        case Began(), Joining(stage="begin"):
            if life.round.anchor not in (b"", event.anchor):
                text = f"the checkpoints are at round {life.trainer.round}, where the chain beside them does not lead"
                turn.add(Fail(RunMismatch(f"{text}; move the checkpoints away to start from the chain")))
            turn.set(connection=Following(), met=True)
            turn.set_round(anchor=event.anchor, members=event.members)
        case ClockJumped(), Offline(cause="CLOCK"):
            turn.set(connection=replace(connection, retry_at=life.at))
        case LinkEnded(), Offline():
            turn.set(connection=replace(connection, link_ended=True))
        case LinkEnded(), Joining() | Following() if not life.leaving:
            turn.set(moves=(), asked_there=False)
            turn.set_round(pause_told=False)
            turn.interrupt()
            _link_ended(turn, event.error, connection)


def _link_ended(turn: Turn, error: Exception, connection: Joining | Following) -> None:
    """A link that ends without an error, or with its network daemon, is started again, unless that happens too
    often. With a wrong clock its records are expired or not yet valid: another link begins once the clock was set.
    It writes to the same disk as the trainer, so a full disk is waited for."""
    life, now = turn.life, turn.life.at
    clock_why = connection.clock_why if isinstance(connection, Joining) else ""
    match error:
        case ClockOff():
            if not clock_why:
                turn.warn("CLOCK", f"{error}; this peer holds back until it is right")
            why = f"{error}; training goes on by itself when it is right"
            turn.set(connection=Offline("CLOCK", why, now + CLOCK_RETRY_S))
        case DiskFull():
            turn.set(connection=Offline("DISK", f"{error}; {state_text.MAKE_ROOM}", now + RETRY_S))
        case _ if clock_why:  # and the network is away: a hold may last longer than either
            turn.set(connection=Offline("CLOCK", clock_why, now + CLOCK_RETRY_S))
        case HomefiresError() if not isinstance(error, Unreachable) or not life.met:  # no new link would help
            give_up(turn, error)
        case _:
            lost = (*(at for at in life.links_lost if now - at < LINK_LOST_WINDOW_S), now)
            if len(lost) > LINKS_LOST:
                return give_up(turn, error)
            turn.set(links_lost=lost)
            turn.warn("LINK", "the link ended unexpectedly and is started again; nothing is lost")
            reconnect(turn)
    return None


def give_up(turn: Turn, error: Exception) -> None:
    """No further link would help."""
    turn.set(connection=Offline("LOST"))
    turn.add(Fail(error))


def reconnect(turn: Turn, clock_why: str = "") -> None:
    # By a wrong clock nothing may answer for hours; the link says so itself.
    spec_by = None if clock_why else turn.life.at + SPEC_TIMEOUT_S
    turn.set(connection=Joining("spec", True, spec_by, "", clock_why))
    turn.add(Reconnect())
