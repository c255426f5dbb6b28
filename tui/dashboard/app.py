"""The dashboard: twice a second it takes in new events and shows one screen of them.

It reads event lines from a source and writes commands to a control socket, and does nothing else: it can be closed,
crash or be killed without any peer noticing. Everything that may wait runs in a thread worker, which posts its result
as a message; only message handlers change what is shown.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Vertical
from textual.filter import LineFilter, Monochrome
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from dht.errors import HomefiresError
from peer.node.control.client import Reply
from tui.dashboard.appearance import ASCII, COLOUR, MONO, MONO_THEME, THEME, UNICODE, AsciiFilter
from tui.dashboard.dialogs import LEAVE, QUIT, Help, PromptScreen
from tui.dashboard.header import draw_header, draw_keys, draw_playback, draw_tabs
from tui.dashboard.keys import BINDINGS, PLAYBACK_ACTIONS, SCREEN_NAMES, keys_that_matter
from tui.dashboard.poller import StatusPoller, done_words
from tui.dashboard.screens.curves import LearningPanel
from tui.dashboard.screens.home import HomePanel
from tui.dashboard.screens.limits import LimitsPanel, SettingGiven
from tui.dashboard.screens.log import LogPanel
from tui.dashboard.screens.network import NetworkPanel
from tui.dashboard.screens.peer import PeerPanel
from tui.dashboard.screens.peers import PeersPanel
from tui.dashboard.screens.rounds import RoundsPanel
from tui.dashboard.view import Panel, PeerOpened, TextBlock, View
from tui.sources.replay import RecordingSource
from tui.sources.source import EventSource
from tui.swarm.reducer import lags, tell_lately
from tui.swarm.snapshot import SwarmState

ExitReason = Literal["detach", "leave", "ended"]
"""How the dashboard was closed: the peer continues, the peer leaves the run, or there was nothing to continue."""

EVERY_S = 0.5
"""The interval between two drawings."""


@dataclass
class Opened(Message):
    """The source can be read now, or could not be opened because of `error`."""

    error: HomefiresError | None = None


@dataclass
class Answered(Message):
    cmd: str
    asked: Mapping[str, Any]
    reply: Reply


class Dashboard(App[ExitReason]):
    """Draws a source. `clock` returns Unix time; `failure` is the error that prevented reading the source."""

    CSS_PATH = "dashboard.tcss"
    TITLE = "homefires"
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS
    HORIZONTAL_BREAKPOINTS = [(0, "-mini"), (60, "-narrow"), (80, "-normal"), (120, "-wide"), (160, "-full")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-short"), (24, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        source: EventSource,
        *,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        ascii_only: bool = False,
        mono: bool = False,
    ) -> None:
        mono = mono or "NO_COLOR" in os.environ  # Textual takes it out of the environment
        super().__init__()
        self.failure: HomefiresError | None = None
        self._source, self._clock, self._read_only = source, clock, read_only
        self._glyphs, self._ink = ASCII if ascii_only else UNICODE, MONO if mono else COLOUR
        self._filters_of_mine: list[LineFilter] = [AsciiFilter()] if ascii_only else []
        self._filters_of_mine += [Monochrome()] if mono else []
        self._swarm = SwarmState()
        self._is_open = False
        self._selected = ""
        self._came_from = next(iter(SCREENS))
        self._remote = StatusPoller()
        self._drawn: tuple[object, ...] = ()
        """The state at the last drawing; the same state is not drawn twice."""
        self.animation_level = "none"
        self.register_theme(THEME)
        self.register_theme(MONO_THEME)
        self.theme = MONO_THEME.name if mono else THEME.name

    # What is on the screen

    def compose(self) -> ComposeResult:
        with Vertical(id="frame"):
            yield TextBlock(id="header")
            yield TextBlock(id="tabs")
            with ContentSwitcher(id="panels", initial=next(iter(SCREENS))):
                for name, panel in PANELS.items():
                    yield panel(id=name)
            yield TextBlock(id="playback")
            yield TextBlock(id="keys")

    def on_mount(self) -> None:
        self.screen.set_class(self._glyphs.ascii, "-ascii")
        self.screen.set_class(self._source.playback is not None, "-recording")
        self.query_one("#header", TextBlock).draw(Text(f"reading {self._source.title} {self._glyphs.ellipsis}"))
        if not self.is_headless:
            self._end_politely()
        self.run_worker(self._open, thread=True, exclusive=True, group="open", exit_on_error=True)
        self.set_interval(EVERY_S, self.tick)

    def _end_politely(self) -> None:
        """On SIGTERM or SIGHUP, exit properly, so that the terminal is restored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, "detach")

    def on_unmount(self) -> None:
        if self._is_open:
            self._source.close()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters and ours: without colours, or only ASCII."""
        return [*super().get_line_filters(), *self._filters_of_mine]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The commands of the palette: the screens, and the keys of the last line that work on all screens."""
        for number, (name, panel) in enumerate(SCREENS.items(), start=1):
            yield SystemCommand(panel.TITLE, f"Show this screen (key {number})", partial(self.action_show, name))
        view = self.view()
        for key in keys_that_matter(view, ""):
            if len(key.actions) == 1:
                (action,) = key.actions.values()
                title, help = key.told(view).capitalize(), f"{key.help} (key {key.name})"
                yield SystemCommand(title, help, partial(self.run_action, action))

    # Time passes

    def _open(self) -> None:
        try:
            self._source.open()
        except HomefiresError as error:
            self.post_message(Opened(error))
        else:
            self.post_message(Opened())

    def on_opened(self, message: Opened) -> None:
        if message.error is not None:
            self._fail(message.error)
            return
        self._is_open = True
        gc.freeze()  # what was read stays: to look through it again and again would hold up the screen
        self.tick()
        self._panel.take_focus()

    def tick(self) -> None:
        if not self._is_open or not self.is_running:
            return
        try:
            self._swarm = self._source.advance(self._clock())
        except HomefiresError as error:
            self._fail(error)
            return
        self._ask_status()
        self.redraw()

    def _fail(self, error: HomefiresError) -> None:
        """The source cannot be read: close the dashboard; the command reports the error."""
        self.failure = error
        self.exit("ended")

    def redraw(self) -> None:
        """Draw the frame and the visible panel, unless nothing in them changed."""
        if not self._is_open or not self.is_running:  # while it closes, its widgets go one by one
            return
        view, shown = self.view(), self._shown
        seen = (id(view.swarm), int(view.now), self.size, view.selected, view.ended, view.status, view.silence)
        played = view.playback and (view.playback.position, view.playback.playing, view.playback.speed)
        drawn = (*seen, shown, played)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._draw_frame(view, shown)
        self._panel.show(view)

    def view(self) -> View:
        source, size, status = self._source, self.size, self._remote.status
        return View(
            swarm=self._swarm if status is None or not lags(self._swarm, status) else tell_lately(self._swarm, status),
            now=source.time(self._clock()),
            me=source.me,
            selected=self._selected or source.me or next(iter(self._swarm.peers), ""),
            select=self._select,
            width=size.width,
            height=size.height,
            glyphs=self._glyphs,
            ink=self._ink,
            playback=source.playback,
            ended=source.ended,
            title=source.title,
            takes=source.control.takes if source.control is not None else frozenset(),
            refusal=self._refusal(),
            status=status,
            silence=self._remote.silence,
        )

    @property
    def _shown(self) -> str:
        return self.query_one("#panels", ContentSwitcher).current or next(iter(SCREENS))

    @property
    def _panel(self) -> Panel:
        return self.query_one(f"#{self._shown}", Panel)

    def _draw_frame(self, view: View, shown: str) -> None:
        titles = [(name, panel.TITLE) for name, panel in SCREENS.items()]
        current = self._came_from if shown == DETAIL else shown
        self.query_one("#header", TextBlock).draw(draw_header(view))
        self.query_one("#tabs", TextBlock).draw(draw_tabs(titles, current, view))
        self.query_one("#keys", TextBlock).draw(draw_keys(view, shown))
        if view.playback is not None:
            self.query_one("#playback", TextBlock).draw(draw_playback(view))

    # Where the person goes

    def action_show(self, name: str) -> None:
        shown = self._shown
        if name == DETAIL and shown != DETAIL:
            self._came_from = shown
        self.query_one("#panels", ContentSwitcher).current = name
        self.redraw()
        self._panel.take_focus()

    def action_go_back(self) -> None:
        if self._shown == DETAIL:
            self.action_show(self._came_from)

    def action_alerts(self) -> None:
        self.query_one(LogPanel).only_alerts()
        self.action_show("log")

    def action_help(self) -> None:
        self.push_screen(Help(self.view(), self._shown, PANELS[self._shown].TITLE))

    def action_copy(self) -> None:
        """Copy the id of the selected peer to the clipboard of the terminal."""
        peer = self.view().selected
        if not peer:
            self._say("there is no peer yet")
            return
        self.copy_to_clipboard(peer)
        self._say(f"copied the id of {self._swarm.label(peer)}")

    def _select(self, peer: str) -> None:
        self._selected = peer
        self._panel.select(peer)

    def on_peer_opened(self, message: PeerOpened) -> None:
        self._select(message.peer)
        self.action_show(DETAIL)

    # What a peer is told

    def action_pause(self) -> None:
        self._tell("resume" if self.view().is_paused_by_owner else "pause")

    def action_finish(self) -> None:
        self._tell("finish")

    def action_snooze(self) -> None:
        """Pause for an hour; when pressed again, for three and then for eight."""
        hours = 0 if self._refusal() else self._remote.snooze_h(self._clock())
        self._tell("snooze", minutes=60 * hours)

    def on_setting_given(self, message: SettingGiven) -> None:
        if refusal := self._refusal():
            self.query_one(LimitsPanel).settle(Reply(ok=False, error=refusal))
            return
        self._tell("set", values={message.name: message.value})

    def action_leave(self) -> None:
        if refusal := self._refusal():
            self._say(refusal, level="warning")
            return
        self.push_screen(PromptScreen(LEAVE), self._on_quit_answer)

    def action_detach(self) -> None:
        self.exit("ended" if self._source.control is None or self._source.ended else "detach")

    def action_ask_quit(self) -> None:
        """Ctrl-C asks whether to detach or leave; when pressed again, it detaches."""
        if isinstance(self.screen, PromptScreen) or self._refusal():
            self.action_detach()
            return
        self.push_screen(PromptScreen(QUIT), self._on_quit_answer)

    def _on_quit_answer(self, answer: str | None) -> None:
        if answer == "detach":
            self.action_detach()
        elif answer == "leave":
            self._tell("leave")

    def _refusal(self) -> str:
        """Why no command can be given from here; empty if it can."""
        if self._source.playback is not None:
            return "this is a recording: there is no peer to command"
        if self._source.control is None:
            return "watching only: there is no peer of yours here to command"
        if self._read_only:
            return "read-only: start without --read-only to command the peer"
        return f"the peer is gone: {self._source.ended}" if self._source.ended else ""

    def _tell(self, cmd: str, **fields: Any) -> None:
        if refusal := self._refusal():
            self._say(refusal, level="warning")
            return
        self._send(cmd, fields)

    def _send(self, cmd: str, fields: Mapping[str, Any]) -> None:
        control = self._source.control
        assert control is not None

        def request() -> None:
            self.post_message(Answered(cmd, fields, control.request(cmd, **fields)))

        self.run_worker(request, thread=True, group=cmd, exit_on_error=True)

    def _ask_status(self) -> None:
        """Ask for the peer's status, also in a read-only dashboard: no event says what holds the peer up."""
        control = self._source.control
        if control is None or self._source.ended or not self._source.me:
            return
        if "status" in control.takes and self._remote.asks(self._clock()):
            self._send("status", {})

    def on_answered(self, message: Answered) -> None:
        cmd, reply = message.cmd, message.reply
        self._remote.take(cmd, reply, self._clock())
        if cmd == "status":
            self.redraw()
            return
        if cmd == "set":
            self.query_one(LimitsPanel).settle(reply)
        if reply.ok and cmd == "leave":
            self.exit("leave")
        elif reply.ok and (words := done_words(cmd, message.asked, reply, self._clock())):
            self._say(words)
        elif not reply.ok and cmd != "set":  # there the refusal stands beside the text
            self._say(f"{cmd}: {reply.error}", level="error")
        self.tick()

    def _say(self, text: str, *, level: Literal["information", "warning", "error"] = "information") -> None:
        """In the place of what was said before: a key that is pressed again is answered by one toast, not by two."""
        self.clear_notifications()
        self.notify(text, severity=level, markup=False, timeout=4 if level == "information" else 8)

    # A recording

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of a recording are disabled for a live source."""
        return action not in PLAYBACK_ACTIONS or (self._is_open and self._source.playback is not None)

    def action_play(self) -> None:
        self._playback.toggle()
        self.tick()

    def action_step(self, events: int) -> None:
        self._playback.step(events)
        self.tick()

    def action_seek(self, end: str) -> None:
        self._playback.seek(0 if end == "start" else self._playback.count)
        self.tick()

    def action_speed(self, direction: str) -> None:
        (self._playback.faster if direction == "faster" else self._playback.slower)()
        self.tick()

    @property
    def _playback(self) -> RecordingSource:
        playback = self._source.playback
        assert playback is not None
        return playback


def run_dashboard(source: EventSource, *, read_only: bool, ascii_only: bool, mono: bool) -> ExitReason:
    """Show `source` on this terminal until it is closed; returns how. Raises the error of opening the source."""
    app = Dashboard(source, read_only=read_only, ascii_only=ascii_only, mono=mono)
    outcome = app.run()
    if app.failure is not None:
        raise app.failure
    if app.return_code:
        raise RuntimeError("the dashboard ended with an error")
    return outcome or "detach"


_IN_ORDER: tuple[type[Panel], ...] = (
    HomePanel, PeersPanel, RoundsPanel, LearningPanel, NetworkPanel, LogPanel, LimitsPanel,
)  # fmt: skip
SCREENS = dict(zip(SCREEN_NAMES, _IN_ORDER, strict=True))
"""The screens by id; the first one is shown at the start, and key n shows the n-th."""

DETAIL = "peer"
"""The screen of one peer, which Enter opens."""

PANELS: dict[str, type[Panel]] = SCREENS | {DETAIL: PeerPanel}
