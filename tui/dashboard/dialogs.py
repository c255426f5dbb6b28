"""A question over the screen, answered with one key."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from tui.dashboard.keys import EVERYWHERE, MY_PEER, RECORDING, bindings, keys_of
from tui.dashboard.styles import phase_style, style_of
from tui.dashboard.view import TextBlock, View
from tui.swarm.phase_styles import PHASES, STATES
from tui.text.explain import PENALTY_PAGES


@dataclass(frozen=True, kw_only=True)
class PromptChoice:
    """One answer: its key, and what it means."""

    key: str
    answer: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A question with its answers; Esc gives no answer."""

    title: str
    choices: tuple[PromptChoice, ...]


QUIT = Prompt(
    title="Detach or leave?",
    choices=(
        PromptChoice(key="q", answer="detach", text="detach: close this screen, training goes on"),
        PromptChoice(key="Q", answer="leave", text="leave: the peer hands over what it has and ends"),
    ),
)

LEAVE = Prompt(
    title="Leave the run?",
    choices=(PromptChoice(key="y", answer="leave", text="leave: the peer hands over what it has and ends"),),
)


class PromptScreen(ModalScreen[str | None]):
    """A dialog that is dismissed with the answer of a choice, or with None."""

    BINDINGS = bindings("prompt")

    def __init__(self, asked: Prompt) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        yield TextBlock(classes="box")

    def on_mount(self) -> None:
        text = Text.assemble((f"{self._asked.title}\n", "bold"))
        for choice in self._asked.choices:
            text.append_text(Text.assemble("\n", (f"{choice.key:>4}", "bold"), f"  {choice.text}"))
        text.append_text(Text.assemble("\n", (" esc", "bold"), "  stay"))
        self.query_one(TextBlock).draw(text)

    def on_key(self, event: events.Key) -> None:
        for choice in self._asked.choices:
            if event.character == choice.key:
                event.stop()
                self.dismiss(choice.answer)


STATES_A_LINE = 4


class Help(ModalScreen[None]):
    BINDINGS = bindings("help")

    def __init__(self, view: View, screen: str, title: str) -> None:
        super().__init__()
        self._text = draw_help(view, screen, title)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box page"):
            yield TextBlock()

    def on_mount(self) -> None:
        self.query_one(TextBlock).draw(self._text)


def draw_help(view: View, screen: str, title: str) -> Text:
    """The help: the keys of this screen with its `title`, of all screens, and of the peer or the recording; then the
    signs."""
    ink = view.ink
    last = (RECORDING, "Recording") if view.playback else (MY_PEER, "Your peer")
    parts = [
        (name, [line for key in keys for line in _entry(view, key.name, ink.good, key.help)])
        for where, name in ((screen, title), (EVERYWHERE, "Everywhere"), last)
        if (keys := keys_of(where))
    ]
    if view.refusal and not view.playback:
        parts[-1][1].append(Text(f"  now off: {view.refusal}", style=ink.warn))
    states = [(f"{view.glyphs.sign(state)} {name:<13}", style_of(state.role, ink)) for name, state in STATES.items()]
    codes = [
        line for code, advice in sorted(PENALTY_PAGES.items()) for line in _entry(view, code, ink.warn, advice.short)
    ]
    parts += [("What a peer does", _side_by_side(states, STATES_A_LINE)), ("Lanes of the rounds", _phases(view))]
    parts += [("Penalties: a contribution counts less", codes)]
    return Text("\n\n").join(Text("\n").join([Text(title, style=ink.strong), *lines]) for title, lines in parts)


PAGE_COLUMNS, AROUND = 84, 9
"""The width of a page (`.page` in the styles, at most 90 % of the screen), and what border, padding and bar take."""
NAME_COLUMNS = 15


def _entry(view: View, name: str, style: str, text: str) -> list[Text]:
    """A name, and beside it what it means, on as many lines as that takes."""
    width = min(PAGE_COLUMNS, 9 * view.width // 10) - AROUND - NAME_COLUMNS
    names = (f"  {name}", *[""] * len(text))
    lines = textwrap.wrap(text, max(20, width))
    return [
        Text.assemble((f"{first:<{NAME_COLUMNS}}", style), (line, view.ink.text))
        for first, line in zip(names, lines, strict=False)
    ]


def _phases(view: View) -> list[Text]:
    """Each sign with all phases that it represents."""
    by_glyph: dict[str, list[str]] = {}
    for name, phase in PHASES.items():
        by_glyph.setdefault(view.glyphs.sign(phase), []).append(name)
    signs = [(f"{glyph} {', '.join(names):<31}", phase_style(names[0], view.ink)) for glyph, names in by_glyph.items()]
    return _side_by_side(signs, 2)


def _side_by_side(pieces: Sequence[tuple[str, str]], many: int) -> list[Text]:
    return [Text.assemble("  ", *pieces[first : first + many]) for first in range(0, len(pieces), many)]
