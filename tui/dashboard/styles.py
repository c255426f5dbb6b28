"""How every screen draws states and the progress of a run."""

from __future__ import annotations

from rich.text import Text

from tui.dashboard.appearance import Palette
from tui.dashboard.view import View
from tui.swarm import figures
from tui.swarm.phase_styles import ShownState, phase
from tui.swarm.snapshot import PeerView


def style_of(role: str, ink: Palette) -> str:
    return str(getattr(ink, role))


def phase_style(name: str, ink: Palette) -> str:
    return style_of(phase(name).role, ink)


def state_of(peer: PeerView, view: View) -> Text:
    """The glyph and the word for what a peer does."""
    state = shown_state(peer, view)
    return Text(f"{view.glyphs.sign(state)} {state.name}", style=style_of(state.role, view.ink))


def shown_state(peer: PeerView, view: View) -> ShownState:
    return figures.state(view.swarm, peer, view.now)


def level_style(level: str, ink: Palette) -> str:
    return {"error": ink.bad, "warning": ink.warn}.get(level, ink.muted)
