"""A question over the screen, answered with one key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen

from tui.dashboard.view import Block


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer: the key that gives it and what it means."""

    key: str
    answer: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with its answers; Esc answers nothing."""

    title: str
    choices: tuple[Choice, ...]


QUIT = Asked(
    title="Detach or leave?",
    choices=(
        Choice(key="q", answer="detach", text="detach: close this screen, training goes on"),
        Choice(key="Q", answer="leave", text="leave: the peer hands over what it has and ends"),
    ),
)

LEAVE = Asked(
    title="Leave the run?",
    choices=(Choice(key="y", answer="leave", text="leave: the peer hands over what it has and ends"),),
)


class Question(ModalScreen[str | None]):
    """Dismissed with the answer of a choice, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "stay", show=False)]

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        yield Block(classes="box")

    def on_mount(self) -> None:
        text = Text.assemble((f"{self._asked.title}\n", "bold"))
        for choice in self._asked.choices:
            text.append_text(Text.assemble("\n", (f"{choice.key:>4}", "bold"), f"  {choice.text}"))
        text.append_text(Text.assemble("\n", (" esc", "bold"), "  stay"))
        self.query_one(Block).draw(text)

    def on_key(self, event: Key) -> None:
        for choice in self._asked.choices:
            if event.character == choice.key:
                event.stop()
                self.dismiss(choice.answer)
