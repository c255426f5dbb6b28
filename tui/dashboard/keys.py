"""Every key of the application: what it is called, what it does, and the action behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType

Key = tuple[str, str, Mapping[str, str]]
"""What a key is called in the help, what it does, and by what is pressed the action of this screen, if it has one."""


def bindings(actions: Mapping[str, str], told: Iterable[Key] = ()) -> list[BindingType]:
    """Those of the keys that the help tells, and of others."""
    rows = [actions, *(of_key for _, _, of_key in told)]
    return [Binding(pressed, action, show=False) for row in rows for pressed, action in row.items()]


def moving(action: str) -> dict[str, str]:
    """Keys that move a cursor by one or by ten."""
    return {"down,j": f"{action}(1)", "up,k": f"{action}(-1)", "pagedown": f"{action}(10)", "pageup": f"{action}(-10)"}


SCREEN_NAMES = ("home", "peers", "rounds", "learning", "network", "log", "limits")
EVERYWHERE: tuple[Key, ...] = (
    ("1-7", "screens", {str(number): f"show('{name}')" for number, name in enumerate(SCREEN_NAMES, start=1)}),
    ("tab", "next field", {}),
    ("?", "this help", {"question_mark": "help"}),
    ("a", "alerts: the log without what is in order", {"a": "alerts"}),
    ("y", "copy the id of the selected peer", {"y": "copy"}),
    ("esc", "back", {"escape": "go_back"}),
    ("ctrl+p", "all commands by name", {}),
)
PEER_KEYS: tuple[Key, ...] = (
    ("p", "pause now, or resume; what was trained still counts", {"p": "pause"}),
    ("f", "finish the round, then pause", {"f": "finish"}),
    ("z", "snooze for 1 h; again 3 h, again 8 h; p ends it", {"z": "snooze"}),
    ("q", "detach: close this, training goes on", {"q": "detach"}),
    ("Q", "leave the run, after a question", {"Q": "leave"}),
    ("ctrl+c", "asks: detach or leave?", {}),
)
RECORDING_KEYS: tuple[Key, ...] = (
    ("space", "play or pause", {"space": "play"}),
    ("left right", "one event back or on; with shift, 50",
     {"left": "step(-1)", "right": "step(1)", "shift+left": "step(-50)", "shift+right": "step(50)"}),
    ("< >", "slower, faster (also - and +)",
     {"minus,less_than_sign": "speed('slower')", "plus,greater_than_sign": "speed('faster')"}),
    ("home end", "to the beginning, to the end", {"home": "seek('start')", "end": "seek('end')"}),
    ("q", "close", {}),
)  # fmt: skip

BINDINGS: list[BindingType] = [
    *bindings({}, (*EVERYWHERE, *PEER_KEYS, *RECORDING_KEYS)),
    Binding("ctrl+c", "ask_quit", show=False, priority=True),
    Binding("ctrl+q", "detach", show=False, priority=True),
]

PLAYBACK_ACTIONS = frozenset({"play", "step", "speed", "seek"})
"""They work in a recording only."""
