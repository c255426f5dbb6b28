"""How the homes of a cluster come together: a lead waits for enough of them and says who holds what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import msgspec

from dht.atomic_files import write_atomic
from peer.cluster.doubts import Doubts
from peer.events import Event
from peer.ipc import (
    Assignment,
    AssignStages,
    HomeOffer,
    HomesOffered,
    ReportEvent,
    StageHolder,
    StagesAssigned,
    ToLink,
    Waiting,
)
from peer.link.handle import LeaveRequested
from peer.pipeline.span_choice import Wire, choose_spans
from peer.pipeline.stage_model import model_layers, require_cuttable
from peer.settings import PeerSettings
from peer.spec import RunSpec
from peer.telemetry.reporter import Reporter

T = TypeVar("T")
FILE = "cluster.assignment"
"""In a lead's folder: who held which layers last."""
GRACE_S = 5.0
"""Who held a stage is given so long to come back before another takes its place."""
LOOK_S = 1.0
"""Whoever waits looks so often whether its owner wants it to leave."""


def assemble(
    send: Callable[[ToLink], None], inbox: SimpleQueue[Any], spec: RunSpec, me: str, settings: PeerSettings,
    directory: Path, session: Reporter, doubts: Doubts,
) -> Assignment:  # fmt: skip
    """A lead's: waits until `settings.stages` homes are here, itself among them, and tells them who holds which layers.

    Whoever held a stage before holds it again; in the place of a home that is gone steps one that has kept its layers,
    else any; `doubts` knows who may not. Raises what a link ended with, LeaveRequested, and BadInput where the model
    cannot be cut for them.
    """
    require_cuttable(spec)
    layers, homes, before = model_layers(spec), settings.stages, _remembered(directory, me, settings)
    present: tuple[HomeOffer, ...] = ()
    enough_since: float | None = None

    def dealt(message: object) -> Assignment | None:
        nonlocal present, enough_since
        if isinstance(message, HomesOffered):
            present = doubts.admitted(message.homes)
            missing = homes - 1 - len(present)
            enough_since = None if missing > 0 else enough_since or time.monotonic()
            if missing > 0:
                session.say("JOINING", f"waiting for {missing} more of the {homes} homes of this cluster")
        if enough_since is None:
            return None
        if before is None:
            chosen = present[: homes - 1]
            first = choose_spans(
                layers, [me, *(home.peer for home in chosen)], [0.0, *(home.tokens_per_s for home in chosen)],
                [0.0, *(home.memory_gb for home in chosen)], next_epoch(), cast("Wire", settings.activations),
            )  # fmt: skip
            return with_spares(first, [home.peer for home in present[homes - 1 :]])
        names = [home.peer for home in doubts.chosen(present, homes - 1)]
        all_back = {holder.peer for holder in before.workers} <= set(names)
        if not all_back and time.monotonic() - enough_since < GRACE_S:
            return None
        return dealt_again(before, names, next_epoch())

    session.say("JOINING", f"waiting for the other homes of this cluster, {homes} in all")
    assignment = _hear(inbox, session, dealt)
    remember(directory, assignment)
    send(AssignStages(assignment))
    return assignment


def dealt_again(before: Assignment, present: Sequence[str], epoch: int) -> Assignment:
    """The same stages, held by as many as are `present` of those who held them or have kept their layers. Who is left
    over keeps the layers of some stage, and is a spare."""
    kept = {holder.peer: holder.layers for holder in (*before.workers, *before.spares)}
    free = [peer for peer in present if peer not in kept]
    stages = [before.stages[0]]
    taken: set[str] = set()
    for holder in before.workers:
        who = holder.peer if holder.peer in present else ""
        others = (peer for peer in present if kept.get(peer) == holder.layers and peer not in taken)
        who = who or next(others, "") or next((peer for peer in free if peer not in taken), "")
        if not who:  # it has kept other layers, and loads these
            is_needed = {each.peer for each in before.workers}
            who = next(peer for peer in present if peer not in taken and peer not in is_needed)
        taken.add(who)
        stages.append(StageHolder(who, holder.first, holder.last))
    dealt = Assignment(epoch, tuple(stages), (), before.wire)
    return with_spares(dealt, [peer for peer in present if peer not in taken], kept)


def with_spares(assignment: Assignment, left: Sequence[str], kept: Mapping[str, range] | None = None) -> Assignment:
    """These homes beside it, each with the layers that it has `kept`, or those of the stage that has fewest spares."""
    spares = list(assignment.spares)
    for peer in left:
        counts = [sum(spare.layers == holder.layers for spare in spares) for holder in assignment.workers]
        fewest = assignment.workers[counts.index(min(counts))]
        same = [holder for holder in assignment.workers if holder.layers == (kept or {}).get(peer)]
        holder = same[0] if same else fewest
        spares.append(StageHolder(peer, holder.first, holder.last))
    return msgspec.structs.replace(assignment, spares=tuple(spares))


def remember(directory: Path, assignment: Assignment) -> None:
    """In a lead's folder, for its next life. Raises DiskFull."""
    write_atomic(directory / FILE, msgspec.msgpack.encode(assignment))


def _remembered(directory: Path, me: str, settings: PeerSettings) -> Assignment | None:
    """What this lead had dealt before, if it asks for as many stages still."""
    try:
        before = msgspec.msgpack.decode((directory / FILE).read_bytes(), type=Assignment)
    except (FileNotFoundError, ValueError):
        return None
    is_same = before.lead == me and len(before.stages) == settings.stages and before.wire == settings.activations
    return before if is_same else None


def await_assignment(inbox: SimpleQueue[Any], session: Reporter) -> Assignment:
    """A worker's: waits for its lead's word. Raises what a link ended with, and LeaveRequested."""
    session.say("JOINING", "waiting for the lead of the cluster to say which layers are for this home")
    return _hear(inbox, session, lambda message: message.assignment if isinstance(message, StagesAssigned) else None)


def _hear(inbox: SimpleQueue[Any], session: Reporter, wanted: Callable[[object], T | None]) -> T:
    """What `wanted` makes of what the link says, or of time that passed (None); all else is told or dropped."""
    while not session.stopping:
        item: Any = None
        with suppress(Empty):
            item = inbox.get(timeout=LOOK_S)
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
