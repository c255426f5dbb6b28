"""What surrounds every screen: the header, the bar of a recording, the row of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from peer.schema.events import RoundStalled
from tui.dashboard.appearance import draw_bar
from tui.dashboard.keys import keys_that_matter
from tui.dashboard.styles import shown_state, state_of, style_of
from tui.dashboard.view import View
from tui.dashboard.widgets.lines import StyledLine, cut
from tui.swarm import figures
from tui.swarm.figure_text import rounds_words, why_words
from tui.swarm.phase_styles import STATES
from tui.text.event_text import stall_brief
from tui.text.units import format_elapsed

"""Characters of the run's hash that tell runs apart."""


STARTING = "waiting for the first word of a peer: one needs some seconds to start"
NOBODY_YET = "no peer has been seen yet"

TAB_GAPS = ((1, 3), (1, 1), (0, 1))
"""The cells before and after the name of a screen: the widest that fit are used."""


def room_of(view: View) -> int:
    return max(0, view.width - (2 if view.mini else 4))


def draw_header(view: View) -> Text:
    """Two lines: the run and its round; then in words what my peer does and why, or what the peers do."""
    right = Text(view.title, style=view.ink.muted)
    return Text("\n").join([_sides(_run_line(view), right, view), _state_line(view)])


def draw_tabs(titles: Sequence[tuple[str, str]], current: str, view: View) -> Text:
    """The screens with their keys; `titles` are (id, name)."""
    room = room_of(view)
    cells = sum(len(title) + 1 for _, title in titles)
    before, after = next((gaps for gaps in TAB_GAPS if cells + len(titles) * sum(gaps) <= room), TAB_GAPS[-1])
    text = Text()
    for number, (name, title) in enumerate(titles, start=1):
        shown = name == current
        text.append(f"{number}", style=view.ink.mine if shown else view.ink.muted)
        text.append(f"{' ' * before}{title}{' ' * after}", style=view.ink.strong if shown else view.ink.muted)
    text.truncate(room)
    return text


def draw_playback(view: View) -> Text:
    """The position in a recording: playing or not, speed, bar, events, time."""
    playback, ink, glyphs = view.playback, view.ink, view.glyphs
    assert playback is not None
    started_t, last_t = view.swarm.started_t, view.now
    time = format_elapsed(last_t - started_t) if started_t is not None else "00:00"
    doing = "playing" if playback.playing else "the end" if playback.position == playback.count else "paused"
    left = f"{doing:<7} {playback.speed:g}x "
    right = f" {playback.position:,} of {playback.count:,} {glyphs.dot} {time}"
    room = max(0, room_of(view) - len(left) - len(right))
    full, rest = draw_bar(playback.position / max(1, playback.count), room, glyphs)
    return Text.assemble((left, ink.strong), (full, ink.good), (rest, ink.track), (right, ink.muted))


def draw_keys(view: View, screen: str) -> Text:
    """The keys that matter now, as many as fit, the most important first."""
    text, room = Text(), room_of(view)
    for key in keys_that_matter(view, screen):
        meaning = key.told(view)
        if text.cell_len + len(key.name) + len(meaning) + 3 > room and text:
            break
        text.append(key.name, style=view.ink.strong)
        text.append(f" {meaning}   ", style=view.ink.muted)
    text.rstrip()
    text.truncate(room)
    return text


def _run_line(view: View) -> Text:
    ink = view.ink
    has_begun = any(peer.trains or peer.version for peer in figures.tellers(view.swarm))
    named = figures.run_name(view.swarm) if has_begun else ""  # by its hash nobody knows it
    name = (f"homefires {named}".strip(), ink.strong)
    text = Text.assemble(name, (f"  {rounds_words(view.swarm)}", ink.text))
    if view.mine is not None and not view.mini:
        text.append(f"  {view.glyphs.mark} {view.mine.label}", style=ink.mine)
    return text


def _state_line(view: View) -> Text:
    shown = [shown_state(peer, view) for peer in ([view.mine] if view.mine else view.swarm.peers.values())]
    ended_well = bool(shown) and {state.name for state in shown} <= {"FINISHED", "LEFT"}
    fault = view.ended if view.playback is None and not ended_well else ""
    if fault := fault or (view.silence if view.mine and shown[0].is_here else ""):
        alert: StyledLine = [(f"{view.glyphs.alert} {fault}", view.ink.bad)]
        return Text.assemble(*cut(alert, room_of(view), view.glyphs.ellipsis))
    stalled = view.mine.stalled if view.mine is not None else view.swarm.stalled
    if stalled is not None and (view.mine is None or shown[0].is_here):
        return _stall_line(stalled, view)
    if view.mine is None:
        return _counts_line(view)
    text = state_of(view.mine, view)
    why = why_words(view.swarm, view.mine, view.now)
    text.append(f"  {why}" if why else "", style=view.ink.text)
    until = view.mine.until or view.mine.deadline  # of my state, if it said so, or of the phase of the round
    left = f"{format_elapsed(until - view.now).removeprefix('0')} left" if until and until > view.now else ""
    return _sides(text, Text(left, style=view.ink.muted), view)


def _stall_line(stalled: RoundStalled, view: View) -> Text:
    """The whole reason if it fits; otherwise only the rule and the author of the refused message."""
    room, sign = room_of(view), f"{view.glyphs.alert} "
    whole = len(sign) + len(stalled.why) <= room
    words = stalled.why if whole else stall_brief(stalled, _author(stalled.about, view))
    return Text.assemble(*cut([(f"{sign}{words}", view.ink.bad)], room, view.glyphs.ellipsis))


def _author(peer: str, view: View) -> str:
    """The peer's name and the end of its id."""
    label = view.swarm.label(peer)
    return label if peer.endswith(label) else f"{label} ({peer[-6:]})"


def _counts_line(view: View) -> Text:
    """The number of peers by state: ▒ 3 training  ✗ 1 gone"""
    text = Text()
    counts = Counter(shown_state(peer, view).name for peer in view.swarm.peers.values())
    for state in STATES.values():
        if number := counts[state.name]:
            said = f"{view.glyphs.sign(state)} {number} {state.name.lower()}  "
            text.append(said, style=style_of(state.role, view.ink))
    text.truncate(room_of(view))
    return text or Text(_waited_for(view), style=view.ink.muted)


def _waited_for(view: View) -> str:
    """As whoever watches the run says, or else what is true of any run that begins."""
    if view.swarm.narrator is not None and view.swarm.narrator.why:
        return view.swarm.narrator.why
    return NOBODY_YET if view.playback is not None or view.ended else STARTING


def _sides(left: Text, right: Text, view: View) -> Text:
    """`left` and `right` on one line; if they do not fit, the right side is cut first."""
    room = room_of(view)
    gap = room - left.cell_len - right.cell_len
    if gap < 2:
        left.truncate(room, overflow="ellipsis" if not view.glyphs.ascii else "crop")
        return left
    return Text.assemble(left, " " * gap, right)
