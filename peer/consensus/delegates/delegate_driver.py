"""A worker's link does for its lead: it sends parts, receives the means of its layers, and reports what it holds.

The worker's own round machine follows the chain like any other. This module stands beside it, takes no part in ballots,
and obeys its lead alone. What other peers send is bounded before it is read: means of its layers, a few of each part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

from dht.streams.answer_budget import AnswerBudget
from dht.streams.base import Streams
from peer.consensus.delegates.worker_messages import (
    CompareMean,
    FetchMeans,
    GiveMean,
    GiveObjects,
    GiveParts,
    GiveRow,
    MeanCompared,
    MeanHeld,
    MeasureShare,
    ShareMeasured,
    WorkerRequest,
    decode_request,
    encode_request,
    is_order,
)
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import (
    FETCH_MOST,
    BallotId,
    GetObjects,
    MeanData,
    ObjectData,
    PartData,
    RowDispute,
    decode_sealed,
    encode,
)
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.driver import ChainPort, ObjectServer, ReductionPort, bytes_a_minute
from peer.consensus.rounds.interface import CheckMean, Input, ObjectStored
from peer.consensus.rounds.state import State

MEANS_MOST = 4
"""Means of one part and ballot that are taken of one voter, and of all strangers together."""
FETCHES_MOST = 4 * FETCH_MOST
"""Bytes that the lead waits for; what it asks for on top takes the place of the oldest."""
PLACES_MOST = 2
"""The newest ballots whose parts are sent: the one that goes on, and the last that was committed."""


class DelegateDriver:
    """The hands of a worker. `state` gives what its own round machine knows, `deliver` tells it what was stored."""

    def __init__(
        self,
        lead: str,
        *,
        state: Callable[[], State],
        deliver: Callable[[Input], None],
        clock: Callable[[], float],
        streams: Streams,
        disk: ChainPort,
        arithmetic: ReductionPort,
    ) -> None:
        self.lead = lead
        self.bad_frames = 0
        self._state, self._deliver, self._clock = state, deliver, clock
        self._streams, self._disk, self._arithmetic = streams, disk, arithmetic
        budget = AnswerBudget(clock, lambda: bytes_a_minute(state()), lambda peer: state().is_owed(peer))
        self._answerer = ObjectServer(disk, streams, encode, budget)
        self._fetching: dict[bytes, None] = {}
        """What the lead has it fetch, the oldest first."""
        self._places: dict[BallotId, None] = {}
        self._anchor = b""
        """Of which the means below are counted."""
        self._taken: Counter[tuple[int, str]] = Counter()

    def on_frame(self, sender: str, frame: bytes) -> bool:
        """Whether a frame was for this: an order, a mean. All others are for the round machine.

        What is neither is counted and dropped; nothing that anybody sends raises.
        """
        if is_order(frame):
            self._on_order(sender, frame)
            return True
        if len(frame) < 2 or frame[1] not in (MeanData.code, ObjectData.code):
            return False
        if frame[1] == ObjectData.code and not self._fetching:
            return False
        try:
            message = decode_sealed(frame)
        except ValueError:
            self.bad_frames += 1
            return True
        if isinstance(message, MeanData):
            self._on_mean(message)
            return True
        if isinstance(message, ObjectData):
            self._on_object(message)
        return False

    # ---- what the lead asks for ----

    def _on_order(self, sender: str, frame: bytes) -> None:
        try:
            order = decode_request(frame) if sender == self.lead else None
        except ValueError:
            order = None
        match order:
            case GiveParts():
                self._give_parts(order)
            case MeasureShare():
                self._measure(order)
            case CompareMean():
                self._compare(order)
            case GiveRow():
                self._show_row(order)
            case FetchMeans(source, digests):
                self._fetch(source, digests)
            case GiveObjects(to, digests) if to != self._me:
                self._answerer.answer(to, digests)
            case GiveMean(to, mean) if to != self._me:
                self._streams.send_bulk(to, partial(self._mean_frame, mean))
            case _:
                self.bad_frames += 1

    @property
    def _me(self) -> str:
        return self._state().rules.me

    def _give_parts(self, order: GiveParts) -> None:
        if order.to == self._me:
            return
        if order.place not in self._places:
            self._taken.clear()  # another ballot has begun: its means are other ones
        self._places.pop(order.place, None)
        self._places[order.place] = None
        while len(self._places) > PLACES_MOST:
            del self._places[next(iter(self._places))]
        for part, path in order.parts:
            self._streams.send_bulk(order.to, partial(self._part_frame, order.place, order.attempt, part, path))

    def _part_frame(self, place: BallotId, attempt: int, part: int, path: tuple[bytes, ...]) -> bytes | None:
        """A part of our contribution, unless its ballot is over or it is not here."""
        payload = self._payload(place.anchor, part) if place in self._places else None
        return None if payload is None else encode(PartData(place, attempt, part, path, payload))

    def _payload(self, anchor: bytes, part: int) -> bytes | None:
        state = self._state()
        round = state.ancestors.get(anchor)
        if round is None or part >= len(state.rules.fragment(round).parts):
            return None
        found = self._disk.my_part(anchor, part)
        return None if found is None else found[1]

    def _measure(self, order: MeasureShare) -> None:
        payload = self._payload(order.anchor, order.part)
        if payload is not None:
            self._arithmetic.measure(payload, order.direction, partial(self._measured, order))

    def _measured(self, order: MeasureShare, found: PartNorms) -> None:
        dot, direction = float(found.dot), None if found.direction is None else float(found.direction)
        self._answer(ShareMeasured(order.anchor, order.part, float(found.square), dot, direction))

    def _compare(self, order: CompareMean) -> None:
        whole = self._disk.load(order.digest)
        if whole is None:
            return
        effect = CheckMean(*(getattr(order, field.name) for field in fields(CheckMean)))
        mine = self._payload(order.anchor, order.part) if self.lead in order.names else None
        self._arithmetic.check(effect, self.lead, whole, mine, partial(self._compared, order))

    def _compared(self, order: CompareMean, fault: str) -> None:
        self._answer(MeanCompared(order.digest, order.part, order.contributors, fault, order.basis))

    def _show_row(self, order: GiveRow) -> None:
        payload = self._payload(order.place.anchor, order.part)
        if payload is None:
            return
        shown = RowDispute(order.place, order.part, order.digest, order.contributors, order.path, payload, self.lead)
        for peer in order.to:
            if peer != self._me:
                self._streams.send(peer, encode(shown))

    def _fetch(self, source: str, digests: tuple[bytes, ...]) -> None:
        """From disk, or from there; the bytes are taken from whoever sends them."""
        wanted = []
        for digest in dict.fromkeys(digests):
            payload = self._disk.load(digest)
            if payload is not None:
                self._answer(MeanHeld(digest, len(payload)))
                continue
            wanted.append(digest)
            self._fetching.pop(digest, None)
            self._fetching[digest] = None
        while len(self._fetching) > FETCHES_MOST:
            del self._fetching[next(iter(self._fetching))]
        if wanted and source != self._me:
            self._streams.send(source, encode(GetObjects(tuple(wanted))))

    def _mean_frame(self, mean: MeanData) -> bytes | None:
        payload = self._disk.load(mean.digest)
        return None if payload is None else encode(replace(mean, payload=payload))

    # ---- what comes ----

    def _on_object(self, message: ObjectData) -> None:
        digest, rules = digest_of(message.payload), self._state().rules
        if digest not in self._fetching:
            return
        if rules.is_size_of_mean(len(message.payload)):
            self._store(digest, message.payload, None)

    def _on_mean(self, mean: MeanData) -> None:
        """Of my layers, of the anchor at which I stand, a few of each part; genuine, and what it says it is."""
        state = self._state()
        rules, payload = state.rules, mean.payload
        parts = rules.fragment(state.head.round).parts
        if mean.place.anchor != state.head.anchor or mean.part >= len(parts):
            return
        if rules.holds is None or parts[mean.part].layer not in rules.holds:
            return
        if len(payload) != rules.object_bytes(state.head.round, mean.part, mean.contributors) or not self._has_room(
            state, mean
        ):
            return
        if digest_of(payload) != mean.digest or not mean.genuine(rules.keys):
            return
        self._count(state, mean)
        bare = replace(mean, payload=b"")
        if mean.digest in state.held:
            self._answer(MeanHeld(mean.digest, len(payload), bare))
        else:
            self._store(mean.digest, payload, bare)

    def _has_room(self, state: State, mean: MeanData) -> bool:
        if self._anchor != state.head.anchor:
            self._anchor = state.head.anchor
            self._taken.clear()
        return mean.digest in state.held or self._taken[_whose(state, mean)] < MEANS_MOST

    def _count(self, state: State, mean: MeanData) -> None:
        if mean.digest not in state.held:
            self._taken[_whose(state, mean)] += 1

    def _store(self, digest: bytes, payload: bytes, mean: MeanData | None) -> None:
        self._disk.store(digest, payload, partial(self._stored, digest, len(payload), mean))

    def _stored(self, digest: bytes, size: int, mean: MeanData | None) -> None:
        self._fetching.pop(digest, None)
        self._deliver(ObjectStored(self._clock(), digest, size))
        self._answer(MeanHeld(digest, size, mean))

    def _answer(self, answer: WorkerRequest) -> None:
        self._streams.send(self.lead, encode_request(answer))


def _whose(state: State, mean: MeanData) -> tuple[int, str]:
    """Identities cost nothing: all that have no vote count as one."""
    return mean.part, mean.reducer if mean.reducer in state.head.electorate else ""
