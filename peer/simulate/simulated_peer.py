"""A simulated peer: declared seconds and lines, and sixteen bytes (a norm and a number) for each part."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from dht.streams.base import Streams
from peer.credit.summary import LocalCosts, summarize
from peer.events import (
    Event,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PhaseEntered,
    ReportReceived,
    RoundAborted,
    RoundStarted,
)  # fmt: skip
from peer.lifecycle.fragments import FragmentSchedule
from peer.lifecycle.pace import Pace
from peer.plan.peer_set import FASTEST_BPS
from peer.protocol import merkle
from peer.protocol.block import Block, ContributionHeader, PartOutcome, Update, part_outcomes
from peer.protocol.encoding import digest_of
from peer.protocol.head import ChainHead
from peer.protocol.messages import Heartbeat
from peer.rounds.block_sync import HEAD_EVERY_S, NEWS_EVERY_S
from peer.rounds.driver import Driver, Framing
from peer.rounds.interface import Applied, Leaving, Tick, TrainingProgress
from peer.rounds.machine import TICK_S
from peer.rounds.timeouts import ready_after_others_s
from peer.rounds.transition import Transition
from peer.simulate.memory_store import NormArithmetic, NormStore, part_of
from peer.simulate.scenario import PeerProfile
from peer.simulate.swarm_peer import READ_BOARD_S, Crashed, SwarmPeer

if TYPE_CHECKING:
    from peer.simulate.group import Group


AS_IT_IS = Framing(encode=lambda message: message, decode=lambda frame: frame)  # type: ignore[arg-type, return-value]
"""Messages are passed on whole: who gets one cannot change it."""
GOODBYE_S = 1.2
"""A peer that leaves stays so long for the commit of an exchange that goes on, and for its last words."""
NORM_PER_ROOT = 1e-3
"""Of a step's pseudo-gradient per element. Only ratios of norms matter."""
RESIDUE = {"float32": 0.0, "float16": 3e-4, "int8": 0.006, "int4": 0.1, "sparse": 0.9}
"""Norm of what encoding leaves in the residual, as a share of what is encoded: rounding within a block of 64 normal
values, whose largest is 2.4 deviations; of the sparse code nearly all stays."""


class SimulatedPeer(SwarmPeer):
    """One peer of a group of a simulated run."""

    world: Group
    disk: NormStore

    def __init__(
        self, world: Group, name: str, machine: PeerProfile, title: str, donor: SimulatedPeer | None = None
    ) -> None:
        super().__init__(
            world, name,
            NormStore(self, world.genesis, world.keep_rounds, lambda block, head: None, lambda blocks, head: None),
        )  # fmt: skip
        self.machine, self.title = machine, title
        self.dice = Random(f"{world.seed} peer {name}")
        self.pace, self.turns = Pace(world.spec), FragmentSchedule(world.parts, world.spec.round.fragments)
        self.events = 0
        """Lines told so far."""
        self.agreed_at = self.began_at = world.now
        """When the newest anchor was agreed, and was here."""
        self.trains_since: float | None = None
        """Since when it makes inner steps without a break; None while it makes none."""
        self.trained_s = 0.0
        """Of this round, before that."""
        self.steps_ahead_since: float | None = None
        """With streaming: when it gave its part of the round that is agreed now."""
        self.ahead_s = 0.0
        """With streaming: seconds of steps of this round that were made before its anchor was there."""
        self.step_s, self.steps = machine.step_s, 0
        """Of this round: seconds of a step, and how many are its part."""
        self.leaving = False
        self._residue: dict[int, float] = {}
        """By fragment, what encoding left of the newest contribution: square norm per element."""
        self.released, self.waits = -1, False
        """Where rounds are gated (in a grid): the anchor from which one may begin, and whether it waits for that."""
        self.planned_at, self.planned_for = world.now, -1
        """When its whole part of a round is made, or would have been; and of which round."""
        self.made_at, self.trained_in_s, self.made_tokens = float("-inf"), 0.0, 0
        """When its newest part of a round was made, in how many seconds of training, and the tokens in it."""
        self.ticks = 0
        if donor is not None:
            self.disk.start_anew(donor.disk)
        self.boot()
        self.tell(
            PeerStarted(
                name=title, version="simulated", device=f"{machine.step_s:g} s per step",
                parameters=sum(part.size for part in world.parts), rounds=world.rounds,
            )
        )  # fmt: skip

    # ---- life and death ----

    def recover(self) -> None:
        """What is on disk is all there is; the steps of this round are gone."""
        self.trains_since = self.steps_ahead_since = None
        self._noted: dict[str, tuple[Heartbeat, float]] = {}
        self.trained_s = self.ahead_s = 0.0
        self.agreed_at = self.began_at = self.world.now

    def connect(self) -> Streams:
        """A new end of the links."""
        machine = self.machine
        self.line = self.world.network.connect(self.name, machine.upload_bps, machine.download_bps)
        self.counted_sent = self.counted_received = 0
        return self.line

    def make_driver(self, streams: Streams) -> Driver:
        scheduler = self.world.scheduler
        return Driver(
            self.state_on_disk(), clock=lambda: scheduler.now, streams=streams, disk=self.disk,
            arithmetic=NormArithmetic(self.disk, self.machine.reduce_s), trainer=self, report=self.report,
            publish=self.publish, framing=AS_IT_IS,
        )  # fmt: skip

    def chance(self) -> float:
        return self.dice.random()

    def crash(self) -> None:
        super().crash()
        self.world.board.pop(self.name, None)
        self.tell(PeerStateChanged(state="GONE", why="crashed"))

    def leave(self) -> None:
        """Say so, take part in the exchange that goes on, and go."""
        self.leaving = True
        self.driver.deliver(Leaving(self.world.now))
        self.later(GOODBYE_S, self._end)

    def _end(self) -> None:
        self.tell(PeerStopped(why="its owner asked it to leave"))
        self.alive = False
        self.world.network.disconnect(self.name)
        self.world.board.pop(self.name, None)

    def burn(self) -> None:
        """Nothing: a simulated crash falls between two events."""

    def entered(self, phase: str, round: int) -> None:
        """Nothing: nobody waits for a phase here."""

    def _end_training(self) -> None:
        """Its steps were counted when they were made."""

    # ---- what it hears ----

    def hear(self, sender: str, frame: Any) -> None:
        """A HEAD that only says who is there is noted, and read together with the next message that says more.

        That is one of a peer that stands where this one stands and is not ready: it changes when its author was heard,
        and nothing else, for a peer that is in step. Half of all messages are such.
        """
        state = self.driver.state
        if type(frame) is Heartbeat and frame.anchor == state.head.anchor and not frame.ready and state.in_step:
            before, before_at = self._noted.get(sender) or state.heard.get(sender) or (None, float("-inf"))
            same = before is not None and not before.ready and before.unreachable == frame.unreachable
            if before is not None and same and not frame.leaving:
                self._note(sender, frame, before, before_at)
                return
        self._read_notes()
        self.driver.on_frame(sender, frame)

    def board_s(self) -> float:
        """Whoever is in step has heard of all by their own HEADs, and finds newcomers on the board soon enough."""
        return HEAD_EVERY_S if self.driver.state.in_step else READ_BOARD_S

    def _note(self, sender: str, head: Heartbeat, before: Heartbeat, before_at: float) -> None:
        if head != before and self.world.is_heard and self.world.now - before_at >= NEWS_EVERY_S:
            self.tell(
                ReportReceived(
                    about=sender, round=head.round, ready=False, tokens=head.tokens, steps=head.steps,
                    leaving=False, name=head.name,
                )
            )  # fmt: skip
        self._noted[sender] = (head, self.world.now)

    def _read_notes(self) -> None:
        if self._noted:
            turn = Transition(self.driver.state, self.world.now)
            turn.set(heard={**self.driver.state.heard, **self._noted})
            self.driver.state = turn.state
            self._noted = {}

    # ---- ticks ----

    def _tick(self, number: int = 0) -> None:
        if number != self.ticks and number:
            return
        self.ticks += 1
        state = self.driver.state
        waits = (
            state.header is not None or state.exchange is not None or state.lead is not None or state.blocks
            or state.decided is not None or state.wanted.digests or not state.in_step
        )  # fmt: skip
        self._read_notes()
        self.driver.deliver(Tick(self.world.now))
        # A peer that only trains waits for nothing: its machine needs no other ticks than those that repeat HEAD.
        idle_s = self.driver.state.said_at + HEAD_EVERY_S - self.world.now
        self.later(TICK_S if waits else max(TICK_S, idle_s), self._tick, self.ticks)

    def tick_soon(self) -> None:
        """It waits for something from now on."""
        self.ticks += 1
        self.later(TICK_S * self.chance(), self._tick, self.ticks)

    # ---- what it tells ----

    def report(self, event: Event) -> None:
        if isinstance(event, RoundAborted):
            self.world.tally.aborted(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        self.world.tell(self, event)

    # ---- train ----

    def _train(self) -> None:
        state = self.driver.state
        round, now = state.head.round, self.world.now
        if self.leaving or (round >= self.world.rounds and not self.world.gates):
            self.trains_since = None
            return
        if self.world.gates and self.released != round:
            self.waits = True
            return
        self.step_s = self.machine.step_s * self.dice.lognormvariate(0.0, self.machine.spread)
        self.pace = self.pace.stepped(self.step_s, self.world.step_tokens)
        self.ahead_s = self._ahead_s()
        self.steps = self._part(round, self.ahead_s)
        left_s = max(0.0, self.steps * self.step_s - self.ahead_s)
        self.trains_since, self.planned_at, self.planned_for = now, now + left_s, round
        self.tell(RoundStarted(round=round, steps=self.steps))
        self.tell(PeerStateChanged(state="TRAINING", why=f"towards round {round + 1}"))
        anchor = state.head.anchor
        self.later(left_s / 2, self._half, anchor)
        self.later(left_s, self._part_is_made, anchor)

    def release(self, round: int) -> None:
        """The round from this anchor may begin: what it begins from is here. It does not if it is decided by then."""
        self.released = round
        if self.alive and self.waits:
            self.waits = False
            self._train_when_in_step()

    def _ahead_s(self) -> float:
        """Seconds of steps for this round that were made while the last one was agreed."""
        if self.steps_ahead_since is None:
            return 0.0
        most_s = self.world.spec.round.delay * self.machine.step_s
        ahead_s = min(self.world.now - self.steps_ahead_since - self.machine.apply_s, most_s)
        self.steps_ahead_since = None
        return max(0.0, ahead_s)

    def _part(self, round: int, ahead_s: float) -> int:
        """How many steps are its part of the round: by its pace, if the time suffices."""
        others = self.world.speeds(self.name, self.driver.state.electorate)
        self.pace = self.pace.heard(others)
        table = self.world.spec.round
        in_time = int((ahead_s + table.max_train_s - (self.world.now - self.agreed_at)) / self.step_s)
        return max(1, min(in_time, self.pace.steps(round)))

    def _half(self, anchor: bytes) -> None:
        if self.driver.state.head.anchor == anchor and self.driver.state.header is None:
            self.world.said_speed(self.name, self.world.step_tokens / self.step_s)
            self._tell_progress(self.steps // 2)
            self.driver.deliver(TrainingProgress(self.world.now, 0.6))

    def _tell_progress(self, step: int) -> None:
        tokens = self.world.step_tokens * step
        self.tell(
            InnerProgressed(
                round=self.driver.state.head.round, step=step, steps=self.steps, loss=None, tokens=tokens,
                tokens_per_s=round(self.world.step_tokens / self.step_s, 1), learning_rate=0.0,
            )
        )  # fmt: skip

    def request_submit(self) -> None:
        """Asked by the driver: after the step that is being made."""
        self.later(self.step_s * self.chance(), self._part_is_made, self.driver.state.head.anchor)

    def _part_is_made(self, anchor: bytes) -> None:
        state = self.driver.state
        if state.head.anchor != anchor or state.header is not None or self.trains_since is None:
            return
        self._count_steps(state.head.round)
        if self.world.spec.round.overlap == "streaming":
            self.steps_ahead_since = self.world.now
        self.report(PhaseEntered(round=state.head.round, phase="submit"))
        self.later(self.machine.freeze_s, self._submit, anchor)

    def _count_steps(self, round: int) -> None:
        """Its part, or what it has made of it when others ask for that."""
        assert self.trains_since is not None
        made_s = self.world.now - self.trains_since
        self.trained_s += made_s
        self.trains_since = None
        steps = max(1, min(self.steps, steps_in(self.steps * self.step_s, made_s + self.ahead_s, self.step_s)))
        self.ahead_s = 0.0
        tokens = steps * self.world.step_tokens
        self.made_at, self.trained_in_s, self.made_tokens = self.world.now, made_s, tokens
        self.turns.progressed(round, 0)
        for fragment in self.turns.everything:
            work = self.turns.work(fragment)
            work.tokens, work.steps = work.tokens + tokens, work.steps + steps - 1
        self._tell_progress(steps - self.steps // 2 if steps > self.steps // 2 else steps)

    # ---- give ----

    def _offer(self, anchor: bytes) -> ContributionHeader:
        round = self.driver.state.head.round
        effort = self.turns.offer(round, ())
        payloads = self._payloads(round, max(1, effort.steps))
        root = merkle.root([digest_of(payload) for payload in payloads])
        header = ContributionHeader(
            self.name, anchor, root, effort.tokens, effort.steps, int(min(self.machine.upload_bps, FASTEST_BPS)), False,
            (), effort.staleness,
        ).signed(self.driver.state.rules.keys)  # fmt: skip
        self.disk.save_contribution(header, payloads)
        return header

    def _payloads(self, round: int, steps: int) -> list[bytes]:
        """A norm for each part, with the spread that honest norms have, or what an attacker makes of it."""
        attack = self.machine.attack if self.machine.attack_round in (-1, round) else ""
        seed = zlib.crc32(f"{self.name} {0 if attack == 'replay' else round}".encode())
        size = NORM_PER_ROOT**2
        if attack != "replay":
            size *= steps * self.dice.lognormvariate(0.0, 0.1)
            size += self._residue.get(round % self.turns.everything.stop, 0.0)
        size *= self._factor(attack)
        if math.isfinite(size):
            self._residue[round % self.turns.everything.stop] = size * RESIDUE[self.world.spec.codec.wire] ** 2
        parts = self.turns.parts(round)
        return [part_of(size * part.size, seed << 16 | number) for number, part in enumerate(parts)]

    @staticmethod
    def _factor(attack: str) -> float:
        return {"times_100": 1e4, "nan": float("nan"), "zeros": 0.0}.get(attack, 1.0)

    # ---- apply ----

    def committed(self, block: Block, head: ChainHead) -> None:
        """Told by the driver; the block is on disk."""
        now = self.world.now
        self.agreed_at = now
        if self.trains_since is not None:  # it was late: what it makes goes on to count for the next round
            self._count_steps(head.round - 1)
        update = block.update
        self.tell(PhaseEntered(round=update.round - 1, phase="apply"))
        self._settle(update)
        self.pace = self.pace.was_late(ready_after_others_s(update, self.name))
        self.later(self.machine.apply_s, self._applied_block, update, head)

    def _settle(self, update: Update) -> None:
        """What becomes of the age of its work."""
        outcomes = part_outcomes(update, self.name, self.disk.header(update.parent) is not None)
        work = self.turns.work(update.round - 1)
        if PartOutcome.NOT_SUBMITTED not in outcomes and PartOutcome.MISSED not in outcomes:
            work.age.counted()
        for fragment in self.turns.too_old(update.round, self.world.spec.round.max_staleness):
            if not self.turns.drop_offered(fragment, update.round):
                self.turns.drop(fragment)

    def _applied_block(self, update: Update, head: ChainHead) -> None:
        now, line = self.world.now, self.line
        sent, received = line.bytes_sent - self.counted_sent, line.bytes_received - self.counted_received
        self.counted_sent, self.counted_received = line.bytes_sent, line.bytes_received
        round_s, self.began_at = now - self.began_at, now
        trained_s, self.trained_s = self.trained_s, 0.0
        if self.steps_ahead_since is not None:
            most_s = self.world.spec.round.delay * self.step_s
            trained_s += min(max(0.0, self.agreed_at - self.steps_ahead_since), most_s)
        exposed_s = max(0.0, round_s - trained_s)
        self.world.tally.committed(update, now, round_s, exposed_s, sent)
        if self.world.is_heard:
            self._tell_commit(update, head, round_s, exposed_s, sent, received)
        self._applied(head.anchor)

    def _tell_commit(
        self, update: Update, head: ChainHead, round_s: float, exposed_s: float, sent: int, received: int
    ) -> None:
        spec = self.world.spec
        committed, imposed = summarize(
            update, head.anchor, self._state_of(head), self.turns.parts(update.round - 1),
            fragments=spec.round.fragments, tokens_cap=spec.tokens_cap,
            cost=LocalCosts(bytes_sent=sent, bytes_received=received, round_s=round_s, exposed_s=exposed_s),
        )  # fmt: skip
        self.tell(committed)
        for penalty in imposed:
            self.tell(penalty)

    def undone(self, blocks: Sequence[Block], head: ChainHead) -> None:
        """Told by the driver: these blocks are off the chain, newest first; the peer stands at `head` again."""
        self.turns.went_back(head.round)
        self.later(self.machine.apply_s, self._applied, head.anchor)

    def resync(self, why: str) -> None:
        """Told by the driver: go on from the snapshot of another."""
        self.world.begin_anew(self)
        raise Crashed

    def _submit(self, anchor: bytes) -> None:
        super()._submit(anchor)
        self.tick_soon()

    def _applied(self, anchor: bytes) -> None:
        if anchor == self.disk.head.anchor:
            super()._applied(anchor)
        else:  # it catches up: the newest anchor is computed later
            self.driver.deliver(Applied(self.world.now, anchor, digest_of(b"state" + anchor)))

    def state_digest(self) -> bytes:
        """H(θ, m): the same for all who stand at one anchor."""
        return self._state_of(self.disk.head)

    @staticmethod
    def _state_of(head: ChainHead) -> bytes:
        return digest_of(b"state" + head.anchor)


def steps_in(whole_s: float, made_s: float, step_s: float) -> int:
    """Steps that fit into the time; all of them if it is the whole but for a rounding error."""
    return round(whole_s / step_s) if made_s >= whole_s - 1e-6 * step_s else int(made_s / step_s)
