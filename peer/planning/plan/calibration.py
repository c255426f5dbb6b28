"""Measured rounds, and coefficients scaled to them.

Rounds are read from the event lines that peers print: when each phase began (`PhaseEntered`), when a round was over and
how much of it was exposed (`RoundCommitted`), and how many tokens were made (`InnerProgressed`). Phases are those of
rounds that wait (`overlap = "none"`): where peers train on meanwhile, a phase also waits for the end of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from dht.errors import BadInput
from peer.planning.plan.coefficients import PHASES, Coefficients
from peer.planning.plan.model_shape import ModelShape, shape_of
from peer.planning.plan.peer_set import HOME_DELAY_S, Machine, PeerSet, uniform_peers
from peer.planning.plan.round_cost import PhaseTimes, agreement_of, step_tokens
from peer.planning.plan.round_traffic import delays_of, traffic_of
from peer.schema.events import (
    EventLine,
    InnerProgressed,
    NetworkMeasured,
    PeerStarted,
    PhaseEntered,
    RoundCommitted,
    read_events,
)
from peer.schema.spec import RunSpec, load

LEAST_S = 0.005
"""Errors of phases shorter than this are not weighted more: clocks and timers are not more accurate."""
TOO_FEW = "too few inner steps were reported to tell how fast they are"
SCALE = (0.1, 10.0)
"""The range in which a single run may scale what was fitted to many runs."""


@dataclass(frozen=True, kw_only=True)
class RoundTiming:
    """Medians over the rounds of a run."""

    round_s: float
    step_s: float
    """The seconds of a round that were not exposed, divided by its steps."""
    exposed_s: float
    tokens_per_s: float
    """Summed over all peers."""
    up_bytes: float
    phases: Mapping[str, float]
    """Seconds by phase, of the rounds in which each phase began exactly once; empty if there were none."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run that was measured: its settings, and its timing."""

    spec: RunSpec
    shape: ModelShape
    swarm: PeerSet
    timed: RoundTiming


# ---- reading ----


def time_rounds(peers: Sequence[Sequence[EventLine]], spec: RunSpec, first: int, last: int) -> RoundTiming:
    """The timing of the rounds from anchor `first` to anchor `last`, from the event lines of all peers or of some.

    Raises BadInput if one of them has not committed both rounds.
    """
    commits = [_commits(lines) for lines in peers]
    for each in commits:
        if first not in each or last not in each or last <= first:
            raise BadInput(f"rounds {first} to {last} are not all among these events")
    numbers = range(first + 1, last + 1)
    took = [[each[at].t - each[at - 1].t for each in commits] for at in numbers]
    exposed = [[_event(each[at]).exposed_s for each in commits] for at in numbers]
    tokens_per_s, step_s = _speed(peers, commits, spec, took, exposed, numbers)
    return RoundTiming(
        round_s=median(fmean(row) for row in took), exposed_s=median(fmean(row) for row in exposed),
        step_s=step_s, tokens_per_s=tokens_per_s,
        up_bytes=median(fmean(_event(each[at]).bytes_sent for each in commits) for at in numbers),
        phases=_phases(peers, commits, numbers), rounds=len(took),
    )  # fmt: skip


def _speed(
    peers: Sequence[Sequence[EventLine]], commits: Sequence[Mapping[int, EventLine]], spec: RunSpec,
    took: Sequence[Sequence[float]], exposed: Sequence[Sequence[float]], numbers: range,
) -> tuple[float, float]:  # fmt: skip
    """Returns (tokens per second of all peers, seconds per step of one peer).

    A peer that waits for a commit has reported all its steps before it, so each round can be measured by itself. A peer
    that streams has not.
    """
    pairs = list(zip(peers, commits, strict=True))
    if spec.round.overlap == "streaming":
        rates = [_rate(lines, each[numbers[0] - 1].t, each[numbers[-1]].t) for lines, each in pairs]
        free = fmean(
            1 - sum(row[peer] for row in exposed) / sum(row[peer] for row in took) for peer in range(len(peers))
        )  # fmt: skip
        return sum(rates), free * step_tokens(spec) / fmean(rates)
    made = [[_made(lines, each[at - 1].t, each[at].t) for lines, each in pairs] for at in numbers]
    if not all(all(row) for row in made):
        raise BadInput(TOO_FEW)
    steps = [
        fmean((seconds - lost) * step_tokens(spec) / tokens for seconds, lost, tokens in zip(*row, strict=True))
        for row in zip(took, exposed, made, strict=True)
    ]  # fmt: skip
    rates = [
        sum(tokens / seconds for tokens, seconds in zip(*row, strict=True)) for row in zip(made, took, strict=True)
    ]
    return median(rates), median(steps)


def _made(lines: Sequence[EventLine], begin_t: float, end_t: float) -> int:
    """The tokens of the steps that were reported between two times."""
    told = ((line.t, line.event.tokens) for line in lines if isinstance(line.event, InnerProgressed))
    return sum(tokens for t, tokens in told if begin_t < t <= end_t)


def _commits(lines: Sequence[EventLine]) -> dict[int, EventLine]:
    return {line.event.round: line for line in lines if isinstance(line.event, RoundCommitted)}


def _event(line: EventLine) -> RoundCommitted:
    assert isinstance(line.event, RoundCommitted)
    return line.event


def _rate(lines: Sequence[EventLine], begin_t: float, end_t: float) -> float:
    """Tokens per second from the first report of steps after one commit to the first after the other.

    Both reports come at the same point of a round. If there is no report after the second commit, the last report
    counts.
    """
    told = [(line.t, line.event.tokens) for line in lines if isinstance(line.event, InnerProgressed)]
    begin = next((at for at, (t, _) in enumerate(told) if t > begin_t), len(told))
    end = next((at for at, (t, _) in enumerate(told) if t > end_t), len(told) - 1)
    if end <= begin:
        raise BadInput(TOO_FEW)
    return sum(tokens for _, tokens in told[begin + 1 : end + 1]) / (told[end][0] - told[begin][0])


def _phases(
    peers: Sequence[Sequence[EventLine]], commits: Sequence[Mapping[int, EventLine]], numbers: Sequence[int]
) -> dict[str, float]:
    """For each phase, the median over rounds of the mean over peers; for `submit`, of the value of the last peer to
    be ready."""
    rows: list[dict[str, float]] = []
    for at in numbers:
        each = [_durations(lines, at - 1, done[at].t) for lines, done in zip(peers, commits, strict=True)]
        if all(each):
            row = {phase: fmean(one[phase] for one in each) for phase in PHASES}
            rows.append(row | {"submit": min(one["submit"] for one in each)})
    return {phase: median(row[phase] for row in rows) for phase in PHASES} if rows else {}


def _durations(lines: Sequence[EventLine], round: int, committed_t: float) -> dict[str, float]:
    """The seconds of each phase for one peer and round; empty if a phase is missing or began twice, as after a
    failed ballot."""
    told = [
        (line.event.phase, line.t) for line in lines
        if isinstance(line.event, PhaseEntered) and line.event.round == round and line.event.phase in PHASES
    ]  # fmt: skip
    if [phase for phase, _ in told] != list(PHASES):
        return {}
    times = [*(t for _, t in told), committed_t]
    return {phase: later - earlier for phase, (earlier, later) in zip(PHASES, pairwise(times), strict=True)}


# ---- fitting ----


def expected_of(sample: MeasuredRun, given: Coefficients) -> PhaseTimes:
    traffic, delays = traffic_of(sample.shape, sample.spec, sample.swarm), delays_of(sample.swarm)
    return agreement_of(sample.shape, sample.spec, sample.swarm, given, traffic, delays)


def rescale(given: Coefficients, sample: MeasuredRun, measured: str) -> Coefficients:
    """The coefficients with each phase scaled to one measured run. They stay as they are if that run did not wait
    for its rounds."""
    if sample.spec.round.overlap != "none" or not sample.timed.phases:
        return replace(given, measured=measured)
    expected, phases = expected_of(sample, given), {}
    for phase, terms in given.phases.items():
        expected_s = getattr(expected, phase)
        if not expected_s:  # a peer alone is charged no exchange, and says nothing of one
            phases[phase] = dict(terms)
            continue
        ratio = sample.timed.phases[phase] / max(expected_s, LEAST_S)
        factor = min(max(ratio, SCALE[0]), SCALE[1])
        phases[phase] = {term: value * (1.0 if term == "wire" else factor) for term, value in terms.items()}
    return replace(given, phases=phases, measured=measured)


LEAST_ROUNDS = 3
MOST_ROUNDS = 64
"""At most this number of the newest rounds is measured."""


def read_run(folder: Path) -> MeasuredRun:
    """The timing of the newest full rounds of the peer in this folder. Raises BadInput if there are too few."""
    lines = list(read_events(folder))
    if not lines:
        raise BadInput(f"{folder} holds no events; name the folder of a peer, or what an earlier fit wrote")
    spec = load(str(folder / "spec.toml"))
    numbers = [line.event.round for line in lines if isinstance(line.event, RoundCommitted)]
    first = max([spec.round.sync_rounds + spec.round.ramp_rounds, *numbers[:1], *numbers[-MOST_ROUNDS - 1 :][:1]])
    if not numbers or numbers[-1] - first < LEAST_ROUNDS:
        raise BadInput(f"{folder} has fewer than {LEAST_ROUNDS} rounds of {spec.round.steps} inner steps to measure")
    timed = time_rounds([lines], spec, first, numbers[-1])
    newest = next(line.event for line in reversed(lines) if isinstance(line.event, RoundCommitted))
    machine = replace(_machine(lines), step_s=timed.step_s)
    swarm = uniform_peers(max(1, len(newest.group)), machine, otherwise_s=_delay_s(lines))
    return MeasuredRun(spec=spec, shape=shape_of(spec), swarm=swarm, timed=timed)


def _machine(lines: Sequence[EventLine]) -> Machine:
    """The peer's machine as it was reported at its last start."""
    started = [line.event for line in lines if isinstance(line.event, PeerStarted)]
    settings = started[-1].settings if started else {}
    upload, download = (float(settings.get(key) or 0.0) for key in ("upload_mbps", "download_mbps"))
    return Machine(name="measured", upload_mbps=upload, download_mbps=download)


def _delay_s(lines: Sequence[EventLine]) -> float:
    """Half of the median round trip; `HOME_DELAY_S` if none was measured."""
    trips = [
        float(row["rtt_s"])
        for line in lines if isinstance(line.event, NetworkMeasured)
        for row in line.event.peers if row.get("rtt_s")
    ]  # fmt: skip
    return median(trips) / 2 if trips else HOME_DELAY_S


def step_for(spec: RunSpec, shape: ModelShape, sample: MeasuredRun) -> float:
    """Seconds of an inner step of another spec on the machine of a sample, in proportion to the operations."""
    steps = (
        inner.sequences * inner.accumulation * context * each.flops_per_token(context)
        for inner, context, each in (
            (spec.inner, spec.model.context, shape),
            (sample.spec.inner, sample.spec.model.context, sample.shape),
        )
    )
    planned, measured = steps
    return sample.timed.step_s * planned / measured
