"""Performs the effects of a lead's round machine: which of them go to its workers, and which it performs itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from peer.consensus.delegates.worker_port import WorkerPort
from peer.consensus.protocol.block import VOID
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId, GetObjects, MeanData, Message, ObjectData
from peer.consensus.rounds.driver import ChainPort
from peer.consensus.rounds.interface import (
    CheckMean,
    CheckRow,
    CommitBlock,
    Effect,
    MeasureOwn,
    ReducePart,
    Send,
    SendMean,
    SendObjects,
    SendParts,
    ShowRow,
)
from peer.consensus.rounds.state import MemberState, State

ASK_AGAIN_S = 2.0
"""Bytes that a worker was asked for and that have not come are asked for again after so long."""


class LeadChainPort(ChainPort, Protocol):
    """The disk of a lead: it knows the leaves of all parts, and has the bytes of its own layers."""

    def my_path(self, anchor: bytes, part: int) -> tuple[bytes, ...] | None:
        """The Merkle path of a part of my contribution for `anchor`, wherever its bytes are; None without one."""


class LeadEffects:
    """`peer.consensus.rounds.driver.HomesPort` of a lead."""

    def __init__(self, disk: LeadChainPort, workers: WorkerPort, clock: Callable[[], float]) -> None:
        self._disk, self._workers, self._clock = disk, workers, clock
        self._perform: Callable[[Effect], None] = lambda effect: None
        self._waiting: dict[bytes, list[Effect]] = {}
        """Effects by the bytes that they wait for."""
        self._asked: dict[bytes, tuple[str, float]] = {}
        """Which worker was asked for them, and when last."""

    def begin(self, perform: Callable[[Effect], None]) -> None:
        self._perform = perform

    def own(self, effect: Effect, state: State) -> tuple[Effect, ...]:
        """Have the workers do their share; what must wait for bytes of theirs is performed when those are here."""
        match effect:
            case SendParts():
                return self._parts(effect, state)
            case MeasureOwn():
                return self._measure_own(effect, state)
            case CheckMean():
                return self._check(effect, state)
            case CheckRow(digest=digest, part=part):
                return self._once_here(effect, digest, state, self._keeper(part, state))
            case ShowRow():
                return self._show_row(effect, state)
            case ReducePart(direction=direction, pull=pull):
                return self._once_here(effect, direction if pull else VOID, state)
            case Send(to, GetObjects(digests)):
                return self._fetch(to, digests, state)
            case SendObjects(to, digests):
                return self._objects(to, digests, state)
            case SendMean(to, mean):
                return self._mean(to, mean, state)
            case CommitBlock():  # nothing of before is reduced any more
                self._waiting.clear()
                self._asked.clear()
        return (effect,)

    # ---- my contribution ----

    def _parts(self, effect: SendParts, state: State) -> tuple[Effect, ...]:
        exchange = _exchange_at(state, effect.place)
        index = exchange.index_of(state.rules.me) if exchange is not None else None
        if exchange is None or index is None:
            return (effect,)
        theirs: dict[str, list[tuple[int, tuple[bytes, ...]]]] = defaultdict(list)
        mine = []
        for part in effect.parts:
            holder = exchange.holder_of(state.rules, index, part)
            if holder == state.rules.me:
                mine.append(part)
            elif (path := self._disk.my_path(effect.place.anchor, part)) is not None:
                theirs[holder].append((part, path))
        for worker, parts in theirs.items():
            self._workers.give_parts(worker, effect.to, effect.place, effect.attempt, tuple(parts))
        return (SendParts(effect.to, effect.place, tuple(mine), effect.attempt),) if mine else ()

    def _measure_own(self, effect: MeasureOwn, state: State) -> tuple[Effect, ...]:
        offered, layer = state.offered, state.rules.fragment(state.head.round).parts[effect.part].layer
        holder = state.rules.me if offered is None else offered.holder_of(layer)
        if holder == state.rules.me:
            return self._once_here(effect, effect.direction, state)
        self._workers.measure(holder, effect.anchor, effect.part, effect.direction)
        return ()

    def _show_row(self, effect: ShowRow, state: State) -> tuple[Effect, ...]:
        worker = self._keeper(effect.part, state)
        path = self._disk.my_path(effect.place.anchor, effect.part)
        if not worker or path is None:
            return (effect,)
        self._workers.show_row(worker, effect, path)
        return ()

    # ---- means of other homes ----

    def _check(self, effect: CheckMean, state: State) -> tuple[Effect, ...]:
        worker = self._keeper(effect.part, state)
        if not worker or self._disk.load(effect.digest) is not None:
            return (effect,)
        self._workers.check(worker, effect)
        return ()

    # ---- bytes that lie with a worker ----

    def _once_here(self, effect: Effect, digest: bytes, state: State, keeper: str = "") -> tuple[Effect, ...]:
        """Now if the mean that it needs is here, or is nobody's; else when its worker has sent it."""
        worker = keeper or (self._worker_of(digest, state) if digest != VOID else "")
        if not worker or self._disk.load(digest) is not None:
            return (effect,)
        self._waiting.setdefault(digest, []).append(effect)
        if digest not in self._asked:
            self._ask(worker, digest)
        return ()

    def _ask(self, worker: str, digest: bytes) -> None:
        self._asked[digest] = (worker, self._clock())
        self._workers.bring(worker, digest)

    def on_tick(self) -> None:
        """Ask again for what has not come."""
        for digest, (worker, at) in list(self._asked.items()):
            if self._clock() - at >= ASK_AGAIN_S:
                self._ask(worker, digest)

    def on_message(self, message: Message) -> None:
        """Bytes that were asked for are stored, and what waits for them is performed."""
        if not self._asked or not isinstance(message, ObjectData):
            return
        digest = digest_of(message.payload)
        if self._asked.pop(digest, None) is not None:
            self._disk.store(digest, message.payload, partial(self._resume_effects, digest))

    def _resume_effects(self, digest: bytes) -> None:
        for effect in self._waiting.pop(digest, ()):
            self._perform(effect)

    def _keeper(self, part: int, state: State) -> str:
        """Which worker has the mean of a part of the round that goes on; empty if I do."""
        parts = state.rules.fragment(state.head.round).parts
        return state.delegate_for(parts[part].layer) if part < len(parts) else ""

    def _worker_of(self, digest: bytes, state: State) -> str:
        """Who of mine keeps a mean now; empty if I do, or nobody knows what it is."""
        keepers = (state.delegate_for(layer) for layer, _ in sorted(state.named_as(digest)))
        return next(filter(None, keepers), "")

    def _split(self, digests: tuple[bytes, ...], state: State) -> tuple[tuple[bytes, ...], dict[str, list[bytes]]]:
        """Those that I need myself, or that nobody names; and those of each worker."""
        asked = set(digests)
        keepers: dict[bytes, set[str]] = defaultdict(set)
        for update in state.updates():
            for digest, part in zip(update.parts, state.rules.fragment(update.round - 1).parts, strict=False):
                if digest in asked:
                    keepers[digest].add(state.delegate_for(part.layer))
        mine: list[bytes] = []
        theirs: dict[str, list[bytes]] = defaultdict(list)
        for digest in digests:
            worker = min(keepers.get(digest, {""}))
            if worker:
                theirs[worker].append(digest)
            else:
                mine.append(digest)
        return tuple(mine), theirs

    def _fetch(self, to: tuple[str, ...], digests: tuple[bytes, ...], state: State) -> tuple[Effect, ...]:
        mine, theirs = self._split(digests, state)
        for source in to:
            for worker, wanted in theirs.items():
                self._workers.fetch(worker, source, tuple(wanted))
        return (Send(to, GetObjects(mine)),) if mine else ()

    def _objects(self, to: str, digests: tuple[bytes, ...], state: State) -> tuple[Effect, ...]:
        """What I have reduced myself lies here as well."""
        mine, theirs = self._split(digests, state)
        for worker, asked in theirs.items():
            absent = tuple(digest for digest in asked if self._disk.load(digest) is None)
            if absent and worker != to:
                self._workers.give_objects(worker, to, absent)
            mine += tuple(digest for digest in asked if digest not in absent)
        return (SendObjects(to, mine),) if mine else ()

    def _mean(self, to: tuple[str, ...], mean: MeanData, state: State) -> tuple[Effect, ...]:
        parts = state.rules.fragment(state.ancestors.get(mean.place.anchor, state.head.round)).parts
        worker = state.delegate_for(parts[mean.part].layer) if mean.part < len(parts) else ""
        if not worker or self._disk.load(mean.digest) is not None:
            return (SendMean(to, mean),)
        for peer in to:
            if peer != worker:
                self._workers.give_mean(worker, peer, mean)
        return ()


def _exchange_at(state: State, place: BallotId) -> MemberState | None:
    for exchange in (state.exchange, state.past):
        if exchange is not None and exchange.place == place:
            return exchange
    return None
