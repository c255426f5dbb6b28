"""Simulates one group of peers that average together, at most 64, message by message.

The same seed gives the same run, to the last digit of every event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from random import Random
from statistics import fmean

from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol.head import ChainHead, genesis_anchor
from peer.consensus.protocol.messages import Heartbeat
from peer.consensus.protocol.rules import Rules, Shared
from peer.node.lifecycle.inputs_effects import OwnerChanged
from peer.node.limits.policy import Hold
from peer.planning.placement.pairwise_network import Regions
from peer.planning.simulate.memory_network import NOTICED_S, Scheduler
from peer.planning.simulate.memory_store import TOKEN_BYTES, ModelKeys, is_finite
from peer.planning.simulate.run_summary import GroupTally, Summary, figures_of
from peer.planning.simulate.scenario import ChurnEvent, PeerProfile, Scenario, ScenarioOptions, changes_of
from peer.planning.simulate.simulated_peer import SimulatedPeer
from peer.planning.simulate.virtual_network import Sizes, VirtualNetwork
from peer.schema.events import Event, EventLine

EPOCH = 1_600_000_000.0
"""The Unix time at which every simulation begins."""
LONGEST = 40.0
"""A run is given up after this many times its expected length."""
AGREEMENT_S = 20.0
STATE_BYTES = 8
"""The size of θ and momentum of one parameter in a snapshot."""

Sink = Callable[[EventLine], None]


def simulate(asked: ScenarioOptions, *, sink: Sink | None = None) -> Summary:
    """Simulate the scenario that the options describe. Raises BadInput for impossible options."""
    setting = asked.setting()
    group = Group(setting, sink=sink)
    group.run()
    figures = figures_of(group.tally, len(setting.machines), setting.spec.round.fragments, group.network.messages)
    return dataclasses.replace(figures, clusters=tuple(setting.clusters.values()), idle=setting.idle)


class Group:
    """The peers of a run with their network, on one clock and with one seed."""

    def __init__(self, setting: Scenario, *, sink: Sink | None = None) -> None:
        self.setting, self.spec, self.rounds, self.seed = setting, setting.spec, setting.rounds, setting.seed
        self.parts, self.step_tokens = setting.parts, setting.step_tokens
        self.keep_rounds = setting.spec.round.keep_rounds
        self.scheduler, self.tally = Scheduler(), GroupTally()
        self.board: dict[str, Heartbeat] = {}
        self.peers: list[SimulatedPeer] = []
        self._sink, self._run = sink, setting.spec.digest().hex()[:16]
        self._shared = Shared()
        run = dataclasses.replace(setting.spec.run, rounds=setting.rounds)
        self.run_spec = dataclasses.replace(setting.spec, run=run)
        """The spec that the peers' lifecycles follow."""
        self._speeds: dict[str, float] = {}
        self._places: dict[str, int] = {}
        """For every peer that ever joined, the founder whose machine and place it has."""
        self._rules: dict[str, Rules] = {}
        names = tuple(self.name_of(number) for number in range(len(setting.machines)))
        anchor = genesis_anchor(setting.spec.digest(), names, b"")
        self.genesis = ChainHead(anchor=anchor, round=0, weight=0, electorate=tuple(sorted(names)), members=names)
        self.network = self._links()
        for place in range(len(names)):
            self._enter(place)
        for change in changes_of(setting.churn, len(names), setting.seed, self.longest_s, setting.clusters):
            self.scheduler.call_at(change.at_s, self.change, change)

    # ---- what peers share ----

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.scheduler.now

    @property
    def is_heard(self) -> bool:
        """Whether anybody receives the events."""
        return self._sink is not None

    @property
    def longest_s(self) -> float:
        """The time at which the simulation ends in any case."""
        slowest_s = max(machine.step_s for machine in self.setting.machines)
        train_s = min(self.spec.round.max_train_s, slowest_s * self.spec.round.steps)
        return LONGEST * self.rounds * (train_s + AGREEMENT_S)

    def name_of(self, number: int) -> str:
        return f"p{number:03d}"

    def rules(self, name: str) -> Rules:
        """The rules of the run for one peer; the size of a part is that of the token that represents it."""
        found = self._rules.get(name)
        if found is None:
            rules = rules_of(self.spec, self.parts, ModelKeys(name), me=name, name=name)
            machine = self.setting.machines[self._places[name]]
            found = self._rules[name] = dataclasses.replace(
                rules, part_bytes=(TOKEN_BYTES,) * len(self.parts), mean_bytes=(), row_bytes=0, finite=is_finite,
                wall_offset_s=EPOCH + machine.skew_s, shared=self._shared,
            )  # fmt: skip
        return found

    def speeds(self, name: str, electorate: Sequence[str]) -> Mapping[str, float]:
        """The speeds that the other members of the electorate state on the board."""
        return {peer: self._speeds[peer] for peer in electorate if peer != name and peer in self._speeds}

    def said_speed(self, name: str, tokens_per_s: float) -> None:
        """A peer states its speed on the board."""
        self._speeds[name] = tokens_per_s

    def tell(self, peer: SimulatedPeer, event: Event) -> None:
        if self._sink is not None:
            at = EPOCH + self.now + peer.machine.skew_s
            self._sink(EventLine(seq=peer.events, t=at, run=self._run, peer=peer.name, event=event))
            peer.events += 1

    # ---- coming and going ----

    def change(self, change: ChurnEvent) -> None:
        if change.what == "join":
            self.join(change.peer)
            return
        if change.peer >= len(self.peers):
            return
        peer = self.peers[change.peer]
        match change.what:
            case "crash" if peer.alive:
                peer.crash()
                self.scheduler.call_in(NOTICED_S, self._notice)
            case "leave" if peer.alive and not peer.leaving:
                peer.leave()
            case "return" if not peer.alive and not peer.leaving:
                self._return(peer)
            case "pause" if peer.alive:
                peer.feed(OwnerChanged(self.now, (Hold(change.why, "its owner asks for it"),)))
            case "resume" if peer.alive:
                peer.feed(OwnerChanged(self.now))

    def _notice(self) -> None:
        """Tell all peers soon, including those that only train and would not notice otherwise."""
        for peer in self.peers:
            if peer.alive:
                peer.tick_soon()

    def join(self, place: int = -1) -> None:
        """A newcomer downloads a snapshot from the peer that is furthest ahead, and joins when it has it."""
        place = place if place >= 0 else len(self.peers) % len(self.setting.machines)
        self.scheduler.call_in(self._snapshot_s(self.setting.machines[place]), self._enter, place, True)

    def _enter(self, place: int, late: bool = False) -> None:
        """Add a peer with the machine and place of a founder. Only founders are attackers."""
        number, machine = len(self.peers), self.setting.machines[place]
        name = self.name_of(number)
        self._places[name] = place
        machine = dataclasses.replace(machine, attack="") if late else machine
        donor = self._furthest() if late else None
        self.peers.append(SimulatedPeer(self, name, machine, f"peer-{number}", donor))

    def _return(self, peer: SimulatedPeer) -> None:
        """A peer returns with its own chain, or with a snapshot if the others are too far ahead."""
        furthest = self._furthest()
        behind = furthest.disk.head.round - peer.disk.head.round if furthest else 0
        if behind >= self.keep_rounds:
            self.begin_anew(peer)
        else:
            peer.boot()

    def begin_anew(self, peer: SimulatedPeer) -> None:
        """Replace a peer's chain by a snapshot of another peer's."""

        def arrive() -> None:
            donor = self._furthest()
            if donor is not None and donor is not peer:
                peer.disk.start_anew(donor.disk)
            peer.boot()

        self.scheduler.call_in(self._snapshot_s(peer.machine), arrive)

    def _furthest(self) -> SimulatedPeer | None:
        live = [peer for peer in self.peers if peer.alive]
        return max(live, key=lambda peer: peer.disk.head.weight, default=None)

    def _snapshot_s(self, machine: PeerProfile) -> float:
        size_bytes = STATE_BYTES * sum(part.size for part in self.parts)
        return 8 * size_bytes / machine.download_bps if machine.download_bps else 1.0

    # ---- running ----

    def run(self) -> None:
        """Run until all live peers have finished all rounds, or `longest_s` has passed."""
        while self.now < self.longest_s and not self.is_done():
            self.scheduler.run_until(self.now + 1.0)

    def is_done(self) -> bool:
        """Whether all live peers have finished all rounds."""
        live = [peer for peer in self.peers if peer.alive]
        return bool(live) and all(peer.disk.head.round >= self.rounds for peer in live)

    # ---- the network ----

    def _links(self) -> VirtualNetwork:
        real = rules_of(self.spec, self.parts, ModelKeys(""))
        sizes = Sizes(_usual(real.sizes), _usual(real.mean_sizes), TOKEN_BYTES, real.row_bytes)
        dice = Random(f"{self.seed} links ")
        between = _Between(self.setting, dice, self._places)
        return VirtualNetwork(self.scheduler, dice, between.delay_s, between.bandwidth_bps, sizes.of)


def _usual(sizes: Sequence[Sequence[int]]) -> list[int]:
    """The bytes of each part, by its number in a fragment: the mean of all fragments, since a message does not name
    its own."""
    return [round(fmean(filter(None, parts))) for parts in zip_longest(*sizes)]


class _Between:
    """The delay and bandwidth of each pair of peers."""

    def __init__(self, setting: Scenario, dice: Random, places_of: Mapping[str, int]) -> None:
        self._regions: Regions | None = setting.regions
        self._places, self._delay_s = setting.places, setting.delay_s
        self._dice, self._places_of = dice, places_of

    def delay_s(self, source: str, to: str) -> float:
        """The one-way delay; without places it is drawn at random."""
        if self._regions is None:
            return self._dice.uniform(*self._delay_s)
        return float(self._regions.delay_s[self._place(source), self._place(to)])

    def bandwidth_bps(self, source: str, to: str) -> float:
        """The bandwidth of a single transfer; 0 for no limit."""
        if self._regions is None:
            return 0.0
        return float(self._regions.bandwidth_bps[self._place(source), self._place(to)])

    def _place(self, name: str) -> int:
        return self._places[self._places_of[name]]
