"""The whole story of a peer, on one screen: join a run, train, agree, write checkpoints, and leave.

The link runs in a child process and starts first, so that it loads hivemind while this process
loads torch. Everything this process has to say is an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dht.clock import ClockWatch
from dht.errors import ClockOff, DiskFull, HomefiresError, MemoryFull, RunMismatch, Unreachable
from peer.chain_follower import ChainFollower
from peer.events import InnerProgressed, PhaseEntered, RoundStarted
from peer.host.gpu import device_gb
from peer.limits.enforcer import Throttle
from peer.limits.policy import Hold, until_of, why_of
from peer.link.channel import LinkLost
from peer.link.handle import LeaveRequested, LinkProcess
from peer.settings import PeerSettings
from peer.spec import parse
from peer.startup import fit_for, load_libraries, look_around, make_trainer, restore, started
from peer.telemetry.reporter import Progress, Reporter
from peer.train.saver import SnapshotWriter

SPEC_TIMEOUT_S = 90.0
POLL_S = 0.5
RETRY_S = 5.0
CLOCK_RETRY_S = 60.0
LINKS_LOST = 3
LINK_LOST_WINDOW_S = 600.0


def join(link: LinkProcess, me: str, settings: PeerSettings, directory: Path, session: Reporter) -> None:
    """Take part in a run until it is finished or `session.stopping` says to leave."""
    session.say("JOINING", "looking for the run: the network starts, and the addresses of the invite are dialled")
    session.building = True
    load_libraries()
    session.building = False
    spec = parse(link.expect("spec", SPEC_TIMEOUT_S)[0])
    look_around(spec, directory, settings, session)
    session.building = True
    fit = fit_for(spec, settings, directory, session)
    session.say("JOINING", "building the model and reading the data")
    trainer = make_trainer(spec, settings, me, directory, fit, session)
    first_state = trainer.anchor.state_digest()
    checkpoints, anchor = restore(trainer, directory, session)
    session.building = False
    trainer.offload_model()  # until a step is to be made, which may take hours, its owner has the GPU
    session.emit(started(settings, me, trainer, directory))
    peer = Peer(link, trainer, checkpoints, SnapshotWriter(directory, spec), spec, session, first_state, anchor)
    try:
        peer.take_part()
    except (HomefiresError, LinkLost):
        peer.write_checkpoint(last=True)
        raise
    if not link.has_ended:
        # Whoever asked this peer to leave may have asked its link, too; or it has ended, and says now why.
        with suppress(LinkLost, HomefiresError):
            link.send("finish" if peer.finished else "leave")
    peer.write_checkpoint(last=True)
    peer.keeper.finish_snapshot()


@dataclass
class Peer(ChainFollower):
    """A peer in a run: one trainer, one link, one round after the other."""

    met: bool = False
    """Whether a link has said where the chain on this disk stands."""
    links_lost_at: list[float] = field(default_factory=list)
    stepped_at: float = 0.0
    """When the newest inner step ended."""
    rests_until: float = 0.0
    """No inner step begins before that."""
    learning_rate: float = 0.0
    """Of the newest inner step."""
    clock_is_off: bool = False
    """Whether this machine's clock keeps it from having a link."""
    stands_aside: bool = False
    """Whether its link was asked to leave, since there is no quota of traffic."""
    tries_device_at: float = 0.0
    """When a GPU that had no room is asked again."""
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.progress = Progress(self.exposure)

    @cached_property
    def device_gb(self) -> float | None:
        """Memory of the GPU that was trained on first; None without one."""
        return device_gb()

    @property
    def finished(self) -> bool:
        return 0 < self.spec.run.rounds <= self.trainer.anchor.round

    def take_part(self) -> None:
        """Until the run is finished or somebody asks this peer to leave; a full disk or a lost link ends nothing."""
        while not (self.finished and self.met) and not self.session.stopping:
            try:
                if self.link.has_ended and self.stands_aside:
                    self._stand_aside()
                elif self.link.has_ended:
                    self.meet_again()
                elif not self.met:
                    self.meet()
                else:
                    self.catch_up_or_train()
            except (DiskFull, MemoryFull) as error:
                self.pause(str(error))
            except (LinkLost, Unreachable) as error:
                if self.clock_is_off:  # and the network is away: a hold may last longer than either
                    self._wait_for_right_clock(str(error))
                elif not self.stands_aside:
                    self.note_lost_link(error)
            except ClockOff as error:
                self.wait_for_clock(error)
            except LeaveRequested:
                return

    # ---- meeting the link, once or again ----

    def meet(self) -> None:
        """Tell the link what the model looks like and where the trainer stands; from there it replays."""
        self.link.send("model", self.trainer.layer_sizes, self.first_state, self.anchor)
        anchor, self.members = self.link.expect("begin", None)
        if self.anchor not in (b"", anchor):
            raise RunMismatch(
                f"{self.checkpoints.folder} is at round {self.trainer.anchor.round}, where the chain beside it does "
                "not lead; move the checkpoints away to start from the chain"
            )
        self.anchor, self.met, self.clock_is_off = anchor, True, False

    def meet_again(self) -> None:
        """A new link in place of one that has ended; the trainer stays as it is."""
        if not self.clock_is_off:
            self.session.say("JOINING", "connecting again")
        self.in_step = self.said_paused = False
        if self.giving:
            self._finish_freeze()  # the new link finds on disk what was told to nobody
        self.link.restart()
        self.session.link_began()
        self.link.expect("spec", SPEC_TIMEOUT_S)
        self.meet()

    def note_lost_link(self, error: LinkLost | Unreachable) -> None:
        """A link that ends without a word, or with its network daemon, is started again.

        Unless that happens again and again, or it is something else that nobody answers: then `error` is raised.
        """
        if isinstance(error, Unreachable) and not (self.met and self.link.has_ended):
            raise error
        now = time.monotonic()
        self.links_lost_at = [at for at in self.links_lost_at if now - at < LINK_LOST_WINDOW_S] + [now]
        if len(self.links_lost_at) > LINKS_LOST:
            raise error
        self.session.warn("LINK", "the link ended unexpectedly and is started again; nothing is lost")

    def wait_for_clock(self, error: ClockOff) -> None:
        """The link has ended: by a wrong clock what it says is over, or not yet true. Try another once that was set."""
        self.trainer.offload_model()
        if not self.clock_is_off:
            self.session.warn("CLOCK", f"{error}; this peer holds back until it is right")
        self.clock_is_off = True
        self._wait_for_right_clock(f"{error}; training goes on by itself when it is right")

    def _wait_for_right_clock(self, why: str) -> None:
        """A clock that was put right slowly does not jump: after `CLOCK_RETRY_S` it is tried again, too.

        What the owner wants meanwhile is said instead, and without quota no link begins.
        """
        watch, until = ClockWatch(time.time, time.monotonic), time.monotonic() + CLOCK_RETRY_S
        while not self.session.stopping:
            if holds := self.session.wishes.holds:
                self.exposure.end()
                self.session.say("PAUSED", why_of(holds), until_of(holds))
            else:
                self.exposure.begin()
                self.session.say("PAUSED", why)
            if (watch.has_jumped or time.monotonic() >= until) and not _over_quota(holds):
                return
            time.sleep(POLL_S)

    def pause(self, why: str) -> None:
        """The disk or the device is full. What was learned stays in memory; after `RETRY_S` it is tried again."""
        self.exposure.begin()
        self.session.say("PAUSED", f"{why}; make room, training goes on by itself")
        until = time.monotonic() + RETRY_S
        while time.monotonic() < until and not self.session.stopping:
            if self.link.has_ended:
                time.sleep(POLL_S)
                continue
            try:
                self._hear(POLL_S)
            except (DiskFull, ClockOff):
                continue  # the link writes to the same disk; by a wrong clock the next one ends, too
            except (LinkLost, Unreachable) as error:
                self.note_lost_link(error)

    def catch_up_or_train(self) -> None:
        """One turn: hear the link, then do what this peer's state asks for."""
        if self.applying is not None and self.trainer.is_applied:
            self._finish_apply()
        self.keeper.tell()
        if self.giving and self.trainer.is_frozen_on_disk:
            self._finish_giving()
        if self.trainer.frozen:
            self.session.wishes.round_is_given()
        if not self.in_step:
            self._catch_up()
        elif self.session.wishes.pausing:
            self._sit_out()
        elif not self._has_device():
            self.session.say("PAUSED", f"the GPU has no room for the model: others use it; tried every {RETRY_S:.0f} s")
            self._hear(POLL_S)
        else:
            self._go_on()
            self._wait_or_train()

    def _catch_up(self) -> None:
        """Hear what was decided meanwhile. What this peer has not given waits until it is in step."""
        self._finish_apply()
        if holds := self.session.wishes.holds:
            self.exposure.end()
            self.trainer.offload_model()
        else:
            self.exposure.begin()
        if _over_quota(holds):
            self.session.say("PAUSED", why_of(holds), until_of(holds))
            self._leave_link()
        else:
            self.session.say("SYNCING", "catching up with the others")
        self._hear(POLL_S)

    def _wait_or_train(self) -> None:
        if self._held():
            self.exposure.begin()
            self.session.say("AVERAGING", f"round {self.trainer.anchor.round + 1} is being agreed")
            self._hear(POLL_S)
            return
        self.session.say("TRAINING", self._why_it_trains())
        if not self._is_done():
            self._rest_or_step()
        if self._is_done():
            self._give()

    def _held(self) -> bool:
        """Whether this peer has given its part and must wait before it makes another step.

        A round that takes longer than every deadline together holds nobody: training goes on.
        """
        table = self.spec.round
        if not self.trainer.frozen or self.went_on or self.overdue:
            return False
        if table.overlap == "streaming" and self.trainer.step_in_round < table.delay:
            return False
        if self.held_since is None:
            self.held_since = time.monotonic()
        longest_s = table.gather_s + 2 * (table.silence_s + table.exchange_s)
        self.overdue = time.monotonic() - self.held_since >= longest_s
        return not self.overdue

    def _is_done(self) -> bool:
        """Whether this peer's part of the round is to be given now: it is made, or the others ask for what there is."""
        if self.finished or self.trainer.frozen or not self.trainer.has_progress:
            return False
        return self.freeze_asked or self._share() >= 1

    def _share(self) -> float:
        """How much of its part of the round this peer has made: of its steps, or of the time that it has for them."""
        return self.pace.share(self.trainer.round_in_training, self.trainer.step_in_round, self._elapsed_s())

    def _elapsed_s(self) -> float:
        """Of the round that is in training: since the anchor was agreed to which it will be offered, 0 before that.

        Without the rest since the newest step: it is a part of the next one, which is foreseen in its whole length.
        """
        if self.trainer.round_in_training != self.trainer.anchor.round:
            return 0.0
        now = time.monotonic()
        rested_s = max(0.0, min(now, self.rests_until) - self.stepped_at)
        return max(0.0, now - rested_s - self.agreed_at)

    def _rest_or_step(self) -> None:
        """A new anchor does not shorten a rest: a gentle peer is no faster with others than alone."""
        left_s = self.rests_until - time.monotonic()
        if left_s <= 0:
            self._train_step()
        self._hear(min(max(left_s, 0.0), POLL_S))

    def _why_it_trains(self) -> str:
        round = self.trainer.anchor.round + 1
        if not self.trainer.frozen:
            return f"towards round {round}"
        if self.went_on:
            return f"towards round {round + 1}, since its part of round {round} is given"
        if self.overdue:
            return f"round {round} is overdue; training goes on"
        return f"towards round {round + 1}, while round {round} is being agreed"

    # ---- paused by its owner, or by a limit ----

    def _sit_out(self) -> None:
        """Give what was learned so far, make no inner step, hold nobody up; such time is not exposed."""
        self._finish_apply()
        self.exposure.end()
        if not self.said_paused:
            self.trainer.offload_model()  # first: its owner need not wait for a disk
            self._give_before_pause()
            self.forecaster.restarted()
            self.link.send("paused", self.anchor)
            self.said_paused = True
        if self._may_stand_aside():
            self._leave_link()
        if holds := self.session.wishes.holds:  # or else they have just ended
            self.session.say("PAUSED", why_of(holds), until_of(holds))
        self._hear(POLL_S)

    def _give_before_pause(self) -> None:
        if not self.giving and (self.trainer.frozen or not self.trainer.has_progress):
            return
        if self.progress.losses:
            self.session.emit(self._progressed())
        try:
            if not self.giving:
                self._begin_freeze()
            self._finish_freeze()
        except DiskFull as error:  # the others must hear of the pause all the same
            self.session.warn("DISK", f"{error}; what was learned stays in memory and is given later")
        else:
            self.write_checkpoint()

    def _may_stand_aside(self) -> bool:
        """Whether the traffic of the month is used up, and nothing that was learned waits for the others any more.

        A peer that only pauses votes and takes in every round: then its link leaves, too.
        """
        if self.trainer.frozen or self.trainer.has_progress:
            return False
        return _over_quota(self.session.wishes.holds)

    def _leave_link(self) -> None:
        """There is no traffic left in this month. It ends in a moment, and then this peer stands aside."""
        if not self.stands_aside:
            self.link.send("leave")
            self.stands_aside = True

    def _stand_aside(self) -> None:
        """Without a link, until there is a quota again."""
        holds = self.session.wishes.holds
        self.stands_aside = _over_quota(holds)
        if self.stands_aside:
            self.session.say("PAUSED", why_of(holds), until_of(holds))
            time.sleep(POLL_S)

    def _has_device(self) -> bool:
        """Whether the model is where it can train; after a pause others may use the memory that it needs."""
        now = time.monotonic()
        if now < self.tries_device_at:
            return False
        has_it = self.trainer.reload_model()
        self.tries_device_at = 0.0 if has_it else now + RETRY_S
        return has_it

    def _go_on(self) -> None:
        """Train again after a pause: whoever gave nothing for this anchor may still do so."""
        if not self.said_paused:
            return
        self.said_paused, self.freeze_asked, self.went_on = False, False, self.trainer.frozen
        self.exposure.end()
        self.trainer.refit()
        if self._elapsed_s() >= self.spec.round.max_train_s:
            self.agreed_at = time.monotonic()  # the others may be gone: it is as if the round began now
        self.progress.restart()
        self.link.send("resumed")

    # ---- train and freeze ----

    def _train_step(self) -> None:
        if not self.round_begun:
            self._begin_round()
        self.exposure.end()
        now = time.monotonic()
        self.rests_until = now + self.session.wishes.min_step_s
        self.exposure.rest(self.rests_until)
        position = self.pace.position(self.trainer.round_in_training, self.trainer.step_in_round, self._elapsed_s())
        waited_before_s = self._waited_for_layers_s()
        resting = Throttle(self.session.wishes, time.monotonic)
        step = self.trainer.train_step(resting.rest_or_stop, position)
        waited_s = self._waited_for_layers_s() - waited_before_s
        self.exposure.add(waited_s)
        self.stepped_at = time.monotonic()
        if (left_s := resting.left_s()) > 0:
            self.rests_until = max(self.rests_until, self.stepped_at + left_s)
            self.exposure.rest(self.rests_until)
        self.pace = self.pace.stepped(max(self.stepped_at - waited_s, self.rests_until) - now, step.tokens)
        self.learning_rate = step.learning_rate
        self.progress.add(step.loss, step.tokens)
        if self.progress.due():
            self._tell_progress()
        if not self.giving and self.keeper.due(round_ends=False):
            self.write_checkpoint()

    def _begin_round(self) -> None:
        self.trainer.begin_round(self.members)
        round = self.trainer.anchor.round
        self.session.emit(RoundStarted(round=round, steps=self.pace.expected(round)))
        self.round_begun = True

    def _progressed(self) -> InnerProgressed:
        steps = self.pace.expected(self.trainer.round_in_training)
        return self.progress.event(self.trainer, self.learning_rate, steps)

    def _tell_progress(self) -> None:
        if self.progress.losses:
            progress = self._progressed()
            self.session.emit(progress)
            speed = self.pace.tokens_per_s or progress.tokens_per_s
            self.link.send("progress", self._share(), progress.loss, speed, self.device_gb)

    def _give(self) -> None:
        """Offer what was learned to the others. Whoever streams trains on while it is being written."""
        if not self.round_begun:
            self._begin_round()
        self._tell_progress()
        self.exposure.begin()
        # The others wait for it, and this peer may be in the middle of a long step when it is written.
        self._begin_freeze(self.link.announcer("frozen", self.anchor))
        if self._held():
            self._finish_giving()

    def _finish_giving(self) -> None:
        self._finish_freeze()
        if self.keeper.due(round_ends=True):
            self.write_checkpoint()

    def _begin_freeze(self, announce: Callable[[], None] = lambda: None) -> None:
        self._finish_apply()
        self.session.emit(PhaseEntered(round=self.trainer.anchor.round, phase="submit"))
        self.trainer.begin_submit(self.anchor, announce)
        self.giving = True

    def _finish_freeze(self) -> None:
        self.giving = False
        self.trainer.finish_submit()
        self.freeze_asked = False
        self.session.wishes.round_is_given()


def _over_quota(holds: Sequence[Hold]) -> bool:
    return any(hold.code == "QUOTA" for hold in holds)
