"""What is simulated: machines, the network between them, how they come and go, and the run they share."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dht.errors import BadInput
from peer.consensus.protocol.layout import Part, cut
from peer.planning.placement.pairwise_network import Regions, preset
from peer.planning.plan.model_shape import ModelShape
from peer.planning.plan.peer_set import Machine, PeerSpecs
from peer.planning.plan.round_cost import stated_step_s
from peer.planning.simulate.home_members import Members, members_of
from peer.schema.spec import RunSpec

ATTACKS = ("times_100", "nan", "zeros", "replay")
"""What an attacker contributes: a hundred times as much, no numbers, zeros (a free rider), or the same every time."""


@dataclass(frozen=True, kw_only=True)
class PeerProfile:
    """The machine and line of one peer. 0 bits per second means no cap."""

    step_s: float
    """Seconds of an inner step."""
    spread: float
    """The standard deviation of the logarithm of its speed, between rounds."""
    submit_s: float
    """Seconds from its last step until its contribution is encoded and on disk."""
    apply_s: float
    """Seconds from a commit until the new anchor is computed."""
    reduce_s: float
    """Seconds to average one part."""
    upload_bps: float
    download_bps: float
    skew_s: float
    """The seconds by which its clock is ahead of Unix time."""
    attack: str = ""
    """One of `ATTACKS`, or empty."""
    attack_round: int = -1
    """The round in which it attacks, by the round number of its anchor; -1: all rounds."""


@dataclass(frozen=True, kw_only=True)
class ChurnEvent:
    """An event in the life of a peer: `crash`, `return`, `leave`, `join`, `pause` or `resume`."""

    at_s: float
    peer: int
    """Counted from 0; a peer that joins has the next free number."""
    what: str
    why: str = "PAUSED"
    """The reason for a pause, as in `peer.node.limits.policy.Hold`: a peer that has used up its QUOTA leaves the
    network meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Churn:
    """How often peers come and go, per hour; or a recorded schedule."""

    crashes: float = 0.0
    """Crashes per hour of each live peer."""
    leaves: float = 0.0
    """Orderly leaves per hour of each live peer."""
    joins: float = 0.0
    """Joins per hour for each founder. If this equals crashes plus leaves, the size stays about the same."""
    back_s: float = 0.0
    """The mean seconds until a crashed peer is back; 0: never."""
    schedule: tuple[ChurnEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run with its peers and their network."""

    spec: RunSpec
    layer_sizes: tuple[int, ...]
    """The number of elements in each layer of the model."""
    machines: tuple[PeerProfile, ...]
    """The machines of the founders. Each peer that joins later has the machine of one of them, in turn."""
    rounds: int
    seed: int
    regions: Regions | None
    """The delay and bandwidth between places, and within each place."""
    places: tuple[int, ...]
    """The place of each founder. Each peer that joins later has the place of one of them, in turn."""
    delay_s: tuple[float, float] = (0.01, 0.05)
    """Without places: the smallest and largest one-way delay of a pair."""
    churn: Churn
    part_elements: int = 0
    """The largest size of a part; 0: as in the spec."""
    clusters: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """By the number of the founder: the homes of those that are clusters."""
    idle: tuple[str, ...] = ()
    """The homes that could train nothing."""

    @property
    def step_tokens(self) -> int:
        """The number of tokens in an inner step."""
        return self.spec.inner.accumulation * self.spec.inner.sequences * self.spec.model.context

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the whole model."""
        return cut(self.layer_sizes, self.part_elements or self.spec.codec.part_elements)


SUBMIT_S, APPLY_S, REDUCE_S = 4e-9, 6e-9, 2e-9
"""Seconds per parameter, on one core: to encode a contribution, to make the outer step, and to add one part to a
mean. Assumptions, where nothing is declared."""
MOST_DIGITS = 5
"""The maximum for a number of attackers."""
LEAST_S = 0.02
"""The minimum time that files and messages between trainer and link need."""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """The options of a simulation."""

    spec: RunSpec
    shape: ModelShape
    declared: PeerSpecs | None = None
    """Machines that are declared one by one; None: `peers` machines of one kind."""
    peers: int = 4
    step_s: float = 0.0
    """0: as long as the planner expects of a home GPU."""
    spread: float = 0.0
    upload_mbps: float = 0.0
    download_mbps: float = 0.0
    rounds: int = 20
    preset: str = ""
    churn: Churn = dataclasses.field(default_factory=Churn)
    attackers: tuple[str, ...] = ()
    """One attack for each attacker."""
    skew_s: float = 0.0
    """The largest error of a clock in seconds, either way."""
    seed: int = 0

    def setting(self) -> Scenario:
        """The scenario. Raises BadInput for impossible options."""
        members = self._members()
        if len(self.attackers) > len(members.machines):
            raise BadInput(f"--attackers names {len(self.attackers)}, and there are {len(members.machines)} peers")
        machines = self._profiles(members.machines)
        regions, places = self._regions(members.machines)
        return Scenario(
            spec=self.spec, layer_sizes=self.shape.layers, machines=machines, rounds=self.rounds, seed=self.seed,
            regions=regions, places=places, churn=self.churn, clusters=members.clusters, idle=members.idle,
        )  # fmt: skip

    def _members(self) -> Members:
        if self.declared is None:
            return Members(machines=(self._home(),) * self.peers, clusters={}, idle=())
        return members_of(self.spec, self.shape, self.declared)

    def _profiles(self, declared: Sequence[Machine]) -> tuple[PeerProfile, ...]:
        dice = Random(f"{self.seed} machines")
        machines = [self._simulated(machine, dice) for machine in declared]
        for number, attack in enumerate(self.attackers):
            # The last ones, so that who is first of the honest stays who it is.
            machines[-1 - number] = dataclasses.replace(machines[-1 - number], attack=attack)
        return tuple(machines)

    def _home(self) -> Machine:
        return Machine(
            name="home", step_s=self.step_s, upload_mbps=self.upload_mbps, download_mbps=self.download_mbps
        )  # fmt: skip

    def _simulated(self, machine: Machine, dice: Random) -> PeerProfile:
        parameters = self.shape.parameters / self.spec.round.fragments
        return PeerProfile(
            step_s=stated_step_s(self.shape, self.spec, machine),
            spread=self.spread, submit_s=LEAST_S + SUBMIT_S * parameters, apply_s=LEAST_S + APPLY_S * parameters,
            reduce_s=REDUCE_S * min(parameters, self.spec.codec.part_elements),
            upload_bps=1e6 * machine.upload_mbps, download_bps=1e6 * machine.download_mbps,
            skew_s=dice.uniform(-self.skew_s, self.skew_s),
        )  # fmt: skip

    def _regions(self, machines: tuple[Machine, ...]) -> tuple[Regions | None, tuple[int, ...]]:
        """The network between peers by places, and the place of each peer."""
        if self.preset:
            regions = preset(self.preset)
            return regions, tuple(regions.spread(len(machines)).tolist())
        if self.declared is None:
            return None, ()
        regions, places = dataclasses.replace(self.declared, machines=machines).regions()
        return regions, tuple(places.tolist())


def read_attackers(text: str) -> tuple[str, ...]:
    """The attackers in a text such as `times_100=2,nan=1`, with the number of each kind. Raises BadInput."""
    found: list[str] = []
    for word in text.split(","):
        name, _, count = word.strip().partition("=")
        if name not in ATTACKS:
            raise BadInput(f"--attackers {text}: {name!r} is no attack; there are {', '.join(ATTACKS)}")
        if count and not (count.isdecimal() and len(count) <= MOST_DIGITS):
            raise BadInput(f"--attackers {text}: {count!r} is no number of peers")
        found += [name] * int(count or 1)
    return tuple(found)


HOUR_S = 3600.0
WHAT = ("crash", "return", "leave", "join", "pause", "resume")


def changes_of(
    churn: Churn, founders: int, seed: int, until_s: float, clusters: Mapping[int, Sequence[str]] | None = None
) -> tuple[ChurnEvent, ...]:
    """All events before `until_s`, in order. Each peer has its own random numbers. Of the `clusters`, by founder, any
    home may crash or leave, and then none trains. Who joins has the machine of a founder, in turn.
    """
    if churn.schedule:
        return churn.schedule
    found: list[tuple[float, int, str]] = []
    joins = _joins(churn, founders, Random(f"{seed} joins"), until_s)
    found += [(at, -1, "join") for at in joins]
    lives = [(0.0, peer) for peer in range(founders)]
    lives += [(at, founders + number) for number, at in enumerate(joins)]
    for began_s, peer in lives:
        homes = len(clusters[peer % founders]) if clusters and peer % founders in clusters else 1
        each = dataclasses.replace(churn, crashes=homes * churn.crashes, leaves=homes * churn.leaves)
        found += _life(each, peer, began_s, Random(f"{seed} churn {peer}"), until_s)
    heapq.heapify(found)
    return tuple(ChurnEvent(at_s=at, peer=peer, what=what) for at, peer, what in sorted(found))


def _joins(churn: Churn, founders: int, dice: Random, until_s: float) -> list[float]:
    found: list[float] = []
    at = 0.0
    while churn.joins:
        at += dice.expovariate(churn.joins * founders / HOUR_S)
        if at >= until_s:
            break
        found.append(at)
    return found


def _life(churn: Churn, peer: int, at: float, dice: Random, until_s: float) -> list[tuple[float, int, str]]:
    """Crashes and returns of one peer, until it leaves or stays away."""
    found: list[tuple[float, int, str]] = []
    rate = churn.crashes + churn.leaves
    while rate:
        at += dice.expovariate(rate / HOUR_S)
        if at >= until_s:
            break
        if dice.random() * rate >= churn.crashes:
            return [*found, (at, peer, "leave")]
        found.append((at, peer, "crash"))
        if not churn.back_s:
            break
        at += dice.expovariate(1 / churn.back_s)
        found.append((at, peer, "return"))
    return found


def read_churn(text: str) -> Churn:
    """The churn in a text such as `crash=0.1,leave=0.05,join=0.1,back=600` (per hour, and seconds), or in a file of
    recorded changes.

    A line of the file is `{"t": 12.5, "peer": 3, "do": "crash"}`; one with "pause" may contain `"why": "QUOTA"`. Raises
    BadInput.
    """
    path = Path(text)
    if "=" not in text:
        return Churn(schedule=_recorded(path))
    names = {"crash": "crashes", "leave": "leaves", "join": "joins", "back": "back_s"}
    values: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = word.strip().partition("=")
        if name not in names:
            raise BadInput(f"--churn {text}: {name!r} is no rate; write crash=, leave=, join= (per hour) or back= (s)")
        try:
            values[names[name]] = float(number)
        except ValueError as error:
            raise BadInput(f"--churn {text}: {number!r} is no number") from error
        if not 0 <= values[names[name]] < float("inf"):
            raise BadInput(f"--churn {text}: {name} is {number}; it must be 0 or more")
    return Churn(**values)  # type: ignore[arg-type]  # all but the schedule are numbers


def _recorded(path: Path) -> tuple[ChurnEvent, ...]:
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"--churn {path}: {error.strerror}; give rates as crash=0.1 or a file of changes") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise BadInput(f"--churn {path}: not JSON lines: {error}") from error
    found = []
    for number, row in enumerate(rows, 1):
        try:
            at_s, peer = float(row["t"]), int(row.get("peer", -1))
            change = ChurnEvent(at_s=at_s, peer=peer, what=str(row["do"]), why=str(row.get("why", "PAUSED")))
        except (KeyError, TypeError, ValueError) as error:
            text = 'write {"t": 12.5, "peer": 3, "do": "crash"}'
            raise BadInput(f"--churn {path}: line {number} is no change; {text}") from error
        if change.what not in WHAT or change.at_s < 0:
            raise BadInput(f"--churn {path}: line {number} says {change.what!r} at {change.at_s:g}; use {WHAT}")
        found.append(change)
    return tuple(sorted(found, key=lambda change: change.at_s))
