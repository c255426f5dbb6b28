"""Performs the effects of the round machine. The same driver runs in a real link and in a simulated one.

The machine decides and the driver acts: it decodes frames into events, performs effects in their order, and returns the
results of slow work (reducing, writing) as later events. Its owner gives it a disk, arithmetic, a trainer and streams;
none of its calls blocks for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never
from weakref import WeakValueDictionary

from dht.streams.answer_budget import AnswerBudget
from dht.streams.base import Streams
from peer.consensus.protocol.block import VOID, Block, ContributionHeader, Restart, Stuck
from peer.consensus.protocol.frame_reader import ON_THE_WIRE, Aside, FrameReader, Framing, at_once
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.messages import (
    FETCH_BYTES,
    FETCH_MOST,
    BallotId,
    Blocks,
    Heartbeat,
    MeanData,
    Message,
    ObjectData,
    PartData,
    RowDispute,
    encode,
)
from peer.consensus.protocol.norms import PartNorms
from peer.consensus.rounds.interface import (
    Applied,
    AskOrganiser,
    BufferPart,
    CheckMean,
    CheckRow,
    CommitBlock,
    Effect,
    Input,
    MeanChecked,
    MeasureOwn,
    MeasurePart,
    NeedSnapshot,
    ObjectStored,
    OrganiserAnswered,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Paused,
    PeersUnreachable,
    PersistAcceptor,
    Received,
    ReducePart,
    RequestSubmit,
    Resumed,
    RowChecked,
    Send,
    SendBlocks,
    SendMean,
    SendObjects,
    SendParts,
    ShowRow,
    StoreObject,
    Submitted,
    Tell,
    Tick,
    TrainingProgress,
)
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import Acceptor, State
from peer.schema import ipc
from peer.schema.events import Event as Reported

Done = Callable[[], None]


class ChainPort(Protocol):
    """What must survive a crash. Small writes are on disk when the call returns; `store` calls back when it is done."""

    def save_acceptor(self, acceptor: Acceptor) -> None:
        """Replace the voter's memory of its instance; those of the newest `keep_rounds` anchors are kept."""

    def save_object(self, digest: bytes, payload: bytes) -> None: ...
    def store(self, digest: bytes, payload: bytes, done: Done) -> None: ...
    def load(self, digest: bytes) -> bytes | None: ...
    def commit(self, block: Block, head: ChainHead, awaited: frozenset[bytes]) -> None: ...

    def blocks_after(self, anchor: bytes) -> tuple[Block, ...]:
        """Some of the blocks after an anchor; none if they are no longer here."""

    def my_part(self, anchor: bytes, part: int) -> tuple[tuple[bytes, ...], bytes] | None:
        """(Merkle path, encoded bytes) of a part of my contribution for `anchor`; None if there is none, or if another
        home has these bytes. A home that is not told the leaves of the others has an empty path."""


class ReductionPort(Protocol):
    """Averages parts. Kept payloads of an anchor are dropped when the next one is committed."""

    def keep(self, effect: BufferPart) -> None: ...
    def measure(self, payload: bytes, direction: bytes, done: Callable[[PartNorms], None]) -> None:
        """Decode a part and measure it, against the mean of this digest if there is one."""

    def reduce(self, effect: ReducePart, done: Callable[[bytes], None]) -> None:
        """Average, encode and store the kept parts; `done(digest)` when it is on disk.

        If nothing of them is finite, or the last committed mean is needed and not here, nothing is done.
        """

    def check(self, effect: CheckMean, me: str, whole: bytes, mine: bytes | None, done: Callable[[str], None]) -> None:
        """Compare a mean with its rows, and the row about `me` with what I gave; call `done` with the fault, or with
        nothing."""

    def check_row(self, effect: CheckRow, whole: bytes, done: Callable[[bool], None]) -> None:
        """Whether a row of a mean is the sketch of these bytes."""

    def forget(self) -> None: ...


class OrganiserPort(Protocol):
    """The connection to the organiser's node."""

    def ask(self, stuck: Stuck | None, answered: Callable[[Restart | None], None]) -> None:
        """Show the node that this peer is stuck, or ask whether it is there; `answered` is called with its answer, and
        its Restart if there is one."""


class HomesPort(Protocol):
    """The other homes of a peer that consists of several. `peer.consensus.delegates.lead_driver` implements it."""

    def begin(self, perform: Callable[[Effect], None]) -> None:
        """`perform` is called for effects that had to wait for another home."""

    def own(self, effect: Effect, state: State) -> tuple[Effect, ...]:
        """Have the other homes do their share of an effect; returns the share that this home performs itself, now."""

    def on_message(self, message: Message) -> None:
        """See a message before the machine does."""

    def on_tick(self) -> None:
        """Time passed."""


class TrainerPort(Protocol):
    """The owner of the anchor."""

    def committed(self, block: Block, head: ChainHead) -> None: ...

    def request_submit(self) -> None: ...
    def resync(self, why: str) -> None:
        """The chain cannot be followed any more: start from a snapshot, and keep what was learned."""


def trainer_input(message: ipc.AnyToLink, now: float, header_of: Callable[[bytes], ContributionHeader]) -> Input | None:
    """A message of the trainer as an input of the machine; None for one that does not concern a round. `header_of` an
    anchor is what is on disk for it, with an empty root if there is nothing."""
    match message:
        case ipc.ReportProgress(share=share):
            return TrainingProgress(now, share)
        case ipc.OfferContribution(anchor=anchor):
            header = header_of(anchor)  # of nothing if the chain was given up meanwhile, and knows the anchor no more
            return Submitted(now, header) if header.root else None
        case ipc.PausedAt(anchor=anchor):
            return Paused(now, header_of(anchor))
        case ipc.StepsGoOn():
            return Resumed(now)
        case ipc.StandsAt(anchor=anchor, state=state):
            return Applied(now, anchor, state)
        case ipc.OpenLink() | ipc.ChangeLimits() | ipc.Hello() | ipc.StartLooked() | ipc.LossMeasured() | ipc.Leave():
            return None
        case ipc.AssignStages() | ipc.HomesExpelled() | ipc.LayersHeld() | ipc.SeekWork() | ipc.LookForHomes():
            return None
        case _:
            assert_never(message)


class Driver:
    """Performs the effects of one peer's round machine, and gives it its inputs."""

    def __init__(
        self,
        state: State,
        *,
        clock: Callable[[], float],
        streams: Streams,
        disk: ChainPort,
        arithmetic: ReductionPort,
        trainer: TrainerPort,
        report: Callable[[Reported], None],
        publish: Callable[[Heartbeat], None] = lambda head: None,
        framing: Framing = ON_THE_WIRE,
        homes: HomesPort | None = None,
        organiser: OrganiserPort | None = None,
        aside: Aside = at_once,
        upload_bps: Callable[[], float] = lambda: 0.0,
        is_admitted: Callable[[str], bool] = lambda peer: False,
    ) -> None:
        self.state = state
        self.clock = clock
        self.frames = FrameReader(lambda: self.state, framing, self._hear, aside)
        self.on_frame = self.frames.read
        self._streams, self._disk, self._arithmetic, self._trainer = streams, disk, arithmetic, trainer
        self.budget = AnswerBudget(
            clock, lambda: bytes_a_minute(self.state),
            lambda peer: self.state.is_owed(peer) or is_admitted(peer), upload_bps,
        )  # fmt: skip
        self._answerer, self._framing = ObjectServer(disk, streams, framing.encode, self.budget), framing
        self._report, self._publish = report, publish
        self._events: deque[Input] = deque()
        self._busy = self._broken = False
        self._homes, self._organiser = homes, organiser
        if homes is not None:
            homes.begin(self._perform)

    @property
    def bad_frames(self) -> int:
        return self.frames.bad_frames

    def _hear(self, sender: str, message: Message) -> None:
        if self._homes is not None:
            self._homes.on_message(message)
        self.deliver(Received(self.clock(), sender, message))

    def deliver(self, event: Input) -> None:
        """Step the machine; events that arise while effects are performed wait their turn. Once an effect has failed
        nothing more is done, since what is not on disk must not be sent. With each tick the machine is told which peers
        the streams cannot reach, if that has changed."""
        self._events.append(event)
        if isinstance(event, Tick) and (lost := self._streams.unreachable) != self.state.unreachable.keys():
            self._events.append(PeersUnreachable(event.now, lost))
        if isinstance(event, Tick) and self._homes is not None:
            self._homes.on_tick()
        if self._busy or self._broken:
            return
        self._busy = True
        try:
            while self._events:
                self.state, effects = step(self.state, self._events.popleft())
                for effect in effects:
                    for own in (effect,) if self._homes is None else self._homes.own(effect, self.state):
                        self._perform(own)
        except BaseException:
            self._broken = True
            raise
        finally:
            self._busy = False

    def close(self) -> None:
        """Do nothing any more: another driver takes this one's place."""
        self._broken = True

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self._send(to, message)
            case SendParts():
                self._send_parts(effect)
            case SendMean(to, mean):
                for peer in to:
                    self._streams.send_bulk(peer, partial(self._mean_frame, mean))
            case SendObjects(one, digests):
                self._answerer.answer(one, digests)
            case SendBlocks():
                self._send_chain(effect)
            case PersistAcceptor(acceptor, update):
                if update is not None:
                    self._disk.save_object(update.digest, update.to_bytes())
                self._disk.save_acceptor(acceptor)
            case AskOrganiser(stuck):
                if self._organiser is not None:
                    self._organiser.ask(stuck, lambda found: self.deliver(OrganiserAnswered(self.clock(), found)))
            case BufferPart():
                self._arithmetic.keep(effect)
            case MeasurePart():
                self._measure_part(effect)
            case MeasureOwn():
                self._measure_own(effect)
            case ReducePart(place=place, part=part, contributors=contributors, attempt=attempt):
                self._arithmetic.reduce(
                    effect,
                    lambda digest: self.deliver(PartReduced(self.clock(), place, part, contributors, digest, attempt)),
                )
            case CheckMean():
                self._check_mean(effect)
            case CheckRow():
                self._check_row(effect)
            case ShowRow(to, place, part, digest, bits):
                found = self._disk.my_part(place.anchor, part)
                if found is not None:
                    self._send(to, RowDispute(place, part, digest, bits, *found))
            case StoreObject(digest, payload):
                self._disk.store(
                    digest, payload, lambda: self.deliver(ObjectStored(self.clock(), digest, len(payload)))
                )
            case CommitBlock(block, head, awaited):
                self._disk.commit(block, head, awaited)
                self._arithmetic.forget()
                self._trainer.committed(block, head)
            case RequestSubmit():
                self._trainer.request_submit()
            case NeedSnapshot(why):
                self._trainer.resync(why)
            case Tell(event):
                self._report(event)
            case _:
                raise AssertionError(f"no such effect: {effect}")

    def _send(self, to: tuple[str, ...], message: Message) -> None:
        if isinstance(message, Heartbeat):
            self._publish(message)
        if not to:
            return
        frame = self._framing.encode(message)
        for peer in to:
            self._streams.send(peer, frame)

    def _send_parts(self, effect: SendParts) -> None:
        if effect.to != self.state.rules.me:
            for part in effect.parts:
                self._streams.send_bulk(effect.to, partial(self._part_frame, effect.place, effect.attempt, part))
            return
        for part in effect.parts:
            found = self._disk.my_part(effect.place.anchor, part)
            if found is not None:
                path, payload = found
                self._arithmetic.keep(BufferPart(effect.place, effect.to, part, payload, path))

    def _part_frame(self, place: BallotId, attempt: int, part: int) -> bytes | None:
        """My encoded part, unless its ballot is over."""
        found = self._disk.my_part(place.anchor, part)
        going_on = {exchange.place for exchange in (self.state.exchange, self.state.past) if exchange is not None}
        if found is None or place not in going_on:
            return None
        path, payload = found
        return self._framing.encode(PartData(place, attempt, part, path, payload))

    def _measure_part(self, effect: MeasurePart) -> None:
        """Measure a part that arrived, or my own part of what I reduce."""
        place, giver, part = effect.place, effect.giver, effect.part
        found = (b"", effect.payload) if effect.payload else self._disk.my_part(place.anchor, part)
        if found is not None:
            self._arithmetic.measure(
                found[1], VOID,
                lambda figures: self.deliver(PartMeasured(self.clock(), place, giver, part, figures.square)),
            )  # fmt: skip

    def _measure_own(self, effect: MeasureOwn) -> None:
        anchor, part = effect.anchor, effect.part
        found = self._disk.my_part(anchor, part)
        if found is not None:
            self._arithmetic.measure(
                found[1], effect.direction,
                lambda figures: self.deliver(OwnMeasured(self.clock(), anchor, part, figures)),
            )  # fmt: skip

    def _check_row(self, effect: CheckRow) -> None:
        key = effect.giver, effect.digest, effect.part, effect.contributors
        whole = self._disk.load(effect.digest)
        if whole is not None:
            self._arithmetic.check_row(
                effect, whole, lambda right: self.deliver(RowChecked(self.clock(), *key, right, effect.basis))
            )  # fmt: skip

    def _check_mean(self, effect: CheckMean) -> None:
        whole = self._disk.load(effect.digest)
        found = self._disk.my_part(effect.anchor, effect.part) if self.state.rules.me in effect.names else None
        if whole is None:
            return
        key = effect.digest, effect.part, effect.contributors
        self._arithmetic.check(
            effect, self.state.rules.me, whole, None if found is None else found[1],
            lambda fault: self.deliver(MeanChecked(self.clock(), *key, fault, effect.basis)),
        )  # fmt: skip

    def _mean_frame(self, mean: MeanData) -> bytes | None:
        """A mean with its bytes, unless a commit has removed them."""
        payload = self._disk.load(mean.digest)
        return None if payload is None else self._framing.encode(replace(mean, payload=payload))

    def _send_chain(self, effect: SendBlocks) -> None:
        """The machine remembers more anchors than the disk keeps blocks for."""
        if not self.budget.has_room_for(effect.to):
            return
        blocks = self._disk.blocks_after(effect.after)
        if blocks:
            self.budget.give(effect.to, sum(len(block.to_bytes()) for block in blocks))
            self._streams.send_bulk(effect.to, partial(self._framing.encode, Blocks(blocks)))
        else:
            self._send((effect.to,), effect.head)
            self._send((effect.to,), Blocks(()))


ROUNDS_A_MINUTE = 2
"""A stranger or guest gets as many bytes in a minute as so many rounds have; in a small run FETCH_BYTES."""


def bytes_a_minute(state: State) -> float:
    rules = state.rules
    return max(float(FETCH_BYTES), ROUNDS_A_MINUTE * sum(rules.bytes_of_means) / rules.fragments)


WAITING_MOST = 2 * FETCH_MOST
"""Objects that wait for one peer. What comes on top is not answered: an honest one asks again for what it lacks."""


class ObjectReader(Protocol):
    """Reads objects from where they lie."""

    def load(self, digest: bytes) -> bytes | None: ...


class ObjectServer:
    """Answers requests for objects, with at most FETCH_BYTES each."""

    def __init__(
        self, objects: ObjectReader, streams: Streams, encode: Callable[[Message], bytes] = encode,
        budget: AnswerBudget | None = None,
    ) -> None:  # fmt: skip
        self._objects, self._streams, self._encode, self._budget = objects, streams, encode, budget
        # Only the queue of the stream holds them: what it drops can be asked for again.
        self._waiting: dict[str, WeakValueDictionary[bytes, _Asked]] = {}

    def answer(self, to: str, digests: tuple[bytes, ...]) -> None:
        """Queue these objects for a peer, except those that already wait for it."""
        self._waiting = {peer: waiting for peer, waiting in self._waiting.items() if waiting}
        waiting = self._waiting.setdefault(to, WeakValueDictionary())
        question = _Question()
        for digest in dict.fromkeys(digests):
            asked = waiting.get(digest)
            if asked is not None:
                asked.question = question
            elif len(waiting) < WAITING_MOST:
                waiting[digest] = asked = _Asked(self, to, digest, question)
                self._streams.send_bulk(to, asked.frame)

    def frame(self, to: str, digest: bytes, question: _Question) -> bytes | None:
        """An object with its bytes; None if it is not here, or if the request or the asker has cost enough."""
        if question.is_answered or (self._budget is not None and not self._budget.has_room_for(to)):
            return None
        payload = self._objects.load(digest)
        if payload is None or not question.allows(len(payload)):
            return None
        if self._budget is not None:
            self._budget.give(to, len(payload))
        return self._encode(ObjectData(digest, payload))


class _Question:
    """The bytes that one request has cost so far."""

    def __init__(self) -> None:
        self.is_answered = False
        self._sent_bytes = 0

    def allows(self, size_bytes: int) -> bool:
        """Whether so many more bytes may be sent; the first object may be of any size."""
        self._sent_bytes += size_bytes
        self.is_answered = self._sent_bytes > max(FETCH_BYTES, size_bytes)
        return not self.is_answered


class _Asked:
    """One object that waits for one peer."""

    def __init__(self, server: ObjectServer, to: str, digest: bytes, question: _Question) -> None:
        self.question = question
        """The newest request for it."""
        self._server, self._to, self._digest = server, to, digest

    def frame(self) -> bytes | None:
        return self._server.frame(self._to, self._digest, self.question)
