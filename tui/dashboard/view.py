"""The base of every screen of the dashboard: a panel that is given a view, at most twice a second.

A panel draws what it is given and keeps nothing that the view tells. It asks for actions by messages and by
`View.select`: only the application changes what is selected, what is shown and what a peer is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rich.text import Text
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from tui.dashboard.appearance import COLOUR, UNICODE, Glyphs, Palette
from tui.dashboard.keys import bindings
from tui.sources.replay import RecordingSource
from tui.swarm.snapshot import PeerView, SwarmState
from tui.text.event_text import OWNERS, RESUME, PeerStatus


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that a panel may draw from, at one point in time."""

    swarm: SwarmState
    now: float
    """The Unix time that is shown: the present one, or that of a recording's playhead."""
    me: str = ""
    """The id of the volunteer's own peer, or empty."""
    selected: str = ""
    """The id of the selected peer, or empty."""
    select: Callable[[str], None] = field(default=lambda peer: None, compare=False)
    """Called to select a peer; the next view has it as `selected`."""
    width: int = 80
    height: int = 24
    """`width` and `height` are those of the whole terminal, in cells."""
    glyphs: Glyphs = UNICODE
    ink: Palette = COLOUR
    playback: RecordingSource | None = None
    ended: str = ""
    """Why no more events will come, or empty."""
    title: str = ""
    """Where the events come from."""
    takes: frozenset[str] = frozenset()
    """The commands that the peer accepts."""
    refusal: str = ""
    """Why no command can be given from here, or empty."""
    status: PeerStatus | None = None
    """My peer's last answer; None if it was not asked or did not answer."""

    silence: str = ""
    """Why my peer does not answer, or empty."""

    @property
    def mine(self) -> PeerView | None:
        """The volunteer's own peer, as soon as it is known."""
        return self.swarm.peers.get(self.me) if self.me else None

    @property
    def is_paused_by_owner(self) -> bool:
        """Whether my peer can be resumed: it is snoozed, or its owner paused it. A peer whose disk is full cannot.

        A peer that has not answered is judged by its reason, which says how an owner's pause ends.
        """
        if self.mine is None or self.mine.state != "PAUSED":
            return False
        if self.status is not None and any(hold.code in OWNERS for hold in self.status.holds):
            return True
        return RESUME in self.mine.why

    @property
    def mini(self) -> bool:
        """Whether only one column of words fits."""
        return self.width < 60

    @property
    def short(self) -> bool:
        """Whether plots do not fit."""
        return self.height < 24


@dataclass
class PeerOpened(Message):
    """The person opens the page of this peer."""

    peer: str


class ViewWidget(Widget):
    """Draws a view, and draws the last one again when its size changes."""

    _view: View | None = None
    """The last view that was shown."""

    @property
    def view(self) -> View:
        assert self._view is not None, "keys come after the first view"
        return self._view

    def show(self, view: View) -> None:
        """Draw a view. Called at most twice a second, and only while the widget is visible."""
        self._view = view
        self.draw_view(view)

    def draw_view(self, view: View) -> None:
        raise NotImplementedError

    def select(self, peer: str) -> None:
        """Note the selected peer, so that an old view which is drawn again has it, too."""
        if self._view is not None:
            self._view = replace(self._view, selected=peer)

    def redraw(self) -> None:
        if self._view is not None:
            self.draw_view(self._view)

    on_resize = redraw


class Panel(ViewWidget, can_focus=True):
    """One screen. The keys in a subclass's BINDINGS work while it is shown."""

    BINDINGS = bindings("panel")

    TITLE: ClassVar[str] = ""
    """The name in the row of screens."""

    def take_focus(self) -> None:
        """Called when the person comes to this screen: focus what the arrow keys should move."""
        self.focus(scroll_visible=False)


class FilterPanel(Panel):
    """A panel with an `Input` for a filter, which is visible while it is used."""

    BINDINGS = bindings("filter")

    @property
    def wanted(self) -> str:
        return self.query_one(Input).value

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    def action_filter(self) -> None:
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_unfilter(self) -> None:
        field = self.query_one(Input)
        field.value, field.display = "", False
        self.take_focus()

    def on_input_changed(self) -> None:
        self.redraw()

    def on_input_submitted(self) -> None:
        self.query_one(Input).display = bool(self.wanted)
        self.take_focus()


class TextBlock(Static):
    """Text that is redrawn only when it has changed, and is never parsed as markup."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self.text = Text()

    def draw(self, text: Text) -> None:
        """Show `text`, which must not be changed afterwards."""
        if text == self.text:
            return
        self.text = text
        self.update(text)
