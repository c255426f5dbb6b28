"""`homefires status`: what a peer does, from its event lines and its lock. `homefires explain`: what its codes mean."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from dht.errors import BadInput
from peer.node.control.client import ControlClient, Reply
from peer.schema.events import event_files, printable
from tui.command_line import Argument, Command
from tui.commands.options import AsJson, PeerCommand
from tui.folders import frozen_process, is_at_work
from tui.swarm import figures
from tui.swarm.decisive_lines import decisive_lines
from tui.swarm.figure_text import counts_as_words, rounds_words, why_words
from tui.swarm.reducer import apply_all, freeze, lose, tell_lately
from tui.swarm.snapshot import PeerView, SwarmState
from tui.terminal import columns
from tui.text import event_text
from tui.text.event_text import PeerStatus, read_status
from tui.text.units import format_count, format_percent, format_transfer


@dataclass(frozen=True, kw_only=True)
class StatusCommand(PeerCommand):
    as_json: AsJson = False

    def run(self) -> int:
        print(describe_directory(self.find(), as_json=self.as_json))
        return 0


def describe_directory(directory: Path, *, as_json: bool, now: float | None = None) -> str:
    """One JSON object, or a few lines for people. Raises BadInput if nothing was ever reported there.

    `now` is Unix time; None: that of this machine.
    """
    now = time.time() if now is None else now
    swarm = apply_all(SwarmState(), decisive_lines(event_files(directory)))
    if not swarm.reporting:
        inside = sorted(path.parent.name for path in directory.glob("*/events.jsonl"))
        hint = f"; look at one of {', '.join(inside)} in it" if inside else ""
        raise BadInput(f"{directory} holds no events of a peer{hint}")
    mine, alive = swarm.reporting[-1], is_at_work(directory)
    process = frozen_process(directory / "run" / "lock")
    reply = ControlClient(directory).request("status") if alive and process is None else Reply(ok=False)
    said, status = reply.fields, read_status(reply.fields)
    if not alive and not mine.stopped and mine.state != "GONE":
        swarm = lose(swarm, mine.peer, now)
    elif process is not None:
        swarm = freeze(swarm, {mine.peer: process})
    else:
        swarm = tell_lately(swarm, status)
    if as_json:
        about = _about_peer(swarm, alive, said, status, now)
        return json.dumps({"directory": str(directory)} | about | to_json(swarm, now), allow_nan=False)
    lines = describe(swarm, alive, status, now)
    if not alive:
        lines[1:1] = _at_next_start(directory, now)
    if alive and process is None and not reply.ok:
        lines.insert(1, f"this is what it wrote last: it takes no commands now ({reply.error})")
    return "\n".join(map(printable, lines))


def _at_next_start(directory: Path, now: float) -> list[str]:
    """The owner's orders for the next start, as kept by `peer/node/control/saved_settings.py`."""
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
            rests = f"snooze until {event_text.clock(until, now)}, should it start before"
            return [f"its owner has it {rests}; or: homefires resume"]
    return []


def describe(swarm: SwarmState, alive: bool, status: PeerStatus, now: float) -> list[str]:
    mine = swarm.reporting[-1]
    why = why_words(swarm, mine, now)
    lines = [f"{mine.label}: {figures.state(swarm, mine, now).name}{f' ({why})' if why else ''}"]
    lines += _held(mine, status, now)
    lines += event_text.stall_lines(mine.stalled) if alive and mine.stalled is not None else []
    step = f", step {mine.step} of {mine.steps}" if alive and mine.steps else ""
    round = figures.in_round(swarm, mine) if alive else None
    doing = f", in round {round}{step}" if round is not None else ""
    lines.append(f"run {figures.run_name(swarm)}: {rounds_words(swarm)}{doing}")
    if devices := event_text.devices_words(mine.devices, mine.sharding) or mine.device:
        lines.append(f"trains on {devices}")
    if mine.transfer is not None:
        lines.append(f"received {format_transfer(mine.transfer)} of {mine.transfer.what} from {mine.transfer.source}")
    loss, speed = figures.own_loss(swarm, mine, now), figures.device_speed(swarm, mine, now)
    computes = f", {format_count(speed)} tokens/s while it computes" if speed is not None else ""
    lines += [f"training loss {loss:.3f}{computes}"] if loss is not None else []
    if (measured := figures.held_out(swarm)) is not None:
        lines.append(f"held-out loss {measured.value:.3f} at round {measured.round}")
    lines += _outlook(swarm, mine, now) if alive else []
    lines += [_given(swarm, mine)] if mine.tokens else []
    if counted := counts_as_words(mine):
        share = figures.weight(swarm, mine.peer)
        weight = f"; weight {format_percent(share)} in round {swarm.history[-1].round}" if share is not None else ""
        lines.append(f"rounds: {counted}{weight}")
    lines += [
        f"penalty: {swarm.label(each.about)} {each.code} {event_text.penalty_words(each)}" for each in swarm.lasting
    ]
    others = [view for view in figures.order(swarm.peers.values()) if view is not mine]
    if here := [view.label for view in others if figures.state(swarm, view, now).is_here]:
        lines.append(f"with {', '.join(here)}")
    if mine.alerts:
        lines.append(f"last alert: {mine.alerts[-1]}")
    return lines


def _held(view: PeerView, status: PeerStatus, now: float) -> list[str]:
    """What holds the peer up besides the reason of its state, how much it computes, and when it goes on."""
    holds = [(hold.code, event_text.hold_words(hold, now)) for hold in status.holds]
    said = [f"held up by {code}: {words}" for code, words in holds if len(holds) > 1 or words != view.why]
    return [*said, *filter(None, (event_text.duty_words(status), event_text.next_words(status, now)))]


def _outlook(swarm: SwarmState, view: PeerView, now: float) -> list[str]:
    """The forecast for the round in training, and what the last round took."""
    if (forecast := figures.forecast_now(swarm, view, now)) is None:
        return []
    told = f"round {forecast.round}: {event_text.length_words(forecast)}; {event_text.margin_words(forecast)}"
    return [told, event_text.before_words(forecast), *([f"what helps: {forecast.advice}"] if forecast.advice else [])]


def _given(swarm: SwarmState, view: PeerView) -> str:
    share = figures.token_share(swarm, view)
    part = f", {format_percent(share)} of all" if share is not None else ""
    return f"gave {view.tokens:,} tokens{part}, by its log; by the certificates of the chain: homefires credit DIR"


def _about_peer(
    swarm: SwarmState, alive: bool, said: Mapping[str, Any], status: PeerStatus, now: float
) -> dict[str, Any]:
    mine = swarm.reporting[-1]
    forecast = figures.forecast_now(swarm, mine, now) if alive else None
    late_s = forecast.late_s if forecast is not None else None
    return {
        "alive": alive, "control": dict(said) or None,
        "credit": {"tokens": mine.tokens, "share": figures.token_share(swarm, mine),
                   "weight": figures.weight(swarm, mine.peer), **figures.counts(mine)},
        # How long before the others stop waiting its part is there.
        "forecast": asdict(forecast) | {"margin_s": None if late_s is None else -late_s} if forecast else None,
        "stalled": asdict(mine.stalled) if alive and mine.stalled is not None else None,
        "holds": [asdict(hold) for hold in status.holds], "until": status.until, "duty": status.duty,
        "next": event_text.next_words(status, now),
    }  # fmt: skip


def to_json(swarm: SwarmState, now: float) -> dict[str, Any]:
    """The swarm without its long histories. Scripts rely on these keys."""
    penalties = [asdict(penalty) for penalty in swarm.lasting]
    return {
        "run": swarm.run, "round": swarm.round, "rounds": swarm.rounds,
        "losses": [list(pair) for pair in swarm.losses],
        "source_losses": [[round, dict(losses)] for round, losses in swarm.source_losses], "tokens": swarm.tokens,
        "tokens_per_s": figures.throughput(swarm),
        "penalties": [{name: row[name] for name in _IMPOSED} for row in penalties], "lasting": penalties,
        "bytes_sent": swarm.bytes_sent, "skipped": swarm.skipped, "started_t": swarm.started_t, "last_t": swarm.last_t,
        "peers": [_peer_to_json(swarm, view, now) for view in swarm.peers.values()],
    }  # fmt: skip


_IMPOSED = ("about", "code", "layer", "evidence", "factor", "until_round")
"""The keys of a penalty that come from the update itself."""
_HISTORIES = frozenset({"commits", "norms", "losses", "speeds", "learning_rates", "spans", "ups", "downs", "evaluated"})


def _peer_to_json(swarm: SwarmState, view: PeerView, now: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        each.name: _plain(getattr(view, each.name)) for each in fields(view) if each.name not in _HISTORIES
    }
    last = asdict(view.commits[-1]) if view.commits else None
    live = {"tokens_per_s": figures.device_speed(swarm, view, now) or 0.0, "loss": figures.own_loss(swarm, view, now)}
    shown = {"shown": figures.state(swarm, view, now).name, "weight": figures.weight(swarm, view.peer)}
    return row | live | shown | {"behind": swarm.behind(view.peer), "last_commit": last}


def _plain(value: Any) -> Any:
    """A value that JSON can represent: events and stages become objects."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


WIDTH = 96
"""The characters in a line of prose."""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(Command):
    code: Annotated[str | None, Argument("as it is printed, or an exit code; none lists all", "CODE")] = None

    def run(self) -> int:
        from tui.text.explain import explain, list_all

        if self.code is None:
            print(*list_all(), sep="\n")
        else:
            print(*(textwrap.fill(line, columns(WIDTH)) for line in explain(self.code)), sep="\n")
        return 0
