"""From what a person asked for to a setting: which machines, on which lines, with which attackers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import BadInput
from peer.placement.regions import Regions, preset
from peer.plan.model_shape import ModelShape
from peer.plan.peer_set import HOME_FLOPS, Machine, PeerSpecs
from peer.simulate.dice import Dice
from peer.simulate.scenario import ATTACKS, Churn, PeerProfile, Scenario
from peer.spec import RunSpec

FREEZE_S, APPLY_S, REDUCE_S = 4e-9, 6e-9, 2e-9
"""Per parameter: to encode what is given, to take the outer step, to add one part to a mean. One core;
assumptions, where nothing is declared."""
MOST_DIGITS = 5
"""Of a number of attackers."""
LEAST_S = 0.02
"""Files and messages between trainer and link take as much in any case."""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """The options of a simulation."""

    spec: RunSpec
    shape: ModelShape
    declared: PeerSpecs | None = None
    """Machines that are declared one by one; else `peers` of one kind."""
    peers: int = 4
    step_s: float = 0.0
    """0: what a home GPU of the planner takes."""
    spread: float = 0.0
    upload_mbps: float = 0.0
    download_mbps: float = 0.0
    rounds: int = 20
    preset: str = ""
    churn: Churn = dataclasses.field(default_factory=Churn)
    attackers: tuple[str, ...] = ()
    """One attack for each attacker."""
    skew_s: float = 0.0
    """Largest error of a clock, either way."""
    seed: int = 0

    def setting(self) -> Scenario:
        """Raises BadInput for what cannot be."""
        peers = len(self.declared.machines) if self.declared else self.peers
        if len(self.attackers) > peers:
            raise BadInput(f"--attackers names {len(self.attackers)}, and there are {peers} peers")
        machines = self._machines()
        regions, places = self._regions(len(machines))
        return Scenario(
            spec=self.spec, layer_sizes=self.shape.layers, machines=machines, rounds=self.rounds, seed=self.seed,
            regions=regions, places=places, churn=self.churn,
        )  # fmt: skip

    def _machines(self) -> tuple[PeerProfile, ...]:
        declared: Sequence[Machine] = self.declared.machines if self.declared else [self._home()] * self.peers
        dice = Dice(self.seed, "machines")
        machines = [self._simulated(machine, dice) for machine in declared]
        for number, attack in enumerate(self.attackers):
            # The last ones, so that who is first of the honest stays who it is.
            machines[-1 - number] = dataclasses.replace(machines[-1 - number], attack=attack)
        return tuple(machines)

    def _home(self) -> Machine:
        return Machine(
            name="home", step_s=self.step_s, upload_mbps=self.upload_mbps, download_mbps=self.download_mbps
        )  # fmt: skip

    def _simulated(self, machine: Machine, dice: Dice) -> PeerProfile:
        parameters = self.shape.parameters / self.spec.round.fragments
        inner = self.spec.inner
        tokens = inner.accumulation * inner.sequences * self.spec.model.context
        flops = machine.flops or HOME_FLOPS
        return PeerProfile(
            step_s=machine.step_s or self.shape.flops_per_token(self.spec.model.context) * tokens / flops,
            spread=self.spread, freeze_s=LEAST_S + FREEZE_S * parameters, apply_s=LEAST_S + APPLY_S * parameters,
            reduce_s=REDUCE_S * min(parameters, self.spec.codec.part_elements),
            upload_bps=1e6 * machine.upload_mbps, download_bps=1e6 * machine.download_mbps,
            skew_s=dice.uniform(-self.skew_s, self.skew_s),
        )  # fmt: skip

    def _regions(self, peers: int) -> tuple[Regions | None, tuple[int, ...]]:
        """What lies between peers, and the place of each."""
        if self.preset:
            regions = preset(self.preset)
            return regions, tuple(regions.spread(peers).tolist())
        if self.declared is None:
            return None, ()
        regions, places = self.declared.regions()
        return regions, tuple(places.tolist())


def read_attackers(text: str) -> tuple[str, ...]:
    """`times_100=2,nan=1`: so many peers of each kind. Raises BadInput."""
    found: list[str] = []
    for word in text.split(","):
        name, _, count = word.strip().partition("=")
        if name not in ATTACKS:
            raise BadInput(f"--attackers {text}: {name!r} is no attack; there are {', '.join(ATTACKS)}")
        if count and not (count.isdecimal() and len(count) <= MOST_DIGITS):
            raise BadInput(f"--attackers {text}: {count!r} is no number of peers")
        found += [name] * int(count or 1)
    return tuple(found)
