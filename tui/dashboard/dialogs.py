"""A question over the screen, answered with one key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen

from tui.dashboard.view import TextBlock


@dataclass(frozen=True, kw_only=True)
class PromptChoice:
    """One answer: the key that gives it and what it means."""

    key: str
    answer: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A question with its answers; Esc answers nothing."""

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
    """Dismissed with the answer of a choice, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "stay", show=False)]

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

    def on_key(self, event: Key) -> None:
        for choice in self._asked.choices:
            if event.character == choice.key:
                event.stop()
                self.dismiss(choice.answer)
