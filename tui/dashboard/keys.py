"""Every key of the application: what it does, and which of them the last line of the screen names."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding, BindingType

from tui.dashboard.view import View
from tui.text.phrases import OWNERS, RESUME

BINDINGS: list[BindingType] = [
    *(Binding(str(number), f"show('{name}')", f"screen {number}", show=False) for number, name in enumerate(
        ("home", "peers", "rounds", "learning", "network", "log", "limits"), start=1)),
    Binding("question_mark", "help", "help", show=False),
    Binding("a", "alerts", "alerts", show=False),
    Binding("y", "copy", "copy the peer's id", show=False),
    Binding("escape", "go_back", "back", show=False),
    Binding("p", "pause", "pause or resume", show=False),
    Binding("f", "finish", "finish the round, then pause", show=False),
    Binding("z", "snooze", "snooze", show=False),
    Binding("q", "detach", "detach", show=False),
    Binding("Q", "leave", "leave the run", show=False),
    Binding("ctrl+c", "ask_quit", "detach or leave?", show=False, priority=True),
    Binding("ctrl+q", "detach", "detach", show=False, priority=True),
    Binding("space", "play", "play or pause", show=False),
    Binding("left", "step(-1)", "one event back", show=False),
    Binding("right", "step(1)", "one event on", show=False),
    Binding("shift+left", "step(-50)", "50 events back", show=False),
    Binding("shift+right", "step(50)", "50 events on", show=False),
    Binding("plus,greater_than_sign", "speed('faster')", "faster", show=False),
    Binding("minus,less_than_sign", "speed('slower')", "slower", show=False),
    Binding("home", "seek('start')", "to the beginning", show=False),
    Binding("end", "seek('end')", "to the end", show=False),
]  # fmt: skip

PLAYBACK_ACTIONS = frozenset({"play", "step", "speed", "seek"})
"""They work in a recording only."""

EVERYWHERE = (
    ("1-7", "screens"),
    ("tab", "next field"),
    ("?", "this help"),
    ("a", "alerts: the log without what is in order"),
    ("y", "copy the id of the selected peer"),
    ("esc", "back"),
    ("ctrl+p", "all commands by name"),
)
"""For the help."""

PEER_KEYS = (
    ("p", "pause now, or resume; what was trained still counts"),
    ("f", "finish the round, then pause"),
    ("z", "snooze for 1 h; again 3 h, again 8 h; p ends it"),
    ("q", "detach: close this, training goes on"),
    ("Q", "leave the run, after a question"),
    ("ctrl+c", "asks: detach or leave?"),
)
RECORDING_KEYS = (
    ("space", "play or pause"),
    ("left right", "one event back or on; with shift, 50"),
    ("< >", "slower, faster (also - and +)"),
    ("home end", "to the beginning, to the end"),
    ("q", "close"),
)


def is_paused_by_owner(view: View) -> bool:
    """Whether my peer can be resumed: it is snoozed, or its owner paused it. One whose disk is full cannot.

    A peer that has not answered is judged by its reason, which says how a pause of its owner is ended.
    """
    if view.mine is None or view.mine.state != "PAUSED":
        return False
    if view.status is not None and any(hold.code in OWNERS for hold in view.status.holds):
        return True
    return RESUME in view.mine.why


def keys_that_matter(view: View, shown: str) -> Sequence[tuple[str, str]]:
    """(key, what it does) for the last line, the most important first."""
    first = _of_screen(shown, editable=not view.refusal and "set" in view.takes)
    if view.playback is not None:
        play = "pause" if view.playback.playing else "play"
        step = [] if shown == "rounds" else [("left right", "step")]  # there they move along the lanes
        keys = [("q", "close"), ("space", play), *first, ("< >", "speed"), *step, ("?", "help")]
    elif view.refusal:
        keys = [("q", "close"), *first, ("?", "help"), ("1-7", "screens")]
    else:
        pause = [("p", "resume" if is_paused_by_owner(view) else "pause")] if "pause" in view.takes else []
        finish = [("f", "finish round")] if "finish" in view.takes else []
        snooze = [("z", "snooze")] if "snooze" in view.takes else []
        keys = [
            ("q", "detach, training goes on"), *pause, *first, ("?", "help"), *finish, *snooze, ("Q", "leave"),
            ("ctrl+c", "asks which"),
        ]  # fmt: skip
    return [*keys, ("ctrl+p", "commands")]


def _of_screen(shown: str, *, editable: bool) -> list[tuple[str, str]]:
    if shown == "peers":
        return [("enter", "details"), ("/", "filter"), (", .", "sort"), ("w", "columns")]
    if shown == "peer":
        return [("esc", "back"), ("y", "copy id")]
    if shown == "limits":
        return [("enter", "edit")] if editable else []
    return [("/", "search"), ("l", "level")] if shown == "log" else []
