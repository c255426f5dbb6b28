"""Seconds, bytes and tokens of a round: computation, communication, and how far the two overlap.

Formulas from papers name them; the others follow `peer/consensus/rounds/README.md` step by step.

    train    every peer makes its part: H steps, its share of them, or what fits into the time
    submit   the last peer that is ready encodes what it learned and writes it; one delay until the coordinator knows
    prepare  Prepare, Promise, Start: three delays
    exchange parts over the slowest line, one delay; measured as they come
    reduce   means over the slowest line, one delay
    commit   Propose, and votes in three phases: four delays
    apply    the outer step, the residual, the digest

`none` waits from submit to apply. `layerwise` applies beside the next step. `streaming` makes inner steps meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from peer.consensus.protocol.electorate import quorum
from peer.consensus.rounds.timeouts import CONTROL_FLOOR_S, DATA_FLOOR_S, KNOWN, MISSED, deadline, with_slack
from peer.node.lifecycle.pace import MOST as MOST
from peer.node.lifecycle.pace import reference, steps_at
from peer.planning.plan.coefficients import UNMEASURED, Coefficients
from peer.planning.plan.home_cost import home_cost
from peer.planning.plan.model_shape import ModelShape
from peer.planning.plan.peer_set import HOME_FLOPS, Machine, PeerSet
from peer.planning.plan.round_traffic import Delays, Traffic, delays_of, line_s, traffic_of
from peer.planning.plan.sharding_cost import ShardedCost
from peer.schema.spec import RunSpec

FORWARD = 1 / 3
"""The forward pass's share of a step: the backward pass costs twice as much (arXiv:2001.08361, section 2.1)."""
CHECKED = 0.3
"""The share of applying an update that comes before its first layer is changed: reading and checking bytes. A value
of ours."""
UNLIKELY_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Seconds by phase, from the submission of the last peer to the next anchor."""

    submit: float
    prepare: float
    exchange: float
    reduce: float
    commit: float
    apply: float

    @property
    def talking(self) -> float:
        """All phases except those that occupy the trainer's own thread."""
        return self.prepare + self.exchange + self.reduce + self.commit

    @property
    def total(self) -> float:
        return self.submit + self.talking + self.apply


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """The predicted round. Values per peer are in the order of the swarm."""

    round_s: float
    low_s: float
    high_s: float
    """Nine of ten rounds of such runs last between `low_s` and `high_s`."""
    train_s: float
    """Seconds until the last peer that is waited for has finished its part."""
    exposed_s: tuple[float, ...]
    """The seconds in which each peer could make no inner step."""
    steps: tuple[float, ...]
    step_s: tuple[float, ...]
    tokens: float
    """Summed over all peers."""
    agreement: PhaseTimes
    traffic: Traffic
    waits_s: float
    """How much later than the first peer the last one is ready, of those that are waited for."""
    uncounted_s: float = 0.0
    """The part of `exposed_s` in which a peer makes, or could make, steps that do not count (`RunSpec.tokens_cap`);
    the maximum over peers."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.round_s

    @property
    def day_bytes(self) -> float:
        """The bytes that a peer sends, and receives, in one day of training."""
        return self.traffic.up_bytes * 86_400 / self.round_s

    @property
    def delay_steps(self) -> float:
        """How many inner steps the fastest peer makes until an average comes, if all stream."""
        return (self.agreement.submit + self.agreement.talking) / min(self.step_s)

    @property
    def exposed(self) -> float:
        """The exposed share of a round, averaged over peers."""
        return fmean(self.exposed_s) / self.round_s


def predict(shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients) -> RoundCost:
    """The round that this swarm makes with this spec once the first rounds are over."""
    step_s = [step_seconds(shape, spec, machine, given, swarm) for machine in swarm.machines]
    traffic, delays = traffic_of(shape, spec, swarm), delays_of(swarm)
    phases = agreement_of(shape, spec, swarm, given, traffic, delays)
    parts = steps_of(spec, step_s)
    if spec.round.overlap == "streaming":
        return _streaming(spec, swarm, given, phases, parts, step_s, traffic)
    return _waiting(spec, swarm, given, phases, parts, step_s, traffic)


# ---- computation ----


def step_seconds(shape: ModelShape, spec: RunSpec, machine: Machine, given: Coefficients, swarm: PeerSet) -> float:
    """Seconds of an inner step of one peer. With several devices this is the forecast of `sharding_cost`."""
    if machine.devices == 1:
        return _device_seconds(shape, spec, machine, given, swarm)
    return device_cost(shape, spec, machine, given, swarm).step_s


def device_cost(
    shape: ModelShape, spec: RunSpec, machine: Machine, given: Coefficients, swarm: PeerSet
) -> ShardedCost:  # fmt: skip
    """The cheapest way to share this model among the devices of one peer."""
    return home_cost(shape, spec, machine, _device_seconds(shape, spec, machine, given, swarm))


def _device_seconds(shape: ModelShape, spec: RunSpec, machine: Machine, given: Coefficients, swarm: PeerSet) -> float:
    """Seconds of an inner step on one device: as measured; otherwise from its speed; otherwise from the
    coefficients, with a linear formula of ours."""
    if machine.step_s or machine.flops or not swarm.cores:
        return stated_step_s(shape, spec, machine)
    terms = given.steps
    alone = (
        terms["step"] + terms["block"] * shape.blocks * spec.inner.accumulation
        + terms["flop"] * step_tokens(spec) * shape.flops_per_token(spec.model.context)
        + terms["update"] * shape.parameters
    )  # fmt: skip
    return alone * given.crowd(len(swarm), swarm.cores)


def stated_step_s(shape: ModelShape, spec: RunSpec, machine: Machine) -> float:
    """Seconds of an inner step on one device by what its machine states: measured, or from its speed, or else from
    the speed of a home GPU."""
    if machine.step_s:
        return machine.step_s
    return step_tokens(spec) * shape.flops_per_token(spec.model.context) / (machine.flops or HOME_FLOPS)


def stolen_s(given: Coefficients, swarm: PeerSet, agreed_s: float) -> float:
    """The seconds that an agreement takes from the steps made during it, where peers keep all cores of a machine
    busy.

    The formula is ours. Zero if the steps themselves were measured.
    """
    is_full = len(swarm) > 1 and 0 < swarm.cores <= len(swarm)
    if not is_full or any(machine.step_s for machine in swarm.machines):
        return 0.0
    return given.beside * given.crowd(len(swarm), swarm.cores) * agreed_s


def step_tokens(spec: RunSpec) -> int:
    """The number of tokens of an inner step."""
    return spec.inner.sequences * spec.inner.accumulation * spec.model.context


def steps_of(spec: RunSpec, step_s: Sequence[float]) -> list[float]:
    """The inner steps of each peer's part of a round, by `round.pace` (`peer/node/lifecycle/pace.py`)."""
    table = spec.round
    if table.pace == "time":
        return [float(min(MOST * table.steps, max(1, int(table.max_train_s / each)))) for each in step_s]
    wanted = _wanted_steps(spec, step_s)
    return [min(steps, max(1.0, table.max_train_s // each)) for steps, each in zip(wanted, step_s, strict=True)]


def _wanted_steps(spec: RunSpec, step_s: Sequence[float]) -> list[float]:
    """The steps that each peer is asked for, before `round.max_train_s` cuts them."""
    if spec.round.pace != "speed":
        return [float(spec.round.steps)] * len(step_s)
    speeds = [max(1, round(1e6 / max(each, UNLIKELY_S))) for each in step_s]
    return [float(steps_at(speed, reference(speeds), spec.round.steps)) for speed in speeds]


def made_steps(spec: RunSpec, step_s: Sequence[float]) -> int:
    """The H that is made: less than `round.steps` where `round.max_train_s` cuts every peer's part of a round."""
    if spec.round.pace == "time":
        return spec.round.steps
    pairs = zip(steps_of(spec, step_s), _wanted_steps(spec, step_s), strict=True)
    return max(1, max(int(spec.round.steps * made // wanted) for made, wanted in pairs))


# ---- communication ----


def agreement_of(
    shape: ModelShape, spec: RunSpec, swarm: PeerSet, given: Coefficients, traffic: Traffic, delays: Delays
) -> PhaseTimes:
    """Seconds by phase: the coefficients, plus delays and transfers. A single peer exchanges nothing."""
    members, crowd = len(swarm), given.crowd(len(swarm), swarm.cores)
    averaged = crowd * fmean(shape.fragment_parameters(spec.round.fragments))
    capped = any(machine.upload_mbps or machine.download_mbps for machine in swarm.machines)

    def seconds(phase: str, parameters: float = 0.0, wire_s: float = 0.0) -> float:
        terms = given.phases[phase]
        return (
            terms["fixed"] + terms.get("member", 0.0) * members + terms.get("parameter", 0.0) * parameters
            + terms.get("wire", 0.0) * wire_s
        )  # fmt: skip

    if members == 1:
        return PhaseTimes(
            submit=0, prepare=seconds("prepare"), exchange=0, reduce=0, commit=seconds("commit"),
            apply=seconds("apply", crowd * shape.parameters),
        )  # fmt: skip
    return PhaseTimes(
        submit=seconds("submit", averaged) + delays.leader_s * (members - 1) / members,
        prepare=seconds("prepare") + 3 * delays.leader_s,
        exchange=seconds("exchange", averaged, line_s(traffic.send_wire_s, capped)) + delays.longest_s,
        reduce=seconds("reduce", averaged, line_s(traffic.means_wire_s, capped)) + delays.longest_s,
        commit=seconds("commit") + delays.leader_s + 3 * delays.longest_s,
        apply=seconds("apply", crowd * shape.parameters),
    )


# ---- both, one after the other or at once ----


def _waiting(
    spec: RunSpec, swarm: PeerSet, given: Coefficients, phases: PhaseTimes, parts: Sequence[float],
    step_s: Sequence[float], traffic: Traffic,
) -> RoundCost:  # fmt: skip
    """`none` and `layerwise`: a round lasts until the slowest peer that is waited for is ready, plus the agreement."""
    slower = 1 + (given.spread if swarm.cores and len(swarm) > 1 else 0.0)
    made_s = [steps * each for steps, each in zip(parts, step_s, strict=True)]
    asked_s = _asked_s(spec, made_s)
    is_late = max(made_s) > asked_s
    trained_s = _gathered_s(spec, made_s, step_s, asked_s) if is_late else min(slower * max(made_s), asked_s)
    steps = [_made_by(trained_s, part, each) for part, each in zip(parts, step_s, strict=True)]
    apply_s = phases.apply
    if spec.round.overlap == "layerwise":
        apply_s = layerwise_s(apply_s, fmean(step_s))
    agreed_s = phases.submit + phases.talking + apply_s
    round_s = max(trained_s + agreed_s, float(spec.round.min_round_s))
    exposed = tuple(round_s - min(made, trained_s) for made in made_s)
    waits_s = trained_s - min(made_s)
    return _cost(spec, swarm, given, phases, traffic, round_s, trained_s, exposed, steps, step_s, waits_s)


def _asked_s(spec: RunSpec, made_s: Sequence[float]) -> float:
    """When those who are not ready are asked for what they have: as `timeouts.asks_at` says, not before a quorum is
    ready or the longest wait is over."""
    came_s, needed = sorted(made_s), quorum(made_s)
    longest_s = came_s[len(came_s) - needed] + spec.round.gather_s
    learned_s = gather_s([made - came_s[0] for made in made_s], spec)
    if learned_s >= spec.round.gather_s:
        return longest_s
    return min(longest_s, max(came_s[0] + learned_s, came_s[needed - 1]))


def _gathered_s(spec: RunSpec, made_s: Sequence[float], step_s: Sequence[float], asked_s: float) -> float:
    """The mean time until a round has all that it waits for, where some peers are later than `asked_s`.

    Of those, who has made half of its part finishes a step before it gives that. A round that such a peer leads waits
    for it, until the next coordinator takes over (`timeouts.patience_s`). The formula is ours; it is compared with the
    round machine in virtual time (`test_unlike_peers`).
    """
    half_made = [(made, each) for made, each in zip(made_s, step_s, strict=True) if asked_s < made <= 2 * asked_s]
    given_s = [min(math.ceil(asked_s / each) * each, made, asked_s + spec.round.ack_s) for made, each in half_made]
    hurried_s, taken_over_s = max([asked_s, *given_s]), _taken_over_s(spec, min(made_s), asked_s)
    return fmean(hurried_s if made <= asked_s else max(hurried_s, min(made, taken_over_s)) for made in made_s)


def _taken_over_s(spec: RunSpec, first_s: float, asked_s: float) -> float:
    """When the next coordinator takes over from one that is not ready (`timeouts.patience_s`), where exchanges are
    short and the first peer is ready after `first_s`."""
    patience_s = max(2 * DATA_FLOOR_S, spec.round.ack_s) + 2 * CONTROL_FLOOR_S
    return max(first_s + patience_s, asked_s) + spec.round.stagger_s


def _made_by(trained_s: float, part: float, step_s: float) -> float:
    """The counted steps of a peer: its part if that is finished in the time that all train, otherwise the steps made
    by then.

    A peer with less than half of its part does not count in that round, but its steps are carried into the next one,
    so the mean counts them.
    """
    return part if part * step_s <= trained_s else max(0.0, trained_s / step_s)


def layerwise_s(apply_s: float, step_s: float) -> float:
    """The seconds of applying an update that remain visible when it overlaps the next step: checking the update, and
    what the forward pass is too short to hide (EDiT's prefetch, arXiv:2412.07210; the window is ours)."""
    hidden_s = min((1 - CHECKED) * apply_s, FORWARD * step_s)
    return apply_s - hidden_s


def _streaming(
    spec: RunSpec, swarm: PeerSet, given: Coefficients, phases: PhaseTimes, parts: Sequence[float],
    step_s: Sequence[float], traffic: Traffic,
) -> RoundCost:  # fmt: skip
    """Inner steps continue from submit to apply, at most `round.delay` of them (tau in arXiv:2501.18512).

    A period is the larger of the steps' and the agreement's durations. The new anchor is noticed between two steps,
    half a step later on average. At pace "time", the time for a part counts from the agreement on.
    """
    table, agreed_s = spec.round, phases.submit + phases.talking
    stolen = stolen_s(given, swarm, agreed_s)
    step_s = [each + stolen / max(1.0, steps) for each, steps in zip(step_s, parts, strict=True)]
    held_s = [max(0.0, agreed_s - table.delay * each) for each in step_s]
    # A share by speed is rounded down, and who was late makes less of it: half a step in the mean.
    less = 0.5 if table.pace == "speed" and len(swarm) > 1 else 0.0
    made_s = [max(1.0, steps - less) * each for steps, each in zip(parts, step_s, strict=True)]
    asked_s = _asked_streaming_s(spec, made_s)
    led_late_s = _led_late_s(spec, made_s, asked_s)
    made_s = [min(made, asked_s) for made in made_s]
    if table.pace == "time":
        periods_s = [
            max(agreed_s + min(table.max_train_s - each / 2, asked_s), made + held + phases.apply)  # one step at least
            for made, held, each in zip(made_s, held_s, step_s, strict=True)
        ]
    else:
        periods_s = [
            agreed_s + max(0.0, made - table.delay * each) + phases.apply
            if held else max(made + phases.apply, agreed_s + each / 2 + phases.apply)
            for made, held, each in zip(made_s, held_s, step_s, strict=True)
        ]  # fmt: skip
    round_s = max(max(periods_s) + led_late_s, float(table.min_round_s))
    exposed = tuple(min(round_s, phases.apply + held) for held in held_s)
    most = float(MOST * table.steps)
    steps = [min(most, (round_s - lost) / each) for lost, each in zip(exposed, step_s, strict=True)]
    idle_s = [round_s - made * each for made, each in zip(steps, step_s, strict=True)]
    beyond_s = [max(0.0, idle - lost) for lost, idle in zip(exposed, idle_s, strict=True)]
    uncounted_s = max(late if made == most else 0.0 for late, made in zip(beyond_s, steps, strict=True))
    exposed = tuple(max(lost, idle) for lost, idle in zip(exposed, idle_s, strict=True))
    spread_s = max(made_s) - min(made_s)
    cost = _cost(spec, swarm, given, phases, traffic, round_s, max(made_s), exposed, steps, step_s, spread_s)
    return replace(cost, uncounted_s=uncounted_s)


def _asked_streaming_s(spec: RunSpec, made_s: Sequence[float]) -> float:
    """When those who are not ready are asked for what they have, while all train on.

    Where parts differ, the faster ones get ahead until they are ready as a round begins. So patience, which counts from
    the first that is ready and is learned from all of them, ends as soon as a quorum is ready, or with the longest
    wait there is. Shares by speed are alike.
    """
    if spec.round.pace == "speed":
        return _asked_s(spec, made_s)
    last = max(made_s) if spec.round.keep_rounds < KNOWN else sorted(made_s)[quorum(made_s) - 1]
    return min(max(min(made_s), spec.round.gather_s), last)


def _led_late_s(spec: RunSpec, made_s: Sequence[float], asked_s: float) -> float:
    """How much longer rounds are in the mean since peers that are late lead some. Such a round waits for its leader, or
    until the next one takes over, which has then led as well. The others train on meanwhile, and are ready soon after
    the next round has begun. The formula is ours, as that of `_gathered_s`."""
    late_s, taken_over_s = [made for made in made_s if made > asked_s], _taken_over_s(spec, DATA_FLOOR_S, asked_s)
    turns = len(made_s) - sum(made > taken_over_s for made in late_s)
    return sum(max(0.0, min(made, taken_over_s) + DATA_FLOOR_S - 2 * asked_s) for made in late_s) / turns


def _cost(
    spec: RunSpec, swarm: PeerSet, given: Coefficients, phases: PhaseTimes, traffic: Traffic, round_s: float,
    train_s: float, exposed_s: tuple[float, ...], steps: Sequence[float], step_s: Sequence[float], waits_s: float,
) -> RoundCost:  # fmt: skip
    deviation = 0.0 if swarm.steps_known else UNMEASURED * min(1.0, train_s / round_s)
    low_s, high_s = given.interval(round_s, deviation)
    return RoundCost(
        round_s=round_s, low_s=low_s, high_s=high_s, train_s=train_s, exposed_s=exposed_s, steps=tuple(steps),
        step_s=tuple(step_s), tokens=sum(steps) * step_tokens(spec), agreement=phases, traffic=traffic,
        waits_s=waits_s,
    )  # fmt: skip


MOST_ROUNDS = 32
"""After this number of rounds the deadline is stable or oscillates; if it oscillates, the larger of the last two
counts."""


def gather_s(late_s: Sequence[float], spec: RunSpec) -> float:
    """Seconds from the first peer that is ready until the coordinator asks, unless all are ready earlier.

    `late_s` is how much later than the first each peer would be ready. If all are in time, all are waited for. A run
    that keeps fewer than `KNOWN` rounds learns no deadline, and gives the slowest time to spare.
    """
    cap_s, waits = spec.round.gather_s, [spec.round.gather_s]
    if spec.round.keep_rounds < KNOWN:
        return min(cap_s, with_slack(max(late_s)))
    for _ in range(MOST_ROUNDS):
        came = [late if late <= waits[-1] else MISSED * waits[-1] for late in late_s]
        waits.append(deadline([came], DATA_FLOOR_S, cap_s, spec.round.patience))
        if waits[-1] == waits[-2]:
            break
    return max(waits[-2:])
