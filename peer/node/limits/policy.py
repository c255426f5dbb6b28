"""What a volunteer's limits ask for now. Pure: settings, readings and the time in, a verdict out.

Each limit is one function that says whether it stops training, why in words, and until when if that is known. A limit
takes effect at once and ends a little later, or a little below its value, so that a program that restarts, a file that
is rewritten, or one degree more or less does not make a peer pause and resume again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo

from peer.node.limits.governor import LEAST_DUTY, POWER, TEMPERATURE, Gains, Governor, steer
from peer.node.limits.schedule_clock import is_open, next_change, next_month
from peer.schema.settings import PeerSettings
from peer.schema.weekly_schedule import parse

LINGER_S = 10.0
"""So long after a program has ended, or the mains are back, training goes on."""
BELOW = 0.95
"""Of a quota of disk or memory, there must be so much or less before training goes on."""
TOO_HOT_C = 5.0
"""So far above its target a GPU is given a pause: less work in each second did not help."""
COOL_C = 3.0
"""So far below its target it must be before it goes on then."""
TOO_MUCH_POWER = 1.25
"""So many times its target, averaged as the governor does, and computing as little as possible."""

GB = 1e9


@dataclass(frozen=True)
class Hold:
    """One reason not to train."""

    code: str
    """PAUSED, SNOOZED, SCHEDULE, IDLE, BATTERY, PROGRAM, QUOTA, DISK, MEMORY, TEMPERATURE or POWER."""
    why: str
    """In words, for people; without figures that change from look to look, since every change is reported."""
    until: float | None = None
    """Unix time at which it ends by itself; None if that is unknown."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The machine's readings; None for missing sensors, and for what no limit asks for."""

    idle_s: float | None = None
    """How long nobody has used it."""
    on_battery: bool | None = None
    running: tuple[str, ...] | None = None
    """Those of the listed programs that run."""
    folder_bytes: int | None = None
    """Of the run folder, on disk."""
    memory_bytes: int | None = None
    """Resident, of all processes of the peer."""
    temperature_c: float | None = None
    power_w: float | None = None
    month_bytes: int | None = None
    """Sent and received in this calendar month."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The verdict, and what the next one must remember."""

    holds: tuple[Hold, ...] = ()
    """Reasons not to train; empty: it may train."""
    slowing: tuple[Hold, ...] = ()
    """Why it computes only a part of the time."""
    duty: float = 1.0
    """Share of the time in which to compute."""
    unread: tuple[str, ...] = ()
    """Settings without effect, since this machine has no sensor for them."""
    at: float | None = None
    temperature: Governor = field(default_factory=Governor)
    power: Governor = field(default_factory=Governor)

    def held(self, code: str) -> Hold | None:
        return next((hold for hold in self.holds if hold.code == code), None)


def decide(
    settings: PeerSettings, readings: Readings, now: float, before: Decision, zone: tzinfo | None = None
) -> Decision:
    """The verdict at Unix time `now`, after the one `before`; `zone` is the time zone (None: this machine's)."""
    elapsed_s = 0.0 if before.at is None else now - before.at
    temperature = _steered(
        before.temperature, TEMPERATURE, readings.temperature_c, settings.max_temperature_c, 1.0, elapsed_s
    )
    power = _steered(
        before.power, POWER, readings.power_w, settings.max_power_w, settings.max_power_w, elapsed_s
    )  # fmt: skip
    case = _Case(settings, readings, now, before, zone, temperature, power)
    return Decision(
        holds=tuple(hold for find in _LIMITS if (hold := find(case)) is not None), slowing=tuple(_slowing(case)),
        duty=min(temperature.duty, power.duty), unread=tuple(_unread(settings, readings)), at=now,
        temperature=temperature, power=power,
    )  # fmt: skip


def why_of(holds: tuple[Hold, ...]) -> str:
    """All reasons in one line."""
    return "; ".join(hold.why for hold in holds)


def until_of(holds: tuple[Hold, ...]) -> float | None:
    """When the last of these holds ends by itself; None if one of them does not."""
    known = [hold.until for hold in holds if hold.until is not None]
    return max(known) if known and len(known) == len(holds) else None


@dataclass(frozen=True)
class _Case:
    """Everything at which a limit may look."""

    settings: PeerSettings
    readings: Readings
    now: float
    before: Decision
    zone: tzinfo | None
    temperature: Governor
    power: Governor


def _schedule(case: _Case) -> Hold | None:
    schedule = parse(case.settings.schedule)
    if is_open(schedule, case.now, case.zone):
        return None
    return Hold("SCHEDULE", "its schedule has it rest now", next_change(schedule, case.now, case.zone))


def _quota(case: _Case) -> Hold | None:
    monthly_gb, used_bytes = case.settings.monthly_gb, case.readings.month_bytes
    if not monthly_gb or used_bytes is None or used_bytes < monthly_gb * GB:
        return None
    why = f"the traffic of this month is used up; monthly_gb is {monthly_gb:g}"
    return Hold("QUOTA", why, next_month(case.now, case.zone))


def _idle(case: _Case) -> Hold | None:
    asked_s, idle_s = 60 * case.settings.idle_min, case.readings.idle_s
    if not asked_s or idle_s is None or idle_s >= asked_s:
        return None
    why = f"somebody uses this machine; it goes on when nobody has for {case.settings.idle_min:g} min"
    return Hold("IDLE", why, case.now + asked_s - idle_s)


def _battery(case: _Case) -> Hold | None:
    if case.settings.on_battery:
        return None
    cause = Hold("BATTERY", "this machine runs on battery") if case.readings.on_battery else None
    return _lingering(case, "BATTERY", cause, "the mains are back; it goes on in a moment")


def _program(case: _Case) -> Hold | None:
    if not case.settings.pause_for:
        return None
    running = case.readings.running or ()
    words = f"{' and '.join(running)} {'runs' if len(running) == 1 else 'run'}"
    cause = Hold("PROGRAM", words) if running else None
    return _lingering(case, "PROGRAM", cause, "a program of your list has ended; it goes on in a moment")


def _lingering(case: _Case, code: str, cause: Hold | None, why: str) -> Hold | None:
    """The cause as a hold, and for LINGER_S after it is gone a hold that ends by itself."""
    was = case.before.held(code)
    if cause is not None or was is None:
        return cause
    latest = case.now + LINGER_S
    ends = latest if was.until is None else min(was.until, latest)  # or else a clock that is set back would hold it
    return Hold(code, why, ends) if case.now < ends else None


def _disk(case: _Case) -> Hold | None:
    return _over(
        case, "DISK", case.settings.disk_gb, case.readings.folder_bytes,
        "its folder is full; disk_gb is {most:g}, allow more or make room in the folder",
    )  # fmt: skip


def _memory(case: _Case) -> Hold | None:
    return _over(
        case, "MEMORY", case.settings.memory_gb, case.readings.memory_bytes,
        "its processes take too much memory; memory_gb is {most:g}, and it goes on below {below:g} GB, or if you allow "
        "more",
    )  # fmt: skip


def _over(case: _Case, code: str, most_gb: float, used_bytes: int | None, why: str) -> Hold | None:
    """A hold from the limit on, until the reading is BELOW the limit."""
    if not most_gb or used_bytes is None:
        return None
    share = BELOW if case.before.held(code) else 1.0
    if used_bytes <= share * most_gb * GB:
        return None
    return Hold(code, why.format(most=most_gb, below=BELOW * most_gb))


def _temperature(case: _Case) -> Hold | None:
    most, now = case.settings.max_temperature_c, case.readings.temperature_c
    if not most or now is None:
        return None
    ends = most - COOL_C if case.before.held("TEMPERATURE") else most + TOO_HOT_C
    if now <= ends:
        return None
    why = f"the GPU is too hot in spite of rests; max_temperature_c is {most:g}, and it goes on at {most - COOL_C:g} C"
    return Hold("TEMPERATURE", why)


def _power(case: _Case) -> Hold | None:
    most, now = case.settings.max_power_w, case.power.reading
    if not most or now is None:
        return None
    was_over = case.before.held("POWER") is not None
    is_over = now > (most if was_over else TOO_MUCH_POWER * most) and (was_over or case.power.duty <= LEAST_DUTY)
    why = f"the GPU draws too much in spite of rests; max_power_w is {most:g}, and it goes on below that"
    return Hold("POWER", why) if is_over else None


def _slowing(case: _Case) -> Iterator[Hold]:
    """Those of the two controllers that ask for rests."""
    settings, rests = case.settings, "it rests between micro-batches to keep the GPU"
    if case.temperature.duty < 1:
        yield Hold("TEMPERATURE", f"{rests} at {settings.max_temperature_c:g} C")
    if case.power.duty < 1:
        yield Hold("POWER", f"{rests} at {settings.max_power_w:g} W on average")


_LIMITS: tuple[Callable[[_Case], Hold | None], ...] = (
    _schedule, _quota, _program, _battery, _idle, _disk, _memory, _temperature, _power,
)  # fmt: skip
"""In the order in which people are told."""


def _steered(
    control: Governor, gains: Gains, reading: float | None, target: float, unit: float, elapsed_s: float
) -> Governor:
    return steer(control, gains, reading, target, unit, elapsed_s) if target else Governor()


def _unread(settings: PeerSettings, readings: Readings) -> Iterator[str]:
    """Limits that are set and have no sensor here."""
    needed = {
        "idle_min": readings.idle_s, "pause_for": readings.running, "disk_gb": readings.folder_bytes,
        "memory_gb": readings.memory_bytes, "max_temperature_c": readings.temperature_c,
        "max_power_w": readings.power_w,
    }  # fmt: skip
    return (name for name, reading in needed.items() if getattr(settings, name) and reading is None)
