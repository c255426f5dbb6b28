"""How the homes of a cluster come together: a lead waits for enough of them and says who holds what."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from peer.events import Event
from peer.ipc import Assignment, AssignStages, HomeOffer, HomesOffered, ReportEvent, StagesAssigned, ToLink, Waiting
from peer.link.handle import LeaveRequested
from peer.model.build import build_meta
from peer.model.flat import FlatParameters
from peer.pipeline.span_choice import Wire, choose_spans
from peer.spec import RunSpec
from peer.telemetry.reporter import Reporter

T = TypeVar("T")
LOOK_S = 1.0
"""Whoever waits looks so often whether its owner wants it to leave."""


def assemble(
    send: Callable[[ToLink], None], inbox: SimpleQueue[Any], spec: RunSpec, me: str, homes: int, epoch: int,
    wire: Wire, session: Reporter,
) -> Assignment:  # fmt: skip
    """A lead's: waits until `homes` homes are here, itself among them, and tells them who holds which layers.

    Raises what a link ended with, LeaveRequested, and BadInput where the model cannot be cut for them.
    """
    layers = FlatParameters(build_meta(spec)).layers

    def enough(message: object) -> tuple[HomeOffer, ...] | None:
        if not isinstance(message, HomesOffered):
            return None
        missing = homes - 1 - len(message.homes)
        if missing > 0:
            session.say("JOINING", f"waiting for {missing} more of the {homes} homes of this cluster")
            return None
        return message.homes[: homes - 1]

    session.say("JOINING", f"waiting for the other homes of this cluster, {homes} in all")
    chosen = _hear(inbox, session, enough)
    assignment = choose_spans(
        layers, [me, *(home.peer for home in chosen)], [0.0, *(home.tokens_per_s for home in chosen)],
        [0.0, *(home.memory_gb for home in chosen)], epoch, wire,
    )  # fmt: skip
    send(AssignStages(assignment))
    return assignment


def await_assignment(inbox: SimpleQueue[Any], session: Reporter) -> Assignment:
    """A worker's: waits for its lead's word. Raises what a link ended with, and LeaveRequested."""
    session.say("JOINING", "waiting for the lead of the cluster to say which layers are for this home")
    return _hear(inbox, session, lambda message: message.assignment if isinstance(message, StagesAssigned) else None)


def _hear(inbox: SimpleQueue[Any], session: Reporter, wanted: Callable[[object], T | None]) -> T:
    """What `wanted` makes of something that the link says; everything else is told or dropped."""
    while not session.stopping:
        try:
            item = inbox.get(timeout=LOOK_S)
        except Empty:
            continue
        match item:
            case Waiting(why):
                session.say("JOINING", why)
            case ReportEvent(name, fields):
                session.emit(Event.registry[name](**fields))
            case Exception():
                raise item
        found = wanted(item)
        if found is not None:
            return found
    raise LeaveRequested


def next_epoch() -> int:
    """Of a lead: later than any before, also after a restart within a second."""
    return time.time_ns() // 10**6
