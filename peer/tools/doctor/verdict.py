"""The doctor's verdict: what taking part would be like, from measurements and the planner's cost model. Pure."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dht.errors import BadInput, MemoryFull
from dht.streams.base import LEAST_MBPS, MOST_MBPS
from peer.node.host.disk import folder_bytes, free_disk_bytes
from peer.node.host.memory_room import find_memory_room
from peer.node.host.processes import ProcessTree
from peer.planning.plan.coefficients import shipped
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import MAX_MEMBERS, Machine, uniform_peers, worst_of
from peer.planning.plan.round_cost import RoundCost, predict, step_tokens
from peer.planning.plan.run_needs import needs_of
from peer.planning.plan.strategy_search import seconds
from peer.schema.byte_text import format_line_rate
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.tools.doctor.check import Check
from peer.tools.doctor.host import check_descriptors, check_disk, check_memory

DAY_S = 86400.0
NARROW = 0.2
"""A margin below that is worth a warning: lines are not always as fast as when they were measured."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """None: not measured."""

    step_s: float | None = None
    """Of an inner step of the spec as it stands."""
    upload_mbps: float | None = None
    download_mbps: float | None = None
    round_trip_s: float | None = None
    peers: int = 0
    """Others that take part now; 0: not known, and then as many as found the run."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Among peers that are all like this one. None where what it rests on was not measured."""

    sentence: str
    sync_s: float | None = None
    """Of each round, from the last peer's submission to the next anchor."""
    round_s: float | None = None
    round_low_s: float | None = None
    round_high_s: float | None = None
    """Nine of ten rounds lie between the two."""
    margin: float | None = None
    """Of the time for an exchange (`round.exchange_s`), the share that is left over; negative: too late."""
    tokens_per_day: float | None = None

    def to_json(self) -> str:
        return json.dumps({"v": 1, "verdict": asdict(self)}, allow_nan=False)


def judge(spec: RunSpec, found: Measured) -> Verdict:
    """Seconds of sync per round, margin to the deadline, tokens a day: what of them can be said."""
    lines_known = found.upload_mbps is not None and found.download_mbps is not None
    if not lines_known and found.step_s is None:
        return Verdict(sentence="unknown: neither the line nor an inner step was measured")
    try:
        cost = _predicted(spec, found)
    except BadInput as error:
        return Verdict(sentence=f"unknown: {error}")
    sync_s = cost.agreement.total if lines_known else None
    margin = 1 - max(cost.agreement.exchange, cost.agreement.reduce) / spec.round.exchange_s if lines_known else None
    whole = lines_known and found.step_s is not None
    tokens = cost.steps[0] * step_tokens(spec) * DAY_S / cost.round_s if whole else None
    rounds = {"round_s": cost.round_s, "round_low_s": cost.low_s, "round_high_s": cost.high_s} if whole else {}
    verdict = Verdict(sentence="", sync_s=sync_s, margin=margin, tokens_per_day=tokens, **rounds)
    sentence = [_about_sync(spec, found, verdict), _about_deadline(spec, verdict), _about_tokens(found, verdict)]
    return replace(verdict, sentence="; ".join(sentence))


def _predicted(spec: RunSpec, found: Measured) -> RoundCost:
    delay_s = None if found.round_trip_s is None else found.round_trip_s / 2
    machine = Machine(
        name="this machine", step_s=found.step_s or 0.0, upload_mbps=_bounded(found.upload_mbps),
        download_mbps=_bounded(found.download_mbps),
    )  # fmt: skip
    members = min(MAX_MEMBERS, max(2, found.peers + 1 if found.peers else spec.run.founders))
    shape, swarm = shape_of(spec), uniform_peers(members, machine, otherwise_s=delay_s)
    cost, worst = predict(shape, spec, swarm, shipped()), worst_of(swarm)
    if worst is None:
        return cost
    return replace(cost, high_s=max(cost.high_s, predict(shape, spec, worst, shipped()).high_s))


def _bounded(mbps: float | None) -> float:
    return 0.0 if mbps is None else min(max(mbps, LEAST_MBPS), MOST_MBPS)


def _about_sync(spec: RunSpec, found: Measured, verdict: Verdict) -> str:
    if verdict.sync_s is None:
        return "seconds of sync per round unknown: the line was not measured"
    of = _per_round(verdict)
    meanwhile = ", in which it trains on" if spec.round.overlap == "streaming" else ""
    up = f" at {format_line_rate(found.upload_mbps)} up" if found.upload_mbps is not None else ""
    return f"sync takes about {seconds(verdict.sync_s)}{of}{up}{meanwhile}"


def _per_round(verdict: Verdict) -> str:
    round_s, low_s, high_s = verdict.round_s, verdict.round_low_s, verdict.round_high_s
    if round_s is None or low_s is None or high_s is None:
        return " per round"
    return f" of each {seconds(round_s)} round (nine in ten: {seconds(low_s)} to {seconds(high_s)})"


def _about_deadline(spec: RunSpec, verdict: Verdict) -> str:
    if verdict.margin is None:
        return "whether it would make the deadline is unknown"
    if verdict.margin < 0:
        return (
            f"too slow: parts need {1 - verdict.margin:.1f} times the {spec.round.exchange_s:g} s that a round waits "
            "for them, so most of its work would come a round late and count less; use a smaller run"
        )
    close = ", which is narrow" if verdict.margin < NARROW else ""
    return f"it would make the deadline with a margin of {verdict.margin:.0%}{close}"


def _about_tokens(found: Measured, verdict: Verdict) -> str:
    if verdict.tokens_per_day is not None:
        return f"about {_short(verdict.tokens_per_day)} tokens a day"
    missing = "no inner step" if found.step_s is None else "no line"
    return f"tokens a day unknown: {missing} was measured"


def _short(number: float) -> str:
    for limit, unit in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"


def quiet(spec: RunSpec, directory: Path, settings: PeerSettings) -> list[Check]:
    """File descriptors, memory, disk. Raises BadSpec for a model that cannot be counted, BadInput for a device that is
    not there."""
    needs = needs_of(spec, settings.chain_bytes)
    on_cpu = _is_processor(settings.devices)
    mine = ProcessTree(os.getpid()).figures(time.monotonic())["memory_bytes"] or 0
    room = find_memory_room()
    return [
        check_descriptors(),
        check_memory(
            needs, room.available_bytes, on_cpu=on_cpu, held_bytes=mine, limit=room.limit, memory_gb=settings.memory_gb
        ),
        check_disk(needs, directory, free_disk_bytes(directory), folder_bytes(directory) or 0),
    ]  # fmt: skip


def _is_processor(wanted: Sequence[str]) -> bool:
    """Whether `settings.devices` means the processor; a GPU that others fill is none."""
    from peer.node.host.device import choose_devices  # torch, which a peer has loaded by now

    try:
        return choose_devices(wanted)[0].type == "cpu"
    except MemoryFull:
        return False
