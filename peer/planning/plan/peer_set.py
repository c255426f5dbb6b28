"""The peers of a plan: their speed, memory, upload and download; measured, declared or assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dht.errors import BadInput
from dht.streams.base import LEAST_MBPS, MOST_MBPS
from peer.consensus.protocol.block import MAX_MEMBERS as MAX_MEMBERS  # the screen takes the limits of a group from here
from peer.consensus.protocol.block import MAX_PARTS as MAX_PARTS
from peer.planning.placement.pairwise_network import Indices, Matrix, Network, Regions, regions_of
from peer.planning.placement.place import in_order
from peer.planning.placement.placed_pipelines import Placement
from peer.planning.placement.stage_workload import StageWorkload, problem_of
from peer.planning.plan.coefficients import UNMEASURED, shipped

HOME_FLOPS = 20e12
"""FLOP/s that training reaches on an unknown home GPU: 40 % of the half-precision peak of a card that is advertised
with 50 TFLOP/s. An assumption, not a measurement."""
HOME_DELAY_S = 0.03
"""The one-way delay between two homes of which nothing is known. An assumption."""
NEAR_DELAY_S = 0.005
"""The one-way delay within a region, as in DT-FM's scenarios (arXiv:2206.01288, section 4)."""
NO_CAP_BPS = 1e9
"""The bandwidth of a line without a cap. An assumption, where it is used."""
MOST_PEERS = 10_000
LEAST_FLOPS, MOST_FLOPS = 1e6, 1e21
"""The range for a peer's FLOP/s: a value outside it is a mistake in the unit."""
LEAST_STEP_S, MOST_STEP_S = 1e-6, 1e6
LEAST_GBPS, MOST_GBPS = 0.01, 1e5
"""The range for the bandwidth between two devices of a home."""
FASTEST_BPS = 100_000_000
"""Peers do not distinguish lines faster than this (`dht.streams.traffic`)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One peer's machine."""

    name: str
    step_s: float = 0.0
    """The measured seconds of an inner step of the unchanged spec; 0: not known."""
    flops: float = 0.0
    """The FLOP/s that training reaches; 0: not known. `step_s` takes precedence."""
    memory_gb: float = 0.0
    """The memory of the training device, in 10⁹ bytes; 0: not known, and assumed to be what the spec needs."""
    devices: int = 1
    """The number of equal devices that train this peer's model together; `step_s`, `flops` and `memory_gb` are those
    of one device."""
    inside_gbps: float = 80.0
    """Gigabits per second from one device to the next within a fast group. The default assumes two cards on PCIe 4."""
    between_gbps: float = 80.0
    """Gigabits per second from one fast group to the next."""
    fast_group: int = 0
    """The number of neighbouring devices in a fast group; 0: all of them."""
    upload_mbps: float = 0.0
    """The cap in megabits per second; 0: no cap."""
    download_mbps: float = 0.0
    region: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise BadInput(f"a peer's name is {self.name!r}; use printable characters")
        for key in ("step_s", "flops", "memory_gb"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise BadInput(f"{self.name}: {key} is {getattr(self, key):g}; it must be 0 or more")
        for key, least, most in (("step_s", LEAST_STEP_S, MOST_STEP_S), ("flops", LEAST_FLOPS, MOST_FLOPS)):
            value = getattr(self, key)
            if value != 0 and not least <= value <= most:
                raise BadInput(
                    f"{self.name}: {key} is {value:g}; it must be between {least:g} and {most:g}, or 0 (not known)"
                )
        if not 1 <= self.devices <= 64:
            raise BadInput(f"{self.name}: devices is {self.devices}; it must be between 1 and 64")
        for key in ("inside_gbps", "between_gbps"):
            if not LEAST_GBPS <= getattr(self, key) <= MOST_GBPS:
                raise BadInput(
                    f"{self.name}: {key} is {getattr(self, key):g}; it must be between {LEAST_GBPS:g} and {MOST_GBPS:g}"
                )
        if self.fast_group < 0 or (self.fast_group and self.devices % self.fast_group):
            raise BadInput(
                f"{self.name}: fast_group is {self.fast_group}; it must divide its {self.devices} devices, or be 0"
            )
        for key in ("upload_mbps", "download_mbps"):
            cap = getattr(self, key)
            if cap != 0 and not LEAST_MBPS <= cap <= MOST_MBPS:
                raise BadInput(f"{self.name}: {key} is {cap:g}; it must be 0 (no cap) or {LEAST_MBPS:g} and more")

    @property
    def kind(self) -> Machine:
        """The machine without its name: equal for machines that differ only in their names."""
        return replace(self, name="any")

    @property
    def upload_bps(self) -> float:
        return self.upload_mbps * 1e6 or NO_CAP_BPS

    @property
    def download_bps(self) -> float:
        return self.download_mbps * 1e6 or NO_CAP_BPS


def claimed_mbps(upload_bps: int) -> float:
    """A stated upload bandwidth in megabits per second, raised to the least that a plan accepts; 0: not known, or
    too fast to distinguish."""
    return max(upload_bps / 1e6, LEAST_MBPS) if 0 < upload_bps < FASTEST_BPS else 0.0


def claimed_step_s(tokens: int, tokens_per_s: float) -> float:
    """Seconds of a step of `tokens` tokens at a stated speed, limited to the range that a plan accepts; 0: not
    known."""
    return min(max(tokens / tokens_per_s, LEAST_STEP_S), MOST_STEP_S) if tokens_per_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class PeerSet:
    """All peers of a plan, and the network between them."""

    machines: tuple[Machine, ...]
    network: Network
    assumed: tuple[str, ...]
    """The values that nobody measured or stated, in words."""
    cores: int = 0
    """If all peers run on one machine, the number of cores they share. 0: each has its own machine."""
    knows_lines: bool = False
    """Whether the network is known, whatever the machines state about their lines."""
    assumes_delay: bool = False
    """Whether `HOME_DELAY_S` is used for unknown delays."""

    def __len__(self) -> int:
        return len(self.machines)

    @property
    def steps_known(self) -> bool:
        """Whether the seconds of a step were measured for every peer; those of several devices are a forecast."""
        return all(
            machine.devices == 1 and (self.cores or machine.step_s) for machine in self.machines
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PeerSpecs:
    """Peers, and the known delays between their regions. Nothing here grows with the square of the number of peers."""

    machines: tuple[Machine, ...]
    delays: Mapping[frozenset[str], float] = field(default_factory=dict)
    """The one-way delay in seconds by pair of regions, or by one region for the delay within it."""
    otherwise_s: float | None = None
    """The delay of all other pairs; None: assumed."""
    cores: int = 0

    def regions(self) -> tuple[Regions, Indices]:
        """Returns (places, the place of each peer). No pair has less bandwidth than its peers' own lines."""
        fastest_bps = max(max(machine.upload_bps, machine.download_bps) for machine in self.machines)
        return regions_of(
            [machine.region for machine in self.machines], self.delays, near_s=NEAR_DELAY_S,
            otherwise_s=HOME_DELAY_S if self.otherwise_s is None else self.otherwise_s,
            bandwidth_bps=max(NO_CAP_BPS, fastest_bps),
        )  # fmt: skip

    def swarm(self) -> PeerSet:
        """The same peers with matrices between all of them. What no machine states is assumed, and listed."""
        regions, places = self.regions()
        network = Network(
            names=tuple(machine.name for machine in self.machines), delay_s=regions.delay_s[np.ix_(places, places)],
            bandwidth_bps=rates_between(self.machines),
        )  # fmt: skip
        assumes_delay = self.otherwise_s is None and bool((network.delay_s == HOME_DELAY_S).any())
        return PeerSet(
            machines=self.machines, network=network, cores=self.cores, assumes_delay=assumes_delay,
            assumed=tuple(_assumptions(self.machines, assumes_delay=assumes_delay)),
        )  # fmt: skip


def refuse_count(count: int, said: str, most: int) -> None:
    """Raises BadInput unless there are 1 to `most` peers. `said` is the beginning of the message, with {} for the
    number."""
    if count > most == MAX_MEMBERS:
        raise BadInput(f"{said.format(count)}, but a group ends at {most}")
    if not 1 <= count <= most:
        raise BadInput(f"{said.format(count)}; there must be 1 to {most}")


def swarm_of(
    machines: Sequence[Machine],
    *,
    delays: Mapping[frozenset[str], float] | None = None,
    otherwise_s: float | None = None,
    cores: int = 0,
) -> PeerSet:
    """The peers and the matrices between them. What no machine states is assumed, and listed; so is `otherwise_s`,
    the delay of pairs missing from `delays`, if it is None."""
    return PeerSpecs(
        machines=tuple(machines), delays=delays or {}, otherwise_s=otherwise_s, cores=cores
    ).swarm()  # fmt: skip


def on_one_device(swarm: PeerSet) -> PeerSet:
    """The same peers with one device each: no stage of a pipeline lies on several."""
    return replace(swarm, machines=tuple(replace(each, devices=1, fast_group=0) for each in swarm.machines))


def by_name(swarm: PeerSet) -> PeerSet:
    """The same peers in the order of their names, so that the order in which they were given has no effect."""
    order = sorted(range(len(swarm)), key=lambda peer: swarm.machines[peer].name)
    machines = tuple(swarm.machines[peer] for peer in order)
    return replace(swarm, machines=machines, network=swarm.network.only(order))


def rates_between(machines: Sequence[Machine]) -> Matrix:
    """Shape (n, n): the bandwidth that the sender's upload and the receiver's download allow, in bits per second."""
    upload = np.array([machine.upload_bps for machine in machines])
    download = np.array([machine.download_bps for machine in machines])
    pairs: Matrix = np.minimum(upload[:, None], download[None, :])
    return pairs


def uniform_peers(count: int, machine: Machine, **between: Any) -> PeerSet:
    """`count` peers of one kind."""
    refuse_count(count, "--peers is {}", MOST_PEERS)
    return swarm_of([replace(machine, name=f"peer-{number}") for number in range(count)], **between)


def peers_in_regions(network: Network, machine: Machine) -> PeerSet:
    """Peers of one kind, one at each place of a known network; the machine's caps apply, too."""
    refuse_count(len(network), "the network has {} peers", MOST_PEERS)
    machines = [replace(machine, name=name) for name in network.names]
    slowest = min(cap for cap in (machine.upload_mbps, machine.download_mbps, float("inf")) if cap)
    return PeerSet(
        machines=tuple(machines),
        network=replace(network, bandwidth_bps=np.minimum(network.bandwidth_bps, 1e6 * slowest)),
        assumed=tuple(_assumptions(machines, knows_lines=True)), knows_lines=True,
    )  # fmt: skip


def _assumptions(
    machines: Sequence[Machine], *, knows_lines: bool = False, assumes_delay: bool = False
) -> list[str]:  # fmt: skip
    said = []
    unknown = [machine for machine in machines if not machine.step_s and not machine.flops]
    if unknown:
        text = f"{HOME_FLOPS / 1e12:g} TFLOP/s reached in training"
        said.append(f"{_who(unknown, machines)}: {text}; measure a step and say step_s (--step-s)")
    several = [machine for machine in machines if machine.devices > 1]
    if several:
        text = "devices that move blocks while they compute, over lines as inside_gbps and between_gbps say"
        said.append(f"{_who(several, machines)}: {text}")
    uncapped = [machine for machine in machines if not (machine.upload_mbps and machine.download_mbps)]
    if uncapped and len(machines) > 1 and not knows_lines:
        said.append(f"{_who(uncapped, machines)}: a line of 1 Gbit/s where no cap is said (--upload, --download)")
    if assumes_delay:
        text = f"{HOME_DELAY_S * 1000:g} ms one way where nothing is known"
        said.append(f"{_who(machines, machines)}: {text}; say delay_ms in a file of peers")
    unsized = [machine for machine in machines if not machine.memory_gb]
    if unsized:
        said.append(f"{_who(unsized, machines)}: memory for the spec's micro-batch, no more (--memory)")
    return said


def _who(some: Sequence[Machine], of: Sequence[Machine]) -> str:
    if len(some) == len(of):
        return "every peer" if len(of) > 1 else some[0].name
    return ", ".join(machine.name for machine in some[:3]) + (" and others" if len(some) > 3 else "")


UPLOAD_MBPS, DOWNLOAD_MBPS, DELAY_S = 10.0, 50.0, 0.1
"""A home with a slow line, far from the others. An assumption, like that of the fast line, of which it is the
counterpart."""


def worst_of(swarm: PeerSet) -> PeerSet | None:
    """The same peers with slow lines and long delays wherever these were only assumed; None if nothing was."""
    capped = all(machine.upload_mbps and machine.download_mbps for machine in swarm.machines)
    if len(swarm) == 1 or swarm.cores or swarm.knows_lines or (capped and not swarm.assumes_delay):
        return None
    machines = tuple(
        replace(
            machine,
            upload_mbps=machine.upload_mbps or UPLOAD_MBPS,
            download_mbps=machine.download_mbps or DOWNLOAD_MBPS,
        )
        for machine in swarm.machines
    )
    delay_s = swarm.network.delay_s
    if swarm.assumes_delay:
        delay_s = np.where(delay_s == HOME_DELAY_S, DELAY_S, delay_s)
    network = replace(swarm.network, delay_s=delay_s, bandwidth_bps=rates_between(machines))
    return replace(swarm, machines=machines, network=network)


def step_between_s(
    swarm: PeerSet, work: StageWorkload, speeds: Sequence[float], found: Placement
) -> tuple[float, float]:  # fmt: skip
    """The bounds that contain nine tenths of the steps of a layout. They are rough, since no pipeline was measured
    here. If lines are assumed, the upper bound covers the same stages with pipelines composed for slow lines."""
    low_s, high_s = shipped().interval(found.cost_s, UNMEASURED)
    worst = worst_of(swarm)
    if worst is None:
        return low_s, high_s
    network = worst.network.both_ways()
    problem = problem_of(network, work, speeds=speeds, pipelines=len(found.pipelines))
    slow_s = in_order(problem, network, np.array(found.stages)).cost_s
    return low_s, max(high_s, shipped().interval(slow_s, UNMEASURED)[1])
