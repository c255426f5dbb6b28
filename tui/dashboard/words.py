"""Numbers and states in words, as every screen writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from tui.dashboard.appearance import Palette
from tui.dashboard.view import View
from tui.swarm.snapshot import PeerView, PenaltyRecord
from tui.text.units import count, format_elapsed

SILENT_S = 60.0
"""Who is known by hearsay only, and was not heard of for longer than this and two rounds, is gone."""

_OUTSIDE = frozenset({"GONE", "PAUSED", "SYNCING", "JOINING"})
"""In these a peer takes no part in rounds: a penalty is not what it does now."""
_TARDY = frozenset({"LATE", "STALE", "ABSENT"})

MISSING = "N/A"
"""A figure that is not known."""

_STATE_INK = {
    "JOINING": "muted", "SYNCING": "busy", "TRAINING": "good", "READY": "good", "AVERAGING": "busy",
    "LATE": "warn", "PAUSED": "muted", "PENALISED": "warn", "GONE": "bad",
}  # fmt: skip

URGENCY = {"LATE": 3, "PENALISED": 3, "GONE": 2, "SYNCING": 1, "JOINING": 1, "PAUSED": 1}
"""How much a state asks for a look; what is not named is in order."""

_PHASE_INK = {
    "idle": "track", "train": "good", "submit": "busy", "prepare": "busy", "exchange": "busy", "weigh": "busy",
    "reduce": "busy", "commit": "busy", "apply": "busy", "late": "warn", "failed": "bad", "paused": "muted",
    "sync": "busy", "gone": "bad",
}  # fmt: skip


def state_style(state: str, ink: Palette) -> str:
    return str(getattr(ink, _STATE_INK.get(state, "text")))


def phase_style(phase: str, ink: Palette) -> str:
    return str(getattr(ink, _PHASE_INK.get(phase, "text")))


def state_of(peer: PeerView, view: View) -> Text:
    """Glyph and word of what a peer does; one that left in good order needs no look."""
    state = shown_state(peer, view)
    left = state == "GONE" and peer.stopped and peer.exit_code == 0
    style = view.ink.muted if left else state_style(state, view.ink)
    return Text(f"{view.glyphs.state(state)} {state or 'UNKNOWN'}", style=style)


def shown_state(peer: PeerView, view: View) -> str:
    """What a screen calls a peer's state.

    Its own word, but: who is known by hearsay only and was not heard of for long is GONE, and who takes part under
    a penalty that lasts is LATE or, for what was measured of its work, PENALISED.
    """
    if _silent_since(peer, view) is not None:
        return "GONE"
    lasting = view.swarm.active_penalties_of.get(peer.peer, ())
    if not lasting or peer.state in _OUTSIDE:
        return peer.state
    return "LATE" if all(penalty.code in _TARDY for penalty in lasting) else "PENALISED"


def shown_why(peer: PeerView, view: View) -> str:
    """Why it is in that state, in words."""
    since_t = _silent_since(peer, view)
    if since_t is None:
        return peer.why
    return f"not heard of since {format_elapsed(since_t - (view.swarm.started_t or since_t))}"


def _silent_since(peer: PeerView, view: View) -> float | None:
    """Since when nothing is heard of who left without a word; None if it left with one, or is there.

    Before the first round nobody has anything to say.
    """
    if peer.reports or peer.state == "GONE" or peer.seen_t is None or not view.swarm.history:
        return None
    silent_s = max(SILENT_S, 2 * view.swarm.usual_round_s)
    return peer.seen_t if view.now - peer.seen_t > silent_s else None


def format_count(number: float) -> str:
    """Three digits and a unit: 950, 12.3k, 4.56M, 1.20B."""
    for unit, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)):
        size = number / scale
        if abs(size) < 999.5 or unit == "T":
            digits = 0 if not unit or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{size:.{digits}f}{unit}"
    raise AssertionError("unreachable")


def format_percent(share: float | None) -> str:
    """33.4 % of 0.334."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def format_ago(seconds: float | None) -> str:
    """How long ago, coarse enough that it changes rarely: now, 20 s, 4 min, 3 h."""
    if seconds is None:
        return "never"
    if seconds < 10:
        return "now"
    if seconds < 60:
        return f"{10 * int(seconds / 10)} s"
    if seconds < 3600:
        return f"{int(seconds / 60)} min"
    return f"{int(seconds / 3600)} h"


def format_round(seconds: float) -> str:
    """How long a round took, as `12.3 s`; N/A if nobody told when it began."""
    return f"{seconds:.1f} s" if seconds > 0 else MISSING


def round_of(view: View) -> str:
    """How many rounds are committed: 7 of 40 rounds, or 7 rounds in a run without end."""
    swarm = view.swarm
    return f"{swarm.round} of {count(swarm.rounds, 'round')}" if swarm.rounds else count(swarm.round, "round")


def level_style(level: str, ink: Palette) -> str:
    return {"error": ink.bad, "warning": ink.warn}.get(level, ink.muted)


def rounds_left(until_round: int, view: View) -> str:
    """Until when a penalty lasts: until round 13, 1 round left; or that it is over."""
    left = until_round - view.swarm.round
    return f"until round {until_round}, {count(left, 'round')} left" if left > 0 else f"ended at round {until_round}"


def sort_peers(peers: Iterable[PeerView], view: View) -> list[PeerView]:
    """Those that need a look first, by the state that the view shows; alike ones by name."""
    return sorted(peers, key=lambda peer: (-URGENCY.get(shown_state(peer, view), 0), peer.label))


def active_penalties_of(peer: str, view: View) -> Sequence[PenaltyRecord]:
    """The penalties of a peer that last now."""
    return view.swarm.active_penalties_of.get(peer, ())


def format_rtt(seconds: float) -> str:
    """A round trip: 12 ms, 1.20 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_uptime(seconds: float) -> str:
    """5 min, 3.2 h, 4.1 d."""
    if seconds < 5400:
        return f"{int(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"
