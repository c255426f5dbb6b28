"""The waterfall of the Rounds screen: a lane per peer on one time axis, with a cursor over it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from tui.dashboard.keys import bindings
from tui.dashboard.styles import phase_style, state_of
from tui.dashboard.view import PeerOpened, View, ViewWidget
from tui.dashboard.widgets import lanes
from tui.dashboard.widgets.lanes import Axis
from tui.dashboard.widgets.lines import LineView, StyledLine, cut, fit
from tui.swarm.figures import order
from tui.swarm.phase_styles import phase as phase_named
from tui.swarm.snapshot import PeerView
from tui.text.event_text import counts_words
from tui.text.units import format_elapsed, format_seconds

LEGEND = (
    ("late", "late"), ("failed", "failed"), ("train", "train"), ("prepare", "gather"), ("exchange", "send"),
    ("commit", "average"), ("idle", "wait"), ("paused", "paused"), ("sync", "catch up"), ("gone", "gone"),
)  # fmt: skip
"""Phases and their words, the most important for understanding first."""

AROUND_LANES = 4
"""The lines of the waterfall that are not lanes: heading, rounds, what is at the cursor, legend."""

MIN_STATE_COLUMNS = 96
"""The width in cells from which on each lane is followed by the peer's state in words."""


class Waterfall(LineView, ViewWidget, can_focus=True):
    BINDINGS = bindings("rounds.lanes")

    def __init__(self) -> None:
        super().__init__(id="waterfall")
        self._step_s: float | None = None
        """The width of a column in seconds; None: derived from the rounds' duration."""
        self._held: Axis | None = None
        """The axis while the cursor is set; None: the newest time is followed."""
        self._cursor = 0
        self._top = 0

    @property
    def axis(self) -> Axis:
        view, columns = self.view, self._columns
        if self._held is not None:
            return Axis(first=self._held.first, step_s=self._held.step_s, columns=columns)
        usual_s = view.swarm.usual_round_s
        step_s = self._step_s or (lanes.choose_step(usual_s) if usual_s else 1.0)
        axis = lanes.ending_at(view.now, step_s, columns)
        return lanes.not_before(axis, self._first_t)

    def draw_view(self, view: View) -> None:
        if self.size.width and self.size.height:
            self.draw(self._compose_lines(view))

    on_focus = on_blur = ViewWidget.redraw

    def action_scrub(self, by: int) -> None:
        """Move the cursor; beyond the newest time, follow again."""
        axis = self.axis
        newest = axis.column_of(self.view.now)
        column = (self._cursor if self._held else newest) + by
        if by > 0 and column > newest:
            return self.action_follow()
        self._hold(axis, max(column, axis.column_of(self._first_t)))

    def action_begin(self) -> None:
        axis = self.axis
        self._hold(axis, axis.column_of(self._first_t))

    def action_follow(self) -> None:
        self._held = None
        self.redraw()

    def action_zoom(self, steps: int) -> None:
        """Make columns wider or narrower; what is at the cursor stays in place."""
        axis = self.axis
        step_s = lanes.zoomed(axis.step_s, steps)
        if self._held is not None:
            middle_t = sum(axis.bounds(self._cursor)) / 2
            self._held = Axis(first=int(middle_t // step_s) - self._cursor, step_s=step_s, columns=axis.columns)
        self._step_s = step_s
        self.redraw()

    def action_select(self, by: int) -> None:
        order = self._order(self.view)
        if not order:
            return
        index = order.index(self._chosen_of(order))
        peer = order[min(max(index + by, 0), len(order) - 1)].peer
        self.view.select(peer)
        self.select(peer)
        self.redraw()

    def action_open(self) -> None:
        if self.view.swarm.peers:
            self.post_message(PeerOpened(self._chosen_of(self._order(self.view)).peer))

    @property
    def _first_t(self) -> float:
        view = self.view
        firsts = [peer.spans[0].t for peer in view.swarm.peers.values() if peer.spans]
        return min(firsts, default=view.now)

    @property
    def _columns(self) -> int:
        return max(1, self.size.width - self._name_width - self._state_width - 1)

    @property
    def _name_width(self) -> int:
        return 8 if self.size.width < 60 else 10 if self.size.width < 100 else 14

    @property
    def _state_width(self) -> int:
        return 13 if self.size.width >= MIN_STATE_COLUMNS else 0

    def _hold(self, axis: Axis, column: int) -> None:
        self._held = axis.moved_to(column)
        self._cursor = column + axis.first - self._held.first
        self.redraw()

    def _order(self, view: View) -> list[PeerView]:
        return order(view.swarm.peers.values(), view.me)

    def _chosen_of(self, order: Sequence[PeerView]) -> PeerView:
        return next((peer for peer in order if peer.peer == self.view.selected), order[0])

    def _compose_lines(self, view: View) -> list[StyledLine]:
        order, axis, height = self._order(view), self.axis, self.size.height
        if self._held is not None:
            self._cursor = min(self._cursor, axis.columns - 1)
        roomy = height >= AROUND_LANES + 2
        heading = [_heading(view, axis, self.size.width, following=self._held is None)] if roomy else []
        if not order:
            return [*heading, [("  nobody is known yet", view.ink.muted)]]
        chosen = self._chosen_of(order)
        told = self._line_of(view, chosen, axis)
        if height == 1:
            return [told]
        window = self._window(order, chosen, max(1, height - (AROUND_LANES if roomy else 2)))
        lanes_drawn = [self._lane(view, peer, axis, at=peer.peer == chosen.peer) for peer in window]
        legend = [_legend(view, self.size.width)] if roomy else []
        return [*heading, self._tick_row(view, axis), *lanes_drawn, told, *legend]

    def _window(self, order: Sequence[PeerView], chosen: PeerView, rows: int) -> list[PeerView]:
        """The lanes that fit: the volunteer's own on top, and of the others a range that contains the selected one."""
        if len(order) <= rows:
            self._top = 0
            return list(order)
        pinned = 1 if order[0].peer == self.view.me and rows > 1 else 0
        index, room = max(pinned, order.index(chosen)), rows - pinned
        self._top = min(max(self._top, index - room + 1, pinned), index, len(order) - room)
        return [*order[:pinned], *order[self._top : self._top + room]]

    def _tick_row(self, view: View, axis: Axis) -> StyledLine:
        row = lanes.ticks(view.swarm.history, axis, "|" if view.glyphs.ascii else "│")
        pieces = [("round".ljust(self._name_width)[: self._name_width] + " ", view.ink.muted)]
        if self._held is None:
            return [*pieces, (row, view.ink.muted)]
        cursor = self._cursor
        head, tail = row[:cursor], row[cursor + 1 :]
        return [*pieces, (head, view.ink.muted), (view.glyphs.down, view.ink.strong), (tail, view.ink.muted)]

    def _lane(self, view: View, peer: PeerView, axis: Axis, *, at: bool) -> StyledLine:
        ink = view.ink
        mine = peer.peer == view.me
        mark = f"{view.glyphs.mark} " if mine else "  "
        name = fit(mark + peer.label, self._name_width, view.glyphs.ellipsis)
        style = ink.mine if mine else ink.text
        pieces = [(name, f"{style} reverse" if at and self.has_focus else style), (" ", "")]
        painted = lanes.paint(peer.spans, axis, view.now)
        cursor = self._cursor if self._held is not None else -1
        for begin, end in _runs(painted, cursor):
            phase = painted[begin]
            style = phase_style(phase, ink) if phase else ink.track
            glyph = view.glyphs.sign(phase_named(phase)) if phase else " "
            pieces.append((glyph * (end - begin), f"{style} reverse" if begin == cursor else style))
        if self._state_width:
            state = state_of(peer, view)
            pieces.append((f" {state.plain:<12}", str(state.style)))
        return pieces

    def _line_of(self, view: View, peer: PeerView, axis: Axis) -> StyledLine:
        held = self._held is not None
        column = self._cursor if held else min(axis.column_of(view.now), axis.columns - 1)
        stay = lanes.showing(peer.spans, axis, column, view.now)
        t = axis.bounds(column)[0] if held else view.now
        began_t = t if view.swarm.started_t is None else view.swarm.started_t
        head: StyledLine = [(f"{format_elapsed(t - began_t)}  ", view.ink.muted), (peer.label, view.ink.strong)]
        if stay is None:
            return cut([*head, (" was not heard of", view.ink.muted)], self.size.width, view.glyphs.ellipsis)
        words = phase_named(stay.span.phase).does
        what = f" {words} {view.glyphs.dot} round {stay.span.round} {view.glyphs.dot} {format_seconds(stay.seconds)}"
        pieces = [*head, (what, phase_style(stay.span.phase, view.ink) if stay.span.phase != "idle" else view.ink.text)]
        for penalty in view.swarm.penalty_log:
            if penalty.about == peer.peer and penalty.imposed_in == stay.span.round:
                told = f"{penalty.code}, {penalty.evidence}, {counts_words(penalty)}"
                pieces.append((f" {view.glyphs.dot} {told}", view.ink.warn))
        return cut(pieces, self.size.width, view.glyphs.ellipsis)


def _heading(view: View, axis: Axis, width: int, *, following: bool) -> StyledLine:
    dot = f" {view.glyphs.dot} "
    scale = f"{format_seconds(axis.step_s)} a column"
    where = "following" if following else f"held, {format_seconds(max(0.0, view.now - axis.end_t))} ago; G follows"
    title = f"Rounds{dot}{scale}{dot}{where}"
    hint = "[ ] zoom  arrows move" if width >= 80 else ""
    rule = view.glyphs.rest * max(0, width - cell_len(title) - cell_len(hint) - 2)
    return [(title, view.ink.strong), (f" {rule} ", view.ink.track), (hint, view.ink.muted)]


def _legend(view: View, width: int) -> StyledLine:
    """As many of the signs with their words as fit."""
    pieces: StyledLine = []
    left = width
    for phase, word in LEGEND:
        left -= len(word) + 4
        if left < 0:
            break
        pieces += [(view.glyphs.sign(phase_named(phase)), phase_style(phase, view.ink)), (f" {word}  ", view.ink.muted)]
    return pieces


def _runs(painted: Sequence[str], cursor: int) -> list[tuple[int, int]]:
    """(begin, end) of runs of equal columns; the cursor's column is a run of its own."""
    runs: list[tuple[int, int]] = []
    begin = 0
    for column in range(1, len(painted) + 1):
        if column == len(painted) or painted[column] != painted[begin] or cursor in (column, begin):
            runs.append((begin, column))
            begin = column
    return runs
