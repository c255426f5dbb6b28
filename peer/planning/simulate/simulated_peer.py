"""A simulated peer: declared seconds and bandwidths, and sixteen bytes (a norm and a number) for each part."""

from __future__ import annotations

import math
import zlib
from random import Random
from typing import TYPE_CHECKING, Any

from dht.errors import Unreachable
from dht.streams.base import Streams
from peer.consensus.credit.round_credit import LocalCosts, summarize
from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import ContributionHeader
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.frame_reader import Framing
from peer.consensus.protocol.head import next_anchor
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.rounds.acceptor import HALF
from peer.consensus.rounds.block_sync import HEAD_EVERY_S, NEWS_EVERY_S
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import Leaving, Tick
from peer.consensus.rounds.machine import TICK_S
from peer.consensus.rounds.transition import Transition
from peer.node.lifecycle.inputs_effects import (
    Apply,
    EmitRound,
    Greeted,
    LeaveAsked,
    LifeInput,
    LinkEnded,
    Moved,
    Result,
    Resume,
    RoundDecided,
    SpeedsHeard,
    Step,
    Stepped,
    Submit,
    TrainerStatus,
    Work,
)
from peer.node.lifecycle.round_progress import RoundProgress
from peer.node.lifecycle.state import Offline
from peer.planning.plan.peer_set import FASTEST_BPS
from peer.planning.simulate.life_host import NEVER
from peer.planning.simulate.memory_store import NormArithmetic, NormStore, part_of
from peer.planning.simulate.scenario import PeerProfile
from peer.planning.simulate.swarm_peer import READ_BOARD_S, Crashed, SwarmPeer
from peer.schema import ipc
from peer.schema.events import Event, PeerStarted, PeerStateChanged, PeerStopped, ReportReceived, RoundAborted

if TYPE_CHECKING:
    from peer.planning.simulate.group import Group


AS_IT_IS = Framing(
    encode=lambda message: message,  # type: ignore[arg-type, return-value]
    decode=lambda frame: frame,  # type: ignore[arg-type, return-value]
    is_voters=lambda frame: False,
)
"""Messages are passed on as objects: a receiver cannot change them."""
GOODBYE_S = 1.2
"""How long a leaving peer stays to commit an exchange in progress, and to say goodbye."""
NORM_PER_ROOT = 1e-3
"""The norm of a step's pseudo-gradient, per square root of its elements. Only ratios of norms matter."""
RESIDUE = {"float32": 0.0, "float16": 3e-4, "int8": 0.006, "int4": 0.1, "sparse": 0.9}
"""The norm of what encoding leaves in the residual, as a share of what is encoded. It is rounding within a block of
64 normal values, the largest of which is 2.4 standard deviations. The sparse code leaves nearly everything."""


class SimulatedPeer(SwarmPeer):
    """One peer of a simulated run."""

    world: Group
    disk: NormStore

    def __init__(self, world: Group, name: str, machine: PeerProfile, title: str, donor: SimulatedPeer | None) -> None:
        super().__init__(
            world, name,
            NormStore(self, world.genesis, world.keep_rounds, lambda block, head: None),
        )  # fmt: skip
        self.machine, self.title = machine, title
        self.dice = Random(f"{world.seed} peer {name}")
        self.events = 0
        """The number of events reported so far."""
        self.leaving = False
        self._residue: dict[int, float] = {}
        """By fragment, what encoding the newest contribution left in the residual: square norm per element."""
        self._step_s = machine.step_s
        """Seconds of an inner step in this round."""
        self.ticks = 0
        if donor is not None:
            self.disk.start_anew(donor.disk)
        self.boot()
        self.tell(
            PeerStarted(
                name=title, version="simulated", device=f"{machine.step_s:g} s per step",
                parameters=sum(part.size for part in world.parts), rounds=world.rounds, trains=world.spec.in_words,
            )
        )  # fmt: skip

    # ---- life and death ----

    def recover(self) -> None:
        """Restore the state from disk; the inner steps of this round are lost."""
        self._noted: dict[str, tuple[Heartbeat, float]] = {}
        self.progress = RoundProgress(self.world.spec, self.name, self.world.parts)
        self.progress.stand_at(self.disk.head.round)

    def connect(self) -> Streams:
        """Returns a new end in the network."""
        machine = self.machine
        self.line = self.world.network.connect(self.name, machine.upload_bps, machine.download_bps)
        self._counted = (0, 0)
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

    def burn(self) -> None:
        """Does nothing: a simulated crash happens between two events."""

    def crash(self) -> None:
        super().crash()
        self.world.board.pop(self.name, None)
        self.tell(PeerStateChanged(state="GONE", why="crashed"))

    def resync(self, why: str) -> None:
        """Called by the driver: continue from the snapshot of another peer."""
        self.world.begin_anew(self)
        raise Crashed

    def leave(self) -> None:
        """Called when the owner asks the peer to leave."""
        self.leaving = True
        self.feed(LeaveAsked(self.now))
        if isinstance(self.life.connection, Offline):
            self._end()

    def say(self, message: ipc.AnyToLink) -> None:
        """Pass on a message of the trainer. A leaving peer takes part in the exchange in progress; one that has
        finished the run continues to vote."""
        match message:
            case ipc.Leave(finished=False):
                self.deliver(Leaving(self.now))
                self.later(GOODBYE_S, self._end)
            case ipc.ReportProgress(share=share, tokens_per_s=tokens_per_s):
                self.world.said_speed(self.name, tokens_per_s)
                if not self.driver.state.progress < HALF <= share < 1:  # nothing else is news to its machine
                    return
            case ipc.OfferContribution() | ipc.PausedAt():
                self.tick_soon()
        super().say(message)

    def _end(self) -> None:
        """The peer is gone, for good or until it may use the line again."""
        self.world.network.disconnect(self.name)
        self.world.board.pop(self.name, None)
        self.driver.close()
        self.lives, self._wakes_at = self.lives + 1, NEVER
        if self.leaving:
            self.tell(PeerStopped(why="its owner asked it to leave"))
            self.alive = False
        else:
            self.feed(LinkEnded(self.now, Unreachable("without traffic")))

    def reconnect(self) -> None:
        self._in_step = False
        self.open_link()
        self.hear(Greeted(self.now))

    # ---- what it hears ----

    def on_frame(self, sender: str, frame: Any) -> None:
        """Note a heartbeat that only shows presence, and process it together with the next message that says more.

        Such a heartbeat comes from a peer at the same anchor that is not ready. For a peer that is in step, it changes
        nothing but when its author was heard. Half of all messages are of this kind.
        """
        state = self.driver.state
        if type(frame) is Heartbeat and frame.anchor == state.head.anchor and not frame.ready and state.in_step:
            before, before_at = self._noted.get(sender) or state.heard.get(sender) or (None, float("-inf"))
            same = before is not None and not before.ready and before.unreachable == frame.unreachable
            if before is not None and same and not frame.leaving:
                self._note(sender, frame, before, before_at)
                return
        self._read_notes()
        super().on_frame(sender, frame)

    def board_s(self) -> float:
        """Seconds between two looks at the board. A peer that is in step hears all others directly, and finds
        newcomers on the board soon enough."""
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
        self.deliver(Tick(self.world.now))
        # A peer that only trains waits for nothing: its machine needs no other ticks than those that repeat HEAD.
        idle_s = self.driver.state.said_at + HEAD_EVERY_S - self.world.now
        self.later(TICK_S if waits else max(TICK_S, idle_s), self._tick, self.ticks)

    def tick_soon(self) -> None:
        """Tick soon, because from now on the peer waits for something."""
        self.ticks += 1
        self.later(TICK_S * self.chance(), self._tick, self.ticks)

    # ---- what it tells ----

    def report(self, event: Event) -> None:
        if isinstance(event, RoundAborted):
            self.world.tally.aborted(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        self.world.tell(self, event)

    # ---- when its trainer hears of what was decided ----

    def hear(self, event: LifeInput) -> None:
        if isinstance(event, RoundDecided) and self.world.spec.round.pace == "speed":
            self.feed(SpeedsHeard(self.now, self.world.speeds(self.name, self.driver.state.electorate)))
        self.feed(event)

    # ---- the trainer ----

    @property
    def status(self) -> TrainerStatus:
        progress = self.progress
        return TrainerStatus(
            round=progress.round, step=progress.step, fresh=progress.fresh, offered=progress.offered is not None,
            can_leave=False,
        )  # fmt: skip

    def step_s(self) -> float:
        """The seconds of a step, drawn anew for each round."""
        life = self.life
        assert isinstance(life.work, Step)
        if not life.trainer.step:
            self._step_s = self.machine.step_s * self.dice.lognormvariate(0.0, self.machine.spread)
        return self._step_s

    def train(self, steps: int, whole: float) -> Stepped:
        batches = self.world.spec.inner.accumulation
        micro_batches = (steps - 1) * batches + max(1, round(whole * batches))
        tokens = micro_batches * self.world.step_tokens // batches
        self.progress.stepped(tokens, steps)
        return Stepped(steps=steps, tokens=tokens, loss=None)

    def seconds(self, work: Work) -> float:
        match work, self.life.moving:
            case Submit(), _:
                return self.machine.submit_s
            case Apply(), RoundDecided(agreed_at=agreed_at):
                return agreed_at + self.machine.apply_s - self.now
        return 0.0

    def do(self, work: Work) -> Result:
        progress = self.progress
        match work:
            case Submit(anchor=anchor):
                self._offer(anchor)
            case Apply(update=update):
                progress.settle(update, self.disk.header(update.parent) is not None)
                return Moved(state=state_of(next_anchor(update.parent, update.digest)))
            case Resume(anchor=anchor):
                if (offered := self.disk.header(anchor)) is not None:
                    progress.turns.restored(progress.round, offered.steps, offered.staleness)
                    progress.offer_again(anchor)
                return Moved(state=state_of(anchor))
        return None

    def _offer(self, anchor: bytes) -> None:
        """Write the contribution, once per anchor: after a crash, a peer at the same anchor offers the same bytes."""
        if self.disk.header(anchor) is not None:
            self.progress.offer_again(anchor)
            return
        effort = self.progress.offer(anchor, ())
        payloads = self._payloads(self.progress.round, max(1, effort.steps))
        root = merkle.root([digest_of(payload) for payload in payloads])
        header = ContributionHeader(
            self.name, anchor, root, effort.tokens, effort.steps, int(min(self.machine.upload_bps, FASTEST_BPS)), False,
            (), effort.staleness,
        ).signed(self.driver.state.rules.keys)  # fmt: skip
        self.disk.save_contribution(header, payloads)

    def _payloads(self, round: int, steps: int) -> list[bytes]:
        """A norm for each part, with the spread of honest norms, or as an attacker changes it."""
        attack = self.machine.attack if self.machine.attack_round in (-1, round) else ""
        seed = zlib.crc32(f"{self.name} {0 if attack == 'replay' else round}".encode())
        size = NORM_PER_ROOT**2
        if attack != "replay":
            size *= steps * self.dice.lognormvariate(0.0, 0.1)
            size += self._residue.get(round % self.progress.turns.everything.stop, 0.0)
        size *= self._factor(attack)
        if math.isfinite(size):
            self._residue[round % self.progress.turns.everything.stop] = size * RESIDUE[self.world.spec.codec.wire] ** 2
        parts = self.progress.turns.parts(round)
        return [part_of(size * part.size, seed << 16 | number) for number, part in enumerate(parts)]

    @staticmethod
    def _factor(attack: str) -> float:
        return {"times_100": 1e4, "nan": float("nan"), "zeros": 0.0}.get(attack, 1.0)

    # ---- what came of a round ----

    def traffic(self) -> tuple[int, int]:
        line, (sent, received) = self.line, self._counted
        self._counted = (line.bytes_sent, line.bytes_received)
        return line.bytes_sent - sent, line.bytes_received - received

    def tell_round(self, told: EmitRound) -> None:
        spec = self.world.spec
        self.world.tally.committed(told.update, self.now, told.round_s, told.exposed_s, told.bytes_sent)
        if not self.world.is_heard:
            return
        committed, imposed = summarize(
            told.update, told.anchor, told.state, self.progress.turns.parts(told.update.round - 1),
            fragments=spec.round.fragments, tokens_cap=spec.tokens_cap,
            cost=LocalCosts(
                bytes_sent=told.bytes_sent, bytes_received=told.bytes_received, round_s=told.round_s,
                exposed_s=told.exposed_s,
            ),
        )  # fmt: skip
        self.tell(committed)
        for penalty in imposed:
            self.tell(penalty)


def state_of(anchor: bytes) -> bytes:
    """H(θ, m): equal for all peers at one anchor."""
    return digest_of(b"state" + anchor)
