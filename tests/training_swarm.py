"""Real trainers in one process and one thread, on a virtual clock: the same history for the same seed.

Every peer is the product's own: trainer, contribution files, codec, mean, round machine, driver, frames, chain on
disk. Only the network and the clock are models, and training, applying and writing are done at once: each takes a
virtual time. A `Role` says what a peer does that is not honest (`tests/adversaries.py`).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from dht.identity import Identity, RunKeys
from dht.streams.base import Streams
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.credit.round_credit import penalties_of
from peer.consensus.protocol.block import ContributionHeader, Update
from peer.consensus.protocol.head import ChainHead, genesis_anchor, next_anchor
from peer.consensus.rounds.driver import ChainPort, Driver, ReductionPort
from peer.consensus.rounds.interface import Tick
from peer.consensus.rounds.machine import TICK_S, begin
from peer.network.link.reduction import ReductionWorker
from peer.node.lifecycle.inputs_effects import (
    Apply,
    Evaluate,
    Moved,
    Result,
    Resume,
    Save,
    Stepped,
    Submit,
    TrainerStatus,
    Work,
)
from peer.node.store.chain import ChainStore
from peer.node.store.objects import load_object
from peer.planning.simulate.life_host import LifeHost
from peer.planning.simulate.memory_network import MemoryNetwork, Scheduler
from peer.schema.events import AlertRaised, Event, PenaltyImposed
from peer.schema.spec import RunSpec
from peer.training.train.trainer import LocalTrainer
from tests.stepping import step, steps_in_round, submit

CPU = torch.device("cpu")
TRAIN_S = (4.0, 5.0)
"""Shortest and longest virtual time of the inner steps of a round."""
APPLY_S = 0.05
LATEST_S = 120.0
"""No round of a swarm in order takes longer; virtual seconds."""
WALL_S = 1.7e9
"""Unix time at the beginning."""


class Immediately(Executor):
    """Runs what is submitted before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done. What `fn` raises is raised here."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What a driver acts with."""

    me: str
    keys: RunKeys
    streams: Streams
    disk: ChainPort
    arithmetic: ReductionPort


class Role:
    """What a peer does with what is in its own hands. This one is honest; an attack overrides what it lies about."""

    honest = True

    def trainer(self, spec: RunSpec, me: str, folder: Path) -> LocalTrainer:
        """The owner of the anchor."""
        return LocalTrainer(spec, me, folder, CPU, data_path=spec.data.path)

    def hands(self, hands: Hands) -> Hands:
        """What its driver gets."""
        return hands

    def header(self, header: ContributionHeader) -> ContributionHeader:
        """What it says of its contribution; not yet signed."""
        return header


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A peer stands at an anchor."""

    round: int
    digest: str
    state: str


class TrainingPeer(LifeHost):
    """One peer of the swarm: a trainer and a driver under the product's own lifecycle."""

    def __init__(self, swarm: TrainingSwarm, identity: Identity, role: Role) -> None:
        self.name, self.role, self._swarm = identity.peer_id, role, swarm
        self._folder = swarm.folder / self.name
        self._folder.mkdir(parents=True)
        self._keys = RunKeys(identity, swarm.spec.digest())
        self._rng = Random(f"{swarm.spec.run.seed} {self.name}")
        self.trainer = role.trainer(swarm.spec, self.name, self._folder / "contributions")
        self.history: list[Reached] = []
        self.reached_at: list[float] = []
        """When, in virtual seconds."""
        self.updates: list[Update] = []
        self.penalties: list[PenaltyImposed] = []
        """What the people at this machine were told, with the updates and by the machine itself."""
        self.alerts: list[AlertRaised] = []

    def join(self, genesis: ChainHead) -> None:
        """Take part from the first anchor on."""
        swarm, spec, codec = self._swarm, self._swarm.spec, Codec(self._swarm.spec.codec.wire)
        self.disk = ChainStore(
            self._folder, genesis, self.trainer.parts, codec, Immediately(), self._soon,
            fragments=spec.round.fragments, keep_rounds=spec.round.keep_rounds,
        )  # fmt: skip
        hands = self.role.hands(
            Hands(
                me=self.name, keys=self._keys, streams=swarm.network.connect(self.name), disk=self.disk,
                arithmetic=ReductionWorker(codec, self.disk, Immediately(), self._soon),
            )
        )  # fmt: skip
        rules = rules_of(spec, self.trainer.parts, hands.keys, me=self.name, wall_offset_s=WALL_S)
        self.driver = Driver(
            begin(rules, genesis, swarm.now), clock=lambda: swarm.now, streams=hands.streams, disk=hands.disk,
            arithmetic=hands.arithmetic, trainer=self, report=self.tell,
        )  # fmt: skip
        hands.streams.listen(self.driver.on_frame)
        self.begin_life(spec)
        self.later(TICK_S * self._rng.random(), self._tick)
        self.later(0.0, self.start)

    # ---- its clock and its trainer ----

    @property
    def now(self) -> float:
        return self._swarm.now

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        self._swarm.scheduler.call_in(delay_s, call, *args)

    def _soon(self, call: Callable[[], object]) -> None:
        self._swarm.scheduler.call_in(0.0, call)

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        self.deliver(Tick(self.now, WALL_S))

    @property
    def head(self) -> ChainHead:
        return self.disk.head

    def header(self, anchor: bytes) -> ContributionHeader:
        mine = self.disk.contribution(anchor)
        assert mine is not None
        return self.role.header(mine.header(self.name))

    @property
    def status(self) -> TrainerStatus:
        return self.trainer.status

    def step_s(self) -> float:
        return self._rng.uniform(*TRAIN_S) / steps_in_round(self.trainer)

    def train(self, steps: int, whole: float) -> Stepped:
        self.trainer.begin_round(self._swarm.readers)
        made = [step(self.trainer) for _ in range(steps)]
        return Stepped(steps=steps, tokens=sum(each.tokens for each in made), loss=None)

    def seconds(self, work: Work) -> float:
        return APPLY_S if isinstance(work, Apply) else 0.0

    def do(self, work: Work) -> Result:
        match work:
            case Submit(anchor=anchor):
                submit(self.trainer, anchor)
            case Apply(update=update):
                given_up = self.trainer.apply(update, partial(load_object, self._folder))
                state = self.trainer.anchor.state_digest()
                self.updates.append(update)
                self.penalties += penalties_of(update)
                anchor = next_anchor(update.parent, update.digest)
                self.history.append(Reached(round=update.round, digest=anchor.hex(), state=state.hex()))
                self.reached_at.append(self.now)
                self._swarm.committed(self)
                return Moved(given_up, state)
            case Resume(anchor=anchor):
                self.trainer.resume(anchor)
                return Moved(state=self.trainer.anchor.state_digest())
            case Evaluate() | Save():  # the swarm measures
                return None
            case _:
                raise AssertionError(f"{self.name} shall {work}, though nobody is left behind or pauses here")
        return None

    def tell(self, event: Event) -> None:
        if isinstance(event, PenaltyImposed):
            self.penalties.append(event)
        elif isinstance(event, AlertRaised):
            self.alerts.append(event)

    def resync(self, why: str) -> None:
        """Nobody is left so far behind here."""
        raise AssertionError(f"{self.name} has lost the chain: {why}")


class TrainingSwarm:
    """The founders of `spec`, peer i with `roles[i]` (honest without one), in `folder`, and one newcomer for each of
    `newcomers`, who have no vote when the run begins.

    The first founders of any number have the same names for the same seed. `readers` share the shards of the run in
    every round (the founders by default): who is named here and does not take part leaves its text unread.
    """

    def __init__(
        self, spec: RunSpec, folder: Path, roles: Mapping[int, Role] | None = None, readers: Sequence[str] = (),
        newcomers: Sequence[Role] = (),
    ) -> None:  # fmt: skip
        self.spec, self.folder = spec, folder
        self.scheduler = Scheduler()
        self.network = MemoryNetwork(self.scheduler, Random(f"{spec.run.seed} network"))
        founders = names_of(spec.run.seed, spec.run.founders)
        self.readers = tuple(readers) or founders
        self.losses: dict[int, float] = {}
        """Held-out loss of each anchor that was measured, by its round."""
        played = [*((roles or {}).get(index, Role()) for index in range(spec.run.founders)), *newcomers]
        self.peers = [TrainingPeer(self, identity_of(spec.run.seed, index), role) for index, role in enumerate(played)]
        self.honest = [peer for peer in self.peers if peer.role.honest]
        first = self.honest[0].trainer
        self.losses[0] = first.evaluate().loss
        names = tuple(sorted(founders))
        anchor = genesis_anchor(spec.digest(), names, first.anchor.state_digest())
        genesis = ChainHead(anchor=anchor, round=0, weight=0, electorate=names, members=names)
        for peer in self.peers:
            peer.join(genesis)

    @property
    def now(self) -> float:
        """Virtual seconds since the swarm began."""
        return self.scheduler.now

    def until_round(self, round: int) -> None:
        """Run until every honest peer has committed anchor `round`.

        Raises AssertionError if a round takes longer than `LATEST_S`.
        """
        while min(len(peer.history) for peer in self.honest) < round:
            done = [len(peer.history) for peer in self.honest]
            until = self.now + LATEST_S
            while [len(peer.history) for peer in self.honest] == done:
                assert self.now < until, f"no honest peer commits a round in {LATEST_S:g} s; they are at {done}"
                self.scheduler.run_until(self.now + TICK_S)

    def committed(self, peer: TrainingPeer) -> None:
        """Told by a peer that stands at a new anchor: the first honest one measures it."""
        round, spec = peer.trainer.anchor.round, self.spec
        if peer is self.honest[0] and (round % spec.data.eval_every == 0 or round == spec.run.rounds):
            self.losses[round] = peer.trainer.evaluate().loss

    def differing(self) -> list[int]:
        """The rounds at which honest peers stand at different anchors, or at one with different bits."""
        versions: dict[int, set[tuple[str, str]]] = defaultdict(set)
        for peer in self.honest:
            for reached in peer.history:
                versions[reached.round].add((reached.digest, reached.state))
        return sorted(round for round, found in versions.items() if len(found) > 1)


def names_of(seed: int, peers: int) -> tuple[str, ...]:
    """The peer ids of the first `peers` founders with this seed."""
    return tuple(identity_of(seed, index).peer_id for index in range(peers))


def identity_of(seed: int, index: int) -> Identity:
    """The key of founder `index`. Its name decides which shards are its own, so another seed gives others."""
    return Identity.from_seed(hashlib.blake2b(f"swarm {seed} {index}".encode(), digest_size=32).digest())
