"""What a run of one's own says of its machine: the folder of a peer, read for the next plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from dht.errors import BadInput
from peer.events import EventLine, NetworkMeasured, PeerStarted, RoundCommitted, read_events
from peer.plan.calibration import MeasuredRun, time_rounds
from peer.plan.model_shape import ModelShape, shape_of
from peer.plan.peer_set import HOME_DELAY_S, Machine, uniform_peers
from peer.spec import RunSpec, load

LEAST_ROUNDS = 3
MOST_ROUNDS = 64
"""The newest ones are looked at."""


def read_run(folder: Path) -> MeasuredRun:
    """What the newest full rounds of the peer in this folder took. Raises BadInput if there are too few."""
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
    """The peer as it said at its start."""
    started = [line.event for line in lines if isinstance(line.event, PeerStarted)]
    settings = started[-1].settings if started else {}
    upload, download = (float(settings.get(key) or 0.0) for key in ("upload_mbps", "download_mbps"))
    return Machine(name="measured", upload_mbps=upload, download_mbps=download)


def _delay_s(lines: Sequence[EventLine]) -> float:
    """Half of the median round trip; what is assumed of homes if none was measured."""
    trips = [
        float(row["rtt_s"])
        for line in lines if isinstance(line.event, NetworkMeasured)
        for row in line.event.peers if row.get("rtt_s")
    ]  # fmt: skip
    return median(trips) / 2 if trips else HOME_DELAY_S


def step_for(spec: RunSpec, shape: ModelShape, sample: MeasuredRun) -> float:
    """Seconds of an inner step of another spec on the machine of a sample: in proportion to its operations."""
    steps = (
        inner.sequences * inner.accumulation * context * each.flops_per_token(context)
        for inner, context, each in (
            (spec.inner, spec.model.context, shape),
            (sample.spec.inner, sample.spec.model.context, sample.shape),
        )
    )
    planned, measured = steps
    return sample.timed.step_s * planned / measured
