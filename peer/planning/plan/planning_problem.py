"""A planning problem: a run on some peers; the predicted round of a strategy, and whether it fits into their memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from peer.planning.plan.coefficients import Coefficients
from peer.planning.plan.model_shape import ModelShape, memory_of
from peer.planning.plan.peer_set import Machine, PeerSet, worst_of
from peer.planning.plan.round_cost import RoundCost, device_cost, predict, step_seconds
from peer.planning.plan.sharding_cost import ShardedCost
from peer.planning.plan.strategy import GB_PRICE, Quality, Strategy, quality, strategy_of, with_strategy
from peer.schema.spec import RunSpec

GB = 1e9

Micro = tuple[int, int]
"""`Strategy.micro`."""


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """A run, and the peers that are available for it."""

    spec: RunSpec
    shape: ModelShape
    swarm: PeerSet
    given: Coefficients
    worth: Quality = quality
    gb_price: float = GB_PRICE
    _shared: dict[tuple[Micro, Machine], ShardedCost] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The results found so far."""

    @cached_property
    def worst(self) -> PeerSet | None:
        """The same peers with slow lines where lines are only assumed; None if none are."""
        return worst_of(self.swarm)

    def expected(self, chosen: Strategy) -> RoundCost:
        """The predicted round of a strategy, if lines are as assumed. Raises BadInput for an impossible strategy."""
        return self._predicted(chosen, self.swarm)

    def predict(self, chosen: Strategy) -> RoundCost:
        """The same as `expected`, but where lines are assumed the interval also covers the peers with slow lines."""
        cost = self.expected(chosen)
        if self.worst is None:
            return cost
        return replace(cost, high_s=max(cost.high_s, self._predicted(chosen, self.worst).high_s))

    def _predicted(self, chosen: Strategy, swarm: PeerSet) -> RoundCost:
        return predict(self.shape, with_strategy(self.spec, chosen), swarm, self.given)

    def score(self, chosen: Strategy, cost: RoundCost) -> float:
        """The score: tokens per second, converted to equally valuable ones at H = 50 without overlap, less the price
        of their bytes."""
        return cost.tokens_per_s * self.worth(chosen, max(chosen.steps, *cost.steps, 0.0)) * self.bytes_worth(cost)

    def bytes_worth(self, cost: RoundCost) -> float:
        """The share of a token's value that is left after the price of its bytes: as if a round took longer the more
        it sends."""
        return 1 / (1 + self.gb_price * cost.day_bytes / GB)

    # ---- memory ----

    @cached_property
    def room_bytes(self) -> tuple[float, ...]:
        """The memory of each peer's devices; if it is not known, what the unchanged spec needs."""
        spared = self.device_bytes(strategy_of(self.spec))
        return tuple(machine.memory_gb * GB or spared for machine in self.swarm.machines)

    def device_bytes(self, chosen: Strategy) -> float:
        """The bytes that a device needs if it trains alone."""
        return memory_of(self.shape, with_strategy(self.spec, chosen)).device_bytes

    def of_devices(self, chosen: Strategy, machine: Machine) -> ShardedCost:
        """The cost of sharing a peer's model among its devices."""
        key = (chosen.micro, machine.kind)
        if key not in self._shared:
            spec = with_strategy(self.spec, chosen)
            self._shared[key] = device_cost(self.shape, spec, machine, self.given, self.swarm)
        return self._shared[key]

    def held_bytes(self, chosen: Strategy, machine: Machine) -> float:
        """The bytes that each device of a peer needs, at most."""
        if machine.devices == 1:
            return self.device_bytes(chosen)
        return max(self.of_devices(chosen, machine).device_bytes)

    @cached_property
    def _rooms(self) -> dict[Machine, float]:
        """The memory of a device in bytes, by kind of machine."""
        pairs = zip(self.swarm.machines, self.room_bytes, strict=True)
        return {machine.kind: room for machine, room in pairs}

    def fits(self, chosen: Strategy) -> bool:
        """Whether every peer can hold the model."""
        return all(self.held_bytes(chosen, machine) <= room for machine, room in self._rooms.items())

    # ---- speed ----

    @cached_property
    def step_s(self) -> tuple[float, ...]:
        """Seconds of an inner step of the unchanged spec, by peer."""
        return tuple(
            step_seconds(self.shape, self.spec, machine, self.given, self.swarm) for machine in self.swarm.machines
        )

    @cached_property
    def alike(self) -> bool:
        """Whether all peers are of one kind."""
        return len({machine.kind for machine in self.swarm.machines}) == 1

    @cached_property
    def shares_models(self) -> bool:
        """Whether some peer has several devices."""
        return any(machine.devices > 1 for machine in self.swarm.machines)

    @cached_property
    def measured(self) -> bool:
        """Whether every peer has a measured step. Then nothing is known about micro-batches other than the spec's."""
        return all(machine.step_s for machine in self.swarm.machines)
