"""All keys in one table: the action of each, and its text in the help, the last line and the palette."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from textual.binding import Binding, BindingType

from tui.sources.replay import RecordingSource


class Shown(Protocol):
    """The part of a `View` that decides which keys matter."""

    @property
    def playback(self) -> RecordingSource | None: ...
    @property
    def takes(self) -> frozenset[str]: ...
    @property
    def refusal(self) -> str: ...
    @property
    def is_paused_by_owner(self) -> bool: ...


SCREEN_NAMES = ("home", "peers", "rounds", "learning", "network", "log", "limits")
EVERYWHERE, MY_PEER, RECORDING = "everywhere", "my peer", "recording"
"""The place where the application itself acts; other places are screens, parts of screens (`rounds.lanes`) and
widgets."""

NOTHING: Mapping[str, str] = {}


class Key(NamedTuple):
    where: str
    name: str = ""
    """The name of the key in the help and on the last line."""
    help: str = ""
    """What it does; empty if people need not be told."""
    actions: Mapping[str, str] = NOTHING
    """The actions by pressed key; none if something else reacts to it."""
    label: str | Callable[[Shown], str] = ""
    """The text on the last line and in the palette."""
    takes: str = ""
    """The command that the key gives: the label is shown only if the peer accepts it."""

    def told(self, view: Shown) -> str:
        """The present label; empty if the key has none or cannot do anything."""
        if self.takes and (view.refusal or self.takes not in view.takes):
            return ""
        return self.label if isinstance(self.label, str) else self.label(view)


def _by_one_and_ten(action: str) -> dict[str, str]:
    """Keys that move a cursor."""
    return {"down,j": f"{action}(1)", "up,k": f"{action}(-1)", "pagedown": f"{action}(10)", "pageup": f"{action}(-10)"}


KEYS = (
    Key(MY_PEER, "q", "detach: close this, training goes on", {"q": "detach"},
        lambda view: "close" if view.refusal else "detach, training goes on"),
    Key(RECORDING, "q", "close", {"q": "detach"}, "close"),
    Key(MY_PEER, "p", "pause now, or resume; what was trained still counts", {"p": "pause"},
        lambda view: "resume" if view.is_paused_by_owner else "pause", takes="pause"),
    Key(RECORDING, "space", "play or pause", {"space": "play"},
        lambda view: "pause" if view.playback and view.playback.playing else "play"),

    Key("peers", "enter",
        "all about a peer; tok/s: while it computes, ok/late/no: rounds accepted, late, rejected",
        label="details"),
    Key("peers", "/", "filter; !word hides what has the word", {"slash": "filter"}, "filter"),
    Key("peers", ", .", "sort by another column", {"comma": "sort(-1)", "full_stop": "sort(1)"}, "sort"),
    Key("peers", "r", "reverse the order", {"r": "reverse"}),
    Key("peers", "w", "the columns that had no room", {"w": "columns"}, "columns"),
    Key("peers", "g G", "first, last"),
    Key("peer", "esc", "back", label="back"),
    Key("peer", "y", "copy the id of this peer", label="copy id"),
    Key("rounds.lanes", "left right", "move the cursor in time (shift: by ten columns)",
        {"left": "scrub(-1)", "right": "scrub(1)", "shift+left": "scrub(-10)", "shift+right": "scrub(10)"}),
    Key("rounds.lanes", "up down", "select a peer, or a penalty", _by_one_and_ten("select")),
    Key("rounds.lanes", "[ ]", "more time, or more detail",
        {"left_square_bracket": "zoom(1)", "right_square_bracket": "zoom(-1)"}),
    Key("rounds.lanes", "g G", "to the beginning; follow again", {"g": "begin", "G": "follow"}),
    Key("rounds", "tab", "from the lanes to the penalties"),
    Key("rounds", "c", "penalties: all, errors, late, judge", {"c": "category"}),
    Key("rounds.lanes", "enter", "lanes: all of this peer; penalties: explain", {"enter": "open"}),
    Key("rounds.penalties", actions={"escape": "close"}),
    Key("learning", "x", "over tokens, rounds or time", {"x": "axis"}),
    Key("learning", "[ ]", "all of it, or the newer half",
        {"left_square_bracket": "zoom(-1)", "right_square_bracket": "zoom(1)"}),
    Key("learning", "g", "all of it", {"g": "zoom(-100)"}),
    Key("learning", "l n t r", "show or hide loss, norm, tokens per second, learning rate",
        {"l": "choose('loss')", "n": "choose('norm')", "t": "choose('tokens')", "r": "choose('rate')"}),
    Key("network", "up down", "select a peer"),
    Key("network", "g G", "first, last peer"),
    Key("network", "enter", "all that is known of it"),
    Key("log", "/", "only lines with a text", {"slash": "filter"}, "search"),
    Key("log", "l", "all, alerts, errors", {"l": "level"}, "level"),
    Key("log", "c", "one kind of entry after the other", {"c": "kind"}),
    Key("log", "g", "to the beginning; stops following", {"g": "first"}),
    Key("log", "G", "to the end; follows", {"G": "last"}),
    Key("log", actions=_by_one_and_ten("move")),
    Key("limits", "enter", "edit the value; enter gives it to the peer, esc gives up", label="edit", takes="set"),
    Key("limits", "g G", "first, last"),
    Key("limits", actions={"escape": "give_up"}),

    Key(RECORDING, "< >", "slower, faster (also - and +)",
        {"minus,less_than_sign": "speed('slower')", "plus,greater_than_sign": "speed('faster')"}, "speed"),
    Key(RECORDING, "left right", "one event back or on; with shift, 50",
        {"left": "step(-1)", "right": "step(1)", "shift+left": "step(-50)", "shift+right": "step(50)"}, "step"),
    Key(RECORDING, "home end", "to the beginning, to the end", {"home": "seek('start')", "end": "seek('end')"}),
    Key(EVERYWHERE, "?", "this help", {"question_mark": "help"}, "help"),
    Key(MY_PEER, "f", "finish the round, then pause", {"f": "finish"}, "finish round", takes="finish"),
    Key(MY_PEER, "z", "snooze for 1 h; again 3 h, again 8 h; p ends it", {"z": "snooze"}, "snooze", takes="snooze"),
    Key(MY_PEER, "Q", "leave the run, after a question", {"Q": "leave"}, "leave", takes="leave"),
    Key(MY_PEER, "ctrl+c", "asks: detach or leave?", label="asks which", takes="leave"),
    Key(EVERYWHERE, "1-7", "screens", {str(place): f"show('{name}')" for place, name in enumerate(SCREEN_NAMES, 1)},
        lambda view: "screens" if view.refusal and view.playback is None else ""),
    Key(EVERYWHERE, "tab", "next field"),
    Key(EVERYWHERE, "a", "alerts: the log without what is in order", {"a": "alerts"}),
    Key(EVERYWHERE, "y", "copy the id of the selected peer", {"y": "copy"}),
    Key(EVERYWHERE, "esc", "back", {"escape": "go_back"}),
    Key(EVERYWHERE, "ctrl+p", "all commands by name", label="commands"),

    Key("panel", actions={"down,j": "scroll_down", "up,k": "scroll_up", "pagedown": "page_down", "pageup": "page_up"}),
    Key("filter", actions={"escape": "unfilter"}),
    Key("table", actions={**_by_one_and_ten("move"), "pageup": "page(-1)", "pagedown": "page(1)", "g": "go(0)",
                          "G": "go(-1)", "enter": "enter"}),
    Key("prompt", actions={"escape": "dismiss(None)"}),
    Key("help", actions={"escape,question_mark,q,enter": "dismiss(None)"}),
)  # fmt: skip
"""The help has the same order, and so does the last line, where only the first keys fit."""

PLAYBACK_ACTIONS = frozenset({"play", "step", "speed", "seek"})
"""The actions that exist only for a recording."""


def bindings(where: str) -> list[BindingType]:
    """The bindings of a place. Textual shows none of them: we draw the last line ourselves."""
    rows = (key.actions for key in KEYS if key.where == where)
    return [Binding(pressed, action, show=False) for row in rows for pressed, action in row.items()]


BINDINGS: list[BindingType] = [
    *(binding for where in (EVERYWHERE, MY_PEER, RECORDING) for binding in bindings(where)),
    Binding("ctrl+c", "ask_quit", show=False, priority=True),
    Binding("ctrl+q", "detach", show=False, priority=True),
]


def keys_of(screen: str) -> list[Key]:
    """The keys of a screen and of its parts that have a help text."""
    return [key for key in KEYS if key.help and key.where.partition(".")[0] == screen]


def keys_that_matter(view: Shown, screen: str) -> list[Key]:
    """The keys that have a label now, the most important first. Keys of the screen itself take precedence over
    common ones with the same name."""
    own = {key.name for key in keys_of(screen)}
    shared = (EVERYWHERE, RECORDING if view.playback else MY_PEER)
    shown = (key for key in KEYS if key.where == screen or (key.where in shared and key.name not in own))
    return [key for key in shown if key.told(view)]
