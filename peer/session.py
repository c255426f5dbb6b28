"""Start here: a peer joins a run, and this module drives its lifecycle with a real trainer and a real link.

Everything comes through one inbox: messages of the link, results of the trainer, commands of the owner. `step` decides
what to do about each, and nothing here computes or waits for anything else. The link runs in a child process and starts
first, so that it loads hivemind while this process loads torch. The trainer works in a thread of its own.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from dht.clock import ClockWatch
from dht.errors import DeviceLost, HomefiresError, Unreachable
from peer.consensus.credit.round_credit import LocalCosts, summarize
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import next_anchor
from peer.handshake import await_spec, fetch_start_model, find_homes
from peer.network.link.channel import LinkLost
from peer.network.link.cluster_invite import forget_found, found_in, note_formed
from peer.network.link.handle import LeaveRequested, LinkProcess
from peer.node.lifecycle.inputs_effects import (
    Began,
    ClockJumped,
    Do,
    Done,
    Emit,
    EmitRound,
    Fail,
    ForgetForecast,
    GrantFinish,
    Greet,
    Greeted,
    Interrupt,
    LeaveAsked,
    LifeEffect,
    LifeInput,
    LinkEnded,
    LinkWaits,
    OwnerChanged,
    Positioned,
    Reconnect,
    Replayed,
    RoundDecided,
    Say,
    SnapshotTaken,
    SpeedsHeard,
    Step,
    Stepped,
    SubmitAsked,
    SyncChanged,
    Trainer,
    TrainerFailed,
    Woken,
    Work,
    WriteSnapshot,
)
from peer.node.lifecycle.machine import begin, step
from peer.node.lifecycle.state import LINKS_LOST, Mode, Offline
from peer.node.limits.desired_state import Intent
from peer.node.limits.enforcer import Throttle
from peer.node.store import start_blob
from peer.node.telemetry.reporter import Reporter
from peer.parallel.cluster.home_suspicion import HomesLacking, HomeSuspicion
from peer.parallel.pipeline.home_group import CutMoved, HomeGone
from peer.parallel.ranks.rank_group import RankLost
from peer.parallel.ranks.roster import DeviceRoster
from peer.planning.forecast.forecaster import Forecaster
from peer.schema import ipc
from peer.schema.events import AlertRaised, Event, PeerIntroduced, PeerStateChanged
from peer.schema.ipc import AnyToTrainer
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, parse
from peer.startup import load_libraries, prepare, run_doctor, started
from peer.tools.doctor.device_room import needs_others
from peer.training.data.hub_access import close_hub

if TYPE_CHECKING:
    from peer.parallel.cluster.home import ClusterHome
    from peer.training.train.trainer import LocalTrainer

LONGEST_S = 3600.0
"""Nothing waits longer without a look."""
ENTER_S = 120.0
"""The trainer's thread has its device by then, or never will."""
CLOCK_LOOK_S = 0.5
"""A wrong clock is looked at so often."""

Said = Callable[[float], LifeInput]
Inbox = SimpleQueue[AnyToTrainer | Exception | Said]
"""What the link says, how it ended, and everything else as inputs that still need their time."""


def join(link: LinkProcess, inbox: Inbox, me: str, settings: PeerSettings, directory: Path, session: Reporter) -> None:
    """Take part in a run until it is finished or `session.stopping` says to leave. Raises LeaveRequested before that
    was possible.

    Where a device's process is lost the peer goes on from what is on disk, as after a restart, with the devices that
    are left. Nobody else sees more of that than a link that comes back. Raises DeviceLost where none is left.
    """
    session.say("JOINING", "looking for the run: the network starts, and the addresses of the invite are dialled")
    session.building = True
    load_libraries()
    session.building = False
    spec = parse(await_spec(inbox, session))
    session.emit(PeerIntroduced(name=settings.name or me[-8:], trains=spec.in_words))
    if spec.start is not None:
        if not start_blob.is_here(spec.start.digest):
            fetch_start_model(link, inbox, spec, spec.start, session)
        start_blob.require_intact(spec.start.digest)
    if not spec.uses_hub:
        close_hub()
    run_doctor(spec, directory, settings, session)
    roster, suspicion, meet = DeviceRoster(time.monotonic), HomeSuspicion(), _has_met
    seeks, absent = not link.is_of_cluster and needs_others(spec, settings), set[str]()
    while True:
        try:
            if seeks:
                meet(link, inbox, session)
                find_homes(link, inbox, spec, me, settings, directory, session, absent)
                _begin_link(link, inbox, session)
                seeks, meet = False, _meet_again
            _live(link, inbox, spec, me, settings, directory, session, roster, suspicion, meet)
            return
        except HomesLacking as lacking:
            seeks = True
            absent |= set(lacking.missing)
            forget_found(directory)
            session.warn("CLUSTER", f"{lacking}; this home looks for others")
        except RankLost as lost:
            _note_lost(lost, link, session, roster)
        except HomeGone as gone:
            _note_gone(gone, session, suspicion)
        _begin_link(link, inbox, session)  # while the ranks begin
        meet = _meet_again


def _live(
    link: LinkProcess,
    inbox: Inbox,
    spec: RunSpec,
    me: str,
    settings: PeerSettings,
    directory: Path,
    session: Reporter,
    roster: DeviceRoster,
    suspicion: HomeSuspicion,
    meet: Callable[[LinkProcess, Inbox, Reporter], None],
) -> None:
    """One life, from what is on disk to its end. Raises RankLost and HomeGone, and then nothing of it goes on."""
    from peer.training.train.worker import TrainerWorker

    with ExitStack() as begun:
        cluster = None
        if link.is_of_cluster:
            meet(link, inbox, session)  # first: only then the others can be asked
            assembled = _assembled(link, inbox, spec, me, settings, directory, session, suspicion)
            cluster = begun.enter_context(closing(assembled))
            link.on_home_lost = cluster.note_lost
        session.building = True
        try:
            if session.stopping:
                raise LeaveRequested
            ready = prepare(spec, settings, me, directory, session, roster=roster, cluster=cluster)
        finally:
            session.building = False
        session.emit(started(settings, me, ready, directory))
        if cluster is not None:
            session.emit(cluster.formed(ready.trainer.layer_names))
            note_formed(directory)
        worker = begun.enter_context(closing(TrainerWorker(ready.trainer, ready.checkpoints, directory, session.warn)))
        if cluster is None:
            meet(link, inbox, session)
        life = Session(link, inbox, ready.trainer, worker, session, ready.anchor, cluster)
        begun.enter_context(closing(life)).run()


def _assembled(
    link: LinkProcess, inbox: Inbox, spec: RunSpec, me: str, settings: PeerSettings, directory: Path,
    session: Reporter, suspicion: HomeSuspicion,
) -> ClusterHome:  # fmt: skip
    """This home in its cluster, once that is whole. Raises what the link ended with, LeaveRequested and BadInput."""
    from peer.parallel.cluster.assembly import assemble, await_assignment, remember
    from peer.parallel.cluster.home import ClusterHome

    found = found_in(directory)
    order = found.order if found is not None and found.leads and not settings.stages else ()
    if settings.stages > 1 or order:
        settings = dataclasses.replace(settings, stages=settings.stages or len(order))
        upload_mbps = found.upload_mbps if found is not None else 0.0
        assignment = assemble(link.send, inbox, spec, me, settings, directory, session, suspicion, order, upload_mbps)
    else:
        assignment = await_assignment(link.send, inbox, spec, me, settings, session)

    def ask_submit() -> None:
        inbox.put(SubmitAsked)

    contributions, changed = directory / "contributions", partial(remember, directory)
    return ClusterHome(assignment, me, link.flow, contributions, ask_submit, changed, suspicion)


def _note_lost(lost: RankLost, link: LinkProcess, session: Reporter, roster: DeviceRoster) -> None:
    """Say how the peer goes on. Raises LeaveRequested where it was about to leave, and DeviceLost."""
    if session.stopping:
        session.warn("RANK", f"{lost}; this peer leaves all the same, and its newest checkpoint stays")
        raise LeaveRequested from lost
    try:
        why = roster.lost(lost)
    except DeviceLost:
        link.send(ipc.Leave(finished=False))
        raise
    session.warn("RANK", f"{lost}; {why}, from the newest checkpoint; what was submitted stays")


def _note_gone(gone: HomeGone, session: Reporter, suspicion: HomeSuspicion) -> None:
    """Say how a cluster goes on. Raises LeaveRequested where this peer was about to leave."""
    if session.stopping:
        raise LeaveRequested from gone
    if isinstance(gone, CutMoved):
        session.emit(AlertRaised(level="info", code="CLUSTER", text=str(gone)))
        return
    text = "; ".join(said for said in (str(gone), suspicion.note(gone)) if said)
    text = f"{text}; this peer goes on from its newest checkpoint as soon as its cluster is whole"
    session.warn("CLUSTER", f"{text}; what was submitted stays")


def _begin_link(link: LinkProcess, inbox: Inbox, session: Reporter) -> None:
    """Start one in place of that of the life before, of which nothing is heard any more."""
    link.end()
    with suppress(Empty):
        while True:
            inbox.get_nowait()
    link.restart()
    session.link_began()


def _has_met(link: LinkProcess, inbox: Inbox, session: Reporter) -> None:
    """The first link of all has brought the spec already."""


def _meet_again(link: LinkProcess, inbox: Inbox, session: Reporter) -> None:
    """Wait for a link that was started before a life. Where nobody can be reached it is tried as often as in one life.

    Raises what `await_spec` does.
    """
    for left in reversed(range(LINKS_LOST)):
        try:
            await_spec(inbox, session)
        except (Unreachable, LinkLost):
            if not left:
                raise
        else:
            return
        session.say("JOINING", "connecting again")
        _begin_link(link, inbox, session)


class Session:
    """One life, with what it needs to happen."""

    def __init__(
        self, link: LinkProcess, inbox: Inbox, trainer: LocalTrainer, worker: Trainer, reporter: Reporter,
        anchor: bytes, cluster: ClusterHome | None = None,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._link, self._inbox, self._trainer, self._worker = link, inbox, trainer, worker
        self._reporter = reporter
        self._thread = ThreadPoolExecutor(1, "trainer")
        self._clock = ClockWatch(time.time, time.monotonic)
        self._interrupted = self._has_ended = False
        self._failure: Exception | None = None
        self._forecaster = Forecaster(trainer.spec, trainer.me, lambda: asdict(reporter.settings), reporter.emit)
        now = time.monotonic()
        serves = cluster is not None and not cluster.is_lead
        self.life = begin(trainer.spec, trainer.me, worker.status, anchor, now, self._owner(now), serves=serves)
        reporter.wishes.listen(lambda: inbox.put(self._owner))

    def run(self) -> None:
        """Until this peer has left. Raises what ended it before, with all that it learned on disk."""
        self._thread.submit(self._worker.enter_thread).result(ENTER_S)
        self._feed(Woken(time.monotonic()))
        if self._reporter.stopping:
            self._feed(LeaveAsked(time.monotonic()))
        while self.life.mode is not Mode.LEFT:
            event = self._next()
            if isinstance(event, TrainerFailed) and not isinstance(event.error, HomefiresError):
                raise event.error
            if event is not None:
                self._feed(event)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let the trainer's thread end with its work, which a second signal does not wait for."""
        self._reporter.wishes.listen(lambda: None)
        self._interrupted = self._has_ended = True
        self._thread.shutdown()

    def _next(self) -> LifeInput | None:
        """The next input; None if there is nothing to say of what came."""
        connection = self.life.connection
        off = isinstance(connection, Offline) and connection.cause == "CLOCK"
        if off and self._clock.has_jumped:
            return ClockJumped(time.monotonic())
        longest_s = CLOCK_LOOK_S if off else LONGEST_S
        try:
            item = self._inbox.get(timeout=min(max(0.0, self.life.wake_at - time.monotonic()), longest_s))
        except Empty:
            return Woken(time.monotonic())
        now = time.monotonic()
        match item:
            case ipc.ReportEvent(name, fields):
                event = Event.registry[name](**fields)
                self._reporter.emit(event)
                self._forecaster.heard(event)
                return None
            case Exception():
                self._clock = ClockWatch(time.time, time.monotonic)
                return LinkEnded(now, item)
            case ipc.HomesOffered() | ipc.StagesAssigned() | ipc.HomeLost():
                return self._hear_cluster(item, now)
            case ipc.HomesMissing(missing) if self.life.serves and not self.life.leaving:
                raise HomesLacking(missing, "the lead of the cluster gives this home no layers any more")
            case ipc.HomesMissing():
                return None  # said before they came
            case ipc.AskSubmit() if self.life.serves:
                return None  # only its lead may
            case ipc.ToTrainer():
                return heard(item, now)
            case said:
                return said(now)

    def _hear_cluster(self, said: ipc.HomesOffered | ipc.StagesAssigned | ipc.HomeLost, now: float) -> LifeInput | None:
        """Raises HomeGone where this life cannot go on without a home."""
        assert self._cluster is not None
        if self.life.leaving:
            return None
        if self.life.serves and self.life.finished and isinstance(said, ipc.HomeLost):
            return LeaveAsked(now)  # its lead has finished the run
        if isinstance(said, ipc.HomesOffered):
            larger = self._cluster.enlisted(said.homes)
            if larger is not None:
                self._link.send(ipc.AssignStages(larger))
            return None
        self._cluster.hear(said)
        return None

    def _owner(self, now: float) -> OwnerChanged:
        wishes = self._reporter.wishes
        return OwnerChanged(now, wishes.holds, wishes.now is Intent.FINISH, wishes.min_step_s)

    def _feed(self, event: LifeInput) -> None:
        self.life, effects = step(self.life, event)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: LifeEffect) -> None:
        match effect:
            case Do(work):
                self._interrupted = False
                self._thread.submit(self._work, work)
            case Interrupt(at_once):
                self._interrupted |= at_once
            case Say(message):
                self._link.send(message)
            case Greet(anchor):
                if self._cluster is not None:
                    held = self._trainer.held
                    self._link.send(ipc.LayersHeld(held.start, held.stop - 1))
                self._link.send(ipc.Hello(self._trainer.layer_sizes, self._trainer.start.state, anchor))
            case Emit(PeerStateChanged(state=state, why=why, until=until)):
                self._reporter.say(state, why, until)
            case Emit(event):
                self._reporter.emit(event)
            case EmitRound():
                self._emit_round(effect)
            case WriteSnapshot(anchor, state):
                self._worker.write_snapshot(anchor, state)
            case ForgetForecast():
                self._forecaster.restarted()
            case Reconnect():
                if self._cluster is not None:  # what was assigned, and all that flew, is gone with that link
                    raise HomeGone(self._trainer.me, "has lost its link")
                self._link.restart()
                self._reporter.link_began()
            case GrantFinish():
                self._reporter.wishes.round_is_given()
                self._inbox.put(self._owner)
            case Fail(error):
                self._failure = self._failure or error
                self._inbox.put(LeaveAsked)
            case _:
                assert_never(effect)

    def _work(self, work: Work) -> None:
        """In the trainer's thread."""
        wishes = self._reporter.wishes
        throttle = Throttle(wishes, time.monotonic, lambda: self._interrupted or wishes.pausing)

        def post(said: Said) -> None:
            if not self._has_ended:  # what is written beside may end later, and is of no life then
                self._inbox.put(said)

        def post_step(said: Said) -> None:
            left_s = throttle.left_s()

            def rested(now: float) -> LifeInput:
                event = said(now)
                if isinstance(event, Done) and isinstance(event.result, Stepped):
                    return replace(event, result=replace(event.result, rest_s=left_s))
                return event

            self._inbox.put(rested)

        try:
            self._worker.do(work, post_step if isinstance(work, Step) else post, throttle.rest_or_stop)
        except Exception as error:
            failure = error
            self._inbox.put(lambda now: TrainerFailed(now, failure, in_work=True))

    def _emit_round(self, told: EmitRound) -> None:
        trainer, update = self._trainer, told.update
        committed, imposed = summarize(
            update, told.anchor, told.state, trainer.progress.turns.parts(update.round - 1),
            fragments=trainer.spec.round.fragments, tokens_cap=trainer.spec.tokens_cap, layers=trainer.layer_names,
            cost=LocalCosts(
                bytes_sent=told.bytes_sent, bytes_received=told.bytes_received, round_s=told.round_s,
                exposed_s=told.exposed_s,
            ),
        )  # fmt: skip
        self._reporter.emit(committed)
        if self._cluster is not None and (measured := self._cluster.measured()) is not None:
            self._reporter.emit(measured)
        if self._cluster is not None and (dealt := self._cluster.moved(trainer.spec)) is not None:
            self._link.send(ipc.AssignStages(dealt))
        for penalty in imposed:
            if told.in_step or penalty.about == trainer.me:  # a newcomer need not tell what was long ago
                self._reporter.emit(penalty)
        if told.in_step:
            self._forecaster.committed(update, told.round_s, self.life.pace)


def heard(message: AnyToTrainer, now: float) -> LifeInput:
    """What the link says, as an input of the lifecycle. Raises ValueError for a block that is none."""
    match message:
        case ipc.SpecText():
            return Greeted(now)
        case ipc.Waiting(why):
            return LinkWaits(now, why)
        case ipc.BeginAt(anchor, members):
            return Began(now, anchor, members)
        case ipc.ReplayBlock(block, last_round):
            update = Block.from_bytes(block).update
            return Replayed(now, update, next_anchor(update.parent, update.digest), last_round)
        case ipc.ResumeAt(anchor):
            return Positioned(now, anchor)
        case ipc.BlockCommitted(block, anchor, sent, received, agreed_at):
            return RoundDecided(now, Block.from_bytes(block).update, anchor, sent, received, agreed_at)
        case ipc.AdoptSnapshot(round, anchor, members):
            return SnapshotTaken(now, round, anchor, members)
        case ipc.InStep(here):
            return SyncChanged(now, here)
        case ipc.AskSubmit():
            return SubmitAsked(now)
        case ipc.OthersSpeeds(tokens_per_s):
            return SpeedsHeard(now, tokens_per_s)
        case (
            ipc.ReportEvent()
            | ipc.LinkFailed()
            | ipc.HomesOffered()
            | ipc.StagesAssigned()
            | ipc.HomeLost()
            | (ipc.StartBrought())
            | ipc.HomesFound()
            | ipc.HomesMissing()
        ):
            raise AssertionError("it does not come here")
        case _:
            assert_never(message)
