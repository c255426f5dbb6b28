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
from peer.parallel.cluster.cut_moves import FASTER
from peer.parallel.cluster.home_offer import measure_offer
from peer.parallel.cluster.home_suspicion import HomesLacking, HomeSuspicion
from peer.parallel.pipeline.span_choice import Wire, choose_spans, has_room, require_blocks
from peer.parallel.pipeline.stage_model import require_cuttable
from peer.planning.placement.block_shares import BlockLayout
from peer.planning.plan.cluster_cost import layout_of
from peer.planning.plan.model_shape import shape_of
from peer.schema.events import Event
from peer.schema.ipc import (
    Assignment,
    AssignStages,
    HomeOffer,
    HomesExpelled,
    HomesMissing,
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

T = TypeVar("T")
FILE = "cluster.assignment"
"""The file in a lead's folder with its last assignment."""
GRACE_S = 5.0
"""Seconds in which a home that held a stage may come back before another takes its place."""
LOOK_S = 1.0
"""Seconds between two looks at whether the owner wants this peer to leave."""


def assemble(
    send: Callable[[ToLink], None], inbox: SimpleQueue[Any], spec: RunSpec, me: str, settings: PeerSettings,
    directory: Path, session: Reporter, suspicion: HomeSuspicion, order: Sequence[str] = (),
    upload_mbps: float = 0.0,
) -> Assignment:  # fmt: skip
    """For a lead: wait until `settings.stages` homes are here, itself included, and tell them which layers they
    hold.

    A home that held a stage before holds it again. If it is gone, it is replaced by a home that has kept its layers, or
    else by any other; `suspicion` knows which homes are excluded. The first time, the homes hold the stages that are
    fastest together, or those of the `order` in which they found each other. `upload_mbps`: of this home's line, as
    measured then. Raises the error with which a link ended, LeaveRequested, HomesLacking, and BadInput if the model
    cannot be cut for these homes.
    """
    require_cuttable(spec)
    layout, before = layout_of(shape_of(spec), spec), _remembered(directory, me, settings)
    require_blocks(layout, settings.stages)
    mine = measure_offer(spec, settings, me, upload_mbps)
    suspicion.speeds.note_own(mine)
    table = _Table(settings.stages, layout, session)

    def dealt(message: object) -> Assignment | None:
        if isinstance(message, HomesOffered):
            suspicion.speeds.note_present(message.homes)
            table.seat(suspicion.admitted(message.homes))
        if table.enough_since is None:
            return None
        if before is None:
            return table.dealt_first(mine, cast("Wire", settings.activations), order)
        chosen = suspicion.chosen(table.present, settings.stages - 1)
        all_back = {holder.peer for holder in before.workers} <= {home.peer for home in chosen}
        if not all_back and time.monotonic() - table.enough_since < GRACE_S:
            return None
        return dealt_again(before, layout, suspicion.speeds.real([mine, *chosen]), next_epoch())

    session.say("JOINING", f"waiting for the other homes of this cluster, {settings.stages} in all")
    if suspicion.expelled:
        send(HomesExpelled(suspicion.expelled))
    assignment = _hear(inbox, session, dealt)
    remember(directory, assignment)
    send(AssignStages(assignment))
    return assignment


class _Table:
    """The homes that are present, among which a lead deals layers."""

    def __init__(self, stages: int, layout: BlockLayout, session: Reporter) -> None:
        self._stages, self._layout, self._session = stages, layout, session
        self.present: tuple[HomeOffer, ...] = ()
        self.enough_since: float | None = None
        self._left_out: set[str] = set()

    def seat(self, homes: Sequence[HomeOffer]) -> None:
        """Take note of the homes. Those on which not even one block fits are left out, with one warning each."""
        block = min(self._layout.blocks, key=lambda number: self._layout.held_bytes[number])
        for home in homes:
            if not has_room(home, self._layout, range(block, block + 1)) and home.peer not in self._left_out:
                self._left_out.add(home.peer)
                needed = self._layout.needed_bytes(range(block, block + 1)) / 1e9
                self._session.warn(
                    "CLUSTER", f"{home.name or home.peer[-8:]} is left out: it has room for {home.memory_gb:.2g} GB "
                    f"of training, and one block of the model takes {needed:.2g} GB",
                )  # fmt: skip
        self.present = tuple(home for home in homes if has_room(home, self._layout, range(block, block + 1)))
        missing = self._stages - 1 - len(self.present)
        self.enough_since = None if missing > 0 else self.enough_since or time.monotonic()
        if missing > 0:
            self._session.say("JOINING", f"waiting for {missing} more of the {self._stages} homes of this cluster")

    def dealt_first(self, mine: HomeOffer, wire: Wire, order: Sequence[str]) -> Assignment | None:
        """The first assignment; None if the model does not fit on these homes together: more homes, or larger ones,
        may come."""
        homes, self.enough_since = [mine, *self.present], None
        try:
            first = choose_spans(self._layout, homes, self._stages, next_epoch(), wire, order)
        except BadInput as error:
            why = f"waiting for other homes of this cluster: {error}"
            if why != self._session.why:
                self._session.say("JOINING", why)
            return None
        return with_spares(first, homes)


def dealt_again(
    before: Assignment, layout: BlockLayout, homes: Sequence[HomeOffer], epoch: int
) -> Assignment:  # fmt: skip
    """The same stages for these `homes`, the lead's first. A stage goes to the home that held it before, or else to
    the fastest one that has kept its layers, or else to any other. Homes that are left over keep the layers of some
    stage as spares. So does the home with the slowest stage if a spare is faster by so much (`FASTER`) that it is
    worth losing the stage's moments."""
    kept = {holder.peer: holder.layers for holder in (*before.workers, *before.spares)}
    fastest = sorted(homes[1:], key=lambda home: -home.tokens_per_s)
    needed = {holder.peer for holder in before.workers} & {home.peer for home in fastest}
    needed -= _outrun(before, layout, homes)
    stages = [before.stages[0]]
    taken: set[str] = set()
    for holder in before.workers:
        free = [home for home in fastest if home.peer not in taken | needed]
        room = [home for home in free if has_room(home, layout, holder.layers)]
        who = holder.peer if holder.peer in needed else ""
        who = who or next((home.peer for home in free if kept.get(home.peer) == holder.layers), "")
        who = who or next((home.peer for home in room if home.peer not in kept), "")
        who = who or next(home.peer for home in room or free)  # it has kept other layers, and loads these
        taken.add(who)
        stages.append(StageHolder(who, holder.first, holder.last))
    return with_spares(Assignment(epoch, tuple(stages), (), before.wire), homes, kept)


def _outrun(before: Assignment, layout: BlockLayout, homes: Sequence[HomeOffer]) -> set[str]:
    """The home that delays all others, if a much faster spare has kept its layers; otherwise empty."""
    speeds = {home.peer: home.tokens_per_s or math.inf for home in homes}
    present = [holder for holder in before.stages if holder.peer in speeds]
    slowest = max(
        present, key=lambda holder: sum(layout.work[number] for number in holder.layers) / speeds[holder.peer]
    )
    enough = FASTER * speeds[slowest.peer]
    others = (speeds.get(spare.peer, 0.0) for spare in before.spares if spare.layers == slowest.layers)
    return {slowest.peer} if any(enough <= speed < math.inf for speed in others) else set()


def with_spares(
    assignment: Assignment, homes: Sequence[HomeOffer], kept: Mapping[str, range] | None = None
) -> Assignment:
    """The assignment with all other `homes` as spares. Each has the layers that it has `kept`, or else those of the
    stage with the fewest spares; among equals, the slowest stage, where a spare gains most."""
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
    """Write the assignment to the lead's folder, for its next life. Raises DiskFull."""
    write_atomic(directory / FILE, msgspec.msgpack.encode(assignment))


def _remembered(directory: Path, me: str, settings: PeerSettings) -> Assignment | None:
    """This lead's last assignment, if the number of stages and the encoding are still the same."""
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
    """For a worker: offer this home to its lead, and wait for an assignment. Raises the error with which a link
    ended, LeaveRequested, HomesLacking, and BadInput if no device works."""
    mine = measure_offer(spec, settings, me)
    send(SeekWork(mine.memory_gb, mine.tokens_per_s))
    session.say("JOINING", "waiting for the lead of the cluster to say which layers are for this home")
    return _hear(inbox, session, lambda message: message.assignment if isinstance(message, StagesAssigned) else None)


def _hear(inbox: SimpleQueue[Any], session: Reporter, wanted: Callable[[object], T | None]) -> T:
    """The first result of `wanted` that is not None. It is called with each message of the link, and with None as
    time passes; other messages are reported or dropped."""
    while not session.stopping:
        item: Any = None
        with suppress(Empty):
            item = inbox.get(timeout=LOOK_S)
        match item:
            case Waiting(why):
                session.say("JOINING", why)
            case HomesMissing(missing):
                raise HomesLacking(missing)
            case ReportEvent(name, fields):
                session.emit(Event.registry[name](**fields))
            case Exception():
                raise item
        found = wanted(item)
        if found is not None:
            return found
    raise LeaveRequested


def next_epoch() -> int:
    """A lead's next epoch: later than any before, even after a restart within a second."""
    return time.time_ns() // 10**6
