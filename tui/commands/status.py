"""`homefires status`: what a peer does, from its event lines and its lock. `homefires explain`: what its codes mean."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dht.errors import BadInput
from peer.control.client import ControlClient, Reply
from peer.events import event_files, printable, read_lines
from tui.command_line import Argument, Command
from tui.commands.options import AsJson, PeerCommand
from tui.folders import is_at_work
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import PeerView, PenaltyRecord, SwarmState, to_json
from tui.terminal import columns
from tui.text.phrases import (
    PeerStatus,
    before_words,
    clock,
    devices_words,
    duty_words,
    hold_words,
    length_words,
    margin_words,
    next_words,
    read_status,
    stall_lines,
)
from tui.text.units import format_transfer


@dataclass(frozen=True, kw_only=True)
class StatusCommand(PeerCommand):
    as_json: AsJson = False

    def run(self) -> int:
        print(describe_directory(self.find(), as_json=self.as_json))
        return 0


def describe_directory(directory: Path, *, as_json: bool, now: float | None = None) -> str:
    """One JSON object, or a few lines for people. Raises BadInput if nothing was ever reported there.

    `now` is Unix time, that of this machine if it is None.
    """
    now = time.time() if now is None else now
    swarm = apply_all(SwarmState(), (line for path in event_files(directory) for line in read_lines(path)))
    if not swarm.reporting:
        inside = sorted(path.parent.name for path in directory.glob("*/events.jsonl"))
        hint = f"; look at one of {', '.join(inside)} in it" if inside else ""
        raise BadInput(f"{directory} holds no events of a peer{hint}")
    alive = is_at_work(directory)
    reply = ControlClient(directory).request("status") if alive else Reply(ok=False)
    said, status = reply.fields, read_status(reply.fields)
    if as_json:
        mine = swarm.reporting[-1]
        known = {
            "directory": str(directory), "alive": alive, "control": dict(said) or None,
            "credit": _credit_to_json(swarm, mine), "forecast": _forecast_to_json(mine) if alive else None,
            "stalled": asdict(mine.stalled) if alive and mine.stalled is not None else None,
        }  # fmt: skip
        held = {
            "holds": [asdict(hold) for hold in status.holds], "until": status.until, "duty": status.duty,
            "next": next_words(status, now),
        }  # fmt: skip
        return json.dumps(known | held | to_json(swarm), allow_nan=False)
    lines = describe(_at(swarm, said), alive, status, now)
    if not alive:
        lines[1:1] = _at_next_start(directory, now)
    if alive and not reply.ok:
        lines.insert(1, f"this is what it wrote last: it takes no commands now ({reply.error})")
    return "\n".join(map(printable, lines))


def _at_next_start(directory: Path, now: float) -> list[str]:
    """What its owner has said that holds when it starts again, as `peer/control/store.py` keeps it."""
    try:
        kept = json.loads((directory / "desired.json").read_text())
    except (OSError, ValueError):
        return []
    match kept:
        case {"wish": "pause"}:
            return ["its owner paused it: it starts paused, until: homefires resume"]
        case {"wish": "finish"}:
            return ["its owner has it complete its part of a round when it starts, then pause; or: homefires resume"]
        case {"until": int() | float() as until} if until > now:
            return [f"its owner has it snooze until {clock(until, now)}, should it start before; or: homefires resume"]
    return []


def _at(swarm: SwarmState, said: Mapping[str, Any]) -> SwarmState:
    """What the peer says now, where that is newer than its file; unchanged if it did not answer."""
    mine = swarm.reporting[-1]
    if not said or said.get("peer") != mine.peer:
        return swarm
    newer = replace(mine, **{name: said[name] for name in ("state", "why", "step", "steps") if said.get(name)})
    return replace(swarm, peers={**swarm.peers, mine.peer: newer})


def describe(swarm: SwarmState, alive: bool, status: PeerStatus, now: float) -> list[str]:
    """What the peer does, why, when it goes on, and how far it has come."""
    mine = swarm.reporting[-1]
    lines = [f"{mine.label}: {_doing(mine, alive)}", *_held(mine, status, now)]
    lines += stall_lines(mine.stalled) if alive and mine.stalled is not None else []
    step = f", step {mine.step} of {mine.steps}" if mine.steps else ""
    lines.append(f"run {swarm.run}, round {mine.round}{step}")
    if devices := devices_words(mine.devices, mine.sharding) or mine.device:
        lines.append(f"trains on {devices}")
    if mine.transfer is not None:
        lines.append(f"received {format_transfer(mine.transfer)} of {mine.transfer.what} from {mine.transfer.source}")
    if mine.loss is not None:
        lines.append(f"training loss {mine.loss:.3f}, {mine.tokens_per_s:,.0f} tokens/s")
    if swarm.losses:
        round, loss = swarm.losses[-1]
        lines.append(f"held-out loss {loss:.3f} at round {round}")
    lines += _outlook(mine) if alive else []
    lines += [_given(swarm, mine)] if mine.tokens else []
    lines += [_counted(mine)] if mine.accepted + mine.late + mine.rejected + mine.missed else []
    lines += [_penalty(swarm, penalty) for penalty in swarm.lasting]
    others = [view.label for view in swarm.peers.values() if view is not mine and view.state != "GONE"]
    if others:
        lines.append(f"with {', '.join(others)}")
    if mine.alerts:
        lines.append(f"last alert: {mine.alerts[-1]}")
    return lines


def _held(view: PeerView, status: PeerStatus, now: float) -> list[str]:
    """What holds it up beside what its state says, how much it computes, and when it goes on."""
    holds = [(hold.code, hold_words(hold, now)) for hold in status.holds]
    said = [f"held up by {code}: {words}" for code, words in holds if len(holds) > 1 or words != view.why]
    return [*said, *filter(None, (duty_words(status), next_words(status, now)))]


def _outlook(view: PeerView) -> list[str]:
    """What it expects of the round that it trains for, beside what the last one took."""
    if (forecast := view.expected) is None:
        return []
    told = f"round {forecast.round}: {length_words(forecast)}; {margin_words(forecast)}"
    return [told, before_words(forecast), *([f"what helps: {forecast.advice}"] if forecast.advice else [])]


def _given(swarm: SwarmState, view: PeerView) -> str:
    share = f", {100 * view.tokens / swarm.tokens:.1f} % of all" if swarm.tokens else ""
    return f"gave {view.tokens:,} tokens{share}, by its log; by the certificates of the chain: homefires credit DIR"


def _credit_to_json(swarm: SwarmState, view: PeerView) -> dict[str, Any]:
    """What this peer gave in the rounds that its log tells, and what they counted for it."""
    return {
        "tokens": view.tokens, "share": view.tokens / swarm.tokens if swarm.tokens else None, "weight": view.weight,
        "accepted": view.accepted, "late": view.late, "rejected": view.rejected, "missed": view.missed,
    }  # fmt: skip


def _forecast_to_json(view: PeerView) -> dict[str, Any] | None:
    """Of the round that it trains for; `margin_s` is how long before the others wait no more its part is there."""
    if (forecast := view.expected) is None:
        return None
    return asdict(forecast) | {"margin_s": None if forecast.late_s is None else -forecast.late_s}


def _counted(view: PeerView) -> str:
    """rounds: 13 accepted, 3 late, 1 rejected, 2 missed; weight 26 % in the last one"""
    counts = [(view.accepted, "accepted"), (view.late, "late"), (view.rejected, "rejected"), (view.missed, "missed")]
    weight = f"; weight {100 * view.weight:.0f} % in the last one" if view.weight is not None else ""
    return f"rounds: {', '.join(f'{number} {word}' for number, word in counts if number)}{weight}"


def _penalty(swarm: SwarmState, penalty: PenaltyRecord) -> str:
    """penalty: peer-3 ANOMALY in model.norm, norm 0.11 where 0.02 is usual, counted 0 %, until round 19"""
    where = f" in {penalty.layer}" if penalty.layer else ""
    counted = f"counted {100 * penalty.factor:.0f} %, until round {penalty.until_round}"
    return f"penalty: {swarm.label(penalty.about)} {penalty.code}{where}, {penalty.evidence}, {counted}"


def _doing(view: PeerView, alive: bool) -> str:
    why = f" ({view.why})" if view.why else ""
    if alive:
        return f"{view.state}{why}"
    if view.stopped:
        return f"stopped{why}"
    return f"not running; it ended without a word while {view.state or 'starting'}{why}"


WIDTH = 96
"""Characters of a line of prose."""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(Command):
    code: Annotated[str | None, Argument("as it is printed, or an exit code; none lists all", "CODE")] = None

    def run(self) -> int:
        from tui.text.codes import explain, list_all

        if self.code is None:
            print(*list_all(), sep="\n")
        else:
            print(*(textwrap.fill(line, columns(WIDTH)) for line in explain(self.code)), sep="\n")
        return 0
