"""Every sentence about a peer, a round or a penalty: screens, the plain log, `status` and the report use the same."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from peer.schema.events import PenaltyImposed, RoundForecast, RoundStalled, printable
from tui.text.units import format_seconds

OWNERS = frozenset({"PAUSED", "SNOOZED"})
"""The holds that `resume` ends."""
SNOOZE_H = (1, 3, 8)
"""The hours of a snooze, for each time that the key is pressed."""

RESUME = "homefires resume"
"""How an owner ends a pause."""

_MINUTE_S = 60.0
_DAY_S = 86400.0
_CODE, _TEXT = 32, 500
_MOST = 32
_LAST_T = 253_000_000_000.0
"""A time in the year 9987: later times count as unknown."""


@dataclass(frozen=True, kw_only=True)
class PauseReason:
    """One reason not to train, or not all the time; `until` is Unix time, or None if it is not known."""

    code: str
    why: str
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class PeerStatus:
    """A peer's answer to `status`."""

    peer: str = ""
    seq: int = -1
    """The number of its newest event, which its file lacks if the disk is full."""
    state: str = ""
    why: str = ""
    step: int = 0
    steps: int = 0
    """Inner steps of its round: made, and in all."""
    paused: bool = False
    """Whether the peer makes no inner steps. If it does, its holds only slow it down."""
    until: float | None = None
    """The time at which its pause ends by itself (Unix time)."""
    holds: tuple[PauseReason, ...] = ()
    duty: float = 1.0
    """The share of the time in which it computes."""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def hold(self, code: str) -> PauseReason | None:
        return next((hold for hold in self.holds if hold.code == code), None)


def read_status(fields: Mapping[str, Any]) -> PeerStatus:
    """The status in an answer. Values that an older peer does not have, or has in another form, count as no hold."""
    rows, settings, duty = fields.get("holds"), fields.get("settings"), _number(fields.get("duty"))
    return PeerStatus(
        peer=str(fields.get("peer") or ""),
        seq=_count(fields.get("seq"), -1),
        state=printable(str(fields.get("state") or ""))[:_CODE],
        why=printable(str(fields.get("why") or ""))[:_TEXT],
        step=_count(fields.get("step"), 0),
        steps=_count(fields.get("steps"), 0),
        paused=fields.get("paused") is True or fields.get("state") == "PAUSED",
        until=_time(fields.get("until")),
        holds=tuple(_read_hold(row) for row in rows[:_MOST] if isinstance(row, dict)) if isinstance(rows, list) else (),
        duty=1.0 if duty is None else min(max(duty, 0.0), 1.0),
        settings=MappingProxyType(settings if isinstance(settings, dict) else {}),
    )


def _read_hold(row: Mapping[str, Any]) -> PauseReason:
    code, why = printable(str(row.get("code") or "HELD")), printable(str(row.get("why") or ""))
    return PauseReason(code=code[:_CODE], why=why[:_TEXT], until=_time(row.get("until")))


def _time(value: Any) -> float | None:
    t = _number(value)
    return t if t is not None and 0 <= t < _LAST_T else None


def _count(value: Any, otherwise: int) -> int:
    number = _number(value)
    return otherwise if number is None else int(number)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def clock(t: float, now: float) -> str:
    """A time on this machine's clock: 18:40, Mon 18:40 on another day, 2026-12-01 18:40 in another week."""
    then, today = time.localtime(t), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if abs(t - now) < 6 * _DAY_S else "%Y-%m-%d %H:%M", then)


def hold_words(hold: PauseReason, now: float) -> str:
    """The reason, and its end unless the reason contains it: outside its hours; until 22:00."""
    if hold.code == "SNOOZED" and hold.until is not None:
        return f"snoozed until {clock(hold.until, now)}; sooner with: {RESUME}"
    return with_end(hold.why, hold.until, now)


def with_end(why: str, until: float | None, now: float) -> str:
    """A reason with its end, unless the reason contains that already."""
    if until is None or time.strftime("%H:%M", time.localtime(until)) in why:
        return why
    end = f"until {clock(until, now)}"
    return f"{why}; {end}" if why else end


def duty_words(status: PeerStatus) -> str:
    """computes 62 % of the time, to stay at 75 °C (unless a hold says so); empty if it computes all the time."""
    if status.duty >= 1:
        return ""
    targets = [("max_temperature_c", "°C"), ("max_power_w", "W")]
    told = any(hold.code in ("TEMPERATURE", "POWER") for hold in status.holds)
    asked = [f"{status.settings[name]:g} {unit}" for name, unit in targets if _number(status.settings.get(name))]
    why = f", to stay at or below {' and '.join(asked)}" if asked and not told else ""
    return f"computes {100 * status.duty:.0f} % of the time{why}"


def next_words(status: PeerStatus, now: float) -> str:
    """When the peer trains again; empty if it trains, or if a reason says that already."""
    if not (status.paused and status.holds):
        return ""
    told = " ".join(hold_words(hold, now) for hold in status.holds)
    if status.until is not None:
        at = clock(status.until, now)
        return "" if at in told else f"trains again at {at}"
    if status.hold("PAUSED") is not None:
        return "" if RESUME in told else f"trains again when it is told to: {RESUME}"
    return "" if "goes on" in told else "trains again by itself as soon as nothing holds it up"


def next_snooze_h(left_s: float) -> int:
    """The hours of the next snooze if `left_s` are left of one: the next longer time, and after the longest the
    first."""
    return next((hours for hours in SNOOZE_H if hours * 3600 > left_s + _MINUTE_S), SNOOZE_H[0])


def devices_words(devices: Sequence[str], sharding: str) -> str:
    """cuda:0, cuda:1 (replicated); empty if the peer does not say."""
    return f"{', '.join(devices)} ({sharding})" if sharding else ", ".join(devices)


def length_words(forecast: RoundForecast) -> str:
    """about 62 s, nine in ten between 55 s and 70 s"""
    between = f"between {format_seconds(forecast.low_s)} and {format_seconds(forecast.high_s)}"
    return f"about {format_seconds(forecast.expected_s)}, nine in ten {between}"


def length_brief(forecast: RoundForecast) -> str:
    """about 62 s (55 s to 70 s)"""
    low, high = format_seconds(forecast.low_s), format_seconds(forecast.high_s)
    return f"about {format_seconds(forecast.expected_s)} ({low} to {high})"


def margin_words(forecast: RoundForecast) -> str:
    """its part will be in time by 12 s; or that it will be late, or that it is too early to say."""
    if forecast.late_s is None:
        return "too early to say whether its part will be in time"
    if forecast.late_s > 0:
        return f"its part will be {format_seconds(forecast.late_s)} late"
    narrow = "only " if forecast.advice else ""
    return f"its part will be in time by {narrow}{format_seconds(-forecast.late_s)}"


def margin_brief(forecast: RoundForecast) -> str:
    """The margin in few cells: 12 s to spare, 3 s late, margin unknown."""
    if forecast.late_s is None:
        return "margin unknown"
    word = "late" if forecast.late_s > 0 else "to spare"
    return f"{format_seconds(abs(forecast.late_s))} {word}"


def before_words(forecast: RoundForecast) -> str:
    """round 12 took 61 s (60 s foretold)"""
    took = f"round {forecast.round - 1} took {format_seconds(forecast.took_s)}"
    return f"{took} ({format_seconds(forecast.foretold_s)} foretold)" if forecast.foretold_s is not None else took


def stall_brief(stalled: RoundStalled, label: str) -> str:
    """TIME refuses bob (a1b2c3): round 6 stands still. `label` names the author of the refused message."""
    silent, mute = (
        stalled.why.partition(f"{what}: ")[2].partition("; ")[0] for what in ("not heard", "not voting")
    )  # fmt: skip
    waits = f"{silent} not heard" if silent else f"{mute} not voting" if mute else "voters are missing"
    cause = f"{stalled.rule} refuses {label}" if stalled.rule else waits
    return f"{cause}: round {stalled.round + 1} stands still"


def stall_lines(stalled: RoundStalled) -> list[str]:
    """Why a round cannot be decided, and where the rule is explained."""
    return [stalled.why, *([f"what that means: homefires explain {stalled.rule}"] if stalled.rule else [])]


# ---- penalties ----


def counts_words(penalty: PenaltyImposed) -> str:
    """What remains of a contribution: counts nothing, counts 30 %, clipped to 50 %."""
    if penalty.factor <= 0:
        return "counts nothing"
    percent = f"{100 * penalty.factor:{'.0f' if penalty.factor >= 0.01 else '.1g'}} %"
    return f"clipped to {percent}" if penalty.code == "CLIPPED" else f"counts {percent}"


def until_words(penalty: PenaltyImposed, round: int) -> str:
    """until round 14 (3 left); or over since round 14."""
    left = penalty.until_round - round
    if left <= 0:
        return f"over since round {penalty.until_round}"
    return f"until round {penalty.until_round} ({left} left)"


def layer_words(layer: str) -> str:
    return f"layer {layer}" if layer.isdigit() else layer or "whole model"


def penalty_words(penalty: PenaltyImposed) -> str:
    """in model.norm: norm 0.11 where 0.02 is usual; counts nothing, until round 19"""
    where = f"in {penalty.layer}: " if penalty.layer else ""
    return f"{where}{penalty.evidence}; {counts_words(penalty)}, until round {penalty.until_round}"
