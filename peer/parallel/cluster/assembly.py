"""How the homes of a cluster come together: a lead waits for enough of them and assigns layers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import msgspec

from dht.atomic_files import write_atomic
from dht.errors import BadInput
from peer.network.link.handle import LeaveRequested
from peer.node.telemetry.reporter import Reporter
from peer.parallel.cluster.home_offer import measure_offer
from peer.parallel.cluster.home_suspicion import HomeSuspicion
from peer.parallel.pipeline.span_choice import HELD_BYTES, Wire, choose_spans, has_room, require_blocks
from peer.parallel.pipeline.stage_model import model_layers, require_cuttable
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import Event
from peer.schema.ipc import (
    Assignment,
    AssignStages,
    HomeOffer,
    HomesOffered,
    ReportEvent,
    SeekWork,
    StageHolder,
    StagesAssigned,
    ToLink,
    Waiting,
)
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.training.model.flat_parameters import Layer

T = TypeVar("T")
FILE = "cluster.assignment"
"""In a lead's folder: who held which layers last."""
GRACE_S = 5.0
"""Who held a stage is given so long to come back before another takes its place."""
FASTER = 1.5
"""A spare that is so many times as fast takes the place of a home that is there."""
LOOK_S = 1.0
"""Whoever waits looks so often whether its owner wants it to leave."""


def assemble(
    send: Callable[[ToLink], None], inbox: SimpleQueue[Any], spec: RunSpec, me: str, settings: PeerSettings,
    directory: Path, session: Reporter, doubts: HomeSuspicion,
) -> Assignment:  # fmt: skip
    """A lead's: waits until `settings.stages` homes are here, itself among them, and tells them who holds which layers.

    Whoever held a stage before holds it again; in the place of a home that is gone steps one that has kept its layers,
    else any; `doubts` knows who may not. The first time, those homes hold stages that are fastest together. Raises what
    a link ended with, LeaveRequested, and BadInput where the model cannot be cut for them.
    """
    require_cuttable(spec)
    layers, width, before = model_layers(spec), shape_of(spec).width, _remembered(directory, me, settings)
    require_blocks(layers, settings.stages)
    mine = measure_offer(spec, settings, me)
    table = _Table(settings.stages, layers, session)

    def dealt(message: object) -> Assignment | None:
        if isinstance(message, HomesOffered):
            table.seat(doubts.admitted(message.homes))
        if table.enough_since is None:
            return None
        if before is None:
            return table.dealt_first(mine, width, cast("Wire", settings.activations))
        chosen = doubts.chosen(table.present, settings.stages - 1)
        all_back = {holder.peer for holder in before.workers} <= {home.peer for home in chosen}
        if not all_back and time.monotonic() - table.enough_since < GRACE_S:
            return None
        return dealt_again(before, layers, [mine, *chosen], next_epoch())

    session.say("JOINING", f"waiting for the other homes of this cluster, {settings.stages} in all")
    assignment = _hear(inbox, session, dealt)
    remember(directory, assignment)
    send(AssignStages(assignment))
    return assignment


class _Table:
    """Who is here for a lead to deal to."""

    def __init__(self, stages: int, layers: Sequence[Layer], session: Reporter) -> None:
        self._stages, self._layers, self._session = stages, layers, session
        self.present: tuple[HomeOffer, ...] = ()
        self.enough_since: float | None = None
        self._left_out: set[str] = set()

    def seat(self, homes: Sequence[HomeOffer]) -> None:
        """All that have room for one block; of others it is said why they are left out, once."""
        block = min((layer for layer in self._layers if layer.is_block), key=lambda layer: layer.size)
        for home in homes:
            if not has_room(home, [block]) and home.peer not in self._left_out:
                self._left_out.add(home.peer)
                needed = HELD_BYTES * block.size / 1e9
                self._session.warn(
                    "CLUSTER", f"{home.name or home.peer[-8:]} is left out: it has room for {home.memory_gb:.2g} GB "
                    f"of training, and one block of the model takes {needed:.2g} GB",
                )  # fmt: skip
        self.present = tuple(home for home in homes if has_room(home, [block]))
        missing = self._stages - 1 - len(self.present)
        self.enough_since = None if missing > 0 else self.enough_since or time.monotonic()
        if missing > 0:
            self._session.say("JOINING", f"waiting for {missing} more of the {self._stages} homes of this cluster")

    def dealt_first(self, mine: HomeOffer, width: int, wire: Wire) -> Assignment | None:
        """None where they have no room together: more homes, or larger ones, may come."""
        homes, self.enough_since = [mine, *self.present], None
        try:
            first = choose_spans(self._layers, width, homes, self._stages, next_epoch(), wire)
        except BadInput as error:
            why = f"waiting for other homes of this cluster: {error}"
            if why != self._session.why:
                self._session.say("JOINING", why)
            return None
        return with_spares(first, homes)


def dealt_again(
    before: Assignment, layers: Sequence[Layer], homes: Sequence[HomeOffer], epoch: int
) -> Assignment:  # fmt: skip
    """The same stages, held by as many of the `homes`, the lead's first, as held them or have kept their layers: the
    fastest of those. Who is left over keeps the layers of some stage, and is a spare. So is whoever held the slowest
    stage, if a spare is `FASTER` by so much that what its optimizer remembers is worth less."""
    kept = {holder.peer: holder.layers for holder in (*before.workers, *before.spares)}
    fastest = sorted(homes[1:], key=lambda home: -home.tokens_per_s)
    needed = {holder.peer for holder in before.workers} & {home.peer for home in fastest}
    needed -= _outrun(before, layers, homes)
    stages = [before.stages[0]]
    taken: set[str] = set()
    for holder in before.workers:
        free = [home for home in fastest if home.peer not in taken | needed]
        room = [home for home in free if has_room(home, layers[holder.first : holder.last + 1])]
        who = holder.peer if holder.peer in needed else ""
        who = who or next((home.peer for home in free if kept.get(home.peer) == holder.layers), "")
        who = who or next((home.peer for home in room if home.peer not in kept), "")
        who = who or next(home.peer for home in room or free)  # it has kept other layers, and loads these
        taken.add(who)
        stages.append(StageHolder(who, holder.first, holder.last))
    return with_spares(Assignment(epoch, tuple(stages), (), before.wire), homes, kept)


def _outrun(before: Assignment, layers: Sequence[Layer], homes: Sequence[HomeOffer]) -> set[str]:
    """The home that holds up all others, if a much faster one is here that has kept its layers; else nobody."""
    speeds = {home.peer: home.tokens_per_s or math.inf for home in homes}
    present = [holder for holder in before.stages if holder.peer in speeds]
    slowest = max(
        present, key=lambda holder: sum(layers[number].size for number in holder.layers) / speeds[holder.peer]
    )
    enough = FASTER * speeds[slowest.peer]
    others = (speeds.get(spare.peer, 0.0) for spare in before.spares if spare.layers == slowest.layers)
    return {slowest.peer} if any(enough <= speed < math.inf for speed in others) else set()


def with_spares(
    assignment: Assignment, homes: Sequence[HomeOffer], kept: Mapping[str, range] | None = None
) -> Assignment:
    """Those of the `homes` beside it that hold nothing yet, each with the layers that it has `kept`; else with those of
    the stage that has fewest spares, of these the one that takes longest, where most is gained."""
    speeds = {home.peer: home.tokens_per_s for home in homes}
    spares = list(assignment.spares)

    def takes(holder: StageHolder) -> float:
        return len(holder.layers) / (speeds.get(holder.peer) or math.inf)

    for home in homes:
        if assignment.of(home.peer) is not None:
            continue
        counts = {holder: sum(spare.layers == holder.layers for spare in spares) for holder in assignment.workers}
        fewest = min(assignment.workers, key=lambda holder: (counts[holder], -takes(holder)))
        same = [holder for holder in assignment.workers if holder.layers == (kept or {}).get(home.peer)]
        holder = same[0] if same else fewest
        spares.append(StageHolder(home.peer, holder.first, holder.last))
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


def await_assignment(
    send: Callable[[ToLink], None], inbox: SimpleQueue[Any], spec: RunSpec, me: str, settings: PeerSettings,
    session: Reporter,
) -> Assignment:  # fmt: skip
    """A worker's: offers what it has, and waits for its lead's word. Raises what a link ended with, LeaveRequested, and
    BadInput where no device works."""
    mine = measure_offer(spec, settings, me)
    send(SeekWork(mine.memory_gb, mine.tokens_per_s))
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
